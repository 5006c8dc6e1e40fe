//! The simulated alert service: accepts incidents, when it feels like it.

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

pub(crate) struct Open {
    claim: uuid::Uuid,
    fingerprint: String,
    letters: u64,
}

impl Named for Open {
    fn name(&self) -> &'static str {
        "open_incident"
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

impl Session<Open, Answer> for AlertService {
    async fn answer(&self, open: Open) -> Answer {
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
        self.log.fact(Fact::IncidentAccepted {
            claim: open.claim,
            fingerprint: open.fingerprint,
            letters: open.letters,
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
pub struct SimAlerter(Link<Open, Answer>);

impl SimAlerter {
    /// A client that connects when it is first used.
    pub fn new(post: Post, log: Log) -> Self {
        Self(Link::new("alerts", post, log))
    }
}

impl Alerter for SimAlerter {
    async fn open(&self, incident: &Incident) -> Result<Option<ExternalId>, AlertError> {
        let open = Open {
            claim: incident.id,
            fingerprint: incident.fingerprint.clone(),
            letters: incident.letters,
        };
        let refused = |message: &str, retry_after| AlertError {
            message: message.to_owned(),
            retry_after,
        };
        match self.0.call(open, None).await {
            Ok(Answer::Accepted) => Ok(None),
            Ok(Answer::Failed) => Err(refused("the alert service answered 500", None)),
            Ok(Answer::TooMany { retry_after }) => {
                Err(refused("the alert service answered 429", Some(retry_after)))
            }
            Err(lost) => Err(refused(&lost.to_string(), None)),
        }
    }
}
