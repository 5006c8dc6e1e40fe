//! What the tests of replay and discard have in common.

use std::sync::Arc;

use acceptance::award::Award;
use acceptance::db::{Db, job_id};
use acceptance::faults::{Call, Fault, Faulty, Point, When};
use acceptance::rig::{awards, handler_fn, run_all, watched};
use harness::{
    DeadLetter, DeadLetterId, Envelope, JobId, OutsidePublisher, PgStore, PgmqQueue, ReplayError,
    Review, Reviewer, Status,
};

pub fn operator() -> Reviewer {
    Reviewer::new("olga").unwrap()
}

pub async fn review(db: &Db) -> Review<PgStore, PgmqQueue> {
    Review::new(db.store(), db.queue().await, watched().0)
}

/// Runs until the queue is empty; answers what was seen.
pub async fn run(db: &Db) -> acceptance::watch::Recorder {
    run_all(db, awards()).await
}

/// A job that ended as a pending dead letter, and will succeed the next time.
pub async fn dead_letter(db: &Db) -> DeadLetter {
    dead_letter_with(db, job_id(), &Award::new("ada", 10).body()).await
}

pub async fn dead_letter_with(db: &Db, id: JobId, body: &[u8]) -> DeadLetter {
    db.publish(&Envelope::new(id, body)).await;
    let hard = handler_fn(|_, _| {
        Box::pin(async { Err(harness::Failure::permanent("a bug that is fixed later")) })
    });
    run_all(db, hard).await;
    let letter = db.letters().await.pop().unwrap();
    assert_eq!(
        (letter.status, letter.letter.job_id),
        (Status::PendingReview, id)
    );
    letter
}

pub async fn status(db: &Db, id: DeadLetterId) -> Status {
    db.letters()
        .await
        .into_iter()
        .find(|letter| letter.letter.id == id)
        .unwrap()
        .status
}

/// With a queue that is not in the store, a crash between publish and mark is possible.
pub async fn replay_that_crashes_before_the_mark(db: &Db, id: DeadLetterId) {
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
