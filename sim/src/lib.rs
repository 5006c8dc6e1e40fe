//! Deterministic simulation of the unchanged harness: one number, the seed, decides all.

pub mod alerting;
pub mod broker;
pub mod checkers;
pub mod coverage;
pub mod database;
pub mod history;
pub mod jobs;
pub mod link;
pub mod picture;
pub mod plan;
pub mod scenario;
pub mod script;
pub mod shrink;
pub mod timeline;
pub mod world;
