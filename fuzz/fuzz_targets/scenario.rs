//! See `fuzz::worlds::scenario`.
//! Evidence for S1, S2, S3, S4, S5, S6, S7, S8, S9, S10, S11, S12, L1.
#![no_main]

libfuzzer_sys::fuzz_target!(
    init: fuzz::worlds::prepare(),
    |bytes: &[u8]| fuzz::worlds::scenario(bytes)
);
