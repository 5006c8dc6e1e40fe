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

use chrono::{DateTime, TimeDelta, Utc};
use harness::{
    DeadLetter, DeadLetterId, FenceKey, FenceVerdict, NewDeadLetter, Recorded, Status, SweepBatch,
};
use tokio::sync::Notify;

pub use self::client::{SimConnection, SimStore};
pub use self::server::serve;
use crate::broker::Broker;
use crate::history::{Fact, Key, Log};
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

impl Tables {
    /// Whether a dead letter of a job waits for a decision, or did at `moment`.
    fn decided_since(&self, key: &Key, moment: DateTime<Utc>) -> bool {
        let mut letters = self.letters.values();
        letters.any(|it| {
            it.letter.job_id == key.0
                && it.letter.consumer == key.1
                && it.reviewed_at.is_none_or(|at| at >= moment)
        })
    }

    /// Dead letters of a job that wait for a decision.
    pub fn pending(&self, key: &Key) -> usize {
        let letters = self.letters.values();
        letters
            .filter(|it| it.letter.job_id == key.0 && it.letter.consumer == key.1)
            .filter(|it| it.status == Status::PendingReview)
            .count()
    }
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
    /// An earlier statement failed.
    #[error("the transaction is aborted")]
    Aborted,
}

#[derive(Debug)]
struct Transaction {
    session: u64,
    /// Holds this key of the fences.
    key: Option<Key>,
    /// Holds this row of the dead letters.
    letter: Option<DeadLetterId>,
    fence: Option<(Fence, u32)>,
    /// Effects by job and generation.
    effects: BTreeMap<(Key, u32), u32>,
    aborted: bool,
    /// Ends it when it is idle for too long.
    idle: Option<IdleLimit>,
}

/// How long the server keeps a transaction in which nothing happens, outside of a run.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Gone with its transaction.
#[derive(Debug)]
struct IdleLimit(tokio::task::AbortHandle);

impl Drop for IdleLimit {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Default)]
struct State {
    tables: Tables,
    open: BTreeMap<u64, Transaction>,
    next: u64,
}

impl State {
    /// An open transaction in which no statement failed.
    fn alive(&mut self, id: u64) -> Result<&mut Transaction, Refusal> {
        let transaction = self.open.get_mut(&id).ok_or(Refusal::NoTransaction)?;
        if transaction.aborted {
            return Err(Refusal::Aborted);
        }
        Ok(transaction)
    }
}

/// The database of a world. Clones share it.
#[derive(Clone)]
pub struct Database {
    state: Arc<Mutex<State>>,
    /// Some transaction ended: who waits for a lock looks again.
    changed: Arc<Notify>,
    timeline: Timeline,
    log: Log,
    broker: Broker,
}

/// Whether a lock can be had.
enum Lock<T> {
    Held,
    Free(T),
}

impl Database {
    /// An empty one. It looks at the broker only to write down what a sweep should not have done.
    pub fn new(timeline: Timeline, log: Log, broker: Broker) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            timeline,
            log,
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
        self.log.fact(fact);
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
                effects: BTreeMap::new(),
                aborted: false,
                idle: None,
            },
        );
        drop(state);
        self.limit_idle(id, IDLE_LIMIT);
        id
    }

    /// The server ends a session that is idle in its transaction for so long.
    fn limit_idle(&self, id: u64, limit: Duration) {
        let database = self.clone();
        let waiting = tokio::spawn(async move {
            database.timeline.sleep(limit).await;
            database.abort(id);
        });
        if let Some(transaction) = self.state().open.get_mut(&id) {
            transaction.idle = Some(IdleLimit(waiting.abort_handle()));
        }
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
        id: u64,
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
                () = &mut timeout => {
                    if let Some(transaction) = self.state().open.get_mut(&id) {
                        transaction.aborted = true;
                    }
                    return Err(Refusal::LockTimeout);
                }
            }
        }
    }

    /// `INSERT … ON CONFLICT DO NOTHING` into the fences: true when this transaction holds the key now.
    async fn take_key(&self, id: u64, key: &Key, wait: Duration) -> Result<bool, Refusal> {
        self.locked(id, wait, |state| {
            state.alive(id)?;
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
        let transaction = state.alive(id)?;
        let fence = Fence {
            processed_at,
            expires_at: processed_at.saturating_add(ttl),
        };
        transaction.fence = Some((fence, key.generation));
        Ok(FenceVerdict::Acquired)
    }

    /// One effect of a handler.
    fn work(&self, id: u64, key: &Key, generation: u32) -> Result<(), Refusal> {
        let mut state = self.state();
        let transaction = state.alive(id)?;
        *transaction
            .effects
            .entry((key.clone(), generation))
            .or_default() += 1;
        Ok(())
    }

    /// Makes durable whatever the transaction did: it is not the database that ties an effect to its fence.
    fn commit(&self, id: u64) -> Result<(), Refusal> {
        let facts = {
            let mut state = self.state();
            state.alive(id)?;
            let mut transaction = state.open.remove(&id).ok_or(Refusal::NoTransaction)?;
            let mut committed = BTreeMap::new();
            for (place, effects) in std::mem::take(&mut transaction.effects) {
                committed.insert(place, (effects, false));
            }
            if let (Some(key), Some((fence, generation))) =
                (transaction.key.clone(), transaction.fence.clone())
            {
                state.tables.fences.insert(key.clone(), fence);
                committed.entry((key, generation)).or_insert((0, false)).1 = true;
            }
            for ((key, _), (effects, _)) in &committed {
                *state.tables.effects.entry(key.clone()).or_default() += effects;
            }
            committed
        };
        for ((key, generation), (effects, fence)) in facts {
            self.fact(Fact::Committed {
                key,
                generation,
                effects,
                fence,
            });
        }
        self.changed.notify_waiters();
        Ok(())
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
            let fingerprint = state.tables.alerts.owe(letter);
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
                .filter(|(key, fence)| {
                    key.1 == batch.consumer
                        && Timeline::calendar(fence.expires_at) <= cutoff
                        && fence.processed_at + batch.retry_window < now
                        && !state.tables.decided_since(key, cutoff - TimeDelta::days(1))
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
}
