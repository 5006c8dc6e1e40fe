//! A5, S4: one outcome per generation, whatever comes late, twice, or from two operators at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use acceptance::award::Award;
use acceptance::db::{Db, job_id};
use acceptance::rig::watched;
use harness::{
    DeadLetterId, DiscardError, DiscardReason, Discarded, Envelope, FenceVerdict, OutsidePublisher,
    ReplayError, Replayed, Review, Status, Step, Store as _, SweepTarget, Sweeper, SweeperConfig,
};

use crate::replaying::*;

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
