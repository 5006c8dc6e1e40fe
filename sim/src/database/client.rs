//! The store as the harness sees it: statements over the network, or by a direct way.

use std::collections::BTreeMap;
use std::error::Error;
use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{
    AlertClaim, AlertDue, AlertStore, CommitError, CountStore, DeadLetter, DeadLetterId,
    DiscardReason, Discarded, ExternalId, FenceKey, FenceVerdict, JobId, LetterCount, LetterFilter,
    LetterQuery, NewDeadLetter, PendingStore, Recorded, ResolveClaim, ReviewStore, ReviewTx,
    Reviewer, Status, Store, StoreError, SweepBatch, SweepStore, WorkTx, consumer_of,
};

use super::direct::{Direct, Way};
use super::server::{Outcome, Statement};
use super::{Database, Refusal};
use crate::history::{Key, Log};
use crate::link::{Link, Post};

/// A store on one host. Clones share its connection.
#[derive(Clone)]
pub struct SimStore {
    link: Way,
    fence_wait: Duration,
}

impl SimStore {
    /// A store whose twins wait `fence_wait` for a fence.
    pub fn new(post: Post, log: Log, fence_wait: Duration) -> Self {
        Self {
            link: Way::Network(Link::new("database", post, log)),
            fence_wait,
        }
    }

    /// A store without a network: every statement is answered where it is made, as soon as it may. Bookkeeping waits
    /// `lock_wait` for a lock.
    pub fn direct(database: &Database, fence_wait: Duration, lock_wait: Duration) -> Self {
        Self {
            link: Way::Direct(Direct::new(database, lock_wait)),
            fence_wait,
        }
    }

    /// Ends the connection of a direct store, and with it every transaction that it has open.
    pub fn lose_connection(&self) {
        if let Way::Direct(direct) = &self.link {
            direct.lose();
        }
    }

    async fn execute(
        &self,
        statement: Statement,
        epoch: Option<u64>,
    ) -> Result<Outcome, StoreError> {
        match self.link.call(statement, epoch).await {
            Ok(Outcome::Refused(refusal @ Refusal::LockTimeout)) => {
                Err(StoreError::Contention(refusal.into()))
            }
            Ok(Outcome::Refused(refusal @ Refusal::NoTransaction)) => {
                Err(StoreError::Away(refusal.into()))
            }
            Ok(Outcome::Refused(refusal @ (Refusal::Aborted | Refusal::NotPending))) => {
                Err(StoreError::Refused(refusal.into()))
            }
            Ok(outcome) => Ok(outcome),
            Err(lost) => Err(StoreError::Away(lost.into())),
        }
    }

    async fn open(&self) -> Result<Open, StoreError> {
        let Outcome::Begun(tx) = self.execute(Statement::Begin, None).await? else {
            return Err(odd());
        };
        Ok(Open {
            store: self.clone(),
            tx,
            epoch: self.link.epoch(),
            job: None,
            fenced: false,
            ended: false,
        })
    }
}

/// The simulation's own mistake, not the harness's.
fn odd() -> StoreError {
    StoreError::Refused("an answer to another statement".into())
}

/// An open transaction. Dropping it closes it, as closing a connection would.
struct Open {
    store: SimStore,
    tx: u64,
    epoch: u64,
    job: Option<JobId>,
    /// Whether it holds a fence.
    fenced: bool,
    ended: bool,
}

impl Open {
    async fn execute(&self, statement: Statement) -> Result<Outcome, StoreError> {
        self.store.execute(statement, Some(self.epoch)).await
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Not during a crash of the host: then there is no runtime, and the connection is closed anyway.
        if !self.ended && tokio::runtime::Handle::try_current().is_ok() && !std::thread::panicking()
        {
            let (tx, job) = (self.tx, self.job);
            let statement = Statement::Rollback { tx, job };
            self.store.link.tell(statement, self.epoch);
        }
    }
}

/// What a handler works on.
pub struct SimConnection(Open);

impl SimConnection {
    /// One effect.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn work(&mut self, key: Key, generation: u32) -> Result<(), StoreError> {
        let statement = Statement::Work {
            tx: self.0.tx,
            key,
            generation,
        };
        self.0.execute(statement).await.map(|_| ())
    }
}

impl SimConnection {
    /// A statement that fails.
    ///
    /// # Errors
    /// Always.
    pub async fn fail(&mut self) -> Result<(), StoreError> {
        let statement = Statement::Fail { tx: self.0.tx };
        self.0.execute(statement).await.map(|_| ())
    }
}

