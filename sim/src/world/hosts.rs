//! What runs on the hosts: the harness, unchanged, and what it talks to.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{
    AlertPump, AlertPumpConfig, Consumer, DeadLetter, DeadLetterId, DiscardReason, Entropy, Env,
    JobId, LetterFilter, LetterQuery, OutsidePublisher, Review, ReviewStore as _, Reviewer,
    Shutdown, Status, SweepTarget, Sweeper, SweeperConfig,
};
use turmoil::Sim;

use super::{Shared, WORKERS, config, consumer, queue, review_until};
use crate::alerting::{self, AlertService, SimAlerter};
use crate::broker::{self, Broker, SimQueue};
use crate::database::{self, Database, SimStore};
use crate::history::{Fact, LoggedEntropy};
use crate::jobs::{SimHandler, id_of, message};
use crate::plan::Decision;

type HostResult = Result<(), Box<dyn std::error::Error>>;

/// Every replay that fails again is a new letter: at some point the operators give up.
const LAST_GENERATION: u32 = 2;

/// What an operator may try as a reason. All but the first must be refused.
const REASONS: [&str; 4] = ["as planned", "", "  \t", "\u{200b}"];

pub(super) fn populate(sim: &mut Sim<'_>, shared: &Shared, database: &Database, broker: &Broker) {
    let (world, served) = (shared.clone(), database.clone());
    sim.host("database", move || {
        let (post, log) = (world.post.clone(), world.log("database"));
        let database = served.clone();
        async move { Ok(database::serve(database, post, log).await?) }
    });
    let (world, served) = (shared.clone(), broker.clone());
    sim.host("broker", move || {
        let (post, log) = (world.post.clone(), world.log("broker"));
        let broker = served.clone();
        async move { Ok(broker::serve(broker, post, log).await?) }
    });
    let service = AlertService::new(
        shared.plan.knobs.alert_refusals_per_mille,
        shared.seed(2),
        shared.log("alerts"),
    );
    let world = shared.clone();
    sim.host("alerts", move || {
        let (post, log) = (world.post.clone(), world.log("alerts"));
        let service = service.clone();
        async move { Ok(alerting::serve(service, post, log).await?) }
    });
    for host in WORKERS.into_iter().take(shared.plan.knobs.workers) {
        let world = shared.clone();
        sim.host(host, move || worker(world.clone(), host));
    }
    let world = shared.clone();
    sim.host("clerk", move || clerk(world.clone()));
    let world = shared.clone();
    sim.host("producer", move || producer(world.clone()));
}

async fn worker(shared: Shared, host: &'static str) -> HostResult {
    let handler = SimHandler::new(
        shared.clock(host),
        consumer()?,
        shared.ran.clone(),
        shared.log(host),
    );
    let consumer = Consumer::new(
        config(&shared.plan)?,
        shared.store(host),
        shared.queue(host),
        handler,
        shared.env(host),
    )?;
    let shutdown = Shutdown::new();
    shared.register(host, shutdown.clone());
    consumer.run(shutdown).await;
    // The process ends: whoever was connected sees it. The simulation has no word for this but a crash.
    shared.post.exited(host);
    std::future::pending().await
}

/// Sweeps, alerts, and decides about dead letters: three programs on one host.
async fn clerk(shared: Shared) -> HostResult {
    const HOST: &str = "clerk";
    let (knobs, env) = (&shared.plan.knobs, shared.env(HOST));
    let mut sweeping = SweeperConfig::new(vec![SweepTarget::of(&config(&shared.plan)?)]);
    sweeping.interval = Duration::from_secs(knobs.sweep_interval_s);
    sweeping.batch = knobs.sweep_batch;
    let sweeper = Sweeper::new(
        sweeping,
        shared.store(HOST),
        shared.queue(HOST),
        env.clone(),
    );
    let poll_interval = Duration::from_secs(knobs.poll_interval_s * 5);
    let alerting = AlertPumpConfig {
        window: Duration::from_secs(knobs.alert_window_s),
        escalate_after: Duration::from_secs(knobs.escalate_after_s),
        escalate_window: Duration::from_secs(knobs.escalate_window_s),
        // Not more often than it looks: nothing happens in between.
        heartbeat_interval: poll_interval,
        poll_interval,
        retry_cap: poll_interval,
        ..AlertPumpConfig::default()
    };
    let alerter = SimAlerter::new(shared.post.clone(), shared.log(HOST));
    let pump = AlertPump::new(alerting, shared.store(HOST), alerter, env.clone());
    let stop = Shutdown::new();
    let operators = Operators::new(&shared, env)?;
    let (_, _, ()) = tokio::join!(
        sweeper.run(stop.clone()),
        pump.run(stop),
        operators.review()
    );
    Ok(())
}

/// People who list, replay and discard.
struct Operators {
    store: SimStore,
    review: Review<SimStore, OutsidePublisher<SimQueue>>,
    env: Env,
    by: Reviewer,
    dice: LoggedEntropy,
    interval: Duration,
    /// When they go home.
    until: Duration,
    replay_percent: u64,
    discard_percent: u64,
    /// Decisions that are planned and not left to chance.
    planned: BTreeMap<JobId, Vec<Decision>>,
}

