//! A1: the same job id processed twice concurrently produces exactly one effect.

use std::time::Duration;

use acceptance::award::{Award, Awards, Misbehave};
use acceptance::clock::eventually;
use acceptance::db::{Db, job_id};
use acceptance::rig::{Running, awards, handler_fn, run_all};
use harness::{Envelope, FenceVerdict, Step};
use tokio::sync::Semaphore;

#[tokio::test]
async fn a1_one_job_has_one_effect_and_one_fence() {
    let db = Db::fresh().await;
    let id = db.publish_award(&Award::new("ada", 10)).await;
    run_all(&db, awards()).await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
}

async fn twins_in_one_process(copies: usize) {
    let db = Db::fresh().await;
    let id = job_id();
    let twin = Envelope::new(id, Award::new("ada", 10).body());
    for _ in 0..copies {
        db.publish(&twin).await;
    }
    let mut config = db.config();
    config.concurrency = copies.min(16);
    let consumer = Running::start(&db, config, awards()).await;
    db.settled().await;
    consumer.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
}

#[tokio::test]
async fn a1_two_twins_in_one_process() {
    twins_in_one_process(2).await;
}

#[tokio::test]
async fn a1_fifty_twins_in_one_process() {
    twins_in_one_process(50).await;
}

#[tokio::test]
async fn a1_a_twin_that_arrives_while_the_first_is_working_waits_and_is_skipped() {
    let db = Db::fresh().await;
    let id = job_id();
    let gate = std::sync::Arc::new(Semaphore::new(0));
    let open = std::sync::Arc::clone(&gate);
    let slow = handler_fn(move |job, tx| {
        let gate = std::sync::Arc::clone(&gate);
        Box::pin(async move {
            sqlx::query("INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, 'awards', 'ada', 1)")
                .bind(job.id.as_uuid())
                .execute(tx)
                .await?;
            gate.acquire().await?.forget();
            Ok(())
        })
    });
    db.publish(&Envelope::new(id, "{}")).await;
    let first = Running::start(&db, db.config(), slow).await;
    first
        .seen
        .wait_for("the first run starts", 1, |step| {
            matches!(step, Step::RunStarted { .. })
        })
        .await;

    db.publish(&Envelope::new(id, Award::new("ada", 1).body()))
        .await;
    let second = Running::start(&db, db.config(), awards()).await;
    let busy = |step: &Step| matches!(step, Step::Busy);
    eventually(
        "the twin is turned away, by whichever consumer got it",
        async || match first.seen.count(busy) + second.seen.count(busy) {
            0 => Err("nobody was busy"),
            _ => Ok(()),
        },
    )
    .await;
    open.add_permits(1);
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
    assert_eq!(
        first.seen.count(duplicate) + second.seen.count(duplicate),
        1
    );
    first.stop().await;
    second.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
}

/// A twin that waits for a fence takes no connection from others for longer than a moment.
#[tokio::test]
async fn a1_waiting_twins_do_not_starve_other_jobs_of_connections() {
    let db = Db::fresh().await;
    let blocked = job_id();
    let mut holder = db.pool.begin().await.unwrap();
    sqlx::query("SELECT core.hold_fence_key($1, 'awards', 1000)")
        .bind(blocked.as_uuid())
        .execute(&mut *holder)
        .await
        .unwrap();

    // The twins go first, and there are many more of them than connections.
    for _ in 0..50 {
        db.publish(&Envelope::new(blocked, Award::new("ada", 1).body()))
            .await;
    }
    for n in 0..20 {
        db.publish_award(&Award::new("ben", n + 1)).await;
    }
    let mut config = db.config();
    config.concurrency = 2;
    config.busy_delay = Duration::from_secs(1);
    let store = db.store_with(harness::PgStoreConfig {
        max_connections: 3,
        ..Default::default()
    });
    let consumer = Running::start_on(config, store, db.queue().await, awards());
    eventually(
        "the other jobs are applied while all twins wait",
        async || match db
            .count("SELECT count(*) FROM ledger WHERE account = 'ben'")
            .await
        {
            20 => Ok(()),
            n => Err(format!("{n} of 20 applied")),
        },
    )
    .await;
    assert_eq!(db.effects(blocked).await, 0);
    holder.rollback().await.unwrap();
    db.settled().await;
    consumer.stop().await;
    assert_eq!(
        (db.effects(blocked).await, db.fences(blocked).await),
        (1, 1)
    );
}

#[tokio::test]
async fn a1_another_consumer_has_an_effect_of_its_own() {
    let db = Db::fresh().await;
    let id = job_id();
    for name in ["awards", "mails"] {
        db.publish(&Envelope::new(id, Award::new("ada", 10).body()))
            .await;
        let mut config = db.config();
        config.consumer = harness::ConsumerName::new(name).unwrap();
        let consumer = Running::start(
            &db,
            config,
            Awards {
                consumer: name.to_owned(),
            },
        )
        .await;
        db.settled().await;
        consumer.stop().await;
    }
    assert_eq!((db.effects(id).await, db.fences(id).await), (2, 2));
}

/// The slowest handler in the world keeps its lease, so that nobody else is handed its message.
#[tokio::test]
async fn a1_a_lease_is_extended_while_the_handler_works() {
    let db = Db::fresh().await;
    let id = db
        .publish_award(&Award::new("ada", 10).then(Misbehave::Sleep(2_500)))
        .await;
    let mut config = db.config();
    config.lease = Duration::from_secs(1);
    let consumer = Running::start(&db, config, awards()).await;
    db.settled().await;
    let received = consumer
        .seen
        .count(|step| matches!(step, Step::Received { .. }));
    consumer.stop().await;
    assert_eq!(
        received, 1,
        "the lease ran out and the message was delivered again"
    );
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
}
