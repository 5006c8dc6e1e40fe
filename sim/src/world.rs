//! One world: hosts, network, faults, and time that is skipped when nothing is under way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use chrono::TimeDelta;
use harness::{
    AlertPump, AlertPumpConfig, Consumer, ConsumerConfig, ConsumerName, DiscardReason, Entropy,
    Env, Envelope, FencePolicy, JobId, Message, OutsidePublisher, QueueName, RetryPolicy,
    ReviewStore as _, Reviewer, SeededEntropy, Shutdown, Status, SweepTarget, Sweeper,
    SweeperConfig,
};
use turmoil::Sim;
use uuid::Uuid;

use crate::alerting::{self, AlertService, SimAlerter};
use crate::broker::{self, Broker, SimQueue};
use crate::database::{self, Database, SimStore};
use crate::history::{Fact, History, Recorder, Said};
use crate::jobs::{SimHandler, body};
use crate::link::Post;
use crate::plan::{Behaviour, FaultKind, JobPlan, Plan};
use crate::timeline::{SimClock, Timeline};

/// Time passes in these steps while something is under way.
const TICK: Duration = Duration::from_millis(5);

/// After the last fault everything must settle within this.
pub const SETTLE_WITHIN: Duration = Duration::from_secs(4 * 3_600);

/// A world that takes more steps than this is stuck in a loop that costs no time.
const MAX_STEPS: u64 = 3_000_000;

const WORKERS: [&str; 3] = ["worker0", "worker1", "worker2"];

/// What a run left.
pub struct Ran {
    /// Everything that happened.
    pub history: History,
    /// The database in the end.
    pub database: Database,
    /// The broker in the end.
    pub broker: Broker,
    /// Whether everything settled in time (L1); if not, what did not.
    pub unsettled: Option<String>,
    /// Simulated time.
    pub simulated: Duration,
    /// Steps taken.
    pub steps: u64,
}

/// What every host is given.
#[derive(Clone)]
struct Shared {
    plan: Arc<Plan>,
    timeline: Timeline,
    history: History,
    post: Post,
    /// The broker took every copy of every job.
    all_published: Arc<AtomicBool>,
}

impl Shared {
    fn env(&self, host: &'static str, clock: &SimClock, salt: u64) -> Env {
        Env {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(self.plan.seed ^ salt)),
            observer: Arc::new(Recorder::new(
                self.history.clone(),
                self.timeline.clone(),
                host,
            )),
        }
    }

    fn store(&self) -> SimStore {
        SimStore::new(
            self.post.clone(),
            Duration::from_millis(self.plan.knobs.fence_wait_ms),
        )
    }

    fn queue(&self) -> SimQueue {
        SimQueue::new(self.post.clone())
    }

    fn config(&self) -> anyhow::Result<ConsumerConfig> {
        let knobs = &self.plan.knobs;
        let mut config = ConsumerConfig::new(consumer()?, queue()?);
        config.concurrency = knobs.concurrency;
        config.prefetch = knobs.prefetch;
        config.lease = Duration::from_secs(knobs.lease_s);
        config.run_deadline = Duration::from_secs(knobs.run_deadline_s);
        config.poll_interval = Duration::from_secs(knobs.poll_interval_s);
        config.retry = RetryPolicy::default();
        let window = FencePolicy::retry_window(&config.retry, config.run_deadline);
        let seconds =
            knobs.broker_retention_s + knobs.resend_horizon_s + knobs.margin_s + knobs.ttl_extra_s;
        config.fence = FencePolicy {
            ttl: window + Duration::from_secs(seconds),
            broker_retention: Duration::from_secs(knobs.broker_retention_s),
            resend_horizon: Duration::from_secs(knobs.resend_horizon_s),
            margin: Duration::from_secs(knobs.margin_s),
        };
        Ok(config)
    }
}

/// The only queue.
pub fn queue() -> anyhow::Result<QueueName> {
    Ok(QueueName::new("points")?)
}

/// The only consumer.
pub fn consumer() -> anyhow::Result<ConsumerName> {
    Ok(ConsumerName::new("awards")?)
}

/// The id of a planned job.
pub fn job_id(job: &JobPlan) -> JobId {
    JobId::from_key(Uuid::NAMESPACE_OID, &job.id.to_string())
}

