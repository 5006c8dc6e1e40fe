//! A5: replay of a dead letter with the same job id produces no second effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use acceptance::award::{Award, Awards, Misbehave};
use acceptance::db::{Db, job_id};
use acceptance::faults::{Call, Fault, Faulty, Point, When};
use acceptance::rig::{Running, handler_fn, watched};
use harness::{
    DeadLetter, DeadLetterId, DiscardError, DiscardReason, Discarded, Envelope, FenceVerdict,
    JobId, OutsidePublisher, PgStore, PgmqQueue, ReplayError, Replayed, Review, Reviewer, Status,
    Step, Store as _, SweepTarget, Sweeper, SweeperConfig,
};

fn awards() -> Awards {
    Awards {
        consumer: "awards".to_owned(),
    }
}

fn operator() -> Reviewer {
    Reviewer::new("olga").unwrap()
}

async fn review(db: &Db) -> Review<PgStore, PgmqQueue> {
    Review::new(db.store(), db.queue().await, watched().0)
}

/// Runs until the queue is empty; answers what was seen.
async fn run(db: &Db) -> acceptance::watch::Recorder {
    let consumer = Running::start(db, db.config(), awards()).await;
    db.settled().await;
    let seen = consumer.seen.clone();
    consumer.stop().await;
    seen
}

/// A job that ended as a pending dead letter, and will succeed the next time.
async fn dead_letter(db: &Db) -> DeadLetter {
    dead_letter_with(db, job_id(), &Award::new("ada", 10).body()).await
}

async fn dead_letter_with(db: &Db, id: JobId, body: &[u8]) -> DeadLetter {
    db.publish(&Envelope::new(id, body)).await;
    let hard = handler_fn(|_, _| {
        Box::pin(async { Err(harness::Failure::permanent("a bug that is fixed later")) })
    });
    let consumer = Running::start(db, db.config(), hard).await;
    db.settled().await;
    consumer.stop().await;
    let letter = db.letters().await.pop().unwrap();
    assert_eq!(
        (letter.status, letter.letter.job_id),
        (Status::PendingReview, id)
    );
    letter
}

async fn status(db: &Db, id: DeadLetterId) -> Status {
    db.letters()
        .await
        .into_iter()
        .find(|letter| letter.letter.id == id)
        .unwrap()
        .status
}

#[tokio::test]
async fn a5_a_replayed_job_is_applied_once() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let (id, job) = (letter.letter.id, letter.letter.job_id);
    let review = review(&db).await;
    assert_eq!(
        review.replay(id, &operator()).await.unwrap(),
        Replayed::Published { generation: 1 }
    );
    run(&db).await;
    assert_eq!((db.effects(job).await, db.fences(job).await), (1, 1));
    let letters = db.letters().await;
    assert_eq!((letters.len(), letters[0].status), (1, Status::Replayed));
    assert_eq!(letters[0].reviewed_by.as_deref(), Some("olga"));
    assert!(letters[0].reviewed_at.is_some());
}

#[tokio::test]
async fn a5_replaying_again_publishes_nothing() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let review = review(&db).await;
    review.replay(letter.letter.id, &operator()).await.unwrap();
    assert_eq!(
        review.replay(letter.letter.id, &operator()).await.unwrap(),
        Replayed::Already
    );
    assert_eq!(db.queued().await, 1);
}

#[tokio::test]
async fn a5_fifty_replays_at_once_publish_once() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let store = db.store_with(harness::PgStoreConfig {
        max_connections: 20,
        ..Default::default()
    });
    let review = Review::new(store, db.queue().await, watched().0);
    let calls = (0..50).map(|_| {
        let (review, id) = (review.clone(), letter.letter.id);
        tokio::spawn(async move { review.replay(id, &operator()).await })
    });
    let mut published = 0;
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap().unwrap() {
            Replayed::Published { .. } => published += 1,
            Replayed::Already => {}
        }
    }
    assert_eq!((published, db.queued().await), (1, 1));
    run(&db).await;
    assert_eq!(db.effects(letter.letter.job_id).await, 1);
}

