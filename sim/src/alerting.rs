//! The simulated alert service: opens and closes incidents, when it feels like it.

use std::sync::Arc;
use std::time::Duration;

use harness::{AlertError, Alerter, Entropy, ExternalId, Incident};

use crate::history::{Fact, Log, LoggedEntropy};
use crate::link::{Link, Named, Post, Session};

/// The alert service of a world.
#[derive(Clone)]
pub struct AlertService {
    refusals_per_mille: u64,
    dice: Arc<LoggedEntropy>,
    log: Log,
}

impl AlertService {
    /// Refuses so many of 1,000 requests, half of them with a word on when to come back.
    pub fn new(refusals_per_mille: u64, seed: u64, log: Log) -> Self {
        Self {
            refusals_per_mille,
            dice: Arc::new(LoggedEntropy::new(seed, log.clone())),
            log,
        }
    }
}

/// What it can be asked for.
pub(crate) enum Request {
    Open {
        claim: uuid::Uuid,
        fingerprint: String,
        letters: u64,
    },
    Resolve {
        incident: uuid::Uuid,
    },
    Heartbeat,
}

impl Named for Request {
    fn name(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open_incident",
            Self::Resolve { .. } => "resolve_incident",
            Self::Heartbeat => "heartbeat",
        }
    }
}

/// The answer.
pub(crate) enum Answer {
    Accepted,
    /// 500.
    Failed,
    /// 429.
    TooMany {
        retry_after: Duration,
    },
}

impl Session<Request, Answer> for AlertService {
    async fn answer(&self, request: Request) -> Answer {
        let roll = self.dice.next_u64() % 1_000;
        if roll < self.refusals_per_mille {
            return if roll.is_multiple_of(2) {
                Answer::Failed
            } else {
                Answer::TooMany {
                    retry_after: Duration::from_secs(roll % 120),
                }
            };
        }
        self.log.fact(match request {
            Request::Open {
                claim,
                fingerprint,
                letters,
            } => Fact::IncidentAccepted {
                claim,
                fingerprint,
                letters,
            },
            Request::Resolve { incident } => Fact::IncidentClosed { incident },
            Request::Heartbeat => Fact::Heartbeat,
        });
        Answer::Accepted
    }

    fn closed(&self) {}
}

/// Serves it.
///
/// # Errors
/// When the port cannot be bound.
pub async fn serve(service: AlertService, post: Post, log: Log) -> std::io::Result<()> {
    crate::link::serve(post, log, move || service.clone()).await
}

/// The alerter as the harness sees it.
#[derive(Clone)]
pub struct SimAlerter(Link<Request, Answer>);

impl SimAlerter {
    /// A client that connects when it is first used.
    pub fn new(post: Post, log: Log) -> Self {
        Self(Link::new("alerts", post, log))
    }

    async fn call(&self, request: Request) -> Result<(), AlertError> {
        let refused = |message: &str, retry_after| AlertError {
            message: message.to_owned(),
            retry_after,
        };
        match self.0.call(request, None).await {
            Ok(Answer::Accepted) => Ok(()),
            Ok(Answer::Failed) => Err(refused("the alert service answered 500", None)),
            Ok(Answer::TooMany { retry_after }) => {
                Err(refused("the alert service answered 429", Some(retry_after)))
            }
            Err(lost) => Err(refused(&lost.to_string(), None)),
        }
    }
}

impl Alerter for SimAlerter {
    async fn open(&self, incident: &Incident) -> Result<Option<ExternalId>, AlertError> {
        self.call(Request::Open {
            claim: incident.id,
            fingerprint: incident.fingerprint.clone(),
            letters: incident.letters,
        })
        .await?;
        // The service's name for it is ours.
        Ok(Some(ExternalId(incident.id.to_string())))
    }

    async fn resolve(&self, incident: &ExternalId) -> Result<(), AlertError> {
        let incident = incident.0.parse().map_err(|_| AlertError {
            message: "an incident that this service did not open".to_owned(),
            retry_after: None,
        })?;
        self.call(Request::Resolve { incident }).await
    }

    async fn alive(&self) -> Result<(), AlertError> {
        self.call(Request::Heartbeat).await
    }
}
