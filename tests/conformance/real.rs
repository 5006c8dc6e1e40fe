//! PostgreSQL and pgmq under the suites. Cases that take the server away have one of their own.

use std::sync::Arc;
use std::time::Duration;

use acceptance::conformance::queue::QueueBench;
use acceptance::conformance::store::StoreBench;
use acceptance::conformance::{queue, store};
use acceptance::db::{Db, random_id};
use futures_util::future::BoxFuture;
use harness::{
    Clock, Connection, ConsumerName, JobId, PgStore, PgStoreConfig, PgmqQueue, QueueName,
    StoreError, SystemClock,
};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Mutex;

/// Nobody waits longer for a server that is away.
const CONNECTING: Duration = Duration::from_secs(1);

/// One database. Clones share it.
#[derive(Clone)]
pub struct Real {
    db: Arc<Mutex<Db>>,
    pool: sqlx::PgPool,
    url: String,
    clock: SystemClock,
}

impl Real {
    /// On the server that all tests share.
    pub async fn shared() -> Self {
        Self::of(Db::fresh().await)
    }

    /// For a case: with a server of its own, if it is one that takes it away.
    pub async fn for_case(case: &str) -> Self {
        if case.contains("server") || case.contains("away") {
            Self::of(Db::own_server().await)
        } else {
            Self::shared().await
        }
    }

    fn of(db: Db) -> Self {
        Self {
            pool: db.pool.clone(),
            url: db.url().to_owned(),
            db: Arc::new(Mutex::new(db)),
            clock: SystemClock::new(),
        }
    }

    async fn kill(&self) -> anyhow::Result<()> {
        Ok(self.db.lock().await.server().kill()?)
    }

    async fn restart(&self) -> anyhow::Result<()> {
        Ok(self.db.lock().await.server().restart()?)
    }
}

impl QueueBench for Real {
    type Queue = PgmqQueue;

    async fn client(&self) -> anyhow::Result<PgmqQueue> {
        let pool = PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(CONNECTING)
            .connect_lazy(&self.url)?;
        Ok(PgmqQueue::new(pool).await)
    }

    async fn fresh(&self) -> anyhow::Result<QueueName> {
        let queue = QueueName::new(&format!("q{}", random_id().simple()))?;
        QueueBench::client(self).await?.create(&queue).await?;
        Ok(queue)
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// A message that is due so much earlier is one for which so much time passed.
    async fn pass(&self, queue: &QueueName, time: Duration) -> anyhow::Result<()> {
        let shift = format!(
            "UPDATE pgmq.q_{queue} SET vt = vt - interval '{} microseconds'",
            time.as_micros()
        );
        sqlx::query(AssertSqlSafe(shift))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.kill().await
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.restart().await
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

impl StoreBench for Real {
    type Store = PgStore;

    fn client(&self, patient: bool) -> PgStore {
        let wait = Duration::from_millis(if patient { 30_000 } else { 50 });
        let config = PgStoreConfig {
            fence_wait: wait,
            lock_wait: wait,
            acquire_timeout: CONNECTING,
            ..PgStoreConfig::default()
        };
        PgStore::new(&self.url, config).expect("a valid URL")
    }

    fn effect<'a>(
        connection: &'a mut Connection<PgStore>,
        job: JobId,
        consumer: &'a ConsumerName,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, $2, 'ada', 1)",
            )
            .bind(job.as_uuid())
            .bind(consumer.as_str())
            .execute(connection)
            .await
            .map(|_| ())
            .map_err(|error| StoreError::Refused(error.into()))
        })
    }

    fn failing_statement(connection: &mut Connection<PgStore>) -> BoxFuture<'_, ()> {
        Box::pin(async { drop(sqlx::query("SELECT 1 / 0").execute(connection).await) })
    }

    async fn look(&self, job: JobId, consumer: &ConsumerName) -> anyhow::Result<(u64, bool)> {
        let (effects, fence): (i64, bool) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM ledger WHERE job_id = $1 AND consumer = $2),
                    EXISTS (SELECT FROM core.processed_jobs WHERE job_id = $1 AND consumer = $2)",
        )
        .bind(job.as_uuid())
        .bind(consumer.as_str())
        .fetch_one(&self.pool)
        .await?;
        Ok((u64::try_from(effects)?, fence))
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.kill().await
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.restart().await
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

macro_rules! on_pgmq {
    ($($case:ident,)*) => { mod pgmq { use super::*; $(
        #[tokio::test]
        async fn $case() {
            let bench = Real::for_case(stringify!($case)).await;
            queue::run(stringify!($case), &bench).await.unwrap();
        }
    )* } };
}
acceptance::queue_cases!(on_pgmq);

macro_rules! on_postgres {
    ($($case:ident,)*) => { mod postgres { use super::*; $(
        #[tokio::test]
        async fn $case() {
            let bench = Real::for_case(stringify!($case)).await;
            store::run(stringify!($case), &bench).await.unwrap();
        }
    )* } };
}
acceptance::store_cases!(on_postgres);
