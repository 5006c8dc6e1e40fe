//! The narrow traits through which the harness meets the world. The same harness code runs on PostgreSQL and a broker
//! and inside a simulation, because everything that differs between the two is behind one of these.

pub mod alerter;
pub mod clock;
pub mod entropy;
pub mod env;
pub mod meter;
pub mod queue;
pub mod store;