#[tokio::test]
async fn a5_replay_and_discard_at_once_agree_on_one_decision() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let id = letter.letter.id;
    let store = db.store_with(harness::PgStoreConfig {
        max_connections: 20,
        ..Default::default()
    });
    let review = Review::new(store, db.queue().await, watched().0);
    let reason = DiscardReason::new("not worth it").unwrap();
    let calls = (0..40).map(|n| {
        let (review, reason) = (review.clone(), reason.clone());
        tokio::spawn(async move {
            match n % 2 {
                0 => review.replay(id, &operator()).await.is_ok(),
                _ => review.discard(id, &reason, &operator()).await.is_ok(),
            }
        })
    });
    let mut successes = [0, 0];
    for (n, call) in calls.collect::<Vec<_>>().into_iter().enumerate() {
        successes[n % 2] += u32::from(call.await.unwrap());
    }
    assert!(
        successes == [20, 0] || successes == [0, 20],
        "{successes:?}"
    );
    run(&db).await;
    let expected = if successes[0] > 0 {
        (1, Status::Replayed)
    } else {
        (0, Status::Discarded)
    };
    assert_eq!(
        (
            db.effects(letter.letter.job_id).await,
            status(&db, id).await
        ),
        expected
    );
}

/// With a queue that is not in the store, a crash between publish and mark is possible.
async fn replay_that_crashes_before_the_mark(db: &Db, id: DeadLetterId) {
    let lost = Arc::new(|point| match point {
        Point {
            when: When::After,
            call: Call::Publish,
        } => Fault::Away,
        _ => Fault::None,
    });
    let publisher = OutsidePublisher(Faulty::new(db.queue().await, lost));
    let review = Review::new(db.store(), publisher, watched().0);
    assert!(matches!(
        review.replay(id, &operator()).await,
        Err(ReplayError::Queue(_))
    ));
}

#[tokio::test]
async fn a5_a_crash_between_publish_and_mark_leaves_the_letter_pending_and_a_second_replay_harmless()
 {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let (id, job) = (letter.letter.id, letter.letter.job_id);
    replay_that_crashes_before_the_mark(&db, id).await;
    assert_eq!(
        (status(&db, id).await, db.queued().await),
        (Status::PendingReview, 1)
    );

    let again = Review::new(db.store(), OutsidePublisher(db.queue().await), watched().0);
    assert_eq!(
        again.replay(id, &operator()).await.unwrap(),
        Replayed::Published { generation: 1 }
    );
    assert_eq!(db.queued().await, 2);
    let seen = run(&db).await;
    assert_eq!((db.effects(job).await, db.fences(job).await), (1, 1));
    assert_eq!(seen.count(|step| matches!(step, Step::Committed)), 1);
}

#[tokio::test]
async fn a5_with_pgmq_publish_and_mark_are_one_transaction() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    // The mark fails at the last moment: somebody else's trigger.
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'as told'; END $$",
    )
    .await;
    db.execute(
        "CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON core.dead_letters DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .await;
    let error = review(&db)
        .await
        .replay(letter.letter.id, &operator())
        .await
        .unwrap_err();
    assert!(matches!(error, ReplayError::Store(_)), "{error}");
    assert_eq!(db.queued().await, 0, "nothing was published");
    assert_eq!(status(&db, letter.letter.id).await, Status::PendingReview);
}

#[tokio::test]
async fn a5_a_replay_that_fails_again_is_a_new_letter_of_the_next_generation() {
    let db = Db::fresh().await;
    let id = job_id();
    let review = review(&db).await;
    db.publish(&Envelope::new(
        id,
        Award::new("ada", 10).then(Misbehave::FailHard).body(),
    ))
    .await;
    for generation in 0..3 {
        run(&db).await;
        let letters = db.letters().await;
        assert_eq!(letters.len(), generation + 1);
        let newest = letters.last().unwrap();
        assert_eq!(newest.letter.generation as usize, generation);
        assert_eq!(
            (newest.letter.job_id, newest.letter.attempts),
            (id, 1),
            "attempts start anew"
        );
        review.replay(newest.letter.id, &operator()).await.unwrap();
    }
    assert_eq!(db.effects(id).await, 0);
}

