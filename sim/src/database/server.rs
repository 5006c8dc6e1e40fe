//! The database's host: answers statements that come over the network.

use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{
    AlertClaim, AlertDue, DeadLetter, DeadLetterId, DiscardReason, Discarded, ExternalId, FenceKey,
    FenceVerdict, JobId, LetterQuery, NewDeadLetter, Recorded, ResolveClaim, Reviewer, SweepBatch,
};
use uuid::Uuid;

use super::{Database, Refusal};
use crate::history::{Key, Log};
use crate::link::{Named, Post, Session};
use crate::timeline::Timeline;

/// How long bookkeeping waits for a lock.
pub(super) const LOCK_WAIT: Duration = Duration::from_secs(2);

/// A statement.
pub(super) enum Statement {
    Begin,
    Fence {
        tx: u64,
        key: FenceKey,
        ttl: Duration,
        wait: Duration,
        deadline: Duration,
    },
    FenceAll {
        tx: u64,
        keys: Vec<FenceKey>,
        ttl: Duration,
        wait: Duration,
        deadline: Duration,
    },
    Work {
        tx: u64,
        key: Key,
        generation: u32,
    },
    /// A statement that fails.
    Fail {
        tx: u64,
    },
    Commit {
        tx: u64,
        /// For pictures only.
        job: Option<JobId>,
    },
    Rollback {
        tx: u64,
        job: Option<JobId>,
    },
    Record(Box<NewDeadLetter>),
    Ping,
    Letter(DeadLetterId),
    Letters(Box<LetterQuery>),
    LockLetter {
        tx: u64,
        id: DeadLetterId,
    },
    MarkReplayed {
        tx: u64,
        by: Reviewer,
    },
    Discard {
        id: DeadLetterId,
        reason: DiscardReason,
        by: Reviewer,
    },
    Sweep(SweepBatch),
    ClaimAlert {
        claim_id: Uuid,
        due: AlertDue,
        lease: Duration,
    },
    AlertDelivered(Box<AlertClaim>, Option<ExternalId>),
    AlertFailed {
        claim: Box<AlertClaim>,
        retry_after: Duration,
    },
    ClaimResolve {
        claim_id: Uuid,
        lease: Duration,
    },
    IncidentResolved(Box<ResolveClaim>),
    ResolveFailed {
        claim: Box<ResolveClaim>,
        retry_after: Duration,
    },
    AlertsFailing {
        escalate_after: Duration,
    },
}

impl Named for Statement {
    fn name(&self) -> &'static str {
        match self {
            Self::Begin => "begin",
            Self::Fence { .. } => "fence",
            Self::FenceAll { .. } => "fence_all",
            Self::Work { .. } => "work",
            Self::Fail { .. } => "fail",
            Self::Commit { .. } => "commit",
            Self::Rollback { .. } => "rollback",
            Self::Record(_) => "record_dead_letter",
            Self::Ping => "ping",
            Self::Letter(_) => "dead_letter",
            Self::Letters(_) => "dead_letters",
            Self::LockLetter { .. } => "lock_dead_letter",
            Self::MarkReplayed { .. } => "mark_replayed",
            Self::Discard { .. } => "discard",
            Self::Sweep(_) => "sweep",
            Self::ClaimAlert { .. } => "claim_alert",
            Self::AlertDelivered(..) => "alert_delivered",
            Self::AlertFailed { .. } => "alert_failed",
            Self::ClaimResolve { .. } => "claim_resolve",
            Self::IncidentResolved(_) => "incident_resolved",
            Self::ResolveFailed { .. } => "resolve_failed",
            Self::AlertsFailing { .. } => "alerts_failing",
        }
    }

    fn job(&self) -> Option<JobId> {
        match self {
            Self::Fence { key, .. } => Some(key.job_id),
            Self::Work { key, .. } => Some(key.0),
            Self::Commit { job, .. } | Self::Rollback { job, .. } => *job,
            Self::Record(letter) => Some(letter.job_id),
            _ => None,
        }
    }
}

/// What it gave.
pub(super) enum Outcome {
    Begun(u64),
    Fenced(FenceVerdict),
    FencedAll(Vec<FenceVerdict>),
    Done,
    Recorded(Recorded),
    Now(DateTime<Utc>),
    Letter(Box<Option<DeadLetter>>),
    Letters(Vec<DeadLetter>),
    Discarded(Discarded),
    Rows(u64),
    Claim(Box<Option<AlertClaim>>),
    Resolve(Box<Option<ResolveClaim>>),
    Failing(bool),
    Refused(Refusal),
}

