//! A5: replay of a dead letter with the same job id produces no second effect.

use acceptance::award::{Award, Awards, Misbehave};
use acceptance::db::{Db, job_id};
use acceptance::rig::{Running, handler_fn, run_all, watched};
use harness::{
    DeadLetterId, DiscardError, DiscardReason, Envelope, ReplayError, Replayed, Review, Status,
    Step,
};

use crate::replaying::*;

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
        run_all(&db, hard).await;
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
