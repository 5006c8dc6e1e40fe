//! What a worker process does.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::WorkerArgs;
use crate::award::Awards;
use crate::db::{queue_at, queue_name};
use crate::faults::{Fault, Faulty, ForStore, Plan, Point};
use crate::nats;
use harness::{
    Consumer, ConsumerConfig, ConsumerName, Env, Event, FenceVerdict, Handler, Observer, PgStore,
    PgStoreConfig, QueuePort, RetryPolicy, Shutdown, Step, Store, Telemetry,
};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a worker until it gets SIGTERM or its standard input is closed. Does not return when all went well.
///
/// # Errors
/// When the arguments cannot work.
pub async fn run(args: WorkerArgs) -> anyhow::Result<()> {
    // Quiet, unless RUST_LOG asks: a demo fails thousands of jobs on purpose.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    // A job that is told to panic need not tell the terminal.
    std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "panicked")));

    let mut config = ConsumerConfig::new(ConsumerName::new(&args.consumer)?, queue_name());
    config.concurrency = args.concurrency;
    config.batch = args.batch;
    config.lease = args.lease();
    config.run_deadline = Duration::from_millis(args.run_deadline_ms);
    config.grace = Duration::from_millis(args.grace_ms);
    config.poll_interval = Duration::from_millis(20);
    let base = Duration::from_millis(args.retry_base_ms);
    if base != Duration::from_secs(30) {
        // Everything that waits is shortened alike.
        let factor = base.as_secs_f64() / 30.0;
        config.retry = RetryPolicy::overriding(
            base,
            base.saturating_mul(120),
            5,
            "a shortened run for people and tests",
        )?;
        config.busy_delay = config
            .busy_delay
            .mul_f64(factor)
            .max(Duration::from_millis(20));
        config.defer_delay = config
            .defer_delay
            .mul_f64(factor)
            .max(Duration::from_millis(20));
    }
    let plan = plan(args.kill_at, args.stop_at, args.kill_nth);
    let connections = u32::try_from(args.concurrency)? + 2;
    let store = PgStore::new(
        &args.url,
        PgStoreConfig {
            max_connections: connections,
            ..PgStoreConfig::default()
        },
    )?;
    let env = if args.report {
        Env::system()?.observed_by(Arc::new(Reporter))
    } else {
        Env::system()?
    };
    let store = Faulty::new(store, Arc::clone(&plan));
    let handler = ForStore::<PgStore, _>::new(Awards {
        consumer: args.consumer,
    });
    let handler = Faulty::new(handler, Arc::clone(&plan));
    if let Some(nats) = args.nats {
        let queue = Faulty::new(nats::queue(&[nats], 1).await?, plan);
        until_told(Consumer::new(config, store, queue, handler, env)?).await
    } else {
        let queue = Faulty::new(queue_at(&args.url).await, plan);
        until_told(Consumer::new(config, store, queue, handler, env)?).await
    }
}

/// Runs until we get SIGTERM, or whoever started us is gone.
async fn until_told<S: Store, Q: QueuePort, H: Handler<S>>(
    consumer: Consumer<S, Q, H>,
) -> anyhow::Result<()> {
    let shutdown = Shutdown::new();
    let running = consumer.run(shutdown.clone());
    tokio::pin!(running);
    let mut terminated = signal(SignalKind::terminate())?;
    let mut stdin = tokio::io::stdin();
    let mut byte = [0];
    tokio::select! {
        _ = &mut running => std::process::exit(0),
        _ = terminated.recv() => {}
        // Whoever started us is gone, or wants us to go.
        _ = stdin.read(&mut byte) => {}
    }
    shutdown.begin();
    running.await;
    // The thread that reads standard input would keep the runtime from ending.
    std::process::exit(0);
}

/// Writes steps as they happen, so that a kill loses none of them.
struct Reporter;

impl Observer for Reporter {
    fn event(&self, event: &Event) {
        Telemetry.event(event);
        let name = match &event.step {
            Step::Received { .. } => "received",
            Step::Committed => "applied",
            Step::Fence {
                verdict: FenceVerdict::Duplicate,
                ..
            }
            | Step::DeadLetterApplied => "duplicate",
            Step::Retried { .. } => "retried",
            Step::Deferred { .. } => "deferred",
            _ => return,
        };
        // Whoever started us may be gone; that is no reason to stop in the middle of a job.
        let _ = writeln!(std::io::stdout().lock(), "{name}");
    }
}

fn plan(kill_at: Option<Point>, stop_at: Option<Point>, nth: u32) -> Plan {
    let (seen, stops) = (AtomicU32::new(0), AtomicU32::new(0));
    Arc::new(move |point| {
        if Some(point) == kill_at && seen.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            return Fault::Kill;
        }
        if Some(point) == stop_at && stops.fetch_add(1, Ordering::SeqCst) == 0 {
            return Fault::Stop;
        }
        Fault::None
    })
}
