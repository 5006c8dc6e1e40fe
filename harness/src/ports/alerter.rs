//! Whoever wakes people up.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::dead_letter::DeadLetter;

/// One alert, for all dead letters of one kind that were not alerted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incident {
    /// Our own name for it.
    pub id: uuid::Uuid,
    /// Queue, consumer, reason and error class: "the same kind of failure".
    pub fingerprint: String,
    /// How many dead letters it stands for.
    pub letters: u64,
    /// When the first of them was written.
    pub first_at: DateTime<Utc>,
    /// When the last of them was written.
    pub last_at: DateTime<Utc>,
    /// The newest of them, as an example.
    pub sample: DeadLetter,
}

/// The alert service's name for an incident.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalId(pub String);

/// Why an alert was not accepted. All of them are tried again.
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
}
