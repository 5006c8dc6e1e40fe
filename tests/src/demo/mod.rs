//! The demo: real jobs from a real queue on a real PostgreSQL, in several worker processes, one of which is killed.

mod expect;
mod input;
mod report;
mod workers;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use harness::{Clock as _, SystemClock};
use indicatif::{ProgressBar, ProgressStyle};

use self::expect::Expectation;
use self::report::Report;
use self::workers::Workers;
use crate::db::{Db, queue_name};
use crate::worker::WorkerArgs;

/// Waits of the standard policy are divided by this, unless `--real-time` is given.
const SHORTENED: u64 = 300;

/// Runs jobs through worker processes, kills one of them in the middle, and compares the ledger with what was due.
#[derive(Debug, Parser)]
#[command(
    name = "demo",
    after_help = "A line of --input is a job such as\n  \
        {\"job_id\": \"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01\", \"payload\": {\"account\": \"ada\", \"points\": 10}}\n\
        with optional \"tenant_id\", \"correlation_id\", and in the payload \"then\": {\"fail_runs\": 2}, \"fail_hard\",\n\
        {\"panic_runs\": 1}, {\"kill_runs\": 1} or {\"sleep\": 50}. Any other line ends as a dead letter.\n\n\
        PostgreSQL is taken from DATABASE_URL (a database of its own is created there, and dropped again without --keep), from local\n\
        binaries, or from Docker.\n\n\
        Exit code: 0 if the ledger is right, 1 if it is not, 2 for bad arguments or input, 3 if the demo could not run."
)]
pub struct DemoArgs {
    /// Jobs to run, one JSON object a line; - is standard input. Generated if not given.
    #[arg(long, value_name = "FILE", conflicts_with = "jobs")]
    input: Option<PathBuf>,
    /// How many jobs to generate.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    jobs: u32,
    /// How many worker processes to run.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// What decides about the generated jobs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keep the real waits (30 s to 8 min, half an hour in all) instead of shortening them 300 times.
    #[arg(long)]
    real_time: bool,
    /// Keep the database, to practise on its dead letters, and say where it is. Needs DATABASE_URL: a server of the demo's own
    /// goes away with it.
    #[arg(long)]
    keep: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// How to print the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

/// Bad input: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(String);

/// The first argument that makes the demo's own program a worker process.
pub const AS_WORKER: &str = "as-worker";

/// Runs the demo; true if the ledger is right. `program` is the demo's own, which is also run as workers.
///
/// # Errors
/// When the demo could not run to its end.
pub async fn run(args: &DemoArgs, program: &Path) -> anyhow::Result<bool> {
    if args.keep && std::env::var_os("DATABASE_URL").is_none_or(|url| url.is_empty()) {
        let problem = "--keep: set DATABASE_URL to a server that stays, such as postgres://postgres@localhost/postgres";
        return Err(BadInput(problem.to_owned()).into());
    }
    let lines = match &args.input {
        Some(path) => input::read(path)?,
        None => input::generate(args.jobs, args.seed),
    };
    let expectation = Expectation::of(&queue_name(), &lines);
    let db = Db::try_fresh().await?;
    publish(&db, &lines).await?;

    let mut worker_args = WorkerArgs::new(db.url());
    worker_args.report = true;
    worker_args.run_deadline_ms = 60_000;
    if !args.real_time {
        worker_args.retry_base_ms = 30_000 / SHORTENED;
    }
    let mut workers = Workers::start(&worker_args, program, args.workers)?;
    let killed = watch(&db, &mut workers, lines.len() as u64).await?;
    let steps = workers.stop().await?;

    let report = Report::make(&db, &lines, &expectation, steps, killed).await?;
    report.print(args)?;
    if args.keep {
        eprintln!("\nThe database stays:\nexport DATABASE_URL={}", db.keep());
    }
    Ok(report.is_right())
}

async fn publish(db: &Db, lines: &[input::Line]) -> anyhow::Result<()> {
    let queue = db.queue().await;
    let bar = progress("publishing", lines.len() as u64)?;
    let mut transaction = db.pool.begin().await?;
    for line in lines {
        queue
            .publish_wire(
                &mut *transaction,
                &queue_name(),
                line.headers.clone(),
                &line.body,
            )
            .await
            .context("cannot publish")?;
        bar.inc(1);
    }
    transaction.commit().await?;
    bar.finish_and_clear();
    Ok(())
}

/// Waits until the queue is empty; kills a worker when half of the messages are gone. Answers how many were killed.
async fn watch(db: &Db, workers: &mut Workers, messages: u64) -> anyhow::Result<u32> {
    let clock = SystemClock::new();
    let bar = progress("working", messages)?;
    let mut killed = 0;
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM pgmq.q_points")
            .fetch_one(&db.pool)
            .await?;
        let left = u64::try_from(left).unwrap_or(0);
        bar.set_position(messages.saturating_sub(left));
        if left == 0 {
            bar.finish_and_clear();
            return Ok(killed);
        }
        if killed == 0 && left <= messages / 2 {
            workers.kill_one().await?;
            killed = 1;
            // Also where there is no terminal, and so no bar.
            bar.suspend(|| eprintln!("killed a worker with SIGKILL, and started it again"));
        }
        // A worker that a job killed is started again, as an orchestrator would.
        workers.revive()?;
        tokio::select! {
            _ = &mut interrupted => anyhow::bail!("interrupted"),
            () = clock.sleep(Duration::from_millis(20)) => {}
        }
    }
}

fn progress(what: &'static str, length: u64) -> anyhow::Result<ProgressBar> {
    let bar = ProgressBar::new(length);
    bar.set_style(ProgressStyle::with_template(
        "{msg:10} {wide_bar} {pos}/{len} {elapsed}",
    )?);
    bar.set_message(what);
    Ok(bar)
}
