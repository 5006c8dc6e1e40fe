//! Decisions about many dead letters at once (B6, B8): about those that were pending when they were asked for, and no others.
//! A letter that a replay leads to, or that is written meanwhile, is for another look.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};

use super::{DiscardError, ReplayError, ReplayPublisher, Replayed, Review};
use crate::dead_letter::DeadLetterId;
use crate::decision::{DiscardReason, Discarded, Reviewer};
use crate::ports::store::{ReviewStore, StoreError};
use crate::time::Backoff;

/// Decided at the same time: each needs a connection.
const AT_ONCE: usize = 4;

/// How often a decision is tried while the store or the queue is away, and the waits between.
const TRIES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What is decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Publish it again.
    Replay,
    /// Give it up for ever.
    Discard(DiscardReason),
}

/// What became of one letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// As wanted, now.
    Done,
    /// As wanted, before: nothing changed.
    Already,
    /// It cannot be: it was decided otherwise, or is not there.
    Refused(String),
    /// Not known, or not done: the store or the queue is away. Deciding again is safe.
    Failed(String),
    /// Not tried, because the ones before could not be decided.
    NotTried,
}

enum Trouble {
    Passing(String),
    Final(String),
}

impl From<ReplayError> for Trouble {
    fn from(error: ReplayError) -> Self {
        let text = crate::error_text::error_text(&error);
        match error {
            ReplayError::NotFound(_) | ReplayError::WasDiscarded(_) => Self::Final(text),
            ReplayError::Queue(_) | ReplayError::Store(_) => Self::Passing(text),
        }
    }
}

impl From<DiscardError> for Trouble {
    fn from(error: DiscardError) -> Self {
        let text = crate::error_text::error_text(&error);
        match error {
            DiscardError::NotFound(_)
            | DiscardError::WasReplayed(_)
            | DiscardError::WasApplied(_) => Self::Final(text),
            DiscardError::Store(StoreError::Refused(_)) => Self::Final(text),
            DiscardError::Store(_) => Self::Passing(text),
        }
    }
}

impl<S: ReviewStore, P: ReplayPublisher<S>> Review<S, P> {
    /// Decides about each of `ids`, a few at a time, in about their order. Once one cannot be decided because the store or
    /// the queue stays away, the rest is not tried.
    pub fn decide_all<'a>(
        &'a self,
        ids: &'a [DeadLetterId],
        decision: &'a Decision,
        by: &'a Reviewer,
    ) -> impl Stream<Item = (DeadLetterId, Decided)> + 'a {
        let given_up = std::sync::Arc::new(AtomicBool::new(false));
        futures_util::stream::iter(ids.iter().copied())
            .map(move |id| {
                let given_up = std::sync::Arc::clone(&given_up);
                async move {
                    if given_up.load(Ordering::Acquire) {
                        return (id, Decided::NotTried);
                    }
                    let decided = self.decide(id, decision, by).await;
                    if matches!(decided, Decided::Failed(_)) {
                        given_up.store(true, Ordering::Release);
                    }
                    (id, decided)
                }
            })
            .buffer_unordered(AT_ONCE)
    }

    async fn decide(&self, id: DeadLetterId, decision: &Decision, by: &Reviewer) -> Decided {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        let mut tries = 1;
        loop {
            let tried = match decision {
                Decision::Replay => match self.replay(id, by).await {
                    Ok(Replayed::Published { .. }) => Ok(Decided::Done),
                    Ok(Replayed::Already) => Ok(Decided::Already),
                    Err(error) => Err(Trouble::from(error)),
                },
                Decision::Discard(reason) => match self.discard(id, reason, by).await {
                    Ok(Discarded::Already) => Ok(Decided::Already),
                    Ok(_) => Ok(Decided::Done),
                    Err(error) => Err(Trouble::from(error)),
                },
            };
            match tried {
                Ok(decided) => return decided,
                Err(Trouble::Final(text)) => return Decided::Refused(text),
                Err(Trouble::Passing(text)) if tries == TRIES => return Decided::Failed(text),
                Err(Trouble::Passing(_)) => {
                    tries += 1;
                    let wait = self.env.jittered(backoff.next_wait());
                    self.env.clock.sleep(wait).await;
                }
            }
        }
    }
}