/// Runs a plan to its end.
///
/// # Errors
/// When the world itself breaks: a mistake of the simulation, or a panic of a host's task.
pub fn run(plan: &Plan) -> anyhow::Result<Ran> {
    let timeline = Timeline::default();
    let history = History::default();
    let broker = Broker::new(
        timeline.clone(),
        history.clone(),
        plan.seed ^ 1,
        plan.knobs.broker_duplicates_per_mille,
    );
    let database = Database::new(timeline.clone(), history.clone(), broker.clone());
    let shared = Shared {
        plan: Arc::new(plan.clone()),
        timeline: timeline.clone(),
        history: history.clone(),
        post: Post::default(),
        all_published: Arc::default(),
    };
    {
        let (database, consumer) = (database.clone(), consumer()?);
        broker.set_judge(move |job, generation| is_settled(&database, job, &consumer, generation));
    }

    let mut builder = turmoil::Builder::new();
    builder
        .epoch(std::time::UNIX_EPOCH)
        .rng_seed(plan.seed)
        .tick_duration(TICK)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(15))
        .simulation_duration(Duration::from_secs(u64::from(u32::MAX)))
        .ephemeral_ports(1_024..=65_535)
        .tcp_capacity(4_096);
    let mut sim = builder.build();
    let mut clocks = BTreeMap::new();
    add_servers(&mut sim, &shared, &database, &broker);
    for (n, host) in WORKERS
        .into_iter()
        .enumerate()
        .take(plan.knobs.workers.min(WORKERS.len()))
    {
        let clock = SimClock::new(timeline.clone());
        clocks.insert(host, clock.clone());
        let shared = shared.clone();
        sim.host(host, move || {
            worker(shared.clone(), host, clock.clone(), n as u64 + 10)
        });
    }
    {
        let shared = shared.clone();
        sim.host("clerk", move || clerk(shared.clone()));
    }
    {
        let shared = shared.clone();
        sim.host("producer", move || producer(shared.clone()));
    }

    let mut driver = Driver {
        sim,
        plan,
        shared,
        database,
        broker,
        clocks,
        faults: Vec::new(),
        down: BTreeMap::new(),
        steps: 0,
    };
    driver.schedule();
    let unsettled = driver.drive()?;
    let Driver {
        database,
        broker,
        steps,
        ..
    } = driver;
    Ok(Ran {
        history,
        database,
        broker,
        unsettled,
        simulated: timeline.now(),
        steps,
    })
}

fn is_settled(database: &Database, job: JobId, consumer: &ConsumerName, generation: u32) -> bool {
    let key = (job, consumer.clone());
    database.look(|tables| {
        tables.effects.contains_key(&key)
            || tables.fences.contains_key(&key)
            || tables.letters.values().any(|letter| {
                letter.letter.job_id == job
                    && (letter.letter.generation == generation
                        || (letter.letter.generation + 1 == generation
                            && letter.status == Status::Discarded))
            })
    })
}

type HostResult = Result<(), Box<dyn std::error::Error>>;

fn add_servers(sim: &mut Sim<'_>, shared: &Shared, database: &Database, broker: &Broker) {
    let (post, served) = (shared.post.clone(), database.clone());
    sim.host("database", move || {
        let (post, database) = (post.clone(), served.clone());
        async move { Ok(database::serve(database, post).await?) }
    });
    let (post, served) = (shared.post.clone(), broker.clone());
    sim.host("broker", move || {
        let (post, broker) = (post.clone(), served.clone());
        async move { Ok(broker::serve(broker, post).await?) }
    });
    let service = AlertService {
        refusals_per_mille: shared.plan.knobs.alert_refusals_per_mille,
        dice: Arc::new(SeededEntropy::new(shared.plan.seed ^ 2)),
        timeline: shared.timeline.clone(),
        history: shared.history.clone(),
    };
    let post = shared.post.clone();
    sim.host("alerts", move || {
        let (post, service) = (post.clone(), service.clone());
        async move { Ok(alerting::serve(service, post).await?) }
    });
}

async fn worker(shared: Shared, host: &'static str, clock: SimClock, salt: u64) -> HostResult {
    // Started again after a crash, it must not repeat its randomness.
    let salt = salt ^ (shared.history.len() as u64) << 8;
    let handler = SimHandler::new(shared.timeline.clone());
    let env = shared.env(host, &clock, salt);
    let consumer = Consumer::new(
        shared.config()?,
        shared.store(),
        shared.queue(),
        handler,
        env,
    )?;
    consumer.run(Shutdown::new()).await;
    Ok(())
}