/// A transient failure of a replayed job has all its retries again.
#[tokio::test]
async fn a5_a_replay_starts_with_no_attempts() {
    let db = Db::fresh().await;
    let mut envelope = Envelope::new(
        job_id(),
        Award::new("ada", 10).then(Misbehave::FailRuns(1)).body(),
    );
    envelope.attempts = 5;
    db.publish(&envelope).await;
    let consumer = Running::start(
        &db,
        db.config(),
        handler_fn(|job, _| {
            Box::pin(async move { Err(harness::Failure::transient(format!("run {}", job.run))) })
        }),
    )
    .await;
    db.settled().await;
    let letter = db.letters().await.remove(0).letter;
    assert_eq!((letter.attempts, letter.last_error.as_str()), (6, "run 6"));
    review(&db)
        .await
        .replay(letter.id, &operator())
        .await
        .unwrap();
    consumer
        .seen
        .wait_for("is retried", 1, |step| {
            matches!(step, Step::Retried { run: 1, .. })
        })
        .await;
    consumer.stop().await;
}

#[tokio::test]
async fn a5_a_success_that_was_reported_as_a_failure_is_no_dead_letter() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await.letter;
    // Another job, applied; then somebody comes late with "it failed".
    let applied = db.publish_award(&Award::new("ada", 10)).await;
    run(&db).await;
    let late = harness::NewDeadLetter {
        id: DeadLetterId(acceptance::db::random_id()),
        job_id: applied,
        ..letter
    };
    assert_eq!(
        db.store().record_dead_letter(&late).await.unwrap(),
        harness::Recorded::Applied
    );
    assert_eq!(db.letters().await.len(), 1);
    assert_eq!(
        (db.effects(applied).await, db.fences(applied).await),
        (1, 1),
        "the fence stays"
    );
}

#[tokio::test]
async fn a5_a_letter_older_than_the_fences_ttl_can_be_replayed_safely() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let job = letter.letter.job_id;
    // Fences of that time are long gone: there is none, because a pending letter's job was never applied.
    let mut target = SweepTarget::of(&db.config());
    target.retry_window = std::time::Duration::ZERO;
    let sweeper = Sweeper::new(
        SweeperConfig::new(vec![target]),
        db.store(),
        db.queue().await,
        watched().0,
    );
    assert_eq!(sweeper.round().await.failures, Vec::<String>::new());
    let review = review(&db).await;
    review.replay(letter.letter.id, &operator()).await.unwrap();
    run(&db).await;
    review.replay(letter.letter.id, &operator()).await.unwrap();
    run(&db).await;
    assert_eq!((db.effects(job).await, db.fences(job).await), (1, 1));
}

#[tokio::test]
async fn a5_a_late_original_after_the_replay_is_skipped() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let job = letter.letter.job_id;
    let original = Envelope::new(job, Award::new("ada", 10).body());

    // Before the replay: this generation is settled, and must not be applied behind the operator's back.
    db.publish(&original).await;
    let settled = |step: &Step| {
        matches!(
            step,
            Step::Fence {
                verdict: FenceVerdict::Settled,
                ..
            }
        )
    };
    assert_eq!(run(&db).await.count(settled), 1);
    assert_eq!((db.effects(job).await, db.fences(job).await), (0, 0));

    // Together with the replay, in both orders; and after it.
    review(&db)
        .await
        .replay(letter.letter.id, &operator())
        .await
        .unwrap();
    db.publish(&original).await;
    run(&db).await;
    db.publish(&original).await;
    let seen = run(&db).await;
    assert_eq!(
        seen.count(|step| matches!(step, Step::RunStarted { .. })),
        0
    );
    assert_eq!((db.effects(job).await, db.fences(job).await), (1, 1));
    assert_eq!(db.letters().await.len(), 1);
}

