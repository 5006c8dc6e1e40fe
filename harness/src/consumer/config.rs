//! What a consumer is told, and whether it fits together.

use std::time::Duration;

use crate::fence::{FencePolicy, FencePolicyError};
use crate::names::{ConsumerName, QueueName};
use crate::retry::RetryPolicy;

/// More in one transaction save nothing, and all of it is done again when one of them fails.
pub const MOST_IN_A_BATCH: usize = 10_000;

/// How one consumer works.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerConfig {
    /// Half of the fence key. Never change it while jobs are in flight: another name is another consumer.
    pub consumer: ConsumerName,
    /// What it consumes.
    pub queue: QueueName,
    /// Handlers that run at once; each takes one connection. Default 8.
    pub concurrency: usize,
    /// Deliveries that are taken beyond that, so that they are at hand when a place is free. Default 0: the broker counts
    /// a delivery that waited here as an attempt if this process dies.
    pub prefetch: usize,
    /// The most jobs that run in one transaction, first runs only. Default 1: each job has a transaction of its own. With
    /// more, each of the `concurrency` places holds up to so many deliveries, and
    /// [`Handler::handle_batch`](crate::Handler::handle_batch) is called.
    pub batch: usize,
    /// The longest that one run may take, or one batch. Default 60 s.
    pub run_deadline: Duration,
    /// How long a delivery is leased; extended while it is held. Default 60 s.
    pub lease: Duration,
    /// When failed jobs run again.
    pub retry: RetryPolicy,
    /// How long fences live.
    pub fence: FencePolicy,
    /// How long a delivery whose twin is running stays away, before jitter. Default 2 s.
    pub busy_delay: Duration,
    /// How long a delivery that met contention or an outage stays away, before jitter. Default 1 s.
    pub defer_delay: Duration,
    /// How long an empty queue is left alone. Default 250 ms.
    pub poll_interval: Duration,
    /// The longest that one call to the store or the queue may take. Default 10 s.
    pub port_timeout: Duration,
    /// The longest wait before a store or a queue that is away is asked again, before jitter; waits double from 100 ms.
    /// Default 15 s.
    pub outage_backoff_cap: Duration,
    /// From the beginning of a shutdown to its end. Default 25 s (orchestrators kill after 30 s).
    pub grace: Duration,
}

/// Why a consumer refuses to start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ConsumerError {
    /// Nothing would ever run.
    #[error("concurrency: must be at least 1")]
    NoConcurrency,
    /// A batch of none, or of more than one statement should fence.
    #[error(
        "batch: {value} is no number of jobs for one transaction, must be from 1 to {MOST_IN_A_BATCH}"
    )]
    Batch {
        /// As configured.
        value: usize,
    },
    /// A duration that must be longer.
    #[error("{key}: {value:?} is too short, must be at least {least:?} ({why})")]
    TooShort {
        /// The field.
        key: &'static str,
        /// As configured.
        value: Duration,
        /// The least that works.
        least: Duration,
        /// Why.
        why: &'static str,
    },
    /// B7.
    #[error("fence.{0}")]
    Fence(#[from] FencePolicyError),
}

impl ConsumerConfig {
    /// The standard settings.
    pub fn new(consumer: ConsumerName, queue: QueueName) -> Self {
        Self {
            consumer,
            queue,
            concurrency: 8,
            prefetch: 0,
            batch: 1,
            run_deadline: Duration::from_secs(60),
            lease: Duration::from_secs(60),
            retry: RetryPolicy::default(),
            fence: FencePolicy::default(),
            busy_delay: Duration::from_secs(2),
            defer_delay: Duration::from_secs(1),
            poll_interval: Duration::from_millis(250),
            port_timeout: Duration::from_secs(10),
            outage_backoff_cap: Duration::from_secs(15),
            grace: Duration::from_secs(25),
        }
    }

    /// # Errors
    /// When the settings contradict each other or the TTL rule (B7).
    pub fn check(&self) -> Result<(), ConsumerError> {
        if self.concurrency == 0 {
            return Err(ConsumerError::NoConcurrency);
        }
        if self.batch == 0 || self.batch > MOST_IN_A_BATCH {
            return Err(ConsumerError::Batch { value: self.batch });
        }
        let millisecond = Duration::from_millis(1);
        let rules = [
            (
                "run_deadline",
                self.run_deadline,
                millisecond,
                "a handler must have time to run",
            ),
            (
                "poll_interval",
                self.poll_interval,
                millisecond,
                "an empty queue must not be asked without pause",
            ),
            (
                "busy_delay",
                self.busy_delay,
                millisecond,
                "a twin must not be delivered without pause",
            ),
            (
                "defer_delay",
                self.defer_delay,
                millisecond,
                "contention must not be retried without pause",
            ),
            (
                "port_timeout",
                self.port_timeout,
                millisecond,
                "a call must have time to be answered",
            ),
            (
                "outage_backoff_cap",
                self.outage_backoff_cap,
                millisecond,
                "an outage must not be answered by asking without pause",
            ),
            (
                "grace",
                self.grace,
                millisecond,
                "running handlers must have time to end",
            ),
            (
                "lease",
                self.lease,
                Duration::from_secs(1),
                "brokers count leases in seconds",
            ),
        ];
        for (key, value, least, why) in rules {
            if value < least {
                return Err(ConsumerError::TooShort {
                    key,
                    value,
                    least,
                    why,
                });
            }
        }
        self.fence.check(&self.retry, self.run_deadline)?;
        Ok(())
    }
}
