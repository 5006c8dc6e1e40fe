//! See `fuzz::files::plan`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::files::plan(bytes));