#[tokio::test]
async fn a5_a_late_copy_cannot_undo_a_discard() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let (id, job) = (letter.letter.id, letter.letter.job_id);
    // A replay was published but not recorded; then somebody else discards the letter.
    replay_that_crashes_before_the_mark(&db, id).await;
    let reason = DiscardReason::new("the account is closed").unwrap();
    let review = review(&db).await;
    assert_eq!(
        review.discard(id, &reason, &operator()).await.unwrap(),
        Discarded::Discarded
    );
    db.publish(&Envelope::new(job, Award::new("ada", 10).body()))
        .await;
    let seen = run(&db).await;
    assert_eq!(
        seen.count(|step| matches!(step, Step::RunStarted { .. })),
        0
    );
    assert_eq!((db.effects(job).await, db.fences(job).await), (0, 0));
    assert!(matches!(
        review.replay(id, &operator()).await,
        Err(ReplayError::WasDiscarded(_))
    ));
    assert_eq!(db.queued().await, 0);
}

#[tokio::test]
async fn a5_a_discard_after_an_unrecorded_replay_was_applied_says_so() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let (id, job) = (letter.letter.id, letter.letter.job_id);
    replay_that_crashes_before_the_mark(&db, id).await;
    run(&db).await;
    assert_eq!(db.effects(job).await, 1);
    let review = review(&db).await;
    let reason = DiscardReason::new("not worth it").unwrap();
    let error = review.discard(id, &reason, &operator()).await.unwrap_err();
    assert!(matches!(error, DiscardError::WasApplied(_)), "{error}");
    // What the message advises.
    review.replay(id, &operator()).await.unwrap();
    run(&db).await;
    assert_eq!(
        (db.effects(job).await, status(&db, id).await),
        (1, Status::Replayed)
    );
}

/// On a queue that consumers compete for, the wrong one gives it back; where each has a copy, it acknowledges its own.
#[tokio::test]
async fn a5_a_replay_reaches_only_the_consumer_that_failed() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await;
    let job = letter.letter.job_id;
    review(&db)
        .await
        .replay(letter.letter.id, &operator())
        .await
        .unwrap();
    let mut config = db.config();
    config.consumer = harness::ConsumerName::new("mails").unwrap();
    let other = Running::start(
        &db,
        config,
        Awards {
            consumer: "mails".to_owned(),
        },
    )
    .await;
    let given_back = |step: &Step| {
        matches!(
            step,
            Step::Deferred {
                reason: harness::DeferReason::NotAddressed,
                ..
            }
        )
    };
    other.seen.wait_for("gives it back", 1, given_back).await;
    other.stop().await;
    assert_eq!((db.effects(job).await, db.queued().await), (0, 1));
    run(&db).await;
    assert_eq!((db.effects(job).await, db.fences(job).await), (1, 1));
}

