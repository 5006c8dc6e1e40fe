//! B3: contention and deploys are not the job's failures and cost no attempt; a shutdown starts nothing new.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use acceptance::clock::eventually;
use acceptance::db::{Db, job_id};
use acceptance::rig::{Running, handler_fn, run_all};
use harness::{DeferReason, Envelope, QueueError, QueuePort as _, Step};
use sqlx::Executor;

const INSERT: &str = "INSERT INTO ledger (job_id, consumer, account, points) VALUES (gen_random_uuid(), 'awards', 'ada', 1)";

#[tokio::test]
async fn b3_contention_is_not_the_jobs_failure() {
    let db = Db::fresh().await;
    let id = job_id();
    db.publish(&Envelope::new(id, "{}")).await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = handler_fn(move |job, tx| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            assert_eq!(job.run, 1, "runs that met contention do not count");
            let code = ["40001", "40P01", "55P03"].get(call as usize % 3).unwrap();
            if call < 12 {
                let raise = format!(
                    "DO $$ BEGIN RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'; END $$"
                );
                tx.execute(sqlx::AssertSqlSafe(raise)).await?;
            }
            Ok(())
        })
    });
    let consumer = Running::start(&db, db.config(), handler).await;
    db.settled().await;
    let deferred = |step: &Step| {
        matches!(
            step,
            Step::Deferred {
                reason: DeferReason::Contention,
                ..
            }
        )
    };
    assert_eq!(consumer.seen.count(deferred), 12);
    assert_eq!(
        consumer
            .seen
            .count(|step| matches!(step, Step::Retried { .. })),
        0
    );
    consumer.stop().await;
    assert_eq!(calls.load(Ordering::SeqCst), 13);
    assert_eq!(db.fences(id).await, 1);
}

/// S6: whoever was handed a message answers for it, and nobody else: not an answer that is repeated, nor one that comes
/// late.
#[tokio::test]
async fn b3_a_receipt_is_good_for_one_answer() {
    let db = Db::fresh().await;
    db.publish(&Envelope::new(job_id(), "{}")).await;
    let (queue, name) = (db.queue().await, db.config().queue);
    let lease = Duration::from_secs(60);
    let lost = |answer| matches!(answer, Err(QueueError::LeaseLost));

    let first = queue.receive(&name, 1, lease).await.unwrap().remove(0);
    queue
        .defer(&name, &first.receipt, Duration::ZERO)
        .await
        .unwrap();
    assert!(
        lost(queue.defer(&name, &first.receipt, lease).await),
        "repeated"
    );
    assert!(
        lost(queue.extend(&name, &first.receipt, lease).await),
        "late"
    );

    let second = queue.receive(&name, 1, lease).await.unwrap().remove(0);
    assert_eq!(
        (first.redeliveries, second.redeliveries),
        (0, 0),
        "uncounted"
    );
    let late = [
        queue.defer(&name, &first.receipt, Duration::ZERO).await,
        queue.retry(&name, &first.receipt, Duration::ZERO).await,
        queue.extend(&name, &first.receipt, Duration::ZERO).await,
    ];
    assert!(
        late.into_iter().all(lost),
        "the message is somebody else's now"
    );
    assert!(
        queue.receive(&name, 1, lease).await.unwrap().is_empty(),
        "still leased"
    );

    queue.retry(&name, &second.receipt, lease).await.unwrap();
    let cut = queue
        .extend(&name, &second.receipt, Duration::from_secs(1))
        .await;
    assert!(lost(cut), "an extension cannot cut the wait");
    let waits = "SELECT count(*) FROM pgmq.q_points WHERE vt > clock_timestamp() + interval '50 s'";
    assert_eq!(db.count(waits).await, 1);
}

#[tokio::test]
async fn b3_a_deploy_is_not_the_jobs_failure() {
    let db = Db::fresh().await;
    let id = job_id();
    db.publish(&Envelope::new(id, "{}")).await;
    for _ in 0..8 {
        let handler = handler_fn(|job, tx| {
            Box::pin(async move {
                assert_eq!(job.run, 1, "runs that a shutdown ended do not count");
                tx.execute(INSERT).await?;
                std::future::pending().await
            })
        });
        let mut config = db.config();
        config.grace = Duration::from_millis(400);
        let consumer = Running::start(&db, config, handler).await;
        consumer
            .seen
            .wait_for("runs", 1, |step| matches!(step, Step::RunStarted { .. }))
            .await;
        let seen = consumer.seen.clone();
        assert_eq!(consumer.stop().await.abandoned, 0);
        let returned = |step: &Step| {
            matches!(
                step,
                Step::Deferred {
                    reason: DeferReason::Shutdown,
                    ..
                }
            )
        };
        assert_eq!(seen.count(returned), 1);
        assert_eq!(db.count("SELECT count(*) FROM ledger").await, 0);
    }
    // The server notices within a second that the last client is gone.
    run_all(&db, handler_fn(|_job, _tx| Box::pin(async { Ok(()) }))).await;
    assert_eq!(db.fences(id).await, 1);
    assert!(db.letters().await.is_empty());
}

#[tokio::test]
async fn b3_shutdown_starts_nothing_new_and_lets_running_work_end() {
    let db = Db::fresh().await;
    for n in 0..20 {
        db.publish(&Envelope::new(job_id(), format!(r#"{{"n": {n}}}"#)))
            .await;
    }
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let open = Arc::clone(&gate);
    let handler = handler_fn(move |_job, _tx| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.acquire().await?.forget();
            Ok(())
        })
    });
    let mut config = db.config();
    config.concurrency = 2;
    config.prefetch = 8;
    let consumer = Running::start(&db, config, handler).await;
    consumer
        .seen
        .wait_for("two run", 2, |step| matches!(step, Step::RunStarted { .. }))
        .await;
    eventually("ten are taken", async || {
        match db
            .count("SELECT count(*) FROM pgmq.q_points WHERE read_ct > 0")
            .await
        {
            10 => Ok(()),
            n => Err(format!("{n} taken")),
        }
    })
    .await;
    consumer.begin_shutdown();
    let returned = |step: &Step| {
        matches!(
            step,
            Step::Deferred {
                reason: DeferReason::Shutdown,
                ..
            }
        )
    };
    consumer
        .seen
        .wait_for("what was not started goes back", 8, returned)
        .await;
    open.add_permits(100);
    let seen = consumer.seen.clone();
    assert_eq!(consumer.stop().await.abandoned, 0);
    assert_eq!(
        seen.count(|step| matches!(step, Step::RunStarted { .. })),
        2
    );
    assert_eq!(seen.count(|step| matches!(step, Step::Acked)), 2);
    assert_eq!(db.queued().await, 18);
    assert_eq!(
        db.count("SELECT coalesce(sum(read_ct), 0)::bigint FROM pgmq.q_points")
            .await,
        0,
        "uncounted"
    );
    assert_eq!(
        db.count("SELECT count(*) FROM pgmq.q_points WHERE vt > clock_timestamp()")
            .await,
        0,
        "at once"
    );
}
