//! The database, as the harness needs it: fences, dead letters, and the duty to alert them.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::dead_letter::{DeadLetter, DeadLetterId, NewDeadLetter, Recorded};
use crate::decision::{DiscardReason, Discarded, Reviewer};
use crate::fence::{FenceKey, FenceVerdict};
use crate::names::ConsumerName;
use crate::ports::alerter::{AlertKind, ExternalId};
use crate::review::{LetterCount, LetterFilter, LetterQuery};

type BoxError = Box<dyn Error + Send + Sync>;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached or did not answer in time; whether it acted is unknown.
    #[error("the store is away: {0}")]
    Away(#[source] BoxError),
    /// Somebody else holds what we need (lock timeout, deadlock, serialization failure). Nothing changed.
    #[error("the store is contended: {0}")]
    Contention(#[source] BoxError),
    /// It understood and refused. Nothing changed.
    #[error("the store refused: {0}")]
    Refused(#[source] BoxError),
}

/// How a COMMIT ended that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// Rolled back for sure: the handler swallowed an SQL error, ended the transaction itself, or broke a deferred
    /// constraint.
    #[error("the transaction could not be committed: {0}")]
    Refused(#[source] BoxError),
    /// Rolled back for sure: another transaction was in the way.
    #[error("the commit met contention: {0}")]
    Contention(#[source] BoxError),
    /// Nobody answered: committed or not, only the fence knows.
    #[error("the outcome of the commit is unknown: {0}")]
    Unknown(#[source] BoxError),
}

/// A store in which a handler's work and its fence commit together. Implementations are cheap to clone.
pub trait Store: Clone + Send + Sync + 'static {
    /// An open transaction.
    type Tx: WorkTx;

    /// Opens a transaction. Takes a connection until it is committed, rolled back or dropped.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// Records that a job failed, durably when this returns, unless it was applied. Safe to repeat.
    fn record_dead_letter(
        &self,
        letter: &NewDeadLetter,
    ) -> impl Future<Output = Result<Recorded, StoreError>> + Send;

    /// Answers when the store can be reached and accepts writes.
    fn ping(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whether an error that a handler returned, or one in its chain of causes, is contention: a lock timeout, a
    /// deadlock, a serialization failure. These do not count as attempts.
    fn is_contention(error: &(dyn Error + 'static)) -> bool;
}

/// An open transaction. Dropping it rolls back and gives the connection up.
pub trait WorkTx: Send {
    /// What the handler works on.
    type Conn: Send + ?Sized;

    /// Inserts the fence, waiting a bounded time for a twin (B1). `ttl` is how long it must live, `deadline` bounds the
    /// statements that follow.
    ///
    /// # Errors
    /// [`StoreError::Contention`] when a twin still held the key at the end of the wait.
    fn fence(
        &mut self,
        key: &FenceKey,
        ttl: Duration,
        deadline: Duration,
    ) -> impl Future<Output = Result<FenceVerdict, StoreError>> + Send;

    /// The same for several jobs of one consumer at once, for a batch; answers in the order of `keys`, whose jobs are all
    /// different. Waits for twins one after the other, in the order of the jobs' ids, so that two batches never wait for
    /// each other. Only what was acquired is fenced when this commits: unlike [`fence`](Self::fence), the transaction may be
    /// committed after any answer.
    ///
    /// # Errors
    /// [`StoreError::Contention`] when a twin still held one of the keys at the end of a wait; [`StoreError::Refused`] when
    /// a job is there twice, or consumers differ.
    fn fence_all(
        &mut self,
        keys: &[FenceKey],
        ttl: Duration,
        deadline: Duration,
    ) -> impl Future<Output = Result<Vec<FenceVerdict>, StoreError>> + Send;

    /// The connection to work on.
    fn connection(&mut self) -> &mut Self::Conn;

    /// Verifies that the transaction is still the one that holds the fences and still alive, and commits it, in one
    /// round trip.
    fn commit(self) -> impl Future<Output = Result<(), CommitError>> + Send;

    /// Rolls back.
    fn rollback(self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What an operator does with dead letters.
pub trait ReviewStore: Clone + Send + Sync + 'static {
    /// A dead letter, locked.
    type Tx: ReviewTx;

    /// Reads one.
    fn dead_letter(
        &self,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Option<DeadLetter>, StoreError>> + Send;

    /// Reads one page of a list.
    fn dead_letters(
        &self,
        query: &LetterQuery,
    ) -> impl Future<Output = Result<Vec<DeadLetter>, StoreError>> + Send;

    /// Locks one and reads it. `None` when there is none.
    fn lock_dead_letter(
        &self,
        id: DeadLetterId,
    ) -> impl Future<Output = Result<Option<Self::Tx>, StoreError>> + Send;

    /// Marks a pending one as discarded, for ever (B8).
    fn discard(
        &self,
        id: DeadLetterId,
        reason: &DiscardReason,
        by: &Reviewer,
    ) -> impl Future<Output = Result<Discarded, StoreError>> + Send;
}

/// How many dead letters there are of each kind.
pub trait CountStore: Clone + Send + Sync + 'static {
    /// Kinds of the letters that fit, the most frequent first; at most `limit` kinds.
    fn count_dead_letters(
        &self,
        filter: &LetterFilter,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<LetterCount>, StoreError>> + Send;
}

/// Which dead letters wait for a decision.
pub trait PendingStore: Clone + Send + Sync + 'static {
    /// All pending ones that fit, the oldest first, as they are at one instant. The filter's own status is not looked at.
    fn pending(
        &self,
        filter: &LetterFilter,
    ) -> impl Future<Output = Result<Vec<DeadLetterId>, StoreError>> + Send;
}

/// A locked dead letter. Dropping it releases the lock and changes nothing.
pub trait ReviewTx: Send {
    /// What is locked.
    fn letter(&self) -> &DeadLetter;

    /// Marks it as replayed and commits, together with whatever was published through this transaction.
    fn mark_replayed(self, by: &Reviewer) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// One batch of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepBatch {
    /// Whose fences.
    pub consumer: ConsumerName,
    /// The store's clock, read before the queue was asked for its oldest message.
    pub asked_at: DateTime<Utc>,
    /// Enqueue time of the oldest message in the consumer's queue.
    pub oldest: Option<DateTime<Utc>>,
    /// Fences younger than this stay, whatever their `expires_at`.
    pub retry_window: Duration,
    /// At most so many rows.
    pub limit: u32,
}

/// What the sweep needs.
pub trait SweepStore: Clone + Send + Sync + 'static {
    /// The store's clock.
    fn now(&self) -> impl Future<Output = Result<DateTime<Utc>, StoreError>> + Send;

    /// Deletes one batch of fences that nobody can need any more; answers how many.
    fn sweep(&self, batch: &SweepBatch) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// Which dead letters are to be alerted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlertDue {
    /// New ones: without an alert. Overdue ones: alerted, still pending, not escalated yet.
    pub kind: AlertKind,
    /// Only those that were written at least so long ago.
    pub age: Duration,
    /// The least time between two incidents of one fingerprint and kind.
    pub window: Duration,
}

/// Dead letters of one fingerprint that one incident will cover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertClaim {
    /// Names the claim, and later the incident.
    pub claim_id: uuid::Uuid,
    /// What the incident will say about them.
    pub kind: AlertKind,
    /// Queue, consumer, reason and error class.
    pub fingerprint: String,
    /// How many letters.
    pub letters: u64,
    /// How often sending for this fingerprint and kind failed in a row.
    pub failures: u32,
    /// When the first of them was written.
    pub first_at: DateTime<Utc>,
    /// When the last of them was written.
    pub last_at: DateTime<Utc>,
    /// One of them as an example: the newest, or the one that waits for the longest.
    pub sample: DeadLetter,
}

/// An incident that can be closed: no dead letter of its fingerprint is pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolveClaim {
    /// Names the claim.
    pub claim_id: uuid::Uuid,
    /// Our own name for the incident.
    pub incident: uuid::Uuid,
    /// The alert service's name for it.
    pub external_id: ExternalId,
    /// Queue, consumer, reason and error class.
    pub fingerprint: String,
    /// How often resolving for this fingerprint failed in a row.
    pub failures: u32,
}

/// What the alert pump needs.
pub trait AlertStore: Clone + Send + Sync + 'static {
    /// Claims a fingerprint that is due, for `lease`.
    fn claim_alert(
        &self,
        claim_id: uuid::Uuid,
        due: &AlertDue,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<AlertClaim>, StoreError>> + Send;

    /// The incident was accepted: its letters are covered, or escalated. Answers how many.
    fn alert_delivered(
        &self,
        claim: &AlertClaim,
        external_id: Option<&ExternalId>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// The incident was not accepted: try again after `retry_after`, unless the claim was taken over.
    fn alert_failed(
        &self,
        claim: &AlertClaim,
        retry_after: Duration,
        error: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Claims an open incident of a fingerprint that has no pending letter, for `lease`.
    fn claim_resolve(
        &self,
        claim_id: uuid::Uuid,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<ResolveClaim>, StoreError>> + Send;

    /// The incident is closed at the service.
    fn incident_resolved(
        &self,
        claim: &ResolveClaim,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The incident was not closed: try again after `retry_after`, unless the claim was taken over.
    fn resolve_failed(
        &self,
        claim: &ResolveClaim,
        retry_after: Duration,
        error: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whether the alert service refused something that is still owed. `escalate_after` is when a letter is overdue.
    fn alerts_failing(
        &self,
        escalate_after: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
