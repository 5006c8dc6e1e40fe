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
    /// Jobs in one transaction; 0 leaves batches out.
    #[arg(long, default_value_t = 100)]
    batch: u32,
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
            // Every client of pgbench does as many.
            let jobs = args.jobs / clients * clients;
            for (kind, subject) in Subject::all(&args) {
                let measured = subject.measure(&setting, clients, jobs).await?;
                report.add(kind, clients, measured);
            }
        }
    }
    report.write()
}

/// What is measured.
enum Subject {
    /// The consumer, with or without its fence, and how many percent of its messages are copies.
    Consumer(Fence, u32),
    /// The consumer with so many jobs in a transaction.
    Batches(u32),
    /// pgbench, by protocol.
    Pgbench(&'static str),
    /// pgbench with so many jobs in a transaction.
    PgbenchBatches(u32),
}

impl Subject {
    fn all(args: &Args) -> Vec<(String, Self)> {
        let mut all = vec![
            ("consumer".to_owned(), Self::Consumer(Fence::On, 0)),
            (
                "consumer without fence".to_owned(),
                Self::Consumer(Fence::Off, 0),
            ),
        ];
        all.extend(pgbench::PROTOCOLS.map(|protocol| {
            let kind = format!("pgbench, {protocol} protocol");
            (kind, Self::Pgbench(protocol))
        }));
        all.extend(args.duplicates.iter().map(|percent| {
            let kind = format!("consumer, {percent} % duplicates");
            (kind, Self::Consumer(Fence::On, *percent))
        }));
        if args.batch > 0 {
            let ours = format!("consumer, batches of {}", args.batch);
            let theirs = format!("pgbench, batches of {}", args.batch);
            all.push((ours, Self::Batches(args.batch)));
            all.push((theirs, Self::PgbenchBatches(args.batch)));
        }
        all
    }

    /// From the same beginning, and only if it ended as it must.
    async fn measure(
        &self,
        setting: &Setting,
        clients: u32,
        jobs: u32,
    ) -> anyhow::Result<Measured> {
        let (effects, measured) = match self {
            Self::Consumer(fence, duplicates) => (
                setting.fill(jobs, *duplicates).await?,
                ours::measure(setting, *fence, 1, clients, jobs).await?,
            ),
            Self::Batches(batch) => (
                setting.fill(jobs, 0).await?,
                ours::measure(setting, Fence::On, *batch, clients, jobs).await?,
            ),
            Self::PgbenchBatches(batch) => {
                // Every client does as many batches.
                let jobs = jobs / (clients * batch) * clients * batch;
                (
                    setting.fill(jobs, 0).await?,
                    pgbench::measure_batches(setting, *batch, clients, jobs).await?,
                )
            }
            Self::Pgbench(protocol) => (
                setting.fill(jobs, 0).await?,
                pgbench::measure(setting, protocol, clients, jobs).await?,
            ),
        };
        setting.check(effects).await?;
        Ok(measured)
    }
}
