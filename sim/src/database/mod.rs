//! The simulated database: what PostgreSQL promises to the harness, and no more.
//!
//! One value holds the committed tables and the open transactions. Committed tables survive a crash of the database's host;
//! open transactions do not, nor those of a connection that is lost. Every statement sees what was committed when it
//! started; a twin blocks on the unique key until the first transaction ends, or its lock timeout passes.

mod alerts;
mod bookkeeping;
mod client;
mod direct;
mod review;
mod rows;
mod server;
mod transactions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{DeadLetter, DeadLetterId, Entropy as _, FenceKey, Status};
use tokio::sync::Notify;

pub use self::client::{SimConnection, SimStore};
pub use self::server::serve;
use self::transactions::IdleLimit;
use crate::broker::Broker;
use crate::history::{Fact, Key, Log, LoggedEntropy};
use crate::plan::Knobs;
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
    pub fn decided_since(&self, key: &Key, moment: DateTime<Utc>) -> bool {
        let mut letters = self.letters.values();
        letters.any(|it| {
            it.letter.job_id == key.0
                && it.letter.consumer == key.1
                && it.reviewed_at.is_none_or(|at| at >= moment)
        })
    }

    /// Whether this generation of a job was given up, or a replay of it is not wanted.
    fn is_settled(&self, key: &FenceKey) -> bool {
        self.letters.values().any(|it| {
            it.letter.consumer == key.consumer
                && it.letter.job_id == key.job_id
                && (it.letter.generation == key.generation
                    || (it.letter.generation + 1 == key.generation
                        && it.status == Status::Discarded))
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

/// How long the sweep lets a fence stay after the last decision about its job.
pub const REPLAY_LATENESS: Duration = Duration::from_secs(24 * 3_600);

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
    /// Somebody decided about the dead letter before.
    #[error("the dead letter is no longer pending")]
    NotPending,
}

#[derive(Debug)]
struct Transaction {
    session: u64,
    /// Holds these keys of the fences.
    keys: BTreeSet<Key>,
    /// Holds this row of the dead letters.
    letter: Option<DeadLetterId>,
    /// Fences that it inserted, with the generation of their jobs.
    fences: BTreeMap<Key, (Fence, u32)>,
    /// Effects by job and generation.
    effects: BTreeMap<(Key, u32), u32>,
    aborted: bool,
    /// Ends it when it is idle for too long.
    idle: Option<IdleLimit>,
}

impl Transaction {
    fn holds_key(&self, key: &Key) -> bool {
        !self.aborted && self.keys.contains(key)
    }

    fn holds_letter(&self, letter: DeadLetterId) -> bool {
        !self.aborted && self.letter == Some(letter)
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
    /// Of 1,000 statements of handlers and commits, how many meet contention.
    contention_per_mille: u64,
    dice: Arc<LoggedEntropy>,
    /// Whether it ends transactions in which nothing happens.
    limits_idle: bool,
}

impl Database {
    /// An empty one. It looks at the broker only to write down what a sweep should not have done.
    pub fn new(timeline: Timeline, log: Log, broker: Broker, seed: u64, knobs: &Knobs) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            timeline,
            dice: Arc::new(LoggedEntropy::new(seed, log.clone())),
            log,
            broker,
            contention_per_mille: knobs.contention_per_mille,
            limits_idle: true,
        }
    }

    /// The same, with a server that never ends a transaction because nothing happens in it.
    #[must_use]
    pub fn without_idle_limits(self) -> Self {
        Self {
            limits_idle: false,
            ..self
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Transactions that are open.
    pub fn open_transactions(&self) -> usize {
        self.state().open.len()
    }

    /// Looks at what is committed.
    pub fn look<T>(&self, look: impl FnOnce(&Tables) -> T) -> T {
        look(&self.state().tables)
    }

    /// Somebody else's transaction is in the way, now and then.
    fn meets_contention(&self) -> bool {
        self.contention_per_mille > 0 && self.dice.next_u64() % 1_000 < self.contention_per_mille
    }

    fn fact(&self, fact: Fact) {
        self.log.fact(fact);
    }
}