impl Operators {
    fn new(shared: &Shared, env: Env) -> anyhow::Result<Self> {
        const HOST: &str = "clerk";
        let knobs = &shared.plan.knobs;
        let store = shared.store(HOST);
        let publisher = OutsidePublisher(shared.queue(HOST));
        let queue = queue()?;
        let jobs = shared.plan.jobs.iter();
        let planned = jobs
            .filter(|job| !job.decisions.is_empty())
            .map(|job| (id_of(job, &queue), job.decisions.clone()))
            .collect();
        Ok(Self {
            planned,
            review: Review::new(store.clone(), publisher, env.clone()),
            store,
            by: Reviewer::new("olga")?,
            dice: LoggedEntropy::new(env.entropy.next_u64(), shared.log(HOST)),
            env,
            interval: Duration::from_secs(knobs.review_interval_s),
            until: review_until(&shared.plan)?,
            replay_percent: knobs.replay_percent,
            discard_percent: knobs.discard_percent,
        })
    }

    async fn review(&self) {
        // An operator without a decision to make does not look.
        if self.replay_percent + self.discard_percent == 0 && self.planned.is_empty() {
            return;
        }
        loop {
            self.env.clock.sleep(self.interval).await;
            if self.env.clock.elapsed() > self.until {
                return;
            }
            let pending = LetterFilter::of_status(Status::PendingReview);
            let query = LetterQuery::first(pending, 20);
            let letters = match limited(&self.env, self.store.dead_letters(&query)).await {
                Some(Ok(letters)) => letters,
                _ => continue,
            };
            for letter in letters {
                self.decide(&letter).await;
            }
        }
    }

    async fn decide(&self, letter: &DeadLetter) {
        match self.planned.get(&letter.letter.job_id) {
            Some(decisions) => self.decide_as_planned(letter, decisions).await,
            None => self.decide_by_chance(letter).await,
        }
    }

    async fn decide_as_planned(&self, letter: &DeadLetter, decisions: &[Decision]) {
        let (id, generation) = (letter.letter.id, letter.letter.generation as usize);
        let decision = decisions.get(generation).unwrap_or(&Decision::Leave);
        let replay = || self.review.replay(id, &self.by);
        match decision {
            Decision::Leave => {}
            Decision::Replay => {
                let _ = limited(&self.env, replay()).await;
            }
            Decision::ReplayTwice => {
                let both = async { tokio::join!(replay(), replay()) };
                let _ = limited(&self.env, both).await;
            }
            Decision::ReplayAndDiscard => {
                let both = async { tokio::join!(replay(), self.discard(id, REASONS[0])) };
                let _ = limited(&self.env, both).await;
            }
            Decision::Discard => {
                let _ = limited(&self.env, self.discard(id, REASONS[0])).await;
            }
        }
    }

    async fn decide_by_chance(&self, letter: &DeadLetter) {
        let (roll, id) = (self.dice.next_u64() % 100, letter.letter.id);
        if roll < self.replay_percent && letter.letter.generation < LAST_GENERATION {
            let replay = || self.review.replay(id, &self.by);
            // Twice at once, sometimes: two operators.
            if roll.is_multiple_of(4) {
                let both = async { tokio::join!(replay(), replay()) };
                let _ = limited(&self.env, both).await;
            } else if roll % 4 == 1 {
                let both = async { tokio::join!(replay(), self.discard_for_some_reason(id)) };
                let _ = limited(&self.env, both).await;
            } else {
                let _ = limited(&self.env, replay()).await;
            }
        } else if roll >= 100 - self.discard_percent {
            let _ = limited(&self.env, self.discard_for_some_reason(id)).await;
        }
    }

    async fn discard_for_some_reason(&self, id: DeadLetterId) {
        let text = REASONS[(self.dice.next_u64() % REASONS.len() as u64) as usize];
        self.discard(id, text).await;
    }

    async fn discard(&self, id: DeadLetterId, text: &str) {
        if let Ok(reason) = DiscardReason::new(text) {
            let _ = self.review.discard(id, &reason, &self.by).await;
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

/// Publishes every copy of every job at its time, again and again until the broker took it, but not after the resend
/// horizon, counted from when it was due: nobody could keep a fence for a producer that never gives up.
async fn producer(shared: Shared) -> HostResult {
    const HOST: &str = "producer";
    let (env, name) = (shared.env(HOST), queue()?);
    let (log, knobs) = (shared.log(HOST), &shared.plan.knobs);
    let longest = Duration::from_secs(knobs.outage_backoff_cap_s);
    let horizon = Duration::from_secs(knobs.resend_horizon_s);
    let queue = shared.queue(HOST);
    let copies = shared.plan.jobs.iter().flat_map(|job| {
        let resends = job
            .resend_after_ms
            .iter()
            .map(|after| job.publish_at_ms + after);
        resends
            .chain([job.publish_at_ms])
            .map(move |at| (Duration::from_millis(at), job))
    });
    let publishing = copies.map(async |(at, job)| {
        env.clock.sleep(at).await;
        let message = message(job);
        let give_up_at = Duration::from_millis(job.publish_at_ms) + horizon;
        let mut wait = Duration::from_secs(1);
        loop {
            if env.clock.elapsed() > give_up_at {
                return log.fact(Fact::GaveUp {
                    job: id_of(job, &name),
                });
            }
            // A lost answer makes another copy.
            let call = queue.publish_message(&name, message.clone());
            if let Some(Ok(())) = limited(&env, call).await {
                return;
            }
            env.clock.sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    });
    futures_util::future::join_all(publishing).await;
    shared.all_published.store(true, Ordering::Release);
    Ok(())
}