/// Sweeps, alerts, and decides about dead letters.
async fn clerk(shared: Shared) -> HostResult {
    let clock = SimClock::new(shared.timeline.clone());
    let salt = 20 ^ (shared.history.len() as u64) << 8;
    let env = shared.env("clerk", &clock, salt);
    let mut sweeping = SweeperConfig::new(vec![SweepTarget::of(&shared.config()?)]);
    sweeping.interval = Duration::from_secs(shared.plan.knobs.sweep_interval_s);
    let sweeper = Sweeper::new(sweeping, shared.store(), shared.queue(), env.clone());
    let alerting = AlertPumpConfig {
        window: Duration::from_secs(shared.plan.knobs.alert_window_s),
        poll_interval: Duration::from_secs(shared.plan.knobs.poll_interval_s.max(5)),
        ..AlertPumpConfig::default()
    };
    let pump = AlertPump::new(
        alerting,
        shared.store(),
        SimAlerter::new(shared.post.clone()),
        env.clone(),
    );
    let stop = Shutdown::new();
    let operator = operate(shared.clone(), env, salt);
    let (_, _, operated) = tokio::join!(sweeper.run(stop.clone()), pump.run(stop), operator);
    operated
}

async fn operate(shared: Shared, env: Env, salt: u64) -> HostResult {
    let knobs = &shared.plan.knobs;
    let store = shared.store();
    let review = harness::Review::new(store.clone(), OutsidePublisher(shared.queue()), env.clone());
    let by = Reviewer::new("olga")?;
    let reason = DiscardReason::new("as planned")?;
    let dice = SeededEntropy::new(shared.plan.seed ^ 3 ^ salt);
    let pause = Duration::from_secs(60.max(knobs.poll_interval_s));
    // Every replay that fails again is a new letter: at some point the operator gives up.
    const LAST_GENERATION: u32 = 2;
    loop {
        env.clock.sleep(pause).await;
        // An operator without a decision to make does not look.
        if knobs.replay_percent + knobs.discard_percent == 0 {
            continue;
        }
        let Some(Ok(letters)) = limited(
            &env,
            store.dead_letters(Some(Status::PendingReview), None, 20),
        )
        .await
        else {
            continue;
        };
        for letter in letters {
            let roll = dice.next_u64() % 100;
            let id = letter.letter.id;
            if roll < knobs.replay_percent && letter.letter.generation < LAST_GENERATION {
                // Twice at once, sometimes: two operators.
                if roll.is_multiple_of(4) {
                    let both =
                        async { tokio::join!(review.replay(id, &by), review.replay(id, &by)) };
                    let _ = limited(&env, both).await;
                } else {
                    let _ = limited(&env, review.replay(id, &by)).await;
                }
            } else if roll >= 100 - knobs.discard_percent {
                let _ = limited(&env, review.discard(id, &reason, &by)).await;
            }
        }
    }
}

/// Everything over the network needs a limit, because TCP here never gives up.
async fn limited<T>(env: &Env, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = env.clock.sleep(Duration::from_secs(30)) => None,
    }
}

/// Publishes every copy of every job at its time, again and again until the broker took it.
async fn producer(shared: Shared) -> HostResult {
    let clock = SimClock::new(shared.timeline.clone());
    let env = shared.env("producer", &clock, 30);
    let queue_name = queue()?;
    let mut due: Vec<(u64, &JobPlan)> = shared
        .plan
        .jobs
        .iter()
        .flat_map(|job| {
            let resends = job
                .resend_after_ms
                .iter()
                .map(|after| job.publish_at_ms + after);
            resends.chain([job.publish_at_ms]).map(move |at| (at, job))
        })
        .collect();
    due.sort_by_key(|(at, job)| (*at, job.id));
    let queue = shared.queue();
    for (at, job) in due {
        let wait = Duration::from_millis(at).saturating_sub(env.clock.elapsed());
        env.clock.sleep(wait).await;
        let message = message(job);
        loop {
            match limited(&env, queue.publish_message(&queue_name, message.clone())).await {
                Some(Ok(())) => break,
                // A lost answer makes another copy.
                _ => env.clock.sleep(Duration::from_secs(5)).await,
            }
        }
    }
    shared.all_published.store(true, Ordering::Release);
    // A host that ends is no longer there; this one has just nothing to do.
    std::future::pending().await
}

