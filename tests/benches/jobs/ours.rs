//! The consumer at work.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use acceptance::award::Award;
use acceptance::db::{consumer_name, queue_name};
use harness::{
    Clock as _, Consumer, ConsumerConfig, Env, Event, Failure, Handler, Job, Observer, PgStore,
    PgStoreConfig, PgmqQueue, Receipt, Shutdown, Step, Store, SystemClock, WorkTx, connect_options,
};
use sqlx::PgConnection;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Notify;

use crate::measured::Measured;
use crate::setting::{CONSUMER, Setting};
use crate::unfenced::Unfenced;

/// With or without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fence {
    On,
    Off,
}

/// From the start of a consumer to its last ack.
pub(crate) async fn measure(
    setting: &Setting,
    fence: Fence,
    batch: u32,
    clients: u32,
    messages: u32,
) -> anyhow::Result<Measured> {
    let seen = Arc::new(Seen::new(messages));
    match fence {
        Fence::On => {
            let config = PgStoreConfig {
                max_connections: clients + 2,
                ..PgStoreConfig::default()
            };
            let store = PgStore::new(setting.url(), config)?;
            run(setting, store, (clients, batch), &seen).await?;
        }
        Fence::Off => {
            let pool = PgPoolOptions::new()
                .max_connections(clients + 2)
                .connect_lazy_with(connect_options(setting.url())?);
            run(setting, Unfenced(pool), (clients, batch), &seen).await?;
        }
    }
    Ok(seen.measured())
}

async fn run<S>(
    setting: &Setting,
    store: S,
    (clients, batch): (u32, u32),
    seen: &Arc<Seen>,
) -> anyhow::Result<()>
where
    S: Store,
    S::Tx: WorkTx<Conn = PgConnection>,
{
    let pool = PgPoolOptions::new()
        .max_connections(clients + 2)
        .connect_with(connect_options(setting.url())?)
        .await?;
    let queue = PgmqQueue::new(pool).await;
    let observer: Arc<dyn Observer> = Arc::clone(seen) as _;
    let env = Env::system()?.observed_by(observer);
    let mut config = ConsumerConfig::new(consumer_name(), queue_name());
    config.concurrency = usize::try_from(clients)?;
    config.batch = usize::try_from(batch)?;
    let consumer = Consumer::new(config, store, queue, Awards, env)?;
    let shutdown = Shutdown::new();
    seen.begin();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    seen.all.notified().await;
    shutdown.begin();
    running.await?;
    Ok(())
}

/// The same statement that pgbench runs.
struct Awards;

impl<S> Handler<S> for Awards
where
    S: Store,
    S::Tx: WorkTx<Conn = PgConnection>,
{
    type Payload = Award;

    async fn handle(&self, job: Job<Award>, tx: &mut PgConnection) -> Result<(), Failure> {
        sqlx::query(
            "INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, $2, $3, $4)",
        )
        .bind(job.id.as_uuid())
        .bind(CONSUMER)
        .bind(&job.payload.account)
        .bind(job.payload.points)
        .execute(tx)
        .await?;
        Ok(())
    }

    async fn handle_batch(
        &self,
        jobs: Vec<Job<Award>>,
        tx: &mut PgConnection,
    ) -> Result<(), Failure> {
        let ids: Vec<_> = jobs.iter().map(|job| job.id.as_uuid()).collect();
        let accounts: Vec<_> = jobs.iter().map(|job| job.payload.account.clone()).collect();
        let points: Vec<_> = jobs.iter().map(|job| job.payload.points).collect();
        sqlx::query(
            "INSERT INTO ledger (job_id, consumer, account, points) \
             SELECT job, $2, account, points FROM unnest($1, $3, $4) AS work (job, account, points)",
        )
        .bind(ids)
        .bind(CONSUMER)
        .bind(accounts)
        .bind(points)
        .execute(tx)
        .await?;
        Ok(())
    }
}

/// When each delivery came and was acknowledged.
struct Seen {
    clock: SystemClock,
    messages: u32,
    times: Mutex<Times>,
    all: Notify,
}

#[derive(Default)]
struct Times {
    began: Duration,
    ended: Duration,
    open: BTreeMap<Receipt, Duration>,
    took: Vec<Duration>,
}

impl Seen {
    fn new(messages: u32) -> Self {
        Self {
            clock: SystemClock::new(),
            messages,
            times: Mutex::default(),
            all: Notify::new(),
        }
    }

    fn begin(&self) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.began = self.clock.elapsed();
    }

    fn measured(&self) -> Measured {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let took = times.ended.saturating_sub(times.began);
        Measured::of(self.messages, took, times.took.clone())
    }
}

impl Observer for Seen {
    fn event(&self, event: &Event) {
        let Some(receipt) = event.job.as_ref().and_then(|it| it.delivery.clone()) else {
            return;
        };
        let now = self.clock.elapsed();
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        match event.step {
            Step::Received { .. } => {
                times.open.insert(receipt, now);
            }
            Step::Acked => {
                if let Some(came) = times.open.remove(&receipt) {
                    times.took.push(now.saturating_sub(came));
                }
                times.ended = now;
                if u32::try_from(times.took.len()) == Ok(self.messages) {
                    self.all.notify_one();
                }
            }
            _ => {}
        }
    }
}
