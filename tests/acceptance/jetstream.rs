//! The criteria that depend on the queue, with the queue on NATS JetStream instead of in the database.

use std::time::Duration;

use acceptance::award::{Award, Misbehave};
use acceptance::clock::eventually;
use acceptance::db::{Db, job_id, queue_name};
use acceptance::nats::{self, Nats};
use acceptance::rig::{Running, awards, handler_fn, watched};
use acceptance::watch::Recorder;
use harness::{
    ConsumerConfig, Envelope, Failure, Handler, JetStreamQueue, MeterQueue as _, OutsidePublisher,
    PgStore, QueuePort as _, Reason, Replayed, RetryPolicy, Review, Status, Step, SweepTarget,
    Sweeper, SweeperConfig,
};

use crate::replaying::operator;

/// A database, and a queue on a server of its own.
struct On {
    db: Db,
    queue: JetStreamQueue,
    server: Nats,
}

impl On {
    async fn fresh() -> Self {
        let server = Nats::start().await.unwrap();
        let queue = nats::queue(&[server.url()], 1).await.unwrap();
        queue.create(&queue_name()).await.unwrap();
        let db = Db::fresh().await;
        Self { db, queue, server }
    }

    /// Waits are real, so they are short.
    fn config(&self) -> ConsumerConfig {
        let mut config = self.db.config();
        let (base, cap) = (Duration::from_millis(20), Duration::from_millis(200));
        config.retry = RetryPolicy::overriding(base, cap, 5, "nobody waits for a test").unwrap();
        config.busy_delay = Duration::from_millis(50);
        config
    }

    async fn publish(&self, envelope: &Envelope) {
        self.queue.publish(&queue_name(), envelope).await.unwrap();
    }

    /// A consumer with a connection of its own.
    async fn consumer(&self, handler: impl Handler<PgStore>) -> Running {
        let queue = nats::queue(&[self.server.url()], 1).await.unwrap();
        Running::start_on(self.config(), self.db.store(), queue, handler)
    }

    async fn settled(&self) {
        eventually("the queue is empty", async || {
            match self.queue.measure(&queue_name()).await.unwrap().messages {
                0 => Ok(()),
                left => Err(format!("{left} messages")),
            }
        })
        .await;
    }

    /// Runs until nothing is left; answers what was seen.
    async fn run(&self, handler: impl Handler<PgStore>) -> Recorder {
        let consumer = self.consumer(handler).await;
        self.settled().await;
        let seen = consumer.seen.clone();
        consumer.stop().await;
        seen
    }
}

#[tokio::test]
async fn a1_on_jetstream_copies_that_race_have_one_effect() {
    let on = On::fresh().await;
    let envelope = Envelope::new(job_id(), Award::new("ada", 10).body());
    for _ in 0..20 {
        on.publish(&envelope).await;
    }
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(on.consumer(awards()).await);
    }
    on.settled().await;
    let mut applied = 0;
    for consumer in consumers {
        applied += consumer.seen.count(|step| matches!(step, Step::Committed));
        consumer.stop().await;
    }
    let job = envelope.job_id;
    let found = (applied, on.db.effects(job).await, on.db.fences(job).await);
    assert_eq!(found, (1, 1, 1));
}

#[tokio::test]
async fn a3_on_jetstream_a_transient_failure_is_retried_five_times() {
    let on = On::fresh().await;
    let id = job_id();
    on.publish(&Envelope::new(id, "{}")).await;
    let always = handler_fn(|job, _| {
        Box::pin(async move { Err(Failure::transient(format!("run {}", job.run))) })
    });
    let seen = on.run(always).await;
    let runs: Vec<_> = seen
        .steps_of(id)
        .into_iter()
        .filter_map(|step| match step {
            Step::Retried { run, .. } => Some(run),
            _ => None,
        })
        .collect();
    assert_eq!(runs, [1, 2, 3, 4, 5]);
    let letter = on.db.letters().await.remove(0).letter;
    let found = (letter.reason, letter.attempts, letter.last_error.as_str());
    assert_eq!(found, (Reason::Exhausted, 6, "run 6"));
    assert_eq!(on.db.effects(id).await, 0);
}