fn message(job: &JobPlan) -> Message {
    let body = body(job);
    match job.behaviour {
        Behaviour::NoHeaders => Message::Wire {
            headers: BTreeMap::new(),
            body,
        },
        _ => {
            let envelope = Envelope::new(job_id(job), body);
            Message::Wire {
                headers: envelope.wire_headers(),
                body: envelope.body,
            }
        }
    }
}

/// A fault's beginning or its end.
#[derive(Debug, Clone, PartialEq)]
enum Turn {
    Begin(FaultKind),
    End(FaultKind),
}

struct Driver<'a> {
    sim: Sim<'a>,
    plan: &'a Plan,
    shared: Shared,
    database: Database,
    broker: Broker,
    clocks: BTreeMap<&'static str, SimClock>,
    /// Latest first.
    faults: Vec<(Duration, Turn)>,
    /// Hosts that are down, and how many faults keep them so.
    down: BTreeMap<String, u32>,
    steps: u64,
}

impl Driver<'_> {
    fn schedule(&mut self) {
        for fault in &self.plan.faults {
            let at = Duration::from_millis(fault.at_ms);
            self.faults.push((at, Turn::Begin(fault.kind.clone())));
            self.faults.push((
                at + Duration::from_millis(fault.lasts_ms),
                Turn::End(fault.kind.clone()),
            ));
        }
        self.faults.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    }

    /// Safety phase with faults, then everything heals and must settle.
    fn drive(&mut self) -> anyhow::Result<Option<String>> {
        let timeline = self.shared.timeline.clone();
        let end_of_plan = self.plan.ends_at();
        let mut healed_at = None;
        loop {
            let now = timeline.now();
            while self.faults.last().is_some_and(|(at, _)| *at <= now) {
                if let Some((_, turn)) = self.faults.pop() {
                    self.turn(&turn);
                }
            }
            if healed_at.is_none() && self.faults.is_empty() && now >= end_of_plan {
                self.heal();
                healed_at = Some(now);
            }
            if let Some(healed_at) = healed_at {
                match self.unsettled(now) {
                    None => return Ok(None),
                    Some(what) if now > healed_at + self.patience() => return Ok(Some(what)),
                    Some(_) => {}
                }
            }
            timeline.advance(TICK);
            self.sim
                .step()
                .map_err(|error| anyhow!("a host failed: {error}"))?;
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Ok(Some(format!("{MAX_STEPS} steps and no end")));
            }
            self.skip(end_of_plan);
        }
    }

    /// How long settling may take.
    fn patience(&self) -> Duration {
        let knobs = &self.plan.knobs;
        let mut patience = SETTLE_WITHIN + Duration::from_secs(knobs.poll_interval_s * 20);
        if knobs.until_swept
            && let Ok(config) = self.shared.config()
        {
            patience += config.fence.ttl + Duration::from_secs(knobs.sweep_interval_s * 2);
        }
        patience
    }

    /// When nothing is under way, nothing happens before the next deadline.
    fn skip(&self, end_of_plan: Duration) {
        let mut under_way = false;
        self.sim.links(|links| {
            for mut link in links {
                under_way |= link.next().is_some();
            }
        });
        if under_way {
            return;
        }
        let timeline = &self.shared.timeline;
        let now = timeline.now();
        let fault = self.faults.last().map(|(at, _)| at.saturating_sub(now));
        let end = Some(end_of_plan.saturating_sub(now)).filter(|end| !end.is_zero());
        let next = [timeline.until_next_deadline(), fault, end]
            .into_iter()
            .flatten()
            .min();
        // The step that follows is a tick long.
        if let Some(jump) = next
            .and_then(|next| next.checked_sub(TICK))
            .filter(|jump| *jump > TICK)
        {
            timeline.advance(jump);
            if jump > Duration::from_secs(60) {
                self.fact(Fact::Jumped { by: jump });
            }
        }
    }

    fn fact(&self, fact: Fact) {
        self.shared
            .history
            .push(self.shared.timeline.now(), "world", Said::World(fact));
    }

    fn everyone(&self) -> Vec<&'static str> {
        let workers = WORKERS
            .into_iter()
            .take(self.plan.knobs.workers.min(WORKERS.len()));
        workers
            .chain(["database", "broker", "alerts", "clerk", "producer"])
            .collect()
    }

    fn turn(&mut self, turn: &Turn) {
        let known = self.everyone();
        let is_known = |host: &String| known.contains(&host.as_str());
        let (kind, begins) = match turn {
            Turn::Begin(kind) => (kind, true),
            Turn::End(kind) => (kind, false),
        };
        self.fact(Fact::Fault(format!(
            "{} {kind:?}",
            if begins { "begin" } else { "end" }
        )));
        match kind {
            FaultKind::Kill(host) | FaultKind::PowerLoss(host) if is_known(host) => {
                let silent = matches!(kind, FaultKind::PowerLoss(_));
                if begins {
                    self.take_down(host, silent)
                } else {
                    self.bring_up(host)
                }
            }
            FaultKind::Partition(a, b) if is_known(a) && is_known(b) => {
                if begins {
                    self.sim.partition(a.as_str(), b.as_str());
                } else {
                    self.sim.repair(a.as_str(), b.as_str());
                }
            }
            FaultKind::PartitionOneWay(a, b) if is_known(a) && is_known(b) => {
                if begins {
                    self.sim.partition_oneway(a.as_str(), b.as_str());
                } else {
                    self.sim.repair_oneway(a.as_str(), b.as_str());
                }
            }
            FaultKind::Loss(per_mille) => {
                #[allow(clippy::cast_precision_loss)]
                let rate = if begins {
                    *per_mille as f64 / 1_000.0
                } else {
                    0.0
                };
                self.sim.set_fail_rate(rate);
            }
            FaultKind::Slow(millis) => {
                let latency = if begins { *millis } else { 15 };
                self.sim
                    .set_max_message_latency(Duration::from_millis(latency.max(2)));
            }
            FaultKind::ClockJump(host, seconds) if begins => {
                if let Some(clock) = self.clocks.get(host.as_str()) {
                    clock.jump(TimeDelta::seconds(*seconds));
                }
            }
            _ => {}
        }
    }

    fn take_down(&mut self, host: &str, silent: bool) {
        let down = self.down.entry(host.to_owned()).or_default();
        *down += 1;
        if *down > 1 {
            return;
        }
        let others: Vec<&str> = self
            .everyone()
            .into_iter()
            .filter(|other| *other != host)
            .collect();
        if silent {
            // What the host says while it goes down is not heard.
            others
                .iter()
                .for_each(|other| self.sim.partition(host, *other));
        }
        self.sim.crash(host);
        if silent {
            others
                .iter()
                .for_each(|other| self.sim.repair(host, *other));
        }
        if host == "database" {
            self.database.crash();
        }
    }

    fn bring_up(&mut self, host: &str) {
        if let Some(down) = self.down.get_mut(host) {
            *down -= 1;
            if *down == 0 {
                self.down.remove(host);
                self.sim.bounce(host);
            }
        }
    }

    fn heal(&mut self) {
        let everyone = self.everyone();
        for (n, a) in everyone.iter().enumerate() {
            for b in &everyone[n + 1..] {
                self.sim.repair(*a, *b);
            }
        }
        self.sim.set_fail_rate(0.0);
        self.sim.set_max_message_latency(Duration::from_millis(15));
        let down: Vec<String> = std::mem::take(&mut self.down).into_keys().collect();
        down.into_iter()
            .for_each(|host| self.sim.bounce(host.as_str()));
        self.fact(Fact::Healed);
    }

    /// L1: what is not settled yet.
    fn unsettled(&self, now: Duration) -> Option<String> {
        if !self.shared.all_published.load(Ordering::Acquire) {
            return Some("the producer has jobs that the broker did not take".to_owned());
        }
        let queued = self.broker.queued();
        if queued > 0 {
            return Some(format!("{queued} messages are on the queue"));
        }
        self.database.look(|tables| {
            let uncovered = tables.alerts.uncovered().len();
            if uncovered > 0 {
                return Some(format!("{uncovered} dead letters have no delivered alert"));
            }
            let knobs = &self.plan.knobs;
            if knobs.until_swept && !tables.fences.is_empty() {
                return Some(format!("{} fences are not swept", tables.fences.len()));
            }
            let slack = Duration::from_secs(knobs.sweep_interval_s * 2 + 3_600);
            let due = tables
                .fences
                .values()
                .filter(|fence| fence.expires_at + slack < now)
                .count();
            (due > 0).then(|| format!("{due} fences are due and not swept"))
        })
    }
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
