//! See `fuzz::messages::payload`.
//! Evidence for A4, B5.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::messages::payload(bytes));
