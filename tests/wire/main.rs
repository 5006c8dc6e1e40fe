//! Faults on the real thing, below the ports: on the wire between the harness and PostgreSQL, in processes, in the server,
//! and on its disk. Afterwards the ledger must be exact.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod disk;
mod every_message;
mod failover;
mod from_a_seed;
mod jetstream;
mod ledger;
mod pooler;
mod processes;
mod server;
