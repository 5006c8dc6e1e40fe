//! A TCP proxy between the harness and PostgreSQL that knows where one protocol message ends and the next begins, and does
//! harm at a chosen one: faults that no decorator around a port can make, because the port's own code is on the wire.

mod frames;
mod proxy;

pub use proxy::{Harm, Plan, Proxy, SILENCE, Seen, Way};
