//! Batches keep every promise that single jobs have: what shares a transaction shares nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use acceptance::award::{Award, Awards, Misbehave};
use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, consumer_name, job_id};
use acceptance::faults::{Fault, Faulty, ForStore, Plan, Point};
use acceptance::rig::{Running, awards};
use acceptance::worker::WorkerArgs;
use harness::{
    ConsumerConfig, Envelope, Failure, FenceVerdict, Handler, Job, JobId, PgStore, Reason, Step,
};
use sqlx::PgConnection;
use tokio::sync::Semaphore;

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// One place, so that what is on the queue is one batch.
fn in_batches(db: &Db) -> ConsumerConfig {
    let mut config = db.config();
    (config.concurrency, config.batch) = (1, 50);
    config
}

async fn publish(db: &Db, awards: &[Award]) -> Vec<JobId> {
    let mut ids = Vec::new();
    for award in awards {
        ids.push(db.publish_award(award).await);
    }
    ids
}

fn good(jobs: i64) -> Vec<Award> {
    (1..=jobs).map(|points| Award::new("ada", points)).collect()
}

/// Each of them is applied once, with its fence.
async fn applied_once(db: &Db, ids: &[JobId]) {
    for id in ids {
        let found = (db.effects(*id).await, db.fences(*id).await);
        assert_eq!(found, (1, 1), "effects and fences of job {id}");
    }
}

fn has(steps: &[Step], such: impl Fn(&Step) -> bool) -> usize {
    steps.iter().filter(|step| such(step)).count()
}

const fn batched(step: &Step) -> bool {
    matches!(step, Step::BatchStarted { .. })
}

const fn left(step: &Step) -> bool {
    matches!(step, Step::LeftBatch { .. })
}

const fn answered_otherwise(step: &Step) -> bool {
    matches!(
        step,
        Step::Retried { .. } | Step::Deferred { .. } | Step::DeadLettered { .. }
    )
}

/// Writes all entries in one statement.
struct Bulk;

impl Handler<PgStore> for Bulk {
    type Payload = Award;

    async fn handle(&self, job: Job<Award>, tx: &mut PgConnection) -> Result<(), Failure> {
        self.handle_batch(vec![job], tx).await
    }

    async fn handle_batch(
        &self,
        jobs: Vec<Job<Award>>,
        tx: &mut PgConnection,
    ) -> Result<(), Failure> {
        let ids: Vec<_> = jobs.iter().map(|job| job.id.as_uuid()).collect();
        let points: Vec<_> = jobs.iter().map(|job| job.payload.points).collect();
        sqlx::query(
            "INSERT INTO ledger (job_id, consumer, account, points) \
             SELECT job, 'awards', 'ada', points FROM unnest($1, $2) AS work (job, points)",
        )
        .bind(ids)
        .bind(points)
        .execute(tx)
        .await?;
        Ok(())
    }
}

#[tokio::test]
async fn b1_a_batch_is_one_transaction() {
    let db = Db::fresh().await;
    let ids = publish(&db, &good(30)).await;
    let consumer = Running::start(&db, in_batches(&db), Bulk).await;
    db.settled().await;
    applied_once(&db, &ids).await;
    for table in ["ledger", "core.processed_jobs"] {
        let transactions = db
            .count(&format!("SELECT count(DISTINCT xmin::text) FROM {table}"))
            .await;
        assert_eq!(transactions, 1, "transactions that wrote {table}");
    }
    let both = "SELECT count(*) FROM ledger JOIN core.processed_jobs AS fence USING (job_id) \
                WHERE ledger.xmin = fence.xmin";
    assert_eq!(db.count(both).await, 30, "effects beside their fences");
    let whole = |step: &Step| matches!(step, Step::BatchEnded { jobs: 30, .. });
    assert_eq!(consumer.seen.count(whole), 1);
    consumer.stop().await;
}

