//! The simulated database: what PostgreSQL promises to the harness, and no more.
//!
//! One value holds the committed tables and the open transactions. Committed tables survive a crash of the database's host;
//! open transactions do not, nor those of a connection that is lost. Every statement sees what was committed when it
//! started; a twin blocks on the unique key until the first transaction ends, or its lock timeout passes.

mod alerts;
mod client;
mod review;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{
    DeadLetter, DeadLetterId, FenceKey, FenceVerdict, NewDeadLetter, Recorded, Status, SweepBatch,
};
use tokio::sync::Notify;

pub use self::client::{SimConnection, SimStore};
pub use self::server::serve;
use crate::broker::Broker;
use crate::history::{Fact, History, Key, Said};
use crate::timeline::Timeline;

/// A committed fence.
#[derive(Debug, Clone, PartialEq)]
pub struct Fence {
    /// When the run began, by the database's clock.
    pub processed_at: Duration,
    /// When the sweep may take it.
    pub expires_at: Duration,
}

/// What is committed.
#[derive(Debug, Default)]
pub struct Tables {
    /// D1.
    pub fences: BTreeMap<Key, Fence>,
    /// D2.
    pub letters: BTreeMap<DeadLetterId, DeadLetter>,
    /// Effects of handlers, per job and consumer; never fewer.
    pub effects: BTreeMap<Key, u32>,
    /// Alert bookkeeping.
    pub alerts: alerts::Alerts,
}

/// Why a statement failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Lock timeout.
    #[error("lock timeout")]
    LockTimeout,
    /// The transaction is not there: its connection or its session was ended.
    #[error("there is no such transaction")]
    NoTransaction,
}

#[derive(Debug)]
struct Transaction {
    session: u64,
    key: Option<Key>,
    letter: Option<DeadLetterId>,
    fence: Option<(Fence, u32)>,
    effects: u32,
}

#[derive(Debug, Default)]
struct State {
    tables: Tables,
    open: BTreeMap<u64, Transaction>,
    next: u64,
}

/// The database of a world. Clones share it.
#[derive(Clone)]
pub struct Database {
    state: Arc<Mutex<State>>,
    /// Some transaction ended: who waits for a lock looks again.
    changed: Arc<Notify>,
    timeline: Timeline,
    history: History,
    broker: Broker,
}

/// Whether a lock can be had.
enum Lock<T> {
    Held,
    Free(T),
}

