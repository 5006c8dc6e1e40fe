//! Telling people about new dead letters (B4, S9).

#[cfg(feature = "better-stack")]
pub mod better_stack;
pub mod pump;
