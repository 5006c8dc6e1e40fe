//! A2, the other way round: the worker lives and its connection dies, at the worst moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use acceptance::award::Award;
use acceptance::clock::eventually;
use acceptance::db::{Db, job_id};
use acceptance::faults::{Call, Fault, Point, When};
use acceptance::rig::{Running, awards, gated, handler_fn};
use harness::{
    Ending, Envelope, FenceKey, FenceVerdict, JobId, PgStoreConfig, Reason, ReviewStore as _,
    ReviewTx as _, RunResult, Step, Store as _, WorkTx as _,
};
use tokio::sync::Semaphore;

use crate::replaying::{dead_letter, operator, review};

fn is_duplicate(step: &Step) -> bool {
    matches!(
        step,
        Step::Fence {
            verdict: FenceVerdict::Duplicate,
            ..
        }
    )
}

/// Starts a consumer for which `fault` happens at `point`, once.
async fn start_with(db: &Db, point: Point, fault: Fault) -> Running {
    let seen = AtomicU32::new(0);
    let plan: acceptance::faults::Plan = Arc::new(move |at| {
        if at == point && seen.fetch_add(1, Ordering::SeqCst) == 0 {
            fault
        } else {
            Fault::None
        }
    });
    Running::start_faulty(db, plan, awards()).await
}

/// Publishes an award of which `runs_before` runs are over.
async fn publish_after_runs(db: &Db, runs_before: u32) -> JobId {
    let id = job_id();
    let mut envelope = Envelope::new(id, Award::new("ada", 10).body());
    envelope.attempts = runs_before;
    db.publish(&envelope).await;
    id
}

#[tokio::test]
async fn a2_a_lost_answer_to_a_commit_that_happened_ends_as_a_duplicate() {
    for runs_before in [0, 5] {
        let db = Db::fresh().await;
        let id = publish_after_runs(&db, runs_before).await;
        let point = Point {
            when: When::After,
            call: Call::Commit,
        };
        let consumer = start_with(&db, point, Fault::Away).await;
        consumer
            .seen
            .wait_for("goes back", 1, |step| matches!(step, Step::Retried { .. }))
            .await;
        assert!(
            db.letters().await.is_empty(),
            "no dead letter on the spot, not even on the last attempt"
        );
        assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
        db.skip_delays().await;
        db.settled().await;
        assert_eq!(consumer.seen.count(is_duplicate), 1);
        consumer.stop().await;
        assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
        assert!(db.letters().await.is_empty());
    }
}

#[tokio::test]
async fn a2_a_commit_that_never_arrived_is_tried_again() {
    let db = Db::fresh().await;
    let id = publish_after_runs(&db, 0).await;
    let point = Point {
        when: When::Before,
        call: Call::Commit,
    };
    let consumer = start_with(&db, point, Fault::Away).await;
    consumer
        .seen
        .wait_for("goes back", 1, |step| matches!(step, Step::Retried { .. }))
        .await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (0, 0));
    db.skip_delays().await;
    db.settled().await;
    consumer.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
}

#[tokio::test]
async fn a2_a_last_commit_that_never_arrived_ends_as_a_dead_letter() {
    let db = Db::fresh().await;
    let id = publish_after_runs(&db, 5).await;
    let point = Point {
        when: When::Before,
        call: Call::Commit,
    };
    let consumer = start_with(&db, point, Fault::Away).await;
    consumer
        .seen
        .wait_for("goes back", 1, |step| matches!(step, Step::Retried { .. }))
        .await;
    db.skip_delays().await;
    db.settled().await;
    let runs = consumer
        .seen
        .count(|step| matches!(step, Step::RunStarted { .. }));
    consumer.stop().await;
    assert_eq!(runs, 1, "the seventh run never starts");
    assert_eq!((db.effects(id).await, db.fences(id).await), (0, 0));
    let letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].letter.reason, letters[0].letter.attempts),
        (Reason::Exhausted, 6)
    );
}

