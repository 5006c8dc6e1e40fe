//! A consumer running in the test's own process.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use harness::{
    Consumer, ConsumerConfig, DrainReport, Env, Failure, Handler, Job, PgStore, QueuePort,
    Shutdown, Store, Telemetry,
};
use sqlx::PgConnection;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::award::Awards;
use crate::clock::in_time;
use crate::db::{Db, consumer_name};
use crate::faults::{Faulty, ForStore, Plan};
use crate::watch::Recorder;

/// An environment that remembers every step.
pub fn watched() -> (Env, Recorder) {
    let seen = Recorder::default();
    let observers: Vec<Arc<dyn harness::Observer>> =
        vec![Arc::new(Telemetry), Arc::new(seen.clone())];
    let env = Env::system()
        .expect("the machine has randomness")
        .observed_by(Arc::new(observers));
    (env, seen)
}

/// A consumer that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Running {
    shutdown: Shutdown,
    task: Option<JoinHandle<DrainReport>>,
    /// What it did so far.
    pub seen: Recorder,
}

impl Running {
    /// Starts one on the ports of `db`.
    pub async fn start<H: Handler<PgStore>>(db: &Db, config: ConsumerConfig, handler: H) -> Self {
        Self::start_on(config, db.store(), db.queue().await, handler)
    }

    /// Starts one on any ports.
    pub fn start_on<S, Q, H>(config: ConsumerConfig, store: S, queue: Q, handler: H) -> Self
    where
        S: Store,
        Q: QueuePort,
        H: Handler<S>,
    {
        let (env, seen) = watched();
        let consumer = Consumer::new(config, store, queue, handler, env)
            .unwrap_or_else(|error| panic!("{error}"));
        let shutdown = Shutdown::new();
        let task = Some(tokio::spawn(consumer.run(shutdown.clone())));
        Self {
            shutdown,
            task,
            seen,
        }
    }

    /// Starts one on the ports of `db`, at all of which things go wrong as planned.
    pub async fn start_faulty<H: Handler<PgStore>>(db: &Db, plan: Plan, handler: H) -> Self {
        Self::start_on(
            db.config(),
            Faulty::new(db.store(), Arc::clone(&plan)),
            Faulty::new(db.queue().await, Arc::clone(&plan)),
            Faulty::new(ForStore::<PgStore, _>::new(handler), plan),
        )
    }

    /// Begins the shutdown, without waiting for it.
    pub fn begin_shutdown(&self) {
        self.shutdown.begin();
    }

    /// Shuts down and waits for the end.
    pub async fn stop(mut self) -> DrainReport {
        self.shutdown.begin();
        let task = self.task.take().expect("stopped once");
        let report = in_time("the consumer shuts down", task)
            .await
            .expect("the consumer does not panic");
        if report.abandoned == 0 {
            self.seen.all_answered();
        }
        report
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.begin();
    }
}

/// A handler made of a function; its payload is any JSON.
pub struct HandlerFn<F>(pub F);

impl<F> Handler<PgStore> for HandlerFn<F>
where
    F: for<'a> Fn(
            Job<serde_json::Value>,
            &'a mut PgConnection,
        ) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    type Payload = serde_json::Value;

    async fn handle(
        &self,
        job: Job<serde_json::Value>,
        tx: &mut PgConnection,
    ) -> Result<(), Failure> {
        (self.0)(job, tx).await
    }
}

/// Names the type of a closure that can be a handler.
pub fn handler_fn<F>(f: F) -> HandlerFn<F>
where
    F: for<'a> Fn(
            Job<serde_json::Value>,
            &'a mut PgConnection,
        ) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    HandlerFn(f)
}

/// The handler that most tests use.
pub fn awards() -> Awards {
    Awards {
        consumer: consumer_name().to_string(),
    }
}

/// Runs `handler` until the queue is empty; answers what it did.
pub async fn run_all<H: Handler<PgStore>>(db: &Db, handler: H) -> Recorder {
    let consumer = Running::start(db, db.config(), handler).await;
    db.settled().await;
    let seen = consumer.seen.clone();
    consumer.stop().await;
    seen
}

/// Writes one entry to the ledger, then waits for a permit: a run in whose middle a test can do things.
pub fn gated(gate: &Arc<Semaphore>) -> impl Handler<PgStore> + use<> {
    let gate = Arc::clone(gate);
    handler_fn(move |job, tx| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            sqlx::query("INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, 'awards', 'ada', 10)")
                .bind(job.id.as_uuid())
                .execute(tx)
                .await?;
            gate.acquire().await?.forget();
            Ok(())
        })
    })
}