/// A handler that knows nothing of batches.
#[tokio::test]
async fn b1_any_handler_can_be_batched() {
    let db = Db::fresh().await;
    let ids = publish(&db, &good(20)).await;
    let consumer = Running::start(&db, in_batches(&db), awards()).await;
    db.settled().await;
    applied_once(&db, &ids).await;
    let transactions = "SELECT count(DISTINCT xmin::text) FROM ledger";
    assert_eq!(db.count(transactions).await, 1);
    consumer.stop().await;
}

#[tokio::test]
async fn a1_b2_copies_in_a_batch_and_after_it_are_skipped() {
    let db = Db::fresh().await;
    let ids: Vec<JobId> = (0..20).map(|_| job_id()).collect();
    let copies = || async {
        for id in &ids {
            db.publish(&Envelope::new(*id, Award::new("ada", 1).body()))
                .await;
        }
    };
    // Twins in one batch, and in one that comes later.
    copies().await;
    copies().await;
    let consumer = Running::start(&db, in_batches(&db), Bulk).await;
    db.settled().await;
    copies().await;
    db.settled().await;
    applied_once(&db, &ids).await;
    let duplicate = |step: &Step| {
        matches!(
            step,
            Step::Fence {
                verdict: FenceVerdict::Duplicate,
                ..
            }
        )
    };
    assert_eq!(consumer.seen.count(duplicate), 40, "skipped, not run");
    assert_eq!(
        consumer.seen.count(answered_otherwise),
        0,
        "and acked at once"
    );
    assert!(db.letters().await.is_empty());
    consumer.stop().await;
}

