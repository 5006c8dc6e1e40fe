//! A6: TTL cleanup removes expired rows and never removes one inside its retry window.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use acceptance::award::Award;
use acceptance::clock::eventually;
use acceptance::db::{Db, job_id};
use acceptance::faults::{Call, Fault, Faulty, Point, When};
use acceptance::rig::{Running, awards, run_all, watched};
use harness::{
    Envelope, FenceVerdict, PgStore, PgmqQueue, Review, Shutdown, Step, SweepTarget, Sweeper,
    SweeperConfig,
};

use crate::replaying::{dead_letter, operator, replay_that_crashes_before_the_mark, run};

async fn sweeper(db: &Db) -> Sweeper<PgStore, PgmqQueue> {
    let config = SweeperConfig::new(vec![SweepTarget::of(&db.config())]);
    Sweeper::new(config, db.store(), db.queue().await, watched().0)
}

/// Fences of jobs that were processed `age` ago and expire `expires` from now. Written past the seal, as a restore would.
async fn fences(db: &Db, rows: i64, age: &str, expires: &str) {
    let mut tx = db.pool.begin().await.unwrap();
    sqlx::query("SET LOCAL session_replication_role = replica")
        .execute(&mut *tx)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO core.processed_jobs (job_id, consumer, processed_at, expires_at) \
         SELECT gen_random_uuid(), 'awards', clock_timestamp() - $2::text::interval, clock_timestamp() + $3::text::interval \
         FROM generate_series(1, $1)",
    )
    .bind(rows)
    .bind(age)
    .bind(expires)
    .execute(&mut *tx)
    .await
    .unwrap();
    tx.commit().await.unwrap();
}

/// As a restore would.
async fn past_all_triggers(db: &Db, statement: &'static str) {
    let mut tx = db.pool.begin().await.unwrap();
    sqlx::query("SET LOCAL session_replication_role = replica")
        .execute(&mut *tx)
        .await
        .unwrap();
    sqlx::query(statement).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
}

async fn left(db: &Db) -> i64 {
    db.count("SELECT count(*) FROM core.processed_jobs").await
}

#[tokio::test]
async fn a6_expired_rows_go_and_others_stay() {
    let db = Db::fresh().await;
    fences(&db, 2_500, "8 days", "-1 day").await;
    fences(&db, 2_500, "6 days", "1 day").await;
    let report = sweeper(&db).await.round().await;
    assert_eq!(
        (report.rows, report.failures.len(), left(&db).await),
        (2_500, 0, 2_500)
    );
    assert_eq!(sweeper(&db).await.round().await.rows, 0);
}

#[tokio::test]
async fn a6_rows_inside_the_retry_window_survive_even_with_a_wrong_expiry() {
    let db = Db::fresh().await;
    // The window of the standard policy is 1395 s of waits and 6 runs of 60 s: 1755 s.
    fences(&db, 10, "1740 seconds", "-10 minutes").await;
    fences(&db, 5, "1770 seconds", "-10 minutes").await;
    assert_eq!(sweeper(&db).await.round().await.rows, 5);
    assert_eq!(left(&db).await, 10);
}

#[tokio::test]
async fn a6_a_backlog_older_than_the_ttl_holds_the_sweep_back() {
    let db = Db::fresh().await;
    // Applied 8 days ago; a second copy has been waiting on the queue since a minute before the fence expired.
    let id = job_id();
    let copy = Envelope::new(id, Award::new("ada", 10).body());
    db.publish(&copy).await;
    run_all(&db, awards()).await;
    db.execute(
        "UPDATE core.processed_jobs SET processed_at = clock_timestamp() - interval '8 days', \
         expires_at = clock_timestamp() - interval '1 day'",
    )
    .await;
    db.publish(&copy).await;
    db.execute(
        "UPDATE pgmq.q_points SET enqueued_at = clock_timestamp() - interval '1 day 1 minute'",
    )
    .await;
    fences(&db, 100, "9 days", "-2 days").await;

    let sweeper = sweeper(&db).await;
    assert_eq!(
        sweeper.round().await.rows,
        100,
        "what expired before the copy was sent goes"
    );
    assert_eq!(db.fences(id).await, 1, "what a waiting copy may need stays");

    let consumer = Running::start(&db, db.config(), awards()).await;
    db.settled().await;
    let duplicate = |step: &Step| {
        matches!(
            step,
            Step::Fence {
                verdict: FenceVerdict::Duplicate,
                ..
            }
        )
    };
    assert_eq!(consumer.seen.count(duplicate), 1);
    consumer.stop().await;
    assert_eq!(db.effects(id).await, 1);

    assert_eq!(
        sweeper.round().await.rows,
        1,
        "the backlog is gone, and so is the fence"
    );
    assert_eq!(left(&db).await, 0);
}

