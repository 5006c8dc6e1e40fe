//! The consumer: takes deliveries, runs each through the gate, and gives every one of them an answer.
//!
//! What a lease is, and what it is not: a lease keeps other workers from being handed the same message for a while. It
//! makes work efficient, not correct. A lease may run out under a slow handler, a paused process or a cut network, and
//! the message is then handed out again while the first run goes on. Correctness rests on the fence alone.
//!
//! One task per delivery, or per batch of them. A task keeps its lease, waits for a permit, goes through the gate, and does not end before the
//! queue took its answer (or the process is told to stop). The loop here only decides when to take more: not while all
//! places are taken, not while the store is away, not after shutdown began.
//!
//! Shutdown has three steps within the grace period: no new work, and what was received but not started goes back at
//! once; when three quarters of the period have passed, running handlers are dropped, rolled back and go back uncounted;
//! at the end whatever still waits for an answer is abandoned to its lease.

mod answer;
mod batch;
mod config;
mod gate;
mod held;
mod lease;
#[cfg(all(harness_loom, test))]
mod loom_tests;
mod single_flight;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use self::config::{ConsumerConfig, ConsumerError, MOST_IN_A_BATCH};
use self::single_flight::SingleFlight;
use crate::event::{Event, JobRef, Step};
use crate::handler::Handler;
use crate::ports::env::Env;
use crate::ports::queue::{Delivery, QueuePort};
use crate::ports::store::Store;
use crate::sync::{AtomicBool, CancellationToken, JoinError, JoinSet, Semaphore, SemaphorePermit};
use crate::time::{Backoff, within};

/// The first wait for a store or a broker that is away.
const AWAY_FIRST: Duration = Duration::from_millis(100);

/// Tells a consumer, a sweeper or an alert pump to stop. Clones tell the same ones.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// Nothing is told to stop yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stop. Safe to call again.
    pub fn begin(&self) {
        self.0.cancel();
    }

    /// Whether it began.
    pub fn has_begun(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Ready when it begins.
    pub async fn begun(&self) {
        self.0.cancelled().await;
    }
}

/// How a consumer stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainReport {
    /// Deliveries that still had no answer when the grace period ended. Their leases run out, and they are delivered
    /// again.
    pub abandoned: usize,
}

/// Runs the jobs of one queue through one handler.
pub struct Consumer<S, Q, H> {
    shared: Arc<Shared<S, Q, H>>,
}

/// What all tasks of one consumer share.
struct Shared<S, Q, H> {
    config: ConsumerConfig,
    store: S,
    queue: Q,
    handler: H,
    env: Env,
    /// Runs at once.
    permits: Semaphore,
    /// Jobs that are running in this process.
    running: SingleFlight,
    /// Set by a task that could not reach the store; cleared by the loop once it answers.
    store_away: AtomicBool,
    /// Nothing new is started.
    drain: CancellationToken,
    /// Running handlers are dropped.
    abort: CancellationToken,
}

impl<S: Store, Q: QueuePort, H: Handler<S>> Consumer<S, Q, H> {
    /// # Errors
    /// When the configuration contradicts itself or the TTL rule (B7). The error names the key and the way out.
    pub fn new(
        config: ConsumerConfig,
        store: S,
        queue: Q,
        handler: H,
        env: Env,
    ) -> Result<Self, ConsumerError> {
        config.check()?;
        let permits = Semaphore::new(config.concurrency);
        Ok(Self {
            shared: Arc::new(Shared {
                config,
                store,
                queue,
                handler,
                env,
                permits,
                running: SingleFlight::default(),
                store_away: AtomicBool::new(false),
                drain: CancellationToken::new(),
                abort: CancellationToken::new(),
            }),
        })
    }

    /// Consumes until `shutdown` begins, then drains. Survives a store or a broker that is away, for as long as it takes.
    pub async fn run(self, shutdown: Shutdown) -> DrainReport {
        let shared = self.shared;
        let retry = shared.config.retry.clone();
        shared.emit(None, Step::Started { retry });
        let mut tasks = JoinSet::new();
        shared.consume(&shutdown, &mut tasks).await;
        shared.drain(&mut tasks).await
    }
}

