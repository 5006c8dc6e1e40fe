//! Does the simulated store do what PostgreSQL does? Scripts of what several clients do, step by step, are run on both: they must
//! say the same, wait for each other at the same places, fail in the same way, and leave the same rows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod broken;
mod compare;
mod generate;
mod kept;
mod machine;
mod random;
mod real;
mod script;
mod shrink;
mod side;
mod simulated;