/// Batches of many consumers that want the same jobs, each in another order.
#[tokio::test]
async fn a1_batches_of_twins_do_not_deadlock() {
    let db = Db::fresh().await;
    let mut ids: Vec<JobId> = (0..40).map(|_| job_id()).collect();
    for _ in 0..3 {
        for id in &ids {
            db.publish(&Envelope::new(*id, Award::new("ada", 1).body()))
                .await;
        }
        ids.reverse();
    }
    let mut config = in_batches(&db);
    config.batch = 40;
    let mut consumers = Vec::new();
    for _ in 0..3 {
        consumers.push(Running::start(&db, config.clone(), awards()).await);
    }
    db.settled().await;
    applied_once(&db, &ids).await;
    for consumer in consumers {
        let retried = |step: &Step| matches!(step, Step::Retried { .. });
        assert_eq!(consumer.seen.count(retried), 0);
        consumer.stop().await;
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(db.count(deadlocks).await, 0);
}

#[tokio::test]
async fn a4_b5_poison_in_a_batch_does_not_touch_its_neighbours() {
    let db = Db::fresh().await;
    let mut ids = publish(&db, &good(5)).await;
    let poison = job_id();
    db.publish(&Envelope::new(poison, r#"{"points": "many"}"#))
        .await;
    ids.extend(publish(&db, &good(5)).await);
    let consumer = Running::start(&db, in_batches(&db), Bulk).await;
    db.settled().await;
    applied_once(&db, &ids).await;
    let letters = db.letters().await;
    let letter = &letters.first().expect("one dead letter").letter;
    assert_eq!(
        (letters.len(), letter.job_id, letter.reason, letter.attempts),
        (1, poison, Reason::Poison, 1)
    );
    assert_eq!(consumer.seen.count(left), 0, "the batch was not given up");
    assert_eq!(consumer.seen.count(batched), 10);
    consumer.stop().await;
}

/// One job of a batch ends badly: it alone bears it, in the same delivery.
async fn the_culprit_alone(culprit: Misbehave) -> (Db, JobId, Running) {
    let db = Db::fresh().await;
    let mut awards_of = good(6);
    awards_of.insert(3, Award::new("eve", 7).then(culprit));
    let ids = publish(&db, &awards_of).await;
    let guilty = ids[3];
    let consumer = Running::start(&db, in_batches(&db), awards()).await;
    let neighbours: Vec<JobId> = ids.iter().copied().filter(|id| *id != guilty).collect();
    eventually("the neighbours are applied", async || {
        match db
            .count("SELECT count(*) FROM ledger WHERE account = 'ada'")
            .await
        {
            6 => Ok(()),
            n => Err(format!("{n} of 6")),
        }
    })
    .await;
    eventually("the culprit is answered", async || {
        let steps = consumer.seen.steps_of(guilty);
        if has(&steps, answered_otherwise) > 0 {
            Ok(())
        } else {
            Err(format!("{steps:?}"))
        }
    })
    .await;
    applied_once(&db, &neighbours).await;
    for id in neighbours {
        let steps = consumer.seen.steps_of(id);
        assert_eq!(
            (has(&steps, batched), has(&steps, left)),
            (1, 1),
            "{steps:?}"
        );
        assert_eq!(has(&steps, answered_otherwise), 0, "{steps:?}");
        let run_1 = |step: &Step| matches!(step, Step::RunStarted { run: 1 });
        assert_eq!(has(&steps, run_1), 1, "{steps:?}");
    }
    (db, guilty, consumer)
}

#[tokio::test]
async fn a3_b3_a_transient_failure_in_a_batch_retries_the_culprit_alone() {
    let (db, guilty, consumer) = the_culprit_alone(Misbehave::FailRuns(1)).await;
    db.skip_delays().await;
    db.settled().await;
    applied_once(&db, &[guilty]).await;
    let steps = consumer.seen.steps_of(guilty);
    assert_eq!(
        has(&steps, batched),
        1,
        "a second run is not batched: {steps:?}"
    );
    let second = |step: &Step| matches!(step, Step::RunStarted { run: 2 });
    assert_eq!(
        has(&steps, second),
        1,
        "the batch was no attempt: {steps:?}"
    );
    assert!(db.letters().await.is_empty());
    consumer.stop().await;
}

#[tokio::test]
async fn a3_b4_a_batch_is_no_attempt_of_a_job_that_fails_for_ever() {
    let (db, guilty, consumer) = the_culprit_alone(Misbehave::FailRuns(100)).await;
    eventually("the culprit is given up", async || {
        db.skip_delays().await;
        match db.queued().await {
            0 => Ok(()),
            n => Err(format!("{n} messages")),
        }
    })
    .await;
    let letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0].letter;
    assert_eq!(
        (letter.job_id, letter.reason, letter.attempts),
        (guilty, Reason::Exhausted, 6)
    );
    let runs = |step: &Step| matches!(step, Step::RunStarted { .. });
    assert_eq!(has(&consumer.seen.steps_of(guilty), runs), 6);
    assert_eq!(db.effects(guilty).await, 0);
    consumer.stop().await;
}

#[tokio::test]
async fn a4_b5_a_hard_failure_in_a_batch_is_the_culprits_alone() {
    let (db, guilty, consumer) = the_culprit_alone(Misbehave::FailHard).await;
    db.settled().await;
    let letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0].letter;
    assert_eq!(
        (letter.job_id, letter.reason, letter.attempts),
        (guilty, Reason::Hard, 1)
    );
    consumer.stop().await;
}

#[tokio::test]
async fn a3_b3_a_panic_in_a_batch_is_the_culprits_alone() {
    let (db, guilty, consumer) = the_culprit_alone(Misbehave::PanicRuns(1)).await;
    db.skip_delays().await;
    db.settled().await;
    applied_once(&db, &[guilty]).await;
    consumer.stop().await;
}

/// What goes wrong at one call to a port, once.
fn once(at: &str) -> Plan {
    let point: Point = at.parse().unwrap();
    let times = AtomicU32::new(0);
    Arc::new(move |here| {
        if here == point && times.fetch_add(1, Ordering::SeqCst) == 0 {
            Fault::Away
        } else {
            Fault::None
        }
    })
}

async fn after_a_fault(at: &str) -> (Db, Running) {
    let db = Db::fresh().await;
    let ids = publish(&db, &good(10)).await;
    let plan = once(at);
    let consumer = Running::start_on(
        in_batches(&db),
        Faulty::new(db.store(), Arc::clone(&plan)),
        Faulty::new(db.queue().await, Arc::clone(&plan)),
        Faulty::new(ForStore::<PgStore, _>::new(awards()), plan),
    );
    db.settled().await;
    applied_once(&db, &ids).await;
    let counted = |step: &Step| matches!(step, Step::Retried { .. });
    assert_eq!(consumer.seen.count(counted), 0, "an outage is no attempt");
    assert!(db.letters().await.is_empty());
    (db, consumer)
}

#[tokio::test]
async fn b3_a_store_that_is_away_before_a_batch_defers_all_of_it() {
    for at in ["before:begin", "before:fence", "after:fence"] {
        let (_db, consumer) = after_a_fault(at).await;
        assert_eq!(consumer.seen.count(left), 10, "{at}");
        let deferred = |step: &Step| matches!(step, Step::Deferred { .. });
        assert_eq!(consumer.seen.count(deferred), 10, "{at}");
        consumer.stop().await;
    }
}

/// Committed or not: the fence knows.
#[tokio::test]
async fn a2_an_unknown_commit_of_a_batch_is_asked_of_the_fence() {
    for (at, duplicates) in [("before:commit", 0), ("after:commit", 10)] {
        let (_db, consumer) = after_a_fault(at).await;
        let unknown = |step: &Step| matches!(step, Step::CommitUnknown { .. });
        assert_eq!(consumer.seen.count(unknown), 10, "{at}");
        let duplicate = |step: &Step| {
            matches!(
                step,
                Step::Fence {
                    verdict: FenceVerdict::Duplicate,
                    ..
                }
            )
        };
        assert_eq!(consumer.seen.count(duplicate), duplicates, "{at}");
        consumer.stop().await;
    }
}

#[tokio::test]
async fn a2_an_ack_of_a_batch_is_insisted_on() {
    for at in ["before:ack", "after:ack"] {
        let (_db, consumer) = after_a_fault(at).await;
        let acked = |step: &Step| matches!(step, Step::Acked);
        consumer.seen.wait_for(at, 10, acked).await;
        consumer.stop().await;
    }
}

/// A worker dies in the middle of a batch; another one takes over, in batches as well.
#[tokio::test]
async fn a1_a2_a_batch_whose_worker_dies_is_applied_once() {
    for point in [
        "after:receive",
        "after:begin",
        "after:fence",
        "after:work",
        "before:commit",
        "after:commit",
        "after:ack",
    ] {
        let db = Db::fresh().await;
        let ids = publish(&db, &good(10)).await;
        let mut args = WorkerArgs::new(db.url());
        (args.lease_s, args.retry_base_ms) = (1, 50);
        (args.concurrency, args.batch) = (1, 50);
        let mut doomed = args.clone();
        doomed.kill_at = Some(point.parse().unwrap());
        let mut worker = doomed.spawn(WORKER, &[]).unwrap();
        let status = in_time("the worker dies where it is told to", worker.wait())
            .await
            .unwrap();
        assert!(!status.success(), "{point}: {status}");
        let mut successor = args.spawn(WORKER, &[]).unwrap();
        db.settled().await;
        assert!(successor.stop().await.unwrap().success());
        applied_once(&db, &ids).await;
        assert!(db.letters().await.is_empty(), "{point}");
    }
}

/// Waits for a permit before it commits.
struct Gated {
    gate: Arc<Semaphore>,
    awards: Awards,
}

impl Handler<PgStore> for Gated {
    type Payload = Award;

    async fn handle(&self, job: Job<Award>, tx: &mut PgConnection) -> Result<(), Failure> {
        self.awards.handle(job, tx).await
    }

    async fn handle_batch(
        &self,
        jobs: Vec<Job<Award>>,
        tx: &mut PgConnection,
    ) -> Result<(), Failure> {
        for job in jobs {
            self.handle(job, &mut *tx).await?;
        }
        self.gate.acquire().await?.forget();
        Ok(())
    }
}

fn gated() -> (Arc<Semaphore>, Gated) {
    let gate = Arc::new(Semaphore::new(0));
    let handler = Gated {
        gate: Arc::clone(&gate),
        awards: awards(),
    };
    (gate, handler)
}

#[tokio::test]
async fn b3_a_shutdown_in_the_middle_of_a_batch_gives_all_of_it_back_uncounted() {
    let db = Db::fresh().await;
    let ids = publish(&db, &good(10)).await;
    let (_shut, handler) = gated();
    let mut config = in_batches(&db);
    config.grace = Duration::from_millis(400);
    let consumer = Running::start(&db, config, handler).await;
    consumer.seen.wait_for("the batch runs", 10, batched).await;
    let seen = consumer.seen.clone();
    assert_eq!(consumer.stop().await.abandoned, 0);
    let deferred = |step: &Step| matches!(step, Step::Deferred { .. });
    assert_eq!(seen.count(deferred), 10);
    let counted = "SELECT count(*) FROM pgmq.q_points WHERE read_ct > 0";
    assert_eq!(db.count(counted).await, 0, "deliveries that count");
    assert_eq!(db.count("SELECT count(*) FROM ledger").await, 0);

    let next = Running::start(&db, in_batches(&db), awards()).await;
    db.settled().await;
    applied_once(&db, &ids).await;
    next.stop().await;
}

#[tokio::test]
async fn b1_every_lease_of_a_batch_is_kept() {
    let db = Db::fresh().await;
    let ids = publish(&db, &good(10)).await;
    let (gate, handler) = gated();
    let mut config = in_batches(&db);
    config.lease = Duration::from_secs(2);
    let consumer = Running::start(&db, config, handler).await;
    consumer.seen.wait_for("the batch runs", 10, batched).await;
    let first: String = sqlx::query_scalar("SELECT max(vt)::text FROM pgmq.q_points")
        .fetch_one(&db.pool)
        .await
        .unwrap();
    // Longer than the first lease of each.
    let later = format!(
        "SELECT count(*) FROM pgmq.q_points WHERE vt > '{first}'::timestamptz + interval '2 seconds'"
    );
    eventually(
        "every lease was extended beyond its first end",
        async || match db.count(&later).await {
            10 => Ok(()),
            n => Err(format!("{n} of 10")),
        },
    )
    .await;
    gate.add_permits(1);
    db.settled().await;
    applied_once(&db, &ids).await;
    let lost = |step: &Step| matches!(step, Step::LeaseLost);
    assert_eq!(consumer.seen.count(lost), 0);
    let received = |step: &Step| matches!(step, Step::Received { .. });
    assert_eq!(consumer.seen.count(received), 10, "each came once");
    consumer.stop().await;
}

/// Each consumer has fences of its own, in a batch as well.
#[tokio::test]
async fn b6_a_replay_for_one_consumer_runs_in_a_batch() {
    let db = Db::fresh().await;
    let id = job_id();
    let mut envelope = Envelope::new(id, Award::new("ada", 1).body());
    envelope.consumer = Some(consumer_name());
    envelope.generation = 1;
    db.publish(&envelope).await;
    let mut ids = publish(&db, &good(3)).await;
    ids.push(id);
    let consumer = Running::start(&db, in_batches(&db), Bulk).await;
    db.settled().await;
    applied_once(&db, &ids).await;
    assert_eq!(consumer.seen.count(batched), 4);
    consumer.stop().await;
}
