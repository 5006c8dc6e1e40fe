//! The simulated alert service: accepts incidents, when it feels like it.

use std::sync::Arc;

use harness::{AlertError, Alerter, Entropy, ExternalId, Incident, SeededEntropy};

use crate::history::{Fact, History, Said};
use crate::link::{Link, Post, Session};
use crate::timeline::Timeline;

/// The alert service of a world.
#[derive(Clone)]
pub struct AlertService {
    /// Of 1,000 requests, how many are refused.
    pub refusals_per_mille: u64,
    /// What decides which.
    pub dice: Arc<SeededEntropy>,
    /// When.
    pub timeline: Timeline,
    /// Where accepted incidents are written down.
    pub history: History,
}

pub(crate) struct Open {
    fingerprint: String,
    letters: u64,
}

impl Session<Open, bool> for AlertService {
    async fn answer(&self, open: Open) -> Option<bool> {
        if self.dice.next_u64() % 1_000 < self.refusals_per_mille {
            return Some(false);
        }
        let fact = Fact::IncidentAccepted {
            fingerprint: open.fingerprint,
            letters: open.letters,
        };
        self.history
            .push(self.timeline.now(), "alerts", Said::World(fact));
        Some(true)
    }

    fn closed(&self) {}
}

/// Serves it.
///
/// # Errors
/// When the port cannot be bound.
pub async fn serve(service: AlertService, post: Post) -> std::io::Result<()> {
    crate::link::serve(post, move || service.clone()).await
}

/// The alerter as the harness sees it.
#[derive(Clone)]
pub struct SimAlerter(Link<Open, bool>);

impl SimAlerter {
    /// A client that connects when it is first used.
    pub fn new(post: Post) -> Self {
        Self(Link::new("alerts", post))
    }
}

impl Alerter for SimAlerter {
    async fn open(&self, incident: &Incident) -> Result<Option<ExternalId>, AlertError> {
        let open = Open {
            fingerprint: incident.fingerprint.clone(),
            letters: incident.letters,
        };
        let refused = |message: &str| AlertError {
            message: message.to_owned(),
            retry_after: None,
        };
        match self.0.call(open, None).await {
            Ok(true) => Ok(None),
            Ok(false) => Err(refused("the alert service answered 503")),
            Err(lost) => Err(refused(&lost.to_string())),
        }
    }
}
