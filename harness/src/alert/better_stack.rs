//! Better Stack: `POST /api/v3/incidents`, one call per incident.

use std::fmt;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Url};
use serde::Deserialize;

use crate::ports::alerter::{AlertError, Alerter, ExternalId, Incident};

/// How much of an answer is read, in bytes, and how much of it is quoted.
const ANSWER_MAX_BYTES: usize = 64 * 1024;
const QUOTE_MAX_CHARS: usize = 200;

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
    /// TLS could not be set up.
    #[error("could not make an HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// Opens incidents at Better Stack.
#[derive(Debug, Clone)]
pub struct BetterStack {
    config: BetterStackConfig,
    incidents: Url,
    client: Client,
}

impl BetterStack {
    /// # Errors
    /// When the configuration cannot work. The error names the key.
    pub fn new(config: BetterStackConfig) -> Result<Self, BetterStackConfigError> {
        let incidents = Url::parse(&config.base_url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .and_then(|url| url.join("/api/v3/incidents").ok())
            .ok_or_else(|| BetterStackConfigError::BaseUrl(config.base_url.clone()))?;
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
            client,
        })
    }

    fn body(&self, incident: &Incident) -> serde_json::Value {
        let sample = &incident.sample.letter;
        let count = match incident.letters {
            1 => "1 dead letter".to_owned(),
            n => format!("{n} dead letters"),
        };
        let name = format!(
            "{count} in {}: {} ({})",
            sample.queue, sample.error_class, sample.reason
        );
        let description = format!(
            "{count} for review, written from {} to {}.\nNewest: {} (job {}, correlation id {}), after {} attempts:\n{}",
            incident.first_at.to_rfc3339(),
            incident.last_at.to_rfc3339(),
            sample.id,
            sample.job_id,
            sample.correlation_id,
            sample.attempts,
            sample.last_error.chars().take(1_000).collect::<String>(),
        );
        let mut body = serde_json::json!({
            "requester_email": self.config.requester_email,
            "name": name,
            "summary": format!("{count} of {}", incident.fingerprint),
            "description": description,
            "email": true,
            "push": true,
            "sms": false,
            "call": false,
            "metadata": {
                "incident": incident.id.to_string(),
                "fingerprint": incident.fingerprint,
                "dead_letters": incident.letters.to_string(),
                "sample": sample.id.to_string(),
            },
        });
        if let Some(policy) = &self.config.policy_id {
            body["policy_id"] = policy.clone().into();
        }
        body
    }
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
        let not_sent = |error: reqwest::Error| AlertError {
            // Without the URL, which may carry secrets in other set-ups.
            message: crate::error_text::error_text(&error.without_url()),
            retry_after: None,
        };
        let mut response = self
            .client
            .post(self.incidents.clone())
            .bearer_auth(&self.config.token)
            .json(&self.body(incident))
            .send()
            .await
            .map_err(not_sent)?;
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
        if !status.is_success() {
            let quote: String = String::from_utf8_lossy(&answer)
                .chars()
                .take(QUOTE_MAX_CHARS)
                .collect();
            let message = format!("Better Stack answered {status}: {quote}")
                .replace(&self.config.token, "[token]");
            return Err(AlertError {
                message,
                retry_after,
            });
        }
        // Accepted. An answer that we cannot read is no reason to alert twice.
        Ok(serde_json::from_slice::<Answer>(&answer)
            .ok()
            .map(|answer| ExternalId(answer.data.id)))
    }
}
