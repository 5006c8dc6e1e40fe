//! The sweep (A6, B7): removes fences that no copy can need any more.
//!
//! A fence goes when it expired, no message that was enqueued before its expiry is still in its queue, and it is older
//! than the retry window, whatever its `expires_at` says. All times are the database's. Several sweepers may run at once:
//! batches skip what another one has locked. A batch that fails is tried again in the next round; nothing is remembered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::consumer::{ConsumerConfig, Shutdown};
use crate::event::{Event, Step};
use crate::fence::FencePolicy;
use crate::names::{ConsumerName, QueueName};
use crate::ports::env::Env;
use crate::ports::queue::{QueueError, QueuePort};
use crate::ports::store::{StoreError, SweepBatch, SweepStore};
use crate::time::{Elapsed, within};

/// Whose fences, and what holds them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepTarget {
    /// Whose fences.
    pub consumer: ConsumerName,
    /// Whose messages hold them back.
    pub queues: BTreeSet<QueueName>,
    /// Fences younger than this stay.
    pub retry_window: Duration,
}

impl SweepTarget {
    /// The target that a consumer needs.
    pub fn of(config: &ConsumerConfig) -> Self {
        Self {
            consumer: config.consumer.clone(),
            queues: BTreeSet::from([config.queue.clone()]),
            retry_window: FencePolicy::retry_window(&config.retry, config.run_deadline),
        }
    }
}

/// How to sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweeperConfig {
    /// Whom to sweep for.
    pub targets: Vec<SweepTarget>,
    /// Rows per transaction. Default 1,000.
    pub batch: u32,
    /// From the end of a round to the start of the next. Default 60 s.
    pub interval: Duration,
    /// The longest that one call may take. Default 30 s.
    pub port_timeout: Duration,
}

impl SweeperConfig {
    /// The standard settings.
    pub fn new(targets: Vec<SweepTarget>) -> Self {
        Self {
            targets,
            batch: 1_000,
            interval: Duration::from_secs(60),
            port_timeout: Duration::from_secs(30),
        }
    }
}

/// What one round did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Fences removed.
    pub rows: u64,
    /// What went wrong, per target; those are swept in the next round.
    pub failures: Vec<String>,
}

/// Why sweeping one target stopped.
#[derive(Debug, thiserror::Error)]
enum SweepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Elapsed(#[from] Elapsed),
}

/// Removes fences, round by round.
#[derive(Debug, Clone)]
pub struct Sweeper<S, Q> {
    config: SweeperConfig,
    store: S,
    queue: Q,
    env: Env,
}

impl<S: SweepStore, Q: QueuePort> Sweeper<S, Q> {
    /// Sweeps what `config` names. A consumer that is named several times, because it consumes several queues, is held
    /// back by all of them.
    pub fn new(mut config: SweeperConfig, store: S, queue: Q, env: Env) -> Self {
        config.targets = merged(config.targets);
        Self {
            config,
            store,
            queue,
            env,
        }
    }

    /// Round after round, until `shutdown` begins.
    pub async fn run(&self, shutdown: Shutdown) {
        while !shutdown.has_begun() {
            self.round().await;
            tokio::select! {
                biased;
                () = shutdown.begun() => {}
                () = self.env.clock.sleep(self.config.interval) => {}
            }
        }
    }

    /// Sweeps every target once, until nothing is left that may go.
    pub async fn round(&self) -> SweepReport {
        let mut report = SweepReport::default();
        for target in &self.config.targets {
            if let Err(error) = self.sweep(target, &mut report.rows).await {
                let error = crate::error_text::error_text(&error);
                self.emit(
                    target,
                    Step::StoreFailed {
                        call: "sweep".into(),
                        error: error.clone(),
                    },
                );
                report
                    .failures
                    .push(format!("{}: {error}", target.consumer));
            }
        }
        report
    }

    async fn sweep(&self, target: &SweepTarget, rows: &mut u64) -> Result<(), SweepError> {
        loop {
            let batch = self.next_batch(target).await?;
            let call = self.store.sweep(&batch);
            let removed = within(&*self.env.clock, self.config.port_timeout, call).await??;
            if removed > 0 {
                self.emit(target, Step::Swept { rows: removed });
            }
            *rows += removed;
            if removed < u64::from(batch.limit) {
                return Ok(());
            }
        }
    }

    /// Asked anew for every batch: a producer may have sent something meanwhile.
    async fn next_batch(&self, target: &SweepTarget) -> Result<SweepBatch, SweepError> {
        let limit = self.config.port_timeout;
        // The clock first: what is enqueued after this is younger than any fence that the batch may take.
        let asked_at: DateTime<Utc> = within(&*self.env.clock, limit, self.store.now()).await??;
        let mut oldest = None;
        for queue in &target.queues {
            let here = within(&*self.env.clock, limit, self.queue.oldest(queue)).await??;
            oldest = match (oldest, here) {
                (Some(one), Some(other)) => Some(DateTime::min(one, other)),
                (one, other) => one.or(other),
            };
        }
        Ok(SweepBatch {
            consumer: target.consumer.clone(),
            asked_at,
            oldest,
            retry_window: target.retry_window,
            limit: self.config.batch.max(1),
        })
    }

    fn emit(&self, target: &SweepTarget, step: Step) {
        self.env.emit(Event {
            consumer: Some(target.consumer.clone()),
            queue: None,
            job: None,
            step,
        });
    }
}

/// One target per consumer: all its queues, the longest window.
fn merged(targets: Vec<SweepTarget>) -> Vec<SweepTarget> {
    let mut by_consumer: BTreeMap<ConsumerName, SweepTarget> = BTreeMap::new();
    for target in targets {
        match by_consumer.get_mut(&target.consumer) {
            Some(known) => {
                known.queues.extend(target.queues);
                known.retry_window = known.retry_window.max(target.retry_window);
            }
            None => {
                by_consumer.insert(target.consumer.clone(), target);
            }
        }
    }
    by_consumer.into_values().collect()
}
