//! See `fuzz::http::request`.
//! Evidence for A7, B8.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http::request(bytes));
