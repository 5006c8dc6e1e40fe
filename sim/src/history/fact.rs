//! What the world did, whatever anybody was told about it.

use std::time::Duration;

use harness::{AlertKind, ConsumerName, DeadLetterId, JobId, Reason};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::plan::FaultKind;

/// A job as one consumer sees it.
pub type Key = (JobId, ConsumerName);

/// One fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Fact {
    /// The broker took a message.
    Published {
        message: u64,
        job: JobId,
        generation: u32,
    },
    /// The producer does not send this copy any more: the resend horizon is over.
    GaveUp { job: JobId },
    /// The broker handed it out, for the so-manieth counted time, for as long as the lease lasts.
    Delivered {
        message: u64,
        job: JobId,
        generation: u32,
        delivery: u64,
        lease: Duration,
    },
    /// The broker removed it, because it was acknowledged.
    Removed {
        message: u64,
        job: JobId,
        generation: u32,
    },
    /// The broker took it back. `delivery` is the count of the delivery that was given back.
    GivenBack {
        message: u64,
        job: JobId,
        generation: u32,
        delivery: u64,
        counted: bool,
        delay: Duration,
    },
    /// Its lease was extended: it ends after `lease` from now.
    Extended { message: u64, lease: Duration },
    /// A handler was called.
    Ran {
        job: JobId,
        generation: u32,
        run: u32,
    },
    /// A transaction became durable.
    Committed {
        key: Key,
        generation: u32,
        effects: u32,
        fence: bool,
    },
    /// A transaction ended without becoming durable.
    RolledBack { key: Option<Key> },
    /// A dead letter became durable.
    LetterWritten {
        id: DeadLetterId,
        key: Key,
        generation: u32,
        reason: Reason,
        attempts: u32,
        fingerprint: String,
    },
    /// A dead letter was marked as replayed.
    LetterReplayed { id: DeadLetterId },
    /// A dead letter was marked as discarded.
    LetterDiscarded { id: DeadLetterId, reason: String },
    /// The sweep removed a fence. How old it was, and what there was that could still lead to a run of its job.
    FenceSwept {
        key: Key,
        age: Duration,
        copies_queued: usize,
        letters_pending: usize,
    },
    /// Somebody with a database client set `expires_at` of these fences to now.
    FencesExpired { keys: Vec<Key> },
    /// A pump claimed what is to be alerted.
    AlertClaimed {
        claim: Uuid,
        kind: AlertKind,
        fingerprint: String,
    },
    /// The alert service accepted an incident.
    IncidentAccepted {
        claim: Uuid,
        fingerprint: String,
        letters: u64,
    },
    /// These letters are covered, or escalated, by an incident, says the database.
    LettersCovered {
        claim: Uuid,
        kind: AlertKind,
        fingerprint: String,
        letters: Vec<DeadLetterId>,
    },
    /// A pump claimed an incident that is to be closed.
    ResolveClaimed { incident: Uuid, fingerprint: String },
    /// The alert service closed it.
    IncidentClosed { incident: Uuid },
    /// It is closed, says the database.
    IncidentResolved { incident: Uuid },
    /// The alert service was told that alerting works.
    Heartbeat,
    /// Fault number so-and-so of the plan.
    FaultBegan { fault: usize, kind: FaultKind },
    /// It is over.
    FaultEnded { fault: usize, kind: FaultKind },
    /// A fault broke the connection of this call: before it was made, or before its answer was sent.
    CallCut { call: String, answer: bool },
    /// Nothing was to happen for so long.
    Jumped { by: Duration },
    /// All faults are over.
    Healed,
    /// Everything settled (L1).
    Settled,
    /// The time for settling is over.
    Unsettled { what: String },

    // Details, written down on request.
    /// A message went out.
    Sent {
        frame: u64,
        to: String,
        call: String,
        job: Option<JobId>,
        message: Option<u64>,
    },
    /// It came in.
    Arrived { frame: u64 },
    /// Random bits were drawn.
    Drew { bits: u64 },
    /// A clock was read.
    ReadClock,
    /// A wait began.
    Slept { duration: Duration },
}

impl Fact {
    /// Whether it is written down on request only.
    pub fn is_detail(&self) -> bool {
        matches!(
            self,
            Self::Sent { .. }
                | Self::Arrived { .. }
                | Self::Drew { .. }
                | Self::ReadClock
                | Self::Slept { .. }
        )
    }

    /// The job that it is about.
    pub fn job(&self) -> Option<JobId> {
        match self {
            Self::Published { job, .. }
            | Self::Delivered { job, .. }
            | Self::GaveUp { job }
            | Self::Removed { job, .. }
            | Self::GivenBack { job, .. }
            | Self::Ran { job, .. } => Some(*job),
            Self::Committed { key, .. }
            | Self::RolledBack { key: Some(key) }
            | Self::LetterWritten { key, .. }
            | Self::FenceSwept { key, .. } => Some(key.0),
            Self::Sent { job, .. } => *job,
            _ => None,
        }
    }
}
