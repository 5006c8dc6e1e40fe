//! See `fuzz::http::cursor`.
//! Evidence for B8.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http::cursor(bytes));
