//! How fast jobs are done, beside others on the same PostgreSQL, in one run: pgbench with the same statements and as many
//! clients, and the same consumer without its fence. What is told is ratios of medians; the rounds are kept as they were.

mod measured;
mod ours;
mod pgbench;
mod report;
mod setting;
mod unfenced;

use clap::Parser;

use self::measured::Measured;
use self::ours::Fence;
use self::report::Report;
use self::setting::Setting;

/// How fast jobs are done, beside pgbench and beside a consumer without a fence.
#[derive(Debug, Clone, Parser)]
#[command(name = "jobs")]
struct Args {
    /// Jobs of a measurement.
    #[arg(long, default_value_t = 8_000)]
    jobs: u32,
    /// Handlers that run at once, and clients of pgbench.
    #[arg(long, value_delimiter = ',', default_value = "1,8")]
    clients: Vec<u32>,
    /// Percent of the messages that are copies of others; only for the consumer.
    #[arg(long, value_delimiter = ',', default_value = "10,50")]
    duplicates: Vec<u32>,
    /// Measurements of each kind, taken in turn.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// `cargo bench` says this.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let setting = Setting::new().await?;
    let mut report = Report::new(&args, &setting).await?;
    for round in 1..=args.rounds {
        for clients in args.clients.iter().copied() {
            eprintln!("round {round} of {}, {clients} clients", args.rounds);
            for (kind, measured) in round_of(&args, &setting, clients).await? {
                report.add(kind, clients, measured);
            }
        }
    }
    report.write()
}

async fn round_of(
    args: &Args,
    setting: &Setting,
    clients: u32,
) -> anyhow::Result<Vec<(String, Measured)>> {
    let mut round = Vec::new();
    let jobs = args.jobs;
    let effects = setting.fill(jobs, 0).await?;
    let measured = ours::measure(setting, Fence::On, clients, jobs).await?;
    setting.check(effects).await?;
    round.push(("consumer".to_owned(), measured));
    let effects = setting.fill(jobs, 0).await?;
    let measured = ours::measure(setting, Fence::Off, clients, jobs).await?;
    setting.check(effects).await?;
    round.push(("consumer without fence".to_owned(), measured));
    for protocol in pgbench::PROTOCOLS {
        let effects = setting.fill(jobs / clients * clients, 0).await?;
        let measured = pgbench::measure(setting, protocol, clients, jobs).await?;
        setting.check(effects).await?;
        round.push((format!("pgbench, {protocol} protocol"), measured));
    }
    for percent in args.duplicates.iter().copied() {
        let effects = setting.fill(jobs, percent).await?;
        let measured = ours::measure(setting, Fence::On, clients, jobs).await?;
        setting.check(effects).await?;
        round.push((format!("consumer, {percent} % duplicates"), measured));
    }
    Ok(round)
}