/// B3: what is no attempt is not counted, whichever way it went back before.
#[tokio::test]
async fn b3_on_jetstream_contention_costs_no_attempt() {
    let on = On::fresh().await;
    let id = job_id();
    let award = Award::new("ada", 10).then(Misbehave::FailRuns(2));
    on.publish(&Envelope::new(id, award.body())).await;
    // Somebody else is busy with this job.
    let mut twin = on.db.pool.begin().await.unwrap();
    sqlx::query("SELECT core.hold_fence_key($1, 'awards', 1000)")
        .bind(id.as_uuid())
        .execute(&mut *twin)
        .await
        .unwrap();
    let consumer = on.consumer(awards()).await;
    let deferred = |step: &Step| matches!(step, Step::Deferred { .. });
    consumer.seen.wait_for("is deferred", 2, deferred).await;
    twin.rollback().await.unwrap();
    on.settled().await;
    let runs = consumer
        .seen
        .count(|step| matches!(step, Step::Retried { .. }));
    consumer.stop().await;
    assert_eq!((runs, on.db.effects(id).await), (2, 1));
}

#[tokio::test]
async fn a4_on_jetstream_poison_is_a_dead_letter_at_once() {
    let on = On::fresh().await;
    let id = job_id();
    let bytes = b"{\xff\0".to_vec();
    on.publish(&Envelope::new(id, bytes.clone())).await;
    let seen = on.run(awards()).await;
    let runs = seen.count(|step| matches!(step, Step::RunStarted { .. }));
    let letter = on.db.letters().await.remove(0).letter;
    assert_eq!((runs, letter.reason), (0, Reason::Poison));
    assert_eq!((letter.job_id, letter.body), (id, bytes));
}

#[tokio::test]
async fn a5_on_jetstream_a_replayed_job_is_applied_once() {
    let on = On::fresh().await;
    let id = job_id();
    let body = Award::new("ada", 10).body();
    on.publish(&Envelope::new(id, body.clone())).await;
    on.run(handler_fn(|_, _| {
        Box::pin(async { Err(Failure::permanent("a bug that is fixed later")) })
    }))
    .await;
    let letter = on.db.letters().await.remove(0).letter;
    assert_eq!(letter.body, body);
    let publisher = OutsidePublisher(on.queue.clone());
    let review = Review::new(on.db.store(), publisher, watched().0);
    for due in [Replayed::Published { generation: 1 }, Replayed::Already] {
        assert_eq!(review.replay(letter.id, &operator()).await.unwrap(), due);
    }
    on.run(awards()).await;
    assert_eq!((on.db.effects(id).await, on.db.fences(id).await), (1, 1));
    assert_eq!(on.db.letters().await[0].status, Status::Replayed);
}

/// B7: the sweep asks the queue for its oldest message, and keeps every fence that a copy there may need.
#[tokio::test]
async fn a6_on_jetstream_a_waiting_copy_holds_the_sweep_back() {
    let on = On::fresh().await;
    let (waiting, done) = (job_id(), job_id());
    let body = Award::new("ada", 10).body();
    for id in [waiting, done] {
        on.publish(&Envelope::new(id, body.clone())).await;
    }
    on.run(awards()).await;
    on.publish(&Envelope::new(waiting, body)).await;
    // Both were applied long ago; one expired before the copy was sent.
    let mut tx = on.db.pool.begin().await.unwrap();
    for statement in [
        "SET LOCAL session_replication_role = replica",
        "UPDATE core.processed_jobs SET processed_at = clock_timestamp() - interval '8 days', \
         expires_at = clock_timestamp() + interval '100 milliseconds'",
    ] {
        sqlx::query(statement).execute(&mut *tx).await.unwrap();
    }
    sqlx::query("UPDATE core.processed_jobs SET expires_at = expires_at - interval '1 day' WHERE job_id = $1")
        .bind(done.as_uuid())
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let config = SweeperConfig::new(vec![SweepTarget::of(&on.db.config())]);
    let sweeper = Sweeper::new(config, on.db.store(), on.queue.clone(), watched().0);
    eventually("both are expired", async || {
        let count = "SELECT count(*) FROM core.processed_jobs WHERE expires_at < clock_timestamp()";
        match on.db.count(count).await {
            2 => Ok(()),
            other => Err(format!("{other} are")),
        }
    })
    .await;
    assert_eq!(sweeper.round().await.rows, 1);
    let fences = (on.db.fences(done).await, on.db.fences(waiting).await);
    assert_eq!(fences, (0, 1), "what a waiting copy may need stays");
    on.run(awards()).await;
    assert_eq!(on.db.effects(waiting).await, 1);
    assert_eq!(sweeper.round().await.rows, 1, "nothing waits any more");
}
