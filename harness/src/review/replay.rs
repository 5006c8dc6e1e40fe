//! Publishing a dead letter again, with the same job id (A5, B6).

use std::future::Future;

use crate::dead_letter::{DeadLetter, DeadLetterId, Status};
use crate::envelope::Envelope;
use crate::names::QueueName;
use crate::ports::queue::{QueueError, QueuePort};
use crate::ports::store::{ReviewStore, StoreError};

/// What a replay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replayed {
    /// It was pending; its next generation is on the queue now.
    Published {
        /// The generation that was published.
        generation: u32,
    },
    /// It was replayed before; nothing was published.
    Already,
}

/// Why a replay was not made.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// There is none of that id.
    #[error("there is no dead letter {0}")]
    NotFound(DeadLetterId),
    /// The decision was another one.
    #[error("dead letter {0} was discarded and can no longer be replayed")]
    WasDiscarded(DeadLetterId),
    /// Still pending; replay it again.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// Still pending, or replayed; replay it again to know.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The answer for a letter that is no longer pending.
pub(super) fn settled(letter: &DeadLetter) -> Option<Result<Replayed, ReplayError>> {
    match letter.status {
        Status::PendingReview => None,
        Status::Replayed => Some(Ok(Replayed::Already)),
        Status::Discarded => Some(Err(ReplayError::WasDiscarded(letter.letter.id))),
    }
}

/// Publishes a replay, while the letter is locked.
pub trait ReplayPublisher<S: ReviewStore>: Clone + Send + Sync + 'static {
    /// Puts `envelope` on `queue`: in the letter's transaction, or durably before this returns.
    fn publish(
        &self,
        tx: &mut S::Tx,
        queue: &QueueName,
        envelope: &Envelope,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;
}

/// Publishes outside the letter's transaction, before it is marked: for every queue that is not in the store itself.
#[derive(Debug, Clone)]
pub struct OutsidePublisher<Q>(pub Q);

impl<S: ReviewStore, Q: QueuePort> ReplayPublisher<S> for OutsidePublisher<Q> {
    async fn publish(
        &self,
        _tx: &mut S::Tx,
        queue: &QueueName,
        envelope: &Envelope,
    ) -> Result<(), QueueError> {
        self.0.publish(queue, envelope).await
    }
}