/// An open transaction.
pub struct SimTx(SimConnection);

impl Store for SimStore {
    type Tx = SimTx;

    async fn begin(&self) -> Result<SimTx, StoreError> {
        Ok(SimTx(SimConnection(self.open().await?)))
    }

    async fn record_dead_letter(&self, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
        match self
            .execute(Statement::Record(Box::new(letter.clone())), None)
            .await?
        {
            Outcome::Recorded(recorded) => Ok(recorded),
            _ => Err(odd()),
        }
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.execute(Statement::Ping, None).await.map(|_| ())
    }

    fn is_contention(error: &(dyn Error + 'static)) -> bool {
        matches!(error.downcast_ref(), Some(StoreError::Contention(_)))
    }
}

impl WorkTx for SimTx {
    type Conn = SimConnection;

    async fn fence(
        &mut self,
        key: &FenceKey,
        ttl: Duration,
        deadline: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        let open = &mut self.0.0;
        open.job = Some(key.job_id);
        let wait = open.store.fence_wait;
        let statement = Statement::Fence {
            tx: open.tx,
            key: key.clone(),
            ttl,
            wait,
            deadline,
        };
        match open.execute(statement).await? {
            Outcome::Fenced(verdict) => {
                open.fenced |= verdict == FenceVerdict::Acquired;
                Ok(verdict)
            }
            _ => Err(odd()),
        }
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        ttl: Duration,
        deadline: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        consumer_of(keys)?;
        let open = &mut self.0.0;
        let wait = open.store.fence_wait;
        let statement = Statement::FenceAll {
            tx: open.tx,
            keys: keys.to_vec(),
            ttl,
            wait,
            deadline,
        };
        match open.execute(statement).await? {
            Outcome::FencedAll(verdicts) => {
                open.fenced |= verdicts.contains(&FenceVerdict::Acquired);
                Ok(verdicts)
            }
            _ => Err(odd()),
        }
    }

    fn connection(&mut self) -> &mut SimConnection {
        &mut self.0
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        let open = &mut self.0.0;
        if !open.fenced {
            return Err(CommitError::Refused(
                "the transaction holds no fence".into(),
            ));
        }
        match open
            .execute(Statement::Commit {
                tx: open.tx,
                job: open.job,
            })
            .await
        {
            Ok(_) => {
                open.ended = true;
                Ok(())
            }
            Err(StoreError::Contention(error)) => Err(CommitError::Contention(error)),
            Err(StoreError::Refused(error)) => Err(CommitError::Refused(error)),
            Err(StoreError::Away(error)) => Err(CommitError::Unknown(error)),
        }
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        let open = &mut self.0.0;
        open.execute(Statement::Rollback {
            tx: open.tx,
            job: open.job,
        })
        .await?;
        open.ended = true;
        Ok(())
    }
}

/// A locked dead letter.
pub struct SimReviewTx {
    open: Open,
    letter: DeadLetter,
}

impl ReviewTx for SimReviewTx {
    fn letter(&self) -> &DeadLetter {
        &self.letter
    }

    async fn mark_replayed(mut self, by: &Reviewer) -> Result<(), StoreError> {
        self.open
            .execute(Statement::MarkReplayed {
                tx: self.open.tx,
                by: by.clone(),
            })
            .await?;
        self.open.ended = true;
        Ok(())
    }
}

impl ReviewStore for SimStore {
    type Tx = SimReviewTx;

    async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        match self.execute(Statement::Letter(id), None).await? {
            Outcome::Letter(letter) => Ok(*letter),
            _ => Err(odd()),
        }
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        let statement = Statement::Letters(Box::new(query.clone()));
        match self.execute(statement, None).await? {
            Outcome::Letters(letters) => Ok(letters),
            _ => Err(odd()),
        }
    }

    async fn lock_dead_letter(&self, id: DeadLetterId) -> Result<Option<SimReviewTx>, StoreError> {
        let open = self.open().await?;
        match open
            .execute(Statement::LockLetter { tx: open.tx, id })
            .await?
        {
            Outcome::Letter(letter) => Ok(letter.map(|letter| SimReviewTx { open, letter })),
            _ => Err(odd()),
        }
    }

    async fn discard(
        &self,
        id: DeadLetterId,
        reason: &DiscardReason,
        by: &Reviewer,
    ) -> Result<Discarded, StoreError> {
        let statement = Statement::Discard {
            id,
            reason: reason.clone(),
            by: by.clone(),
        };
        match self.execute(statement, None).await? {
            Outcome::Discarded(discarded) => Ok(discarded),
            _ => Err(odd()),
        }
    }
}

