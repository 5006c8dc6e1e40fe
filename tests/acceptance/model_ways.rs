//! Ways through the lifecycle model, driven through the real harness on PostgreSQL and pgmq.
//!
//! The same ways are driven on the simulated store (`cargo sim drive`): where both follow the model, the simulated store does
//! what PostgreSQL does.

use std::time::Duration;

use acceptance::clock::DEADLINE;
use acceptance::db::Db;
use futures_util::future::BoxFuture;
use harness::{
    Clock as _, JobId, LetterFilter, LetterQuery, PgStore, PgStoreConfig, PgmqQueue, QueueName,
    Reason, ReviewStore as _, Status, StoreError, SystemClock,
};
use models::lifecycle::cover::{Cover, Grain, cover, models};
use sim::script::{Bench, Observed, drive};
use sqlx::PgConnection;

struct Real {
    db: Db,
    store: PgStore,
    queue: PgmqQueue,
    clock: SystemClock,
}

/// The queues of the two places.
const PLACES: [&str; 2] = ["place_1", "place_2"];

impl Real {
    async fn new() -> Self {
        let db = Db::fresh().await;
        let queue = db.queue().await;
        for place in PLACES {
            queue.create(&QueueName::new(place).unwrap()).await.unwrap();
        }
        let store = db.store_with(PgStoreConfig {
            fence_wait: Duration::from_millis(50),
            ..PgStoreConfig::default()
        });
        let clock = SystemClock::new();
        Self {
            db,
            store,
            queue,
            clock,
        }
    }

    /// What an earlier way left on the queues.
    async fn clear(&self) {
        self.db
            .execute("TRUNCATE pgmq.q_place_1, pgmq.q_place_2")
            .await;
    }
}

impl Bench for Real {
    type Store = PgStore;
    type Queue = PgmqQueue;

    fn store(&self) -> PgStore {
        self.store.clone()
    }

    fn queue(&self) -> PgmqQueue {
        self.queue.clone()
    }

    fn place(&self, copy: u8) -> QueueName {
        QueueName::new(PLACES[usize::from(copy)]).unwrap()
    }

    async fn make_due(&self, queue: &QueueName) -> anyhow::Result<()> {
        let due = format!("UPDATE pgmq.q_{queue} SET vt = clock_timestamp()");
        sqlx::query(sqlx::AssertSqlSafe(due))
            .execute(&self.db.pool)
            .await?;
        Ok(())
    }

    fn effect<'a>(
        connection: &'a mut PgConnection,
        job: JobId,
        consumer: &'a str,
        _generation: u32,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, $2, 'ada', 1)",
            )
            .bind(job.as_uuid())
            .bind(consumer)
            .execute(connection)
            .await
            .map(|_| ())
            .map_err(|error| StoreError::Refused(error.into()))
        })
    }

    async fn observe(&self, job: JobId, consumer: &str) -> anyhow::Result<Observed> {
        let (effects, fence, open): (i64, bool, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM ledger WHERE job_id = $1),
                    EXISTS (SELECT FROM core.processed_jobs WHERE job_id = $1),
                    (SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND state LIKE 'idle in transaction%')",
        )
        .bind(job.as_uuid())
        .fetch_one(&self.db.pool)
        .await?;
        let filter = LetterFilter {
            job_id: Some(job),
            ..LetterFilter::default()
        };
        let mut letters: Vec<(u32, Reason, Status)> = self
            .store
            .dead_letters(&LetterQuery::first(filter, 10))
            .await?
            .into_iter()
            .filter(|it| it.letter.consumer.as_str() == consumer)
            .map(|it| (it.letter.generation, it.letter.reason, it.status))
            .collect();
        letters.sort();
        let mut queues = [Vec::new(), Vec::new()];
        for (place, counts) in PLACES.iter().zip(&mut queues) {
            let read = format!("SELECT read_ct FROM pgmq.q_{place} ORDER BY msg_id");
            let rows: Vec<i32> = sqlx::query_scalar(sqlx::AssertSqlSafe(read))
                .fetch_all(&self.db.pool)
                .await?;
            *counts = rows.into_iter().map(i32::unsigned_abs).collect();
        }
        Ok(Observed {
            effects: u64::try_from(effects)?,
            fence,
            letters,
            queues,
            open_transactions: usize::try_from(open)?,
        })
    }

    async fn moment(&self) {
        self.clock.sleep(Duration::from_millis(2)).await;
    }

    async fn patience(&self) {
        self.clock.sleep(DEADLINE).await;
    }
}

/// Drives the ways of one of `parts` equal parts.
async fn drive_part(cover: Cover, part: usize, parts: usize) {
    sim::jobs::silence_planned_panics();
    let bench = Real::new().await;
    let (mut steps, mut refused) = (0, 0);
    for (n, way) in cover.ways.iter().enumerate().skip(part).step_by(parts) {
        bench.clear().await;
        let driven = drive(&bench, way, n as u64)
            .await
            .unwrap_or_else(|error| panic!("way {n}: {error:#}\n{way:?}"));
        assert_eq!(driven.steps, way.actions.len());
        steps += driven.steps;
        refused += driven.refused;
    }
    assert!(
        steps > 100 && refused > 100,
        "{steps} steps, {refused} tried"
    );
}

fn every_edge() -> Cover {
    cover(&models(), Grain::Edges)
}

#[tokio::test]
async fn a1_a3_a4_a5_a7_b1_b2_b3_b4_b5_b8_every_edge_of_the_model_is_gone_first_half() {
    drive_part(every_edge(), 0, 2).await;
}

#[tokio::test]
async fn a1_a3_a4_a5_a7_b1_b2_b3_b4_b5_b8_every_edge_of_the_model_is_gone_second_half() {
    drive_part(every_edge(), 1, 2).await;
}
