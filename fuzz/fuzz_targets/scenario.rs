//! See `fuzz::worlds::scenario`.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: fuzz::worlds::prepare(),
    |bytes: &[u8]| fuzz::worlds::scenario(bytes)
);