impl Database {
    /// An empty one. It looks at the broker only to write down what a sweep should not have done.
    pub fn new(timeline: Timeline, history: History, broker: Broker) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            timeline,
            history,
            broker,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what is committed.
    pub fn look<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.state().tables)
    }

    fn fact(&self, fact: Fact) {
        self.history
            .push(self.timeline.now(), "database", Said::World(fact));
    }

    fn begin(&self, session: u64) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.open.insert(
            id,
            Transaction {
                session,
                key: None,
                letter: None,
                fence: None,
                effects: 0,
            },
        );
        id
    }

    /// Ends a transaction without committing it.
    fn abort(&self, id: u64) {
        let ended = self.state().open.remove(&id);
        if let Some(transaction) = ended {
            self.fact(Fact::RolledBack {
                key: transaction.key,
            });
            self.changed.notify_waiters();
        }
    }

    /// Ends all transactions of a session, or all there are.
    fn abort_all(&self, session: Option<u64>) {
        let ids: Vec<u64> = {
            let state = self.state();
            let ours = |tx: &Transaction| session.is_none_or(|session| tx.session == session);
            state
                .open
                .iter()
                .filter(|(_, tx)| ours(tx))
                .map(|(id, _)| *id)
                .collect()
        };
        ids.into_iter().for_each(|id| self.abort(id));
    }

    /// The host lost its memory: what was not committed is gone.
    pub fn crash(&self) {
        self.abort_all(None);
    }

    /// Tries until it is free, at most `wait`.
    async fn locked<T>(
        &self,
        wait: Duration,
        attempt: impl Fn(&mut State) -> Result<Lock<T>, Refusal>,
    ) -> Result<T, Refusal> {
        let timeout = self.timeline.sleep(wait);
        tokio::pin!(timeout);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            if let Lock::Free(value) = attempt(&mut self.state())? {
                return Ok(value);
            }
            tokio::select! {
                biased;
                () = &mut changed => {}
                () = &mut timeout => return Err(Refusal::LockTimeout),
            }
        }
    }

    /// `INSERT … ON CONFLICT DO NOTHING` into the fences: true when this transaction holds the key now.
    async fn take_key(&self, id: u64, key: &Key, wait: Duration) -> Result<bool, Refusal> {
        self.locked(wait, |state| {
            if !state.open.contains_key(&id) {
                return Err(Refusal::NoTransaction);
            }
            if state.tables.fences.contains_key(key) {
                return Ok(Lock::Free(false));
            }
            let held = state
                .open
                .iter()
                .any(|(other, tx)| *other != id && tx.key.as_ref() == Some(key));
            if held {
                return Ok(Lock::Held);
            }
            if let Some(transaction) = state.open.get_mut(&id) {
                transaction.key = Some(key.clone());
            }
            Ok(Lock::Free(true))
        })
        .await
    }

    async fn fence(
        &self,
        id: u64,
        key: &FenceKey,
        ttl: Duration,
        wait: Duration,
    ) -> Result<FenceVerdict, Refusal> {
        let processed_at = self.timeline.now();
        let place = (key.job_id, key.consumer.clone());
        if !self.take_key(id, &place, wait).await? {
            return Ok(FenceVerdict::Duplicate);
        }
        // A new statement.
        let mut state = self.state();
        let settled = state.tables.letters.values().any(|letter| {
            letter.letter.consumer == key.consumer
                && letter.letter.job_id == key.job_id
                && (letter.letter.generation == key.generation
                    || (letter.letter.generation + 1 == key.generation
                        && letter.status == Status::Discarded))
        });
        if settled {
            return Ok(FenceVerdict::Settled);
        }
        let transaction = state.open.get_mut(&id).ok_or(Refusal::NoTransaction)?;
        let fence = Fence {
            processed_at,
            expires_at: processed_at.saturating_add(ttl),
        };
        transaction.fence = Some((fence, key.generation));
        Ok(FenceVerdict::Acquired)
    }

    /// One effect of the handler.
    fn work(&self, id: u64) -> Result<(), Refusal> {
        self.state()
            .open
            .get_mut(&id)
            .ok_or(Refusal::NoTransaction)?
            .effects += 1;
        Ok(())
    }

    fn commit(&self, id: u64) -> Result<(), Refusal> {
        let fact = {
            let mut state = self.state();
            let transaction = state.open.remove(&id).ok_or(Refusal::NoTransaction)?;
            let (Some(key), Some((fence, generation))) = (transaction.key, transaction.fence)
            else {
                return Err(Refusal::NoTransaction);
            };
            *state.tables.effects.entry(key.clone()).or_default() += transaction.effects;
            state.tables.fences.insert(key.clone(), fence);
            Fact::Committed {
                key,
                generation,
                effects: transaction.effects as usize,
                fence: true,
            }
        };
        self.fact(fact);
        self.changed.notify_waiters();
        Ok(())
    }

    async fn record(
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

    fn write_letter(&self, letter: &NewDeadLetter, key: &Key) -> Recorded {
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
            let created_at = Timeline::calendar(self.timeline.now());
            let row = DeadLetter {
                letter: letter.clone(),
                status: Status::PendingReview,
                discard_reason: None,
                created_at,
                reviewed_at: None,
                reviewed_by: None,
            };
            state.tables.letters.insert(letter.id, row);
            state.tables.alerts.owe(letter);
            Fact::LetterWritten {
                id: letter.id,
                key: key.clone(),
                generation: letter.generation,
                reason: letter.reason,
                attempts: letter.attempts,
                applied: state.tables.fences.contains_key(key),
            }
        };
        self.fact(fact);
        Recorded::Written
    }

    fn sweep(&self, batch: &SweepBatch) -> u64 {
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
                .filter(|((_, consumer), fence)| {
                    *consumer == batch.consumer
                        && Timeline::calendar(fence.expires_at) <= cutoff
                        && fence.processed_at + batch.retry_window < now
                })
                .map(|(key, fence)| (fence.expires_at, key.clone()))
                .collect();
            due.sort();
            due.truncate(batch.limit as usize);
            for (_, key) in due {
                if let Some(fence) = state.tables.fences.remove(&key) {
                    gone.push((key, now.saturating_sub(fence.processed_at)));
                }
            }
        }
        let removed = gone.len() as u64;
        for (key, age) in gone {
            let copies_queued = self.broker.copies_of(key.0);
            self.fact(Fact::FenceSwept {
                key,
                copies_queued,
                age,
            });
        }
        self.changed.notify_waiters();
        removed
    }
}
