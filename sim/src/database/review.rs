//! What operators do, on the simulated database.

use std::time::Duration;

use harness::{DeadLetter, DeadLetterId, DiscardReason, Discarded, Reviewer, Status};

use super::transactions::Lock;
use super::{Database, Refusal};
use crate::history::Fact;
use crate::timeline::Timeline;

impl Database {
    /// `SELECT … FOR UPDATE`.
    pub(super) async fn lock_letter(
        &self,
        id: u64,
        letter: DeadLetterId,
        wait: Duration,
    ) -> Result<Option<DeadLetter>, Refusal> {
        self.locked(id, wait, |state| {
            state.alive(id)?;
            let Some(row) = state.tables.letters.get(&letter).cloned() else {
                return Ok(Lock::Free(None));
            };
            if state.open.values().any(|tx| tx.holds_letter(letter)) {
                return Ok(Lock::Held);
            }
            state.alive(id)?.letter = Some(letter);
            Ok(Lock::Free(Some(row)))
        })
        .await
    }

    /// Marks the locked letter and commits.
    pub(super) fn mark_replayed(&self, id: u64, by: &Reviewer) -> Result<(), Refusal> {
        let letter = {
            let mut state = self.state();
            let transaction = state.open.remove(&id).ok_or(Refusal::NoTransaction)?;
            let letter = transaction.letter.ok_or(Refusal::NoTransaction)?;
            let now = Timeline::calendar(self.timeline.now());
            let row = state
                .tables
                .letters
                .get_mut(&letter)
                .ok_or(Refusal::NoTransaction)?;
            if row.status != Status::PendingReview {
                drop(state);
                self.changed.notify_waiters();
                return Err(Refusal::NotPending);
            }
            row.status = Status::Replayed;
            row.reviewed_at = Some(now);
            row.reviewed_by = Some(by.to_string());
            letter
        };
        self.fact(Fact::LetterReplayed { id: letter });
        self.changed.notify_waiters();
        Ok(())
    }

    pub(super) async fn discard(
        &self,
        session: u64,
        letter: DeadLetterId,
        reason: &DiscardReason,
        by: &Reviewer,
        wait: Duration,
    ) -> Result<Discarded, Refusal> {
        let Some(row) = self.state().tables.letters.get(&letter).cloned() else {
            return Ok(Discarded::NotFound);
        };
        let decided = |status| match status {
            Status::PendingReview => None,
            Status::Replayed => Some(Discarded::WasReplayed),
            Status::Discarded => Some(Discarded::Already),
        };
        if let Some(answer) = decided(row.status) {
            return Ok(answer);
        }
        let id = self.begin(session);
        let key = (row.letter.job_id, row.letter.consumer.clone());
        let outcome = self.discard_in(id, letter, &key, reason, by, wait).await;
        self.state().open.remove(&id);
        self.changed.notify_waiters();
        let answer = outcome?;
        if answer == Discarded::Discarded {
            self.fact(Fact::LetterDiscarded {
                id: letter,
                reason: reason.as_str().to_owned(),
            });
        }
        Ok(answer)
    }

    async fn discard_in(
        &self,
        id: u64,
        letter: DeadLetterId,
        key: &crate::history::Key,
        reason: &DiscardReason,
        by: &Reviewer,
        wait: Duration,
    ) -> Result<Discarded, Refusal> {
        if !self.take_key(id, key, wait).await? {
            return Ok(Discarded::WasApplied);
        }
        // The update reads the clock, waits for whoever holds the row, and then looks at its status again.
        let now = Timeline::calendar(self.timeline.now());
        self.lock_letter(id, letter, wait).await?;
        let mut state = self.state();
        let row = state
            .tables
            .letters
            .get_mut(&letter)
            .ok_or(Refusal::NoTransaction)?;
        match row.status {
            Status::Replayed => Ok(Discarded::WasReplayed),
            Status::Discarded => Ok(Discarded::Already),
            Status::PendingReview => {
                row.status = Status::Discarded;
                row.discard_reason = Some(reason.as_str().to_owned());
                row.reviewed_at = Some(now);
                row.reviewed_by = Some(by.to_string());
                Ok(Discarded::Discarded)
            }
        }
    }
}
