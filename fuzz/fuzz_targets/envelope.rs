//! See `fuzz::messages::envelope`.
//! Evidence for A4, B5, B6.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::messages::envelope(bytes));
