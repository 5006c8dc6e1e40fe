//! Better Stack: `POST /api/v3/incidents` opens an incident, `POST /api/v3/incidents/{id}/resolve` closes it, and a call to
//! the URL of a heartbeat says that alerting works.

use std::fmt;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde::Deserialize;

use crate::ports::alerter::{AlertError, AlertKind, Alerter, ExternalId, Incident};

/// How much of an answer is read, in bytes, and how much of it is quoted.
const ANSWER_MAX_BYTES: usize = 64 * 1024;
const QUOTE_MAX_CHARS: usize = 200;

/// Names of incidents are short; what is longer or strange is none.
const ID_MAX_CHARS: usize = 200;

/// A part of a URL that is shorter is no secret, but a word.
const SECRET_MIN_CHARS: usize = 6;

/// Where and as whom to alert.
#[derive(Clone)]
pub struct BetterStackConfig {
    /// Default `https://uptime.betterstack.com`.
    pub base_url: String,
    /// The API token. Never logged, never in an error.
    pub token: String,
    /// The address that incidents are requested by; must be a member of the team.
    pub requester_email: String,
    /// The escalation policy; the team's default without one.
    pub policy_id: Option<String>,
    /// The escalation policy of incidents about overdue dead letters; `policy_id` without one.
    pub escalation_policy_id: Option<String>,
    /// The URL of a heartbeat: called while alerting works. Whoever knows it can pretend that it does, so it is a secret like
    /// the token. None: no heartbeat.
    pub heartbeat_url: Option<String>,
    /// The longest that one request may take, connecting included. Default 10 s.
    pub timeout: Duration,
}

impl fmt::Debug for BetterStackConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BetterStackConfig")
            .field("base_url", &self.base_url)
            .finish_non_exhaustive()
    }
}

impl BetterStackConfig {
    /// The public service.
    pub fn new(token: impl Into<String>, requester_email: impl Into<String>) -> Self {
        Self {
            base_url: "https://uptime.betterstack.com".to_owned(),
            token: token.into(),
            requester_email: requester_email.into(),
            policy_id: None,
            escalation_policy_id: None,
            heartbeat_url: None,
            timeout: Duration::from_secs(10),
        }
    }
}

/// Why the adapter could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BetterStackConfigError {
    /// Not a URL to post to.
    #[error("base_url: {0:?} is not an http or https URL")]
    BaseUrl(String),
    /// Not a token.
    #[error("token: empty, or not visible ASCII")]
    Token,
    /// Incidents need a requester.
    #[error("requester_email: {0:?} is not an e-mail address")]
    RequesterEmail(String),
    /// Not a URL to call. It is a secret, so it is not shown.
    #[error("heartbeat_url: not an http or https URL")]
    HeartbeatUrl,
    /// TLS could not be set up.
    #[error("could not make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// Opens and resolves incidents at Better Stack.
#[derive(Clone)]
pub struct BetterStack {
    config: BetterStackConfig,
    incidents: Url,
    heartbeat: Option<Url>,
    client: Client,
}

impl fmt::Debug for BetterStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BetterStack")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn web_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    matches!(url.scheme(), "http" | "https").then_some(url)
}

