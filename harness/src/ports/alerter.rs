//! Whoever wakes people up.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::dead_letter::DeadLetter;

/// What an incident says about its dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// They are there (B4).
    New,
    /// They wait for a decision for too long (Q2).
    Overdue,
}

impl AlertKind {
    /// In the order of their urgency.
    pub const ALL: [Self; 2] = [Self::New, Self::Overdue];

    /// As text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Overdue => "overdue",
        }
    }
}

/// One alert, for all dead letters of one fingerprint that were not alerted yet, or that wait for too long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// Our own name for it.
    pub id: uuid::Uuid,
    /// What it says about its letters.
    pub kind: AlertKind,
    /// Queue, consumer, reason and error class: "the same kind of failure".
    pub fingerprint: String,
    /// How many dead letters it stands for.
    pub letters: u64,
    /// When the first of them was written.
    pub first_at: DateTime<Utc>,
    /// When the last of them was written.
    pub last_at: DateTime<Utc>,
    /// One of them as an example: the newest, or the one that waits for the longest.
    pub sample: DeadLetter,
}

/// The alert service's name for an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalId(pub String);

/// Why the service did not do what it was asked. All of it is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct AlertError {
    /// What happened. Never contains credentials.
    pub message: String,
    /// How long the service asked us to wait.
    pub retry_after: Option<Duration>,
}

/// Delivers alerts, at least once.
pub trait Alerter: Send + Sync + 'static {
    /// Opens an incident. `None` when the service gives it no name.
    fn open(
        &self,
        incident: &Incident,
    ) -> impl Future<Output = Result<Option<ExternalId>, AlertError>> + Send;

    /// Closes an incident. One that is closed already, or not there any more, counts as closed.
    fn resolve(&self, incident: &ExternalId)
    -> impl Future<Output = Result<(), AlertError>> + Send;

    /// Says that alerting works: whoever listens raises the alarm when this is not said any more.
    fn alive(&self) -> impl Future<Output = Result<(), AlertError>> + Send;
}
