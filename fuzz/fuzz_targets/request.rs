//! See `fuzz::http::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http::request(bytes));
