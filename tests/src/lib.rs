//! Support for tests on the real thing: a database per test, worker processes that can be killed at any port call, and
//! waiting on conditions that say what never came true.

// Panicking is how a test fails.
#![allow(clippy::expect_used, clippy::panic, clippy::missing_panics_doc)]

pub mod award;
pub mod clock;
pub mod conformance;
pub mod db;
pub mod demo;
pub mod faults;
pub mod nats;
pub mod rig;
pub mod tokens;
pub mod watch;
pub mod wire;
pub mod worker;
