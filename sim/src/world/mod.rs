//! One world: hosts, network, faults, and time that is skipped when nothing is under way.

mod driver;
mod hosts;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use harness::{ConsumerConfig, ConsumerName, Env, FencePolicy, QueueName, RetryPolicy, Shutdown};

use self::driver::Driver;
use crate::broker::{Broker, SimQueue};
use crate::checkers::{Checkers, Violation};
use crate::database::{Database, SimStore};
use crate::history::{Entry, History, Log, LoggedEntropy};
use crate::link::Post;
use crate::plan::Plan;
use crate::timeline::{Owner, SimClock, Timeline};

/// Time passes in these steps while something is under way.
const TICK: Duration = Duration::from_millis(10);

/// The least that a message takes.
const LATENCY_LEAST: Duration = Duration::from_millis(1);

const WORKERS: [&str; 3] = ["worker0", "worker1", "worker2"];

/// What a run left.
pub struct Ran {
    /// Everything that happened.
    pub entries: Vec<Entry>,
    /// Broken invariants.
    pub violations: Vec<Violation>,
    /// Names of all invariants that were checked.
    pub checked: Vec<&'static str>,
    /// Simulated time.
    pub simulated: Duration,
    /// Steps taken.
    pub steps: u64,
}

/// How to run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Write every message, draw and look at a clock down.
    pub detailed: bool,
}

/// What every host is given.
#[derive(Clone)]
struct Shared {
    plan: Arc<Plan>,
    timeline: Timeline,
    history: History,
    post: Post,
    clocks: Arc<BTreeMap<&'static str, SimClock>>,
    /// Starts of processes: a process that comes back must not repeat its randomness.
    starts: Arc<AtomicU64>,
    /// What tells a worker to shut down.
    shutdowns: Arc<Mutex<BTreeMap<&'static str, Shutdown>>>,
    /// Jobs that ran before.
    ran: crate::jobs::Ran,
    /// The broker took every copy of every job.
    all_published: Arc<AtomicBool>,
}

impl Shared {
    fn log(&self, host: &'static str) -> Log {
        Log::new(self.history.clone(), self.timeline.clone(), host)
    }

    fn clock(&self, host: &'static str) -> SimClock {
        self.clocks.get(host).cloned().unwrap_or_else(|| {
            SimClock::new(
                self.timeline.clone(),
                crate::timeline::WORLD,
                self.log(host),
            )
        })
    }

    fn env(&self, host: &'static str) -> Env {
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        let entropy = LoggedEntropy::new(self.seed(100 + start), self.log(host));
        Env {
            clock: Arc::new(self.clock(host)),
            entropy: Arc::new(entropy),
            observer: Arc::new(self.log(host)),
        }
    }