/// The real thing: the server commits, and loses its client before it can say so.
async fn unknown_commit(runs_before: u32) {
    let mut db = Db::own_server().await;
    let id = publish_after_runs(&db, runs_before).await;
    let gate = Arc::new(Semaphore::new(0));
    let (open, handler) = (Arc::clone(&gate), gated(&gate));
    let consumer = Running::start(&db, db.config(), handler).await;
    consumer
        .seen
        .wait_for("runs", 1, |step| matches!(step, Step::RunStarted { .. }))
        .await;
    let worker: i32 = eventually("the worker's transaction", async || {
        sqlx::query_scalar(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
             AND application_name = 'job-harness' AND state = 'idle in transaction'",
        )
        .fetch_one(&db.pool)
        .await
    })
    .await;

    // From now on every commit waits for a standby that does not exist.
    db.server()
        .set("synchronous_standby_names", "nobody")
        .unwrap();
    eventually(
        "the setting is in force",
        async || match sqlx::query_scalar::<_, String>("SHOW synchronous_standby_names")
            .fetch_one(&db.pool)
            .await
            .unwrap()
        {
            it if it == "nobody" => Ok(()),
            other => Err(other),
        },
    )
    .await;
    open.add_permits(1);
    eventually("the commit waits for the standby", async || {
        let wait: Option<String> =
            sqlx::query_scalar("SELECT wait_event FROM pg_stat_activity WHERE pid = $1")
                .bind(worker)
                .fetch_one(&db.pool)
                .await
                .unwrap();
        if wait.as_deref() == Some("SyncRep") {
            Ok(())
        } else {
            Err(format!("{wait:?}"))
        }
    })
    .await;
    sqlx::query("SELECT pg_terminate_backend($1)")
        .bind(worker)
        .execute(&db.pool)
        .await
        .unwrap();
    consumer
        .seen
        .wait_for("unknown", 1, |step| {
            matches!(step, Step::CommitUnknown { .. })
        })
        .await;
    db.server().set("synchronous_standby_names", "").unwrap();

    consumer
        .seen
        .wait_for("goes back", 1, |step| matches!(step, Step::Retried { .. }))
        .await;
    assert!(
        db.letters().await.is_empty(),
        "an unknown outcome is no failure"
    );
    db.skip_delays().await;
    db.settled().await;
    assert_eq!(consumer.seen.count(is_duplicate), 1, "the fence knew");
    consumer.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
    assert!(db.letters().await.is_empty());
}

#[tokio::test]
async fn a2_the_server_loses_its_client_after_the_commit_on_the_first_attempt() {
    unknown_commit(0).await;
}

#[tokio::test]
async fn a2_the_server_loses_its_client_after_the_commit_on_the_last_attempt() {
    unknown_commit(5).await;
}

#[tokio::test]
async fn a2_a_connection_that_the_server_cuts_in_the_middle_of_a_run_leaves_nothing() {
    let db = Db::fresh().await;
    let id = publish_after_runs(&db, 0).await;
    let first = Arc::new(AtomicU32::new(0));
    let handler = handler_fn(move |job, tx| {
        let first = Arc::clone(&first);
        Box::pin(async move {
            sqlx::query("INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, 'awards', 'ada', 10)")
                .bind(job.id.as_uuid())
                .execute(&mut *tx)
                .await?;
            if first.fetch_add(1, Ordering::SeqCst) == 0 {
                sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())")
                    .execute(tx)
                    .await?;
            }
            Ok(())
        })
    });
    let consumer = Running::start(&db, db.config(), handler).await;
    consumer
        .seen
        .wait_for("goes back", 1, |step| matches!(step, Step::Retried { .. }))
        .await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (0, 0));
    db.skip_delays().await;
    db.settled().await;
    consumer.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
}