#[tokio::test]
async fn b6_republished_bytes_are_identical() {
    for body in [
        r#"{"b": 1, "a": 2}"#,
        r#"{"a": 1, "a": 2}"#,
        "18446744073709551617",
        "[0.1234567890123456789012345, 1e400]",
        " {\"account\" :\t\"ada\"}\n",
        "\u{0}not json",
    ] {
        let db = Db::fresh().await;
        let id = job_id();
        let mut envelope = Envelope::new(id, body);
        envelope.headers.insert(
            "traceparent".to_owned(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
        );
        db.publish(&envelope).await;
        let hard = handler_fn(|_, _| Box::pin(async { Err(harness::Failure::permanent("no")) }));
        let consumer = Running::start(&db, db.config(), hard).await;
        db.settled().await;
        consumer.stop().await;
        let letter = db.letters().await.remove(0).letter;
        assert_eq!(letter.body, body.as_bytes());
        review(&db)
            .await
            .replay(letter.id, &operator())
            .await
            .unwrap();
        let (wire_body, job, generation, trace): (String, String, String, String) = sqlx::query_as(
            "SELECT message->>'body', message->'headers'->>'job-id', message->'headers'->>'generation', \
             message->'headers'->>'traceparent' FROM pgmq.q_points",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        let bytes: Vec<u8> = sqlx::query_scalar("SELECT decode($1, 'base64')")
            .bind(wire_body)
            .fetch_one(&db.pool)
            .await
            .unwrap();
        assert_eq!(bytes, body.as_bytes(), "byte for byte");
        assert_eq!(
            (job, generation.as_str()),
            (id.to_string(), "1"),
            "the same job id, the next generation"
        );
        assert!(
            trace.starts_with("00-4bf92f"),
            "other headers are carried along"
        );
    }
}

#[tokio::test]
async fn b6_an_unknown_id_is_an_error() {
    let db = Db::fresh().await;
    let id = DeadLetterId(acceptance::db::random_id());
    let review = review(&db).await;
    assert!(matches!(
        review.replay(id, &operator()).await,
        Err(ReplayError::NotFound(_))
    ));
    let reason = DiscardReason::new("x").unwrap();
    assert!(matches!(
        review.discard(id, &reason, &operator()).await,
        Err(DiscardError::NotFound(_))
    ));
}

/// A twin that was waiting while the dead letter was written finds out in a new statement.
#[tokio::test]
async fn b1_a_twin_that_waited_for_the_dead_letter_is_told_that_the_job_is_settled() {
    use harness::{FenceKey, WorkTx as _};
    let db = Db::fresh().await;
    let mut letter = dead_letter(&db).await.letter;
    letter.job_id = job_id();
    letter.id = DeadLetterId(acceptance::db::random_id());
    let key = FenceKey {
        job_id: letter.job_id,
        consumer: letter.consumer.clone(),
        generation: 0,
        tenant_id: None,
    };
    let mut holder = db.pool.begin().await.unwrap();
    sqlx::query("SELECT core.hold_fence_key($1, $2, 1000)")
        .bind(letter.job_id.as_uuid())
        .bind(letter.consumer.as_str())
        .execute(&mut *holder)
        .await
        .unwrap();
    let patient = db.store_with(harness::PgStoreConfig {
        fence_wait: std::time::Duration::from_secs(30),
        ..Default::default()
    });
    let waiting = tokio::spawn(async move {
        let mut tx = patient.begin().await.unwrap();
        let day = std::time::Duration::from_secs(86_400);
        tx.fence(&key, day, day).await.unwrap()
    });
    acceptance::clock::eventually("the twin waits", async || {
        match db
            .count("SELECT count(*) FROM pg_locks WHERE NOT granted")
            .await
        {
            0 => Err("nobody waits"),
            _ => Ok(()),
        }
    })
    .await;
    // What record_dead_letter does behind the same lock.
    sqlx::query(
        "INSERT INTO core.dead_letters (id, job_id, consumer, queue, correlation_id, generation, reason, error_class, \
         attempts, last_error, payload, body, headers) \
         VALUES ($1, $2, $3, 'points', 'c', 0, 'hard', 'x', 1, 'x', '{}', '', '{}')",
    )
    .bind(letter.id.0)
    .bind(letter.job_id.as_uuid())
    .bind(letter.consumer.as_str())
    .execute(&mut *holder)
    .await
    .unwrap();
    holder.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap(), FenceVerdict::Settled);
}

#[tokio::test]
async fn a5_dead_letters_are_counted_once_under_parallel_writers() {
    let db = Db::fresh().await;
    let letter = dead_letter(&db).await.letter;
    let (job, written) = (job_id(), Arc::new(AtomicU32::new(0)));
    let store = db.store_with(harness::PgStoreConfig {
        max_connections: 20,
        ..Default::default()
    });
    let calls = (0..20).map(|_| {
        let (store, written) = (store.clone(), Arc::clone(&written));
        let letter = harness::NewDeadLetter {
            id: DeadLetterId(acceptance::db::random_id()),
            job_id: job,
            ..letter.clone()
        };
        tokio::spawn(async move {
            if store.record_dead_letter(&letter).await.unwrap() == harness::Recorded::Written {
                written.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!(
        (written.load(Ordering::SeqCst), db.letters().await.len()),
        (1, 2)
    );
}
