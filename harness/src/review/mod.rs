//! What an operator decides about a dead letter (B6, B8): replay it, or discard it with a reason.
//!
//! Replay locks the row, publishes the same bytes with the same job id and the next generation, marks the row and commits.
//! A crash between publish and mark leaves the letter pending; replaying it again publishes a second copy, and the fence
//! makes the two of them one effect. Never the other way round: a letter that is marked was published.

mod bulk;
mod discard;
mod query;
mod replay;

pub use self::bulk::{Decided, Decision};
pub use self::discard::DiscardError;
pub use self::query::{LetterCount, LetterFilter, LetterOrder, LetterPlace, LetterQuery};
pub use self::replay::{OutsidePublisher, ReplayError, ReplayPublisher, Replayed};
use crate::dead_letter::DeadLetterId;
use crate::decision::{DiscardReason, Discarded, Reviewer};
use crate::event::{Event, Step};
use crate::ports::env::Env;
use crate::ports::store::{ReviewStore, ReviewTx as _};

/// Replays and discards dead letters.
#[derive(Debug, Clone)]
pub struct Review<S, P> {
    store: S,
    publisher: P,
    env: Env,
}

impl<S: ReviewStore, P: ReplayPublisher<S>> Review<S, P> {
    /// `publisher` is a queue that publishes in the store's own transaction, or any queue inside [`OutsidePublisher`].
    pub fn new(store: S, publisher: P, env: Env) -> Self {
        Self {
            store,
            publisher,
            env,
        }
    }

    /// Publishes a pending dead letter again (B6). Repeating it has no further effect.
    ///
    /// # Errors
    /// When there is no such letter, it was discarded, or the store or the queue is away: then it is still pending, and
    /// replaying it again is safe.
    pub async fn replay(&self, id: DeadLetterId, by: &Reviewer) -> Result<Replayed, ReplayError> {
        let Some(mut tx) = self.store.lock_dead_letter(id).await? else {
            return Err(ReplayError::NotFound(id));
        };
        if let Some(answer) = replay::settled(tx.letter()) {
            return answer;
        }
        let envelope = crate::envelope::Envelope::replay_of(&tx.letter().letter);
        let queue = tx.letter().letter.queue.clone();
        self.publisher.publish(&mut tx, &queue, &envelope).await?;
        tx.mark_replayed(by).await?;
        self.env.emit(Event {
            consumer: envelope.consumer.clone(),
            queue: Some(queue),
            job: Some(crate::event::JobRef {
                id: envelope.job_id,
                generation: envelope.generation,
                correlation_id: envelope.correlation_id.clone(),
                delivery: None,
            }),
            step: Step::Replayed { id },
        });
        Ok(Replayed::Published {
            generation: envelope.generation,
        })
    }

    /// Gives a pending dead letter up, for ever (B8). Repeating it has no further effect.
    ///
    /// # Errors
    /// When there is no such letter, it was replayed, or the store is away.
    pub async fn discard(
        &self,
        id: DeadLetterId,
        reason: &DiscardReason,
        by: &Reviewer,
    ) -> Result<Discarded, DiscardError> {
        let answer = self.store.discard(id, reason, by).await?;
        match answer {
            Discarded::Discarded => {
                self.env.emit(Event {
                    consumer: None,
                    queue: None,
                    job: None,
                    step: Step::Discarded { id },
                });
                Ok(answer)
            }
            Discarded::Already => Ok(answer),
            Discarded::NotFound => Err(DiscardError::NotFound(id)),
            Discarded::WasReplayed => Err(DiscardError::WasReplayed(id)),
            Discarded::WasApplied => Err(DiscardError::WasApplied(id)),
        }
    }
}