/// The whole server dies (SIGKILL to the postmaster) under a running handler, and comes back.
#[tokio::test]
async fn a2_the_database_dies_and_comes_back() {
    let mut db = Db::own_server().await;
    let id = publish_after_runs(&db, 0).await;
    let gate = Arc::new(Semaphore::new(0));
    let (open, handler) = (Arc::clone(&gate), gated(&gate));
    let consumer = Running::start(&db, db.config(), handler).await;
    consumer
        .seen
        .wait_for("runs", 1, |step| matches!(step, Step::RunStarted { .. }))
        .await;
    // Not before: a server that dies under the handler's own statement is another story.
    eventually("the effect is written, and not committed", async || {
        let working = db
            .count(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                 AND state = 'idle in transaction' AND query LIKE 'INSERT INTO ledger%'",
            )
            .await;
        if working == 1 {
            Ok(())
        } else {
            Err(format!("{working} such transactions"))
        }
    })
    .await;
    db.server().kill().unwrap();
    open.add_permits(10);
    consumer
        .seen
        .wait_for("the commit goes nowhere", 1, |step| {
            matches!(step, Step::CommitUnknown { .. })
        })
        .await;
    consumer
        .seen
        .wait_for("no new work is taken", 1, |step| {
            matches!(step, Step::Paused)
        })
        .await;
    db.server().restart().unwrap();
    consumer
        .seen
        .wait_for("work is taken again", 1, |step| {
            matches!(step, Step::Resumed)
        })
        .await;
    consumer
        .seen
        .wait_for("goes back", 1, |step| matches!(step, Step::Retried { .. }))
        .await;
    eventually("the test's own connection is back", async || {
        sqlx::query("UPDATE pgmq.q_points SET vt = clock_timestamp()")
            .execute(&db.pool)
            .await
            .map(|_| ())
    })
    .await;
    db.settled().await;
    consumer.stop().await;
    assert_eq!((db.effects(id).await, db.fences(id).await), (1, 1));
    assert!(db.letters().await.is_empty());
}

/// Statements that a dropped handler left running at the server end soon, and with them its hold on the fence.
#[tokio::test]
async fn a2_a_run_that_is_dropped_in_the_middle_of_a_statement_gives_the_fence_up() {
    let db = Db::fresh().await;
    let id = publish_after_runs(&db, 5).await;
    let handler = handler_fn(|_job, tx| {
        Box::pin(async move {
            sqlx::query("SELECT pg_sleep(600)").execute(tx).await?;
            Ok(())
        })
    });
    let mut config = db.config();
    config.run_deadline = std::time::Duration::from_millis(300);
    let consumer = Running::start(&db, config, handler).await;
    db.settled().await;
    let ends: Vec<_> = consumer
        .seen
        .steps_of(id)
        .into_iter()
        .filter_map(|step| match step {
            Step::RunEnded {
                result: RunResult::Failed { ending, .. },
                ..
            } => Some(ending),
            _ => None,
        })
        .collect();
    consumer.stop().await;
    // Whichever of the two clocks is first: ours, or the server's statement timeout.
    assert!(
        matches!(ends[..], [Ending::Deadline | Ending::Transient]),
        "{ends:?}"
    );
    assert_eq!((db.effects(id).await, db.fences(id).await), (0, 0));
    assert_eq!(db.letters().await.len(), 1);
}

/// A host that lost its power says nothing: the server must not wait for its TCP to give up.
#[tokio::test]
async fn a2_a_vanished_host_holds_no_fence_key_for_long() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await.letter;
    let key = FenceKey {
        job_id: letter.job_id,
        consumer: letter.consumer.clone(),
        generation: letter.generation,
        tenant_id: None,
    };
    let (ttl, deadline) = (Duration::from_secs(86_400), Duration::from_secs(60));
    let vanished = db.store_with(PgStoreConfig {
        idle_limit: Duration::from_millis(500),
        ..Default::default()
    });
    let mut held = vanished.begin().await.unwrap();
    let verdict = held.fence(&key, ttl, deadline).await.unwrap();
    assert_eq!(verdict, FenceVerdict::Settled);

    let store = db.store();
    eventually("the key is free again", async || {
        let mut tx = store.begin().await.map_err(|error| error.to_string())?;
        let verdict = tx.fence(&key, ttl, deadline).await;
        verdict.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    assert!(held.rollback().await.is_err(), "the server ended it");
}

#[tokio::test]
async fn a2_a_vanished_operator_holds_no_dead_letter_for_long() {
    let db = Db::fresh().await;
    let id = dead_letter(&db).await.letter.id;
    let vanished = db.store_with(PgStoreConfig {
        idle_limit: Duration::from_millis(500),
        ..Default::default()
    });
    let held = vanished.lock_dead_letter(id).await.unwrap().unwrap();
    let operators = review(&db).await;
    eventually("the letter is free again", async || {
        let replayed = operators.replay(id, &operator()).await;
        replayed.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
    assert!(held.mark_replayed(&operator()).await.is_err());
}