impl PendingStore for SimStore {
    async fn pending(&self, filter: &LetterFilter) -> Result<Vec<DeadLetterId>, StoreError> {
        let filter = LetterFilter {
            status: Some(Status::PendingReview),
            ..filter.clone()
        };
        let all = LetterQuery::first(filter, u32::MAX);
        let letters = self.dead_letters(&all).await?;
        Ok(letters.iter().map(|it| it.letter.id).collect())
    }
}

impl CountStore for SimStore {
    async fn count_dead_letters(
        &self,
        filter: &LetterFilter,
        limit: u32,
    ) -> Result<Vec<LetterCount>, StoreError> {
        let all = LetterQuery::first(filter.clone(), u32::MAX);
        let mut counts: BTreeMap<String, LetterCount> = BTreeMap::new();
        // The oldest first.
        for it in self.dead_letters(&all).await? {
            let fingerprint = it.letter.fingerprint();
            let count = counts.entry(fingerprint.clone()).or_insert(LetterCount {
                fingerprint,
                letters: 0,
                first_at: it.created_at,
                last_at: it.created_at,
            });
            count.letters += 1;
            count.last_at = it.created_at;
        }
        let mut counts: Vec<_> = counts.into_values().collect();
        counts.sort_by_key(|it| std::cmp::Reverse(it.letters));
        counts.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(counts)
    }
}

impl SweepStore for SimStore {
    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        match self.execute(Statement::Ping, None).await? {
            Outcome::Now(now) => Ok(now),
            _ => Err(odd()),
        }
    }

    async fn sweep(&self, batch: &SweepBatch) -> Result<u64, StoreError> {
        match self.execute(Statement::Sweep(batch.clone()), None).await? {
            Outcome::Rows(rows) => Ok(rows),
            _ => Err(odd()),
        }
    }
}

impl AlertStore for SimStore {
    async fn claim_alert(
        &self,
        claim_id: uuid::Uuid,
        due: &AlertDue,
        lease: Duration,
    ) -> Result<Option<AlertClaim>, StoreError> {
        let statement = Statement::ClaimAlert {
            claim_id,
            due: *due,
            lease,
        };
        match self.execute(statement, None).await? {
            Outcome::Claim(claim) => Ok(*claim),
            _ => Err(odd()),
        }
    }

    async fn alert_delivered(
        &self,
        claim: &AlertClaim,
        external_id: Option<&ExternalId>,
    ) -> Result<u64, StoreError> {
        let statement = Statement::AlertDelivered(Box::new(claim.clone()), external_id.cloned());
        match self.execute(statement, None).await? {
            Outcome::Rows(rows) => Ok(rows),
            _ => Err(odd()),
        }
    }

    async fn alert_failed(
        &self,
        claim: &AlertClaim,
        retry_after: Duration,
        _: &str,
    ) -> Result<(), StoreError> {
        let claim = Box::new(claim.clone());
        self.execute(Statement::AlertFailed { claim, retry_after }, None)
            .await
            .map(|_| ())
    }

    async fn claim_resolve(
        &self,
        claim_id: uuid::Uuid,
        lease: Duration,
    ) -> Result<Option<ResolveClaim>, StoreError> {
        let statement = Statement::ClaimResolve { claim_id, lease };
        match self.execute(statement, None).await? {
            Outcome::Resolve(claim) => Ok(*claim),
            _ => Err(odd()),
        }
    }

    async fn incident_resolved(&self, claim: &ResolveClaim) -> Result<(), StoreError> {
        let statement = Statement::IncidentResolved(Box::new(claim.clone()));
        self.execute(statement, None).await.map(|_| ())
    }

    async fn resolve_failed(
        &self,
        claim: &ResolveClaim,
        retry_after: Duration,
        _: &str,
    ) -> Result<(), StoreError> {
        let claim = Box::new(claim.clone());
        self.execute(Statement::ResolveFailed { claim, retry_after }, None)
            .await
            .map(|_| ())
    }

    async fn alerts_failing(&self, escalate_after: Duration) -> Result<bool, StoreError> {
        let statement = Statement::AlertsFailing { escalate_after };
        match self.execute(statement, None).await? {
            Outcome::Failing(failing) => Ok(failing),
            _ => Err(odd()),
        }
    }
}
