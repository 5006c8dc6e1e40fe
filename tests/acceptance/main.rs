//! A1..A8 and B1..B9 on a real PostgreSQL. Test names carry the clause that they give evidence for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod a1_one_effect;
mod a2_crash;
mod a2_lost_connection;
mod a3_retry;
