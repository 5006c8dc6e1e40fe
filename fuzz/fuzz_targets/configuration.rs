//! See `fuzz::files::configuration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::files::configuration(bytes));
