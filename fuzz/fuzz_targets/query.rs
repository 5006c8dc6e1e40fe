//! See `fuzz::http::query`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::http::query(bytes));
