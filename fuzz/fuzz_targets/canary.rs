//! Must crash, or fuzzing proves nothing: only a fuzzer that learns from coverage spells this word in time, and it matters
//! only where debug assertions are on.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let spelled = matches!(bytes, [b'c', b'a', b'n', b'a', b'r', b'y', ..]);
    debug_assert!(!spelled, "the canary sings");
});
