//! A consumer in a process of its own.

use acceptance::worker::{WorkerArgs, process};
use clap::Parser;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    process::run(WorkerArgs::parse()).await
}
