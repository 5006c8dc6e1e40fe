//! A3: a transient failure retries 5 times with growing intervals, then writes a dead letter.

use std::time::Duration;

use acceptance::award::{Award, Misbehave};
use acceptance::clock::in_time;
use acceptance::db::{Db, job_id};
use acceptance::rig::{Running, awards, handler_fn};
use acceptance::worker::WorkerArgs;
use futures_util::future::BoxFuture;
use harness::{Envelope, Failure, Handler, Job, JobId, PgStore, Reason, Step};
use serde_json::Value;
use sqlx::{Executor, PgConnection};

const INSERT: &str = "INSERT INTO ledger (job_id, consumer, account, points) VALUES (gen_random_uuid(), 'awards', 'ada', 1)";

/// Lets a job fail until it is given up, skipping the waits after looking at them. Standard policy.
async fn fails_until_given_up(
    db: &Db,
    id: JobId,
    handler: impl Handler<PgStore>,
) -> harness::NewDeadLetter {
    let mut config = db.config();
    config.run_deadline = Duration::from_millis(1_500);
    let consumer = Running::start(db, config, handler).await;
    let mut last = Duration::ZERO;
    for run in 1..=5_u32 {
        let retried = |step: &Step| matches!(step, Step::Retried { .. });
        consumer
            .seen
            .wait_for(&format!("retry {run}"), run as usize, retried)
            .await;
        let wait = consumer
            .seen
            .steps_of(id)
            .into_iter()
            .filter_map(|step| {
                if let Step::Retried { run, wait } = step {
                    Some((run, wait))
                } else {
                    None
                }
            })
            .next_back()
            .unwrap();
        let shortest = Duration::from_secs(30 << (run - 1));
        assert_eq!(wait.0, run);
        assert!(
            wait.1 >= shortest && wait.1 < shortest.mul_f64(1.5),
            "wait {run} is {wait:?}"
        );
        assert!(
            wait.1 > last,
            "wait {run}, {wait:?}, is not longer than {last:?}"
        );
        last = wait.1;
        // What the queue will really do.
        let delay: f64 = sqlx::query_scalar(
            "SELECT extract(epoch FROM vt - clock_timestamp())::float8 FROM pgmq.q_points",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        let seconds = wait.1.as_secs_f64();
        assert!(
            delay <= seconds && delay > seconds - 20.0,
            "{delay} s on the queue, {seconds} s meant"
        );
        assert!(
            db.letters().await.is_empty(),
            "no dead letter after run {run}"
        );
        db.skip_delays().await;
    }
    db.settled().await;
    assert_eq!(
        consumer
            .seen
            .count(|step| matches!(step, Step::RunStarted { .. })),
        6
    );
    consumer.stop().await;
    assert_eq!(
        db.count("SELECT count(*) FROM ledger").await,
        0,
        "every run was rolled back"
    );
    assert_eq!(
        db.count("SELECT count(*) FROM core.processed_jobs").await,
        0
    );
    let mut letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = letters.remove(0).letter;
    assert_eq!(
        (letter.reason, letter.attempts, letter.job_id),
        (Reason::Exhausted, 6, id)
    );
    letter
}

/// Every way to fail goes through the same rules.
async fn way_to_fail<F>(class: &str, error: &str, handler: F)
where
    F: for<'a> Fn(Job<Value>, &'a mut PgConnection) -> BoxFuture<'a, Result<(), Failure>>
        + Send
        + Sync
        + 'static,
{
    let db = Db::fresh().await;
    let id = job_id();
    db.publish(&Envelope::new(id, r#"{"points": 1}"#)).await;
    let letter = fails_until_given_up(&db, id, handler_fn(handler)).await;
    assert_eq!(letter.error_class.as_str(), class, "{}", letter.last_error);
    assert!(
        letter.last_error.contains(error),
        "{error:?} is not in {:?}",
        letter.last_error
    );
    assert_eq!(letter.body, br#"{"points": 1}"#);
    assert_eq!(letter.correlation_id.as_str(), id.to_string());
}

#[tokio::test]
async fn a3_an_error() {
    way_to_fail("provider_503", "run 6: try later", |job, tx| {
        Box::pin(async move {
            tx.execute(INSERT).await?;
            Err(Failure::transient(format!("run {}: try later", job.run)).class("provider 503"))
        })
    })
    .await;
}

#[tokio::test]
async fn a3_an_sql_error_through_the_question_mark() {
    way_to_fail("sqlx_core::error::error", "division by zero", |_job, tx| {
        Box::pin(async move {
            tx.execute(INSERT).await?;
            tx.execute("SELECT 1 / 0").await?;
            Ok(())
        })
    })
    .await;
}

#[tokio::test]
async fn a3_a_panic_before_the_write() {
    way_to_fail("panic", "the handler panicked: boom", |_job, _tx| {
        Box::pin(async { panic!("boom") })
    })
    .await;
}

#[tokio::test]
async fn a3_a_panic_before_the_first_await() {
    way_to_fail("panic", "the handler panicked: early", |_job, _tx| {
        panic!("early")
    })
    .await;
}

#[tokio::test]
async fn a3_a_panic_after_the_write() {
    way_to_fail("panic", "the handler panicked: 7 is odd", |_job, tx| {
        Box::pin(async move {
            tx.execute(INSERT).await?;
            panic!("{} is odd", 7)
        })
    })
    .await;
}

#[tokio::test]
async fn a3_a_panic_whose_payload_is_not_text() {
    way_to_fail("panic", "not text", |_job, _tx| {
        Box::pin(async { std::panic::panic_any(42) })
    })
    .await;
}

#[tokio::test]
async fn a3_a_panic_in_a_spawned_task() {
    way_to_fail(
        "tokio::runtime::task::error::joinerror",
        "panicked",
        |_job, tx| {
            Box::pin(async move {
                tx.execute(INSERT).await?;
                tokio::spawn(async { panic!("elsewhere") }).await?;
                Ok(())
            })
        },
    )
    .await;
}

#[tokio::test]
async fn a3_a_handler_that_never_returns() {
    way_to_fail("deadline", "still running after 1500 ms", |_job, tx| {
        Box::pin(async move {
            tx.execute(INSERT).await?;
            std::future::pending().await
        })
    })
    .await;
}

#[tokio::test]
async fn a3_a_swallowed_sql_error() {
    way_to_fail(
        "commit_refused",
        "current transaction is aborted",
        |_job, tx| {
            Box::pin(async move {
                tx.execute(INSERT).await?;
                let _ = tx.execute("SELECT 1 / 0").await;
                Ok(())
            })
        },
    )
    .await;
}

#[tokio::test]
async fn a3_a_handler_that_commits_by_itself() {
    way_to_fail(
        "commit_refused",
        "not the transaction that holds the fence",
        |_job, tx| {
            Box::pin(async move {
                tx.execute(INSERT).await?;
                let error = tx.execute("COMMIT").await.unwrap_err();
                assert!(
                    error
                        .to_string()
                        .contains("a fence is committed by the harness only"),
                    "{error}"
                );
                Ok(())
            })
        },
    )
    .await;
}

#[tokio::test]
async fn a3_a_handler_that_rolls_back_by_itself_and_writes_on() {
    way_to_fail(
        "sqlx_core::error::error",
        "read-only transaction",
        |_job, tx| {
            Box::pin(async move {
                tx.execute("ROLLBACK").await?;
                tx.execute(INSERT).await?;
                Ok(())
            })
        },
    )
    .await;
}

#[tokio::test]
async fn a3_a_handler_that_starts_a_transaction_of_its_own() {
    way_to_fail(
        "commit_refused",
        "not the transaction that holds the fence",
        |_job, tx| {
            Box::pin(async move {
                tx.execute("ROLLBACK").await?;
                tx.execute("BEGIN READ WRITE").await?;
                tx.execute(INSERT).await?;
                Ok(())
            })
        },
    )
    .await;
}

#[tokio::test]
async fn a3_a_broken_deferred_constraint() {
    way_to_fail(
        "commit_refused",
        "violates foreign key constraint",
        |_job, tx| {
            Box::pin(async move {
                tx.execute("CREATE TABLE parent (id int PRIMARY KEY)")
                    .await?;
                tx.execute(
                    "CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
                )
                .await?;
                tx.execute("INSERT INTO child VALUES (1)").await?;
                Ok(())
            })
        },
    )
    .await;
}

#[tokio::test]
async fn a3_a_worker_that_dies_each_time() {
    let db = Db::fresh().await;
    let id = db
        .publish_award(&Award::new("ada", 10).then(Misbehave::KillRuns(100)))
        .await;
    let mut args = WorkerArgs::new(db.url());
    args.lease_s = 60;
    for run in 1..=6 {
        let mut worker = args.spawn(env!("CARGO_BIN_EXE_worker"), &[]).unwrap();
        in_time(&format!("the worker dies in run {run}"), worker.wait())
            .await
            .unwrap();
        assert_eq!((db.effects(id).await, db.fences(id).await), (0, 0));
        assert!(db.letters().await.is_empty());
        // Instead of waiting for the lease to run out.
        db.skip_delays().await;
    }
    let mut worker = args.spawn(env!("CARGO_BIN_EXE_worker"), &[]).unwrap();
    db.settled().await;
    assert!(
        worker.stop().await.unwrap().success(),
        "the seventh worker never runs the job"
    );
    let letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0].letter;
    assert_eq!(
        (letter.reason, letter.attempts, letter.error_class.as_str()),
        (Reason::Exhausted, 6, "vanished")
    );
    assert!(
        letter.last_error.contains("the worker vanished"),
        "{}",
        letter.last_error
    );
}

#[tokio::test]
async fn a3_a_job_that_recovers_is_applied_and_leaves_no_letter() {
    let db = Db::fresh().await;
    let id = db
        .publish_award(&Award::new("ada", 10).then(Misbehave::FailRuns(5)))
        .await;
    let handler = awards();
    let consumer = Running::start(&db, db.config(), handler).await;
    for run in 1..=5 {
        consumer
            .seen
            .wait_for("retry", run, |step| matches!(step, Step::Retried { .. }))
            .await;
        db.skip_delays().await;
    }
    db.settled().await;
    consumer.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
    assert!(db.letters().await.is_empty());
}
