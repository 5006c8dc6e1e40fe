//! Every implementation of a port under the one suite, and the suite under implementations with mistakes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod flawed;
mod jetstream;
mod jetstream_setup;
mod real;
mod simulated;