impl<S: Store, Q: QueuePort, H: Handler<S>> Shared<S, Q, H> {
    async fn consume(self: &Arc<Self>, shutdown: &Shutdown, tasks: &mut JoinSet<()>) {
        let places = self.config.concurrency + self.config.prefetch;
        let mut queue_backoff = self.outage_backoff();
        while !shutdown.has_begun() {
            while let Some(ended) = tasks.try_join_next() {
                report_panic(ended);
            }
            if self.store_away.load(Ordering::Acquire) {
                self.wait_for_store(shutdown).await;
                continue;
            }
            let room = places - tasks.len();
            if room == 0 {
                tokio::select! {
                    biased;
                    () = shutdown.begun() => {}
                    Some(ended) = tasks.join_next() => report_panic(ended),
                }
                continue;
            }
            // Not dropped when shutdown begins: what the broker hands out now must be given back, not forgotten.
            let most = room.saturating_mul(self.config.batch);
            let receive = self
                .queue
                .receive(&self.config.queue, most, self.config.lease);
            let wait = match within(&*self.env.clock, self.config.port_timeout, receive).await {
                Ok(Ok(deliveries)) => {
                    queue_backoff.reset();
                    let got_all = deliveries.len() >= most;
                    self.start(deliveries, tasks);
                    if got_all {
                        continue;
                    }
                    self.config.poll_interval
                }
                Ok(Err(error)) => {
                    self.emit(
                        None,
                        Step::QueueFailed {
                            call: "receive".into(),
                            error: error.to_string(),
                        },
                    );
                    self.env.jittered(queue_backoff.next_wait())
                }
                Err(elapsed) => {
                    self.emit(
                        None,
                        Step::QueueFailed {
                            call: "receive".into(),
                            error: elapsed.to_string(),
                        },
                    );
                    self.env.jittered(queue_backoff.next_wait())
                }
            };
            tokio::select! {
                biased;
                () = shutdown.begun() => {}
                () = self.env.clock.sleep(wait) => {}
            }
        }
    }

    /// A task for each delivery, or for each batch.
    fn start(self: &Arc<Self>, deliveries: Vec<Delivery>, tasks: &mut JoinSet<()>) {
        let mut deliveries = deliveries.into_iter();
        while let Some(first) = deliveries.next() {
            let shared = Arc::clone(self);
            let others = self.config.batch.saturating_sub(1);
            let mut batch: Vec<_> = deliveries.by_ref().take(others).collect();
            if batch.is_empty() {
                tasks.spawn(async move { shared.hold(first).await });
            } else {
                batch.insert(0, first);
                tasks.spawn(async move { shared.hold_batch(batch).await });
            }
        }
    }

    /// Takes no new work until the store answers.
    async fn wait_for_store(&self, shutdown: &Shutdown) {
        self.emit(None, Step::Paused);
        let mut backoff = self.outage_backoff();
        while !shutdown.has_begun() {
            // Before it is asked: what a task finds out from now on is news.
            self.store_away.store(false, Ordering::Release);
            let problem = match within(
                &*self.env.clock,
                self.config.port_timeout,
                self.store.ping(),
            )
            .await
            {
                Ok(Ok(())) => {
                    self.emit(None, Step::Resumed);
                    return;
                }
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            self.emit(
                None,
                Step::StoreFailed {
                    call: "ping".into(),
                    error: problem,
                },
            );
            let wait = self.env.jittered(backoff.next_wait());
            tokio::select! {
                biased;
                () = shutdown.begun() => {}
                () = self.env.clock.sleep(wait) => {}
            }
        }
    }

    async fn drain(&self, tasks: &mut JoinSet<()>) -> DrainReport {
        self.emit(None, Step::Draining);
        self.drain.cancel();
        let patience = self.config.grace.mul_f64(0.75);
        if within(&*self.env.clock, patience, reap(tasks))
            .await
            .is_err()
        {
            self.abort.cancel();
            let rest = self.config.grace - patience;
            let _ = within(&*self.env.clock, rest, reap(tasks)).await;
        }
        tasks.abort_all();
        let mut abandoned = 0;
        while let Some(ended) = tasks.join_next().await {
            match ended {
                Err(error) if error.is_cancelled() => abandoned += 1,
                // It came to its end before it was stopped.
                ended => report_panic(ended),
            }
        }
        DrainReport { abandoned }
    }

    /// One delivery, from its arrival to its answer.
    async fn hold(&self, delivery: Delivery) {
        let receipt = delivery.receipt.clone();
        let work = async {
            match self.permit().await {
                Some(_permit) => self.gate(delivery).await,
                None => self.turn_back(&delivery.receipt).await,
            }
        };
        self.keep_lease(&receipt, work).await;
    }

    /// `None` once the drain began.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        tokio::select! {
            biased;
            () = self.drain.cancelled() => None,
            // The drain may have begun since it was asked above, and have made the place free.
            permit = self.permits.acquire() => permit.ok().filter(|_| !self.drain.is_cancelled()),
        }
    }

    fn outage_backoff(&self) -> Backoff {
        Backoff::new(AWAY_FIRST, self.config.outage_backoff_cap)
    }

    fn emit(&self, job: Option<&JobRef>, step: Step) {
        self.env.emit(Event {
            consumer: Some(self.config.consumer.clone()),
            queue: Some(self.config.queue.clone()),
            job: job.cloned(),
            step,
        });
    }
}

async fn reap(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        report_panic(ended);
    }
}

/// Handlers' panics are caught in the gate, so this is a bug in the harness or in an observer. The delivery's lease runs
/// out, and it is delivered again.
fn report_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a delivery's task panicked");
    }
}
