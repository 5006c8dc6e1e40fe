//! A1..A8 and B1..B9 on a real PostgreSQL. Test names carry the clause that they give evidence for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod a1_one_effect;
mod a2_crash;
mod a2_lost_connection;
mod a3_retry;
mod a4_poison;
mod a5_one_outcome;
mod a5_replay;
mod a6_sweep;
mod a7_discard;
mod a8_no_success_rows;
mod b1_batches;
mod b3_uncounted;
mod b4_alerts;
mod b4_escalation;
mod b4_heartbeat;
mod b4_records;
mod b4_resolve;
mod b4_upgrade;
mod b6_b8_access;
mod b6_b8_api;
mod b6_b8_browsers;
mod b6_b8_jwt;
mod b6_trace;
mod b7_start_up;
mod b8_lists;
mod demo;
mod jetstream;
mod model_ways;
mod pumping;
mod replaying;
