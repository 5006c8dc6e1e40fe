//! How the table of fences grows, and how fast it is swept: bytes per row, rows per second by size of batch, and what VACUUM
//! gives back. The rows are as the harness leaves them: in the order of time, with ids in no order or in that of time.

mod measured;
mod report;
mod setting;

use std::sync::Arc;

use acceptance::db::queue_name;
use clap::{Parser, ValueEnum};
use harness::{
    Clock as _, ConsumerConfig, ConsumerName, Env, SweepTarget, Sweeper, SweeperConfig, SystemClock,
};

use self::measured::{Phase, Speeds, Vacuum};
use self::report::Report;
use self::setting::Setting;

/// How the table of fences grows, and how fast it is swept.
#[derive(Debug, Clone, Parser)]
#[command(name = "fences")]
struct Args {
    /// Rows of the table; all of them are expired.
    #[arg(long, default_value_t = 200_000)]
    rows: u32,
    /// Rows per transaction of the sweep; each size sweeps a consumer of its own, so they share the rows.
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,20000")]
    batches: Vec<u32>,
    /// Ids of the jobs.
    #[arg(long, value_enum, default_value_t = Ids::Random)]
    ids: Ids,
    /// `cargo bench` says this.
    #[arg(long, hide = true)]
    bench: bool,
}

/// In which order ids come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Ids {
    /// In none, as UUIDv4 and `JobId::from_key`.
    Random,
    /// In the order of time, as UUIDv7.
    Ordered,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    anyhow::ensure!(
        !args.batches.is_empty() && args.batches.iter().all(|it| *it > 0),
        "--batches: sizes of at least 1, such as 1000,5000"
    );
    let consumers = u32::try_from(args.batches.len())?;
    anyhow::ensure!(
        args.rows >= consumers * 1_000,
        "--rows: at least 1000 for each of the {consumers} sizes of batches"
    );
    let setting = Setting::new(args.ids).await?;
    let mut report = Report::new(&args, &setting).await?;
    let rows = args.rows / consumers * consumers;
    let clock = SystemClock::new();
    setting.fill(rows, consumers).await?;
    report.filled(rows, clock.elapsed(), setting.sizes().await?);
    for (n, batch) in args.batches.iter().copied().enumerate() {
        let phase = sweep(&setting, setting::consumer(n)?, batch, rows / consumers).await?;
        report.swept(phase);
    }
    // Pages of an index that one VACUUM empties are free for others after the next.
    setting.vacuum_at_the_pace_of_autovacuum().await?;
    // What was given back is room for new rows: as many again, and the files are as they were, or not.
    setting.fill(rows, consumers).await?;
    report.refilled(setting.sizes().await?);
    report.write()
}

/// Sweeps one consumer with the harness's own sweeper, then cleans up behind it.
async fn sweep(
    setting: &Setting,
    consumer: ConsumerName,
    batch: u32,
    rows: u32,
) -> anyhow::Result<Phase> {
    eprintln!("sweeping {rows} rows, {batch} at a time");
    let speeds = Arc::new(Speeds::new());
    let observer: Arc<dyn harness::Observer> = Arc::clone(&speeds) as _;
    let target = SweepTarget::of(&ConsumerConfig::new(consumer, queue_name()));
    let mut config = SweeperConfig::new(vec![target]);
    config.batch = batch;
    let env = Env::system()?.observed_by(observer);
    let sweeper = Sweeper::new(config, setting.store()?, setting.queue().await, env);
    speeds.begin();
    let swept = sweeper.round().await;
    let (overall, first, last) = speeds.per_second(rows);
    anyhow::ensure!(
        swept.failures.is_empty() && swept.rows == u64::from(rows),
        "not all of {rows} rows were swept: {swept:?}"
    );
    let dead = setting.dead_rows(rows).await;
    let clock = SystemClock::new();
    setting.vacuum_at_the_pace_of_autovacuum().await?;
    let vacuum = Vacuum {
        dead_before: dead,
        seconds: clock.elapsed().as_secs_f64(),
        dead_after: setting.dead_rows(0).await,
        sizes: setting.sizes().await?,
    };
    Ok(Phase {
        batch,
        rows,
        rows_per_second: overall,
        first_tenth_per_second: first,
        last_tenth_per_second: last,
        vacuum,
    })
}
