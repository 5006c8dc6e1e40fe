//! See `fuzz::messages::payload`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::messages::payload(bytes));