impl BetterStack {
    /// # Errors
    /// When the configuration cannot work. The error names the key.
    pub fn new(config: BetterStackConfig) -> Result<Self, BetterStackConfigError> {
        let incidents = web_url(&config.base_url)
            .and_then(|url| url.join("/api/v3/incidents").ok())
            .ok_or_else(|| BetterStackConfigError::BaseUrl(config.base_url.clone()))?;
        let heartbeat = match &config.heartbeat_url {
            Some(url) => Some(web_url(url).ok_or(BetterStackConfigError::HeartbeatUrl)?),
            None => None,
        };
        if config.token.is_empty() || !config.token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(BetterStackConfigError::Token);
        }
        if !config
            .requester_email
            .split_once('@')
            .is_some_and(|(a, b)| !a.is_empty() && !b.is_empty())
        {
            return Err(BetterStackConfigError::RequesterEmail(
                config.requester_email,
            ));
        }
        // Chosen by hand, so that only one implementation of TLS is built in. A second call finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().timeout(config.timeout).build()?;
        Ok(Self {
            config,
            incidents,
            heartbeat,
            client,
        })
    }

    fn body(&self, incident: &Incident) -> serde_json::Value {
        let sample = &incident.sample.letter;
        let count = match incident.letters {
            1 => "1 dead letter".to_owned(),
            n => format!("{n} dead letters"),
        };
        let (first_at, last_at) = (
            incident.first_at.to_rfc3339(),
            incident.last_at.to_rfc3339(),
        );
        let waits = match incident.letters {
            1 => "waits",
            _ => "wait",
        };
        let place = format!(
            "{}: {} ({})",
            sample.queue, sample.error_class, sample.reason
        );
        let (name, summary, description, example) = match incident.kind {
            AlertKind::New => (
                format!("{count} in {place}"),
                format!("{count} of {}", incident.fingerprint),
                format!("{count} for review, written from {first_at} to {last_at}."),
                "Newest",
            ),
            AlertKind::Overdue => (
                format!("{count} still {waits} for review in {place}"),
                format!(
                    "{count} of {} {waits} for review since {first_at}",
                    incident.fingerprint
                ),
                format!(
                    "{count} {waits} for review since {first_at}, and nobody decided: replay or discard. The latest was written at {last_at}."
                ),
                "Oldest",
            ),
        };
        let description = format!(
            "{description}\n{example}: {} (job {}, correlation id {}), after {} attempts:\n{}",
            sample.id,
            sample.job_id,
            sample.correlation_id,
            sample.attempts,
            sample.last_error.chars().take(1_000).collect::<String>(),
        );
        let mut body = serde_json::json!({
            "requester_email": self.config.requester_email,
            "name": name,
            "summary": summary,
            "description": description,
            "email": true,
            "push": true,
            "sms": false,
            "call": false,
            "metadata": {
                "incident": incident.id.to_string(),
                "kind": incident.kind.as_str(),
                "fingerprint": incident.fingerprint,
                "dead_letters": incident.letters.to_string(),
                "sample": sample.id.to_string(),
            },
        });
        let policy = match incident.kind {
            AlertKind::New => self.config.policy_id.as_ref(),
            AlertKind::Overdue => {
                (self.config.escalation_policy_id.as_ref()).or(self.config.policy_id.as_ref())
            }
        };
        if let Some(policy) = policy {
            body["policy_id"] = policy.clone().into();
        }
        body
    }

    /// Without the token, the heartbeat's URL, and the part of it that is the secret.
    fn without_secrets(&self, text: &str) -> String {
        let mut text = text.replace(&self.config.token, "[token]");
        if let (Some(given), Some(url)) = (&self.config.heartbeat_url, &self.heartbeat) {
            let last = url.path().rsplit('/').find(|part| !part.is_empty());
            let parts = last.into_iter().chain(url.query()).chain(url.password());
            let whole = [given.as_str(), url.as_str()];
            for secret in whole.into_iter().chain(parts) {
                if secret.len() >= SECRET_MIN_CHARS {
                    text = text.replace(secret, "[heartbeat]");
                }
            }
        }
        text
    }

    fn failed(&self, message: &str) -> AlertError {
        AlertError {
            message: self.without_secrets(message),
            retry_after: None,
        }
    }

    /// Makes a call and reads as much of the answer as can be of use.
    async fn call(&self, request: RequestBuilder) -> Result<Answered, AlertError> {
        let mut response = request.send().await.map_err(|error| {
            // Without the URL, which may carry secrets.
            self.failed(&crate::error_text::error_text(&error.without_url()))
        })?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let mut answer = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            answer.extend_from_slice(&chunk);
            if answer.len() > ANSWER_MAX_BYTES {
                break;
            }
        }
        Ok(Answered {
            status,
            retry_after,
            answer,
        })
    }

    fn refused(&self, answered: &Answered) -> AlertError {
        // Cut after secrets are out: half a secret is not found.
        let text = self.without_secrets(&String::from_utf8_lossy(&answered.answer));
        let quote: String = text.chars().take(QUOTE_MAX_CHARS).collect();
        AlertError {
            message: format!("Better Stack answered {}: {quote}", answered.status),
            retry_after: answered.retry_after,
        }
    }
}

struct Answered {
    status: StatusCode,
    retry_after: Option<Duration>,
    answer: Vec<u8>,
}

/// The part of the answer that we need.
#[derive(Deserialize)]
struct Answer {
    data: AnswerData,
}

#[derive(Deserialize)]
struct AnswerData {
    id: String,
}

impl Alerter for BetterStack {
    async fn open(&self, incident: &Incident) -> Result<Option<ExternalId>, AlertError> {
        let request = (self.client.post(self.incidents.clone()))
            .bearer_auth(&self.config.token)
            .json(&self.body(incident));
        let answered = self.call(request).await?;
        if !answered.status.is_success() {
            return Err(self.refused(&answered));
        }
        // Accepted. An answer that we cannot read is no reason to alert twice.
        Ok(serde_json::from_slice::<Answer>(&answered.answer)
            .ok()
            .map(|answer| answer.data.id)
            .filter(|id| {
                (1..=ID_MAX_CHARS).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
            })
            .map(ExternalId))
    }

    async fn resolve(&self, incident: &ExternalId) -> Result<(), AlertError> {
        let mut url = self.incidents.clone();
        // Pushed as one part, whatever is in it.
        if let Ok(mut parts) = url.path_segments_mut() {
            parts.push(&incident.0).push("resolve");
        }
        let body = serde_json::json!({ "resolved_by": self.config.requester_email });
        let request = self
            .client
            .post(url)
            .bearer_auth(&self.config.token)
            .json(&body);
        let answered = self.call(request).await?;
        // Gone, or closed already: what we want.
        let over = [StatusCode::NOT_FOUND, StatusCode::CONFLICT].contains(&answered.status);
        if answered.status.is_success() || over {
            return Ok(());
        }
        Err(self.refused(&answered))
    }

    async fn alive(&self) -> Result<(), AlertError> {
        let Some(url) = &self.heartbeat else {
            return Ok(());
        };
        let answered = self.call(self.client.post(url.clone())).await?;
        if answered.status.is_success() {
            return Ok(());
        }
        // The answer is not quoted: nothing that it says is worth the risk of what it repeats.
        let message = format!("the heartbeat was answered {}", answered.status);
        Err(self.failed(&message))
    }
}
