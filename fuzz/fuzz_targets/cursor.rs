//! See `fuzz::http::cursor`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http::cursor(bytes));
