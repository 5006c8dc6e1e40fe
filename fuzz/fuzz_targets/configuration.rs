//! See `fuzz::files::configuration`.
//! Evidence for B3, B7.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::files::configuration(bytes));