/// A message keeps its enqueue time through retries and deferrals, so that the sweep knows how old it is.
#[tokio::test]
async fn a6_retries_and_deferrals_do_not_make_a_message_younger() {
    use harness::QueuePort as _;
    let db = Db::fresh().await;
    let queue = db.queue().await;
    let name = acceptance::db::queue_name();
    db.publish_award(&Award::new("ada", 1)).await;
    db.execute("UPDATE pgmq.q_points SET enqueued_at = '2026-01-01 00:00:00Z'")
        .await;
    let enqueued = queue.oldest(&name).await.unwrap();
    for deliveries in 0..4 {
        let delivery = queue
            .receive(&name, 1, Duration::from_secs(60))
            .await
            .unwrap()
            .remove(0);
        assert_eq!(Some(delivery.enqueued_at), enqueued);
        assert_eq!(
            delivery.redeliveries,
            deliveries / 2,
            "a deferral does not count, a retry does"
        );
        match deliveries % 2 {
            0 => queue
                .defer(&name, &delivery.receipt, Duration::ZERO)
                .await
                .unwrap(),
            _ => queue
                .retry(&name, &delivery.receipt, Duration::ZERO)
                .await
                .unwrap(),
        }
        assert_eq!(queue.oldest(&name).await.unwrap(), enqueued);
    }
}

#[tokio::test]
async fn a6_another_consumers_fences_and_queue_do_not_matter() {
    let db = Db::fresh().await;
    fences(&db, 10, "8 days", "-1 day").await;
    let mut target = SweepTarget::of(&db.config());
    target.consumer = harness::ConsumerName::new("mails").unwrap();
    let other = Sweeper::new(
        SweeperConfig::new(vec![target]),
        db.store(),
        db.queue().await,
        watched().0,
    );
    assert_eq!(other.round().await.rows, 0);
    assert_eq!(left(&db).await, 10);
}

/// A consumer of two queues is held back by both.
#[tokio::test]
async fn a6_a_backlog_on_any_of_a_consumers_queues_holds_the_sweep_back() {
    let db = Db::fresh().await;
    let queue = db.queue().await;
    let late = harness::QueueName::new("late").unwrap();
    queue.create(&late).await.unwrap();
    fences(&db, 10, "8 days", "-1 day").await;
    harness::QueuePort::publish(&queue, &late, &Envelope::new(job_id(), "{}"))
        .await
        .unwrap();
    db.execute("UPDATE pgmq.q_late SET enqueued_at = clock_timestamp() - interval '2 days'")
        .await;
    let points = SweepTarget::of(&db.config());
    let mut both = SweepTarget::of(&db.config());
    both.queues = [late.clone()].into();
    let config = SweeperConfig::new(vec![points, both]);
    let sweeper = Sweeper::new(config, db.store(), queue, watched().0);
    assert_eq!(sweeper.round().await.rows, 0);
    db.execute("DELETE FROM pgmq.q_late").await;
    assert_eq!(sweeper.round().await.rows, 10);
}

/// A replay that was published and could not be recorded leaves its letter pending and its job applied. Replaying it again
/// publishes another copy, however late: its fence must be there.
#[tokio::test]
async fn a6_a_fence_waits_for_the_decision_about_its_jobs_dead_letter() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await.letter;
    replay_that_crashes_before_the_mark(&db, letter.id).await;
    run(&db).await;
    assert_eq!(db.effects(letter.job_id).await, 1);
    let expire = "UPDATE core.processed_jobs SET processed_at = clock_timestamp() - interval '8 days', \
                  expires_at = clock_timestamp() - interval '1 day'";
    db.execute(expire).await;
    let sweeper = sweeper(&db).await;
    assert_eq!(sweeper.round().await.rows, 0, "the letter is pending");

    let review = Review::new(db.store(), db.queue().await, watched().0);
    review.replay(letter.id, &operator()).await.unwrap();
    assert_eq!(sweeper.round().await.rows, 0, "the copy is queued");
    run(&db).await;
    assert_eq!(db.effects(letter.job_id).await, 1);
    assert_eq!(
        sweeper.round().await.rows,
        0,
        "decided just now: clocks may differ"
    );
    let decided_long_ago = "UPDATE core.dead_letters SET created_at = created_at - interval '2 days', \
                            reviewed_at = reviewed_at - interval '2 days'";
    past_all_triggers(&db, decided_long_ago).await;
    assert_eq!(sweeper.round().await.rows, 1, "it may go");
}

