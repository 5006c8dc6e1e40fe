//! Transactions: locks, the fence, and what becomes durable in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::{FenceKey, FenceVerdict};

use super::{Database, Fence, Refusal, State, Transaction};
use crate::history::{Fact, Key};

/// How long the server keeps a transaction in which nothing happens, outside of a run.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Gone with its transaction.
#[derive(Debug)]
pub(super) struct IdleLimit(tokio::task::AbortHandle);

impl Drop for IdleLimit {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether a lock can be had.
pub(super) enum Lock<T> {
    Held,
    Free(T),
}

impl Database {
    pub(super) fn begin(&self, session: u64) -> u64 {
        let mut state = self.state();
        state.next += 1;
        let id = state.next;
        state.open.insert(
            id,
            Transaction {
                session,
                keys: BTreeSet::new(),
                letter: None,
                fences: BTreeMap::new(),
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
    pub(super) fn limit_idle(&self, id: u64, limit: Duration) {
        if !self.limits_idle {
            return;
        }
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
    pub(super) fn abort(&self, id: u64) {
        let ended = self.state().open.remove(&id);
        if let Some(transaction) = ended {
            if transaction.keys.is_empty() {
                self.fact(Fact::RolledBack { key: None });
            }
            for key in transaction.keys {
                self.fact(Fact::RolledBack { key: Some(key) });
            }
            self.changed.notify_waiters();
        }
    }

    /// Ends all transactions of a session, or all there are.
    pub(super) fn abort_all(&self, session: Option<u64>) {
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

    /// A statement failed: the transaction can do nothing but end, and holds no lock any more.
    fn spoil(&self, id: u64) {
        if let Some(transaction) = self.state().open.get_mut(&id) {
            transaction.aborted = true;
        }
        self.changed.notify_waiters();
    }

    /// Tries until it is free, at most `wait`.
    pub(super) async fn locked<T>(
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
                    self.spoil(id);
                    return Err(Refusal::LockTimeout);
                }
            }
        }
    }

    /// `INSERT … ON CONFLICT DO NOTHING` into the fences: true when this transaction holds the key now.
    pub(super) async fn take_key(
        &self,
        id: u64,
        key: &Key,
        wait: Duration,
    ) -> Result<bool, Refusal> {
        self.locked(id, wait, |state| {
            let ours = state.alive(id)?.keys.contains(key);
            if ours || state.tables.fences.contains_key(key) {
                return Ok(Lock::Free(false));
            }
            let held = state.open.values().any(|tx| tx.holds_key(key));
            if held {
                return Ok(Lock::Held);
            }
            if let Some(transaction) = state.open.get_mut(&id) {
                transaction.keys.insert(key.clone());
            }
            Ok(Lock::Free(true))
        })
        .await
    }

    pub(super) async fn fence(
        &self,
        id: u64,
        key: &FenceKey,
        ttl: Duration,
        wait: Duration,
    ) -> Result<FenceVerdict, Refusal> {
        let verdicts = self
            .fence_all(id, std::slice::from_ref(key), ttl, wait)
            .await?;
        verdicts.first().copied().ok_or(Refusal::NoTransaction)
    }

    /// The fences of several jobs of one consumer; answers in the order of `keys`.
    pub(super) async fn fence_all(
        &self,
        id: u64,
        keys: &[FenceKey],
        ttl: Duration,
        wait: Duration,
    ) -> Result<Vec<FenceVerdict>, Refusal> {
        let place = |key: &FenceKey| (key.job_id, key.consumer.clone());
        let mut in_order: Vec<_> = keys.iter().map(place).collect();
        in_order.sort();
        let mut taken = BTreeMap::new();
        for key in in_order {
            let processed_at = self.timeline.now();
            if self.take_key(id, &key, wait).await? {
                taken.insert(key, processed_at);
            }
        }
        // A new statement.
        let mut state = self.state();
        let mut verdicts = Vec::with_capacity(keys.len());
        for key in keys {
            let place = place(key);
            let Some(processed_at) = taken.get(&place).copied() else {
                verdicts.push(FenceVerdict::Duplicate);
                continue;
            };
            if state.tables.is_settled(key) {
                verdicts.push(FenceVerdict::Settled);
                continue;
            }
            let fence = Fence {
                processed_at,
                expires_at: processed_at.saturating_add(ttl),
            };
            let transaction = state.alive(id)?;
            transaction.fences.insert(place, (fence, key.generation));
            verdicts.push(FenceVerdict::Acquired);
        }
        Ok(verdicts)
    }

    /// One effect of a handler.
    pub(super) fn work(&self, id: u64, key: &Key, generation: u32) -> Result<(), Refusal> {
        let contended = self.meets_contention();
        let mut state = self.state();
        let transaction = state.alive(id)?;
        if contended {
            drop(state);
            self.spoil(id);
            return Err(Refusal::LockTimeout);
        }
        *transaction
            .effects
            .entry((key.clone(), generation))
            .or_default() += 1;
        Ok(())
    }

    /// A statement of a handler that fails.
    pub(super) fn fail(&self, id: u64) -> Result<(), Refusal> {
        self.state().alive(id)?;
        self.spoil(id);
        Err(Refusal::Aborted)
    }

    /// Makes durable whatever the transaction did: it is not the database that ties an effect to its fence.
    pub(super) fn commit(&self, id: u64) -> Result<(), Refusal> {
        if self.meets_contention() {
            self.abort(id);
            return Err(Refusal::LockTimeout);
        }
        let facts = {
            let mut state = self.state();
            if matches!(state.alive(id), Err(Refusal::Aborted)) {
                // It becomes a rollback.
                drop(state);
                self.abort(id);
                return Err(Refusal::Aborted);
            }
            state.alive(id)?;
            let mut transaction = state.open.remove(&id).ok_or(Refusal::NoTransaction)?;
            let mut committed = BTreeMap::new();
            for (place, effects) in std::mem::take(&mut transaction.effects) {
                committed.insert(place, (effects, false));
            }
            for (key, (fence, generation)) in std::mem::take(&mut transaction.fences) {
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
}