/// One client's session.
#[derive(Clone)]
pub(super) struct DatabaseSession {
    database: Database,
    id: u64,
    /// How long bookkeeping waits for a lock.
    lock_wait: Duration,
}

impl DatabaseSession {
    pub(super) fn new(database: &Database, lock_wait: Duration) -> Self {
        let mut state = database.state();
        state.next += 1;
        let id = state.next;
        drop(state);
        Self {
            database: database.clone(),
            id,
            lock_wait,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    async fn execute(&self, statement: Statement) -> Result<Outcome, Refusal> {
        let database = &self.database;
        Ok(match statement {
            Statement::Begin => Outcome::Begun(database.begin(self.id)),
            Statement::FenceAll {
                tx,
                keys,
                ttl,
                wait,
                deadline,
            } => {
                let verdicts = database.fence_all(tx, &keys, ttl, wait).await?;
                if verdicts.contains(&FenceVerdict::Acquired) {
                    database.limit_idle(tx, deadline + deadline);
                }
                Outcome::FencedAll(verdicts)
            }
            Statement::Fence {
                tx,
                key,
                ttl,
                wait,
                deadline,
            } => {
                let verdict = database.fence(tx, &key, ttl, wait).await?;
                if verdict == FenceVerdict::Acquired {
                    database.limit_idle(tx, deadline + deadline);
                }
                Outcome::Fenced(verdict)
            }
            Statement::Work {
                tx,
                key,
                generation,
            } => {
                database.work(tx, &key, generation)?;
                Outcome::Done
            }
            Statement::Fail { tx } => {
                database.fail(tx)?;
                Outcome::Done
            }
            Statement::Commit { tx, .. } => {
                database.commit(tx)?;
                Outcome::Done
            }
            Statement::Rollback { tx, .. } => {
                database.abort(tx);
                Outcome::Done
            }
            Statement::Record(letter) => {
                Outcome::Recorded(database.record(self.id, &letter, self.lock_wait).await?)
            }
            Statement::Ping => Outcome::Now(Timeline::calendar(database.timeline.now())),
            Statement::Letter(id) => Outcome::Letter(Box::new(
                database.look(|tables| tables.letters.get(&id).cloned()),
            )),
            Statement::Letters(query) => {
                Outcome::Letters(database.look(|tables| query.page(tables.letters.values())))
            }
            Statement::LockLetter { tx, id } => Outcome::Letter(Box::new(
                database.lock_letter(tx, id, self.lock_wait).await?,
            )),
            Statement::MarkReplayed { tx, by } => {
                database.mark_replayed(tx, &by)?;
                Outcome::Done
            }
            Statement::Discard { id, reason, by } => Outcome::Discarded(
                database
                    .discard(self.id, id, &reason, &by, self.lock_wait)
                    .await?,
            ),
            Statement::Sweep(batch) => Outcome::Rows(database.sweep(&batch)),
            Statement::ClaimAlert {
                claim_id,
                due,
                lease,
            } => Outcome::Claim(Box::new(database.claim_alert(claim_id, &due, lease))),
            Statement::AlertDelivered(claim, external_id) => {
                Outcome::Rows(database.alert_delivered(&claim, external_id))
            }
            Statement::AlertFailed { claim, retry_after } => {
                database.alert_failed(&claim, retry_after);
                Outcome::Done
            }
            Statement::ClaimResolve { claim_id, lease } => {
                Outcome::Resolve(Box::new(database.claim_resolve(claim_id, lease)))
            }
            Statement::IncidentResolved(claim) => {
                database.incident_resolved(&claim);
                Outcome::Done
            }
            Statement::ResolveFailed { claim, retry_after } => {
                database.resolve_failed(&claim, retry_after);
                Outcome::Done
            }
            Statement::AlertsFailing { escalate_after } => {
                Outcome::Failing(database.alerts_failing(escalate_after))
            }
        })
    }
}

impl Session<Statement, Outcome> for DatabaseSession {
    async fn answer(&self, statement: Statement) -> Outcome {
        self.execute(statement)
            .await
            .unwrap_or_else(Outcome::Refused)
    }

    fn closed(&self) {
        self.database.abort_all(Some(self.id));
    }
}

/// Serves the database.
///
/// # Errors
/// When the port cannot be bound.
pub async fn serve(database: Database, post: Post, log: Log) -> std::io::Result<()> {
    crate::link::serve(post, log, move || {
        DatabaseSession::new(&database, LOCK_WAIT)
    })
    .await
}