#[tokio::test]
async fn a6_two_sweepers_at_once_share_the_work() {
    let db = Db::fresh().await;
    fences(&db, 20_000, "8 days", "-1 day").await;
    let (one, two) = (sweeper(&db).await, sweeper(&db).await);
    let (one, two) = tokio::join!(one.round(), two.round());
    assert_eq!(
        (one.failures.len(), two.failures.len()),
        (0, 0),
        "{one:?} {two:?}"
    );
    // A sweeper that found the rest locked leaves it to the other, or to the next round.
    let third = sweeper(&db).await.round().await;
    assert_eq!(one.rows + two.rows + third.rows, 20_000);
    assert_eq!(left(&db).await, 0);
}

#[tokio::test]
async fn a6_a_sweep_that_fails_once_comes_back() {
    let db = Db::fresh().await;
    fences(&db, 10, "8 days", "-1 day").await;
    let failed = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&failed);
    let queue = Faulty::new(
        db.queue().await,
        Arc::new(move |point| match point {
            Point {
                when: When::Before,
                call: Call::Oldest,
            } if count.fetch_add(1, Ordering::SeqCst) == 0 => Fault::Away,
            _ => Fault::None,
        }),
    );
    let mut config = SweeperConfig::new(vec![SweepTarget::of(&db.config())]);
    config.interval = Duration::from_millis(20);
    let (env, seen) = watched();
    let sweeper = Sweeper::new(config, db.store(), queue, env);
    let shutdown = Shutdown::new();
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { sweeper.run(stop).await });
    eventually("the rows go in a later round", async || {
        match left(&db).await {
            0 => Ok(()),
            n => Err(format!("{n} left")),
        }
    })
    .await;
    assert_eq!(
        seen.count(|step| matches!(step, Step::StoreFailed { call, .. } if call == "sweep")),
        1
    );
    shutdown.begin();
    running.await.unwrap();
}

/// The real size: a million rows, half of them expired, while consumers run.
#[tokio::test]
async fn a6_a_million_rows_while_consumers_run() {
    let db = Db::fresh().await;
    fences(&db, 500_000, "8 days", "-1 day").await;
    fences(&db, 500_000, "6 days", "1 day").await;
    db.execute("ANALYZE core.processed_jobs").await;
    let consumer = Running::start(&db, db.config(), awards()).await;
    for n in 0..200 {
        db.publish_award(&Award::new("ada", n + 1)).await;
    }
    let mut config = SweeperConfig::new(vec![SweepTarget::of(&db.config())]);
    config.batch = 5_000;
    let sweeper = Sweeper::new(config, db.store(), db.queue().await, watched().0);
    // Fresh messages hold nothing back that expired before they came.
    let report = sweeper.round().await;
    db.settled().await;
    consumer.stop().await;
    assert_eq!((report.rows, report.failures), (500_000, Vec::new()));
    assert_eq!(left(&db).await, 500_000 + 200);
    assert_eq!(db.count("SELECT count(*) FROM ledger").await, 200);
}

/// A batch reads what it deletes, not the table.
#[tokio::test]
async fn a6_a_batch_uses_the_index() {
    let db = Db::fresh().await;
    fences(&db, 20_000, "8 days", "-1 day").await;
    fences(&db, 100_000, "6 days", "1 day").await;
    db.execute("ANALYZE core.processed_jobs").await;
    let plan: Vec<String> = sqlx::query_scalar(
        "EXPLAIN DELETE FROM core.processed_jobs WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM core.processed_jobs
            WHERE consumer = 'awards' AND expires_at <= now() AND processed_at < now() - interval '1 hour'
            ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED))",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("Tid Scan"), "{plan}");
    assert!(
        plan.contains("Index Scan using processed_jobs_expiry"),
        "{plan}"
    );
    assert!(!plan.contains("Seq Scan"), "{plan}");
}