    /// A seed of its own for everything that draws.
    fn seed(&self, number: u64) -> u64 {
        self.plan
            .seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn store(&self, host: &'static str) -> SimStore {
        SimStore::new(
            self.post.clone(),
            self.log(host),
            Duration::from_millis(self.plan.knobs.fence_wait_ms),
        )
    }

    fn queue(&self, host: &'static str) -> SimQueue {
        SimQueue::new(self.post.clone(), self.log(host))
    }

    fn shutdown_of(&self, host: &str) -> Option<Shutdown> {
        let shutdowns = self.shutdowns.lock();
        let shutdowns = shutdowns.unwrap_or_else(PoisonError::into_inner);
        shutdowns.get(host).cloned()
    }

    fn register(&self, host: &'static str, shutdown: Shutdown) {
        let shutdowns = self.shutdowns.lock();
        let mut shutdowns = shutdowns.unwrap_or_else(PoisonError::into_inner);
        shutdowns.insert(host, shutdown);
    }
}

/// The retry policy of a plan.
///
/// # Errors
/// When the harness would refuse it.
pub fn retry_policy(plan: &Plan) -> anyhow::Result<RetryPolicy> {
    let knobs = &plan.knobs;
    let standard = RetryPolicy::default();
    let (base, cap) = (
        Duration::from_secs(knobs.retry_base_s),
        Duration::from_secs(knobs.retry_cap_s),
    );
    if (knobs.retries + 1, base, cap)
        == (
            standard.max_runs(),
            standard.shortest_wait(1),
            standard.shortest_wait(32),
        )
    {
        return Ok(standard);
    }
    RetryPolicy::overriding(base, cap, knobs.retries, "the simulation tries others too")
        .context("knobs.retry")
}

/// The consumer's settings in a plan.
///
/// # Errors
/// When the harness would refuse to start with them.
pub fn config(plan: &Plan) -> anyhow::Result<ConsumerConfig> {
    let knobs = &plan.knobs;
    let mut config = ConsumerConfig::new(consumer()?, queue()?);
    config.concurrency = knobs.concurrency;
    config.prefetch = knobs.prefetch;
    config.batch = knobs.batch;
    config.lease = Duration::from_secs(knobs.lease_s);
    config.run_deadline = Duration::from_secs(knobs.run_deadline_s);
    config.poll_interval = Duration::from_secs(knobs.poll_interval_s);
    config.outage_backoff_cap = Duration::from_secs(knobs.outage_backoff_cap_s);
    config.retry = retry_policy(plan)?;
    let window = FencePolicy::retry_window(&config.retry, config.run_deadline);
    let seconds =
        knobs.broker_retention_s + knobs.resend_horizon_s + knobs.margin_s + knobs.ttl_extra_s;
    config.fence = FencePolicy {
        ttl: window + Duration::from_secs(seconds),
        broker_retention: Duration::from_secs(knobs.broker_retention_s),
        resend_horizon: Duration::from_secs(knobs.resend_horizon_s),
        margin: Duration::from_secs(knobs.margin_s),
    };
    config.check().context("knobs")?;
    Ok(config)
}

/// The longest that one generation of a job takes from its delivery to its outcome, when nothing is wrong.
fn generation(plan: &Plan) -> anyhow::Result<Duration> {
    let (knobs, config) = (&plan.knobs, config(plan)?);
    let run = Duration::from_secs(knobs.run_deadline_s + knobs.poll_interval_s + knobs.lease_s);
    Ok(config.retry.longest_waits() + run * config.retry.max_runs())
}

/// When the operators have decided whatever they want to decide: until then new work may come from them.
fn review_until(plan: &Plan) -> anyhow::Result<Duration> {
    let interval = Duration::from_secs(plan.knobs.review_interval_s);
    Ok(plan.ends_at() + generation(plan)? + interval * 3)
}

/// The longest that a message takes, if nothing is wrong.
fn latency(plan: &Plan) -> Duration {
    Duration::from_millis(plan.knobs.latency_ms).max(LATENCY_LEAST)
}

/// The only queue.
///
/// # Errors
/// Never: its name is one.
pub fn queue() -> anyhow::Result<QueueName> {
    Ok(QueueName::new("points")?)
}

/// The only consumer.
///
/// # Errors
/// Never: its name is one.
pub fn consumer() -> anyhow::Result<ConsumerName> {
    Ok(ConsumerName::new("awards")?)
}

/// All hosts of a plan's world.
pub fn hosts(plan: &Plan) -> Vec<&'static str> {
    let workers = WORKERS.into_iter().take(plan.knobs.workers);
    ["producer", "broker"]
        .into_iter()
        .chain(workers)
        .chain(["database", "clerk", "alerts"])
        .collect()
}

/// Runs a plan until everything settled, or a safety invariant is broken.
///
/// # Errors
/// When the plan cannot be run, or the world itself breaks: a mistake of the simulation, or a panic of a host's task.
pub fn run(plan: &Plan, options: Options) -> anyhow::Result<Ran> {
    plan.check()?;
    let timeline = Timeline::default();
    let history = History::new(options.detailed);
    let log = |host| Log::new(history.clone(), timeline.clone(), host);
    let clocks = (1..)
        .zip(hosts(plan))
        .map(|(owner, host)| {
            (
                host,
                SimClock::new(timeline.clone(), Owner(owner), log(host)),
            )
        })
        .collect();
    let shared = Shared {
        plan: Arc::new(plan.clone()),
        timeline: timeline.clone(),
        history: history.clone(),
        post: Post::new(timeline.clone(), plan.seed.rotate_left(32)),
        clocks: Arc::new(clocks),
        starts: Arc::default(),
        shutdowns: Arc::default(),
        ran: crate::jobs::Ran::default(),
        all_published: Arc::default(),
    };
    let broker = Broker::new(timeline.clone(), log("broker"), shared.seed(1), &plan.knobs);
    let database = Database::new(
        timeline.clone(),
        log("database"),
        broker.clone(),
        shared.seed(3),
        &plan.knobs,
    );

    let mut sim = turmoil::Builder::new()
        .epoch(std::time::UNIX_EPOCH)
        .rng_seed(plan.seed)
        .tick_duration(TICK)
        .min_message_latency(LATENCY_LEAST)
        .max_message_latency(latency(plan))
        .enable_random_order()
        .simulation_duration(Duration::from_secs(u64::from(u32::MAX)))
        .ephemeral_ports(1_024..=65_535)
        .tcp_capacity(4_096)
        .build();
    hosts::populate(&mut sim, &shared, &database, &broker);

    let mut checkers = Checkers::new(plan)?;
    let mut driver = Driver::new(sim, shared, database, broker);
    driver.drive(&mut checkers)?;
    let steps = driver.steps();
    drop(driver);
    let checked = checkers.names();
    let violations = checkers.end();
    Ok(Ran {
        entries: history.take(),
        violations,
        checked,
        simulated: timeline.now(),
        steps,
    })
}

/// Refuses to run where a seed would not decide everything.
///
/// # Errors
/// When this program was built without `--cfg tokio_unstable`.
pub fn check_build() -> anyhow::Result<()> {
    cfg!(tokio_unstable)
        .then_some(())
        .context("built without --cfg tokio_unstable: panics of tasks would be swallowed; see .cargo/config.toml")
}
