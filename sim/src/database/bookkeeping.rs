//! What happens in one statement: a dead letter is written, fences are swept.

use std::time::Duration;

use harness::{DeadLetter, NewDeadLetter, Recorded, Status, SweepBatch};

use super::{Database, REPLAY_LATENESS, Refusal};
use crate::history::{Fact, Key};
use crate::timeline::Timeline;

impl Database {
    pub(super) async fn record(
        &self,
        session: u64,
        letter: &NewDeadLetter,
        wait: Duration,
    ) -> Result<Recorded, Refusal> {
        let id = self.begin(session);
        let key = (letter.job_id, letter.consumer.clone());
        let recorded = match self.take_key(id, &key, wait).await {
            Ok(true) => Ok(self.write_letter(letter, &key)),
            Ok(false) => Ok(Recorded::Applied),
            Err(refusal) => Err(refusal),
        };
        self.state().open.remove(&id);
        self.changed.notify_waiters();
        recorded
    }

    pub(super) fn write_letter(&self, letter: &NewDeadLetter, key: &Key) -> Recorded {
        let fact = {
            let mut state = self.state();
            let already = state.tables.letters.values().any(|it| {
                it.letter.job_id == letter.job_id
                    && it.letter.consumer == letter.consumer
                    && it.letter.generation == letter.generation
            });
            if already {
                return Recorded::Already;
            }
            let now = self.timeline.now();
            let created_at = Timeline::calendar(now);
            let row = DeadLetter {
                letter: letter.clone(),
                status: Status::PendingReview,
                discard_reason: None,
                created_at,
                reviewed_at: None,
                reviewed_by: None,
            };
            state.tables.letters.insert(letter.id, row);
            let fingerprint = state.tables.alerts.owe(letter, now);
            Fact::LetterWritten {
                id: letter.id,
                key: key.clone(),
                generation: letter.generation,
                reason: letter.reason,
                attempts: letter.attempts,
                fingerprint,
            }
        };
        self.fact(fact);
        Recorded::Written
    }

    pub(super) fn sweep(&self, batch: &SweepBatch) -> u64 {
        let now = self.timeline.now();
        let cutoff = batch
            .oldest
            .map_or(batch.asked_at, |oldest| oldest.min(batch.asked_at));
        let mut gone = Vec::new();
        {
            let mut state = self.state();
            let mut due: Vec<(Duration, Key)> = state
                .tables
                .fences
                .iter()
                .filter(|(key, fence)| {
                    key.1 == batch.consumer
                        && Timeline::calendar(fence.expires_at) <= cutoff
                        && fence.processed_at + batch.retry_window < now
                        && !state.tables.decided_since(key, cutoff - REPLAY_LATENESS)
                })
                .map(|(key, fence)| (fence.expires_at, key.clone()))
                .collect();
            due.sort();
            due.truncate(batch.limit as usize);
            for (_, key) in due {
                if let Some(fence) = state.tables.fences.remove(&key) {
                    let pending = state.tables.pending(&key);
                    gone.push((key, now.saturating_sub(fence.processed_at), pending));
                }
            }
        }
        let removed = gone.len() as u64;
        for (key, age, letters_pending) in gone {
            let copies_queued = self.broker.copies_of(key.0);
            self.fact(Fact::FenceSwept {
                key,
                age,
                copies_queued,
                letters_pending,
            });
        }
        self.changed.notify_waiters();
        removed
    }

    /// Somebody with a client sets `expires_at` of fences to now.
    pub fn expire_fences(&self, may: impl Fn(&Key) -> bool) {
        let now = self.timeline.now();
        let keys: Vec<Key> = {
            let mut state = self.state();
            let fences = state.tables.fences.iter_mut();
            fences
                .filter(|(key, _)| may(key))
                .map(|(key, fence)| {
                    fence.expires_at = now;
                    key.clone()
                })
                .collect()
        };
        self.fact(Fact::FencesExpired { keys });
    }
}
