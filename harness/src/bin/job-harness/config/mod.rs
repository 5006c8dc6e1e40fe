//! What the program is told: one TOML file, the environment, and the command line, the later winning over the earlier.
//! Secrets are in none of them but the environment, or in files of their own.

mod access;
mod keys;
mod layers;
mod plan;
mod secrets;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use harness::ops::{JwtAlgorithm, JwtConfig};
use harness::{
    AlertPumpConfig, ConsumerConfig, FencePolicy, MeterConfig, PgStoreConfig, RetryPolicy,
    SweeperConfig,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub(crate) use self::keys::{KEYS, environment_name};
pub(crate) use self::layers::{Given, Layers};
pub(crate) use self::plan::Plan;
pub(crate) use self::secrets::Secrets;

/// A duration as people write it: `30s`, `5min`, `1h 30min`, `7days`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_duration(&text).map(Self).map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is no duration; write it like 500ms, 30s, 5min, 1h 30min or 7days"
            ))
        })
    }
}

/// Everything but secrets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) database: Database,
    pub(crate) access: Access,
    pub(crate) sweep: Sweep,
    pub(crate) alerts: AlertsSection,
    pub(crate) metrics: Metrics,
    pub(crate) consumers: Vec<Consumer>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Database {
    pub(crate) url_file: Option<PathBuf>,
    pub(crate) max_connections: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Access {
    pub(crate) tokens_file: Option<PathBuf>,
    pub(crate) jwt: JwtSection,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct JwtSection {
    pub(crate) algorithm: Option<JwtAlgorithm>,
    pub(crate) issuer: Option<String>,
    pub(crate) audience: Option<String>,
    pub(crate) leeway: Span,
    pub(crate) jwks_file: Option<PathBuf>,
    pub(crate) secret_file: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Sweep {
    pub(crate) interval: Span,
    pub(crate) batch: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AlertsSection {
    pub(crate) requester_email: Option<String>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) base_url: String,
    pub(crate) policy_id: Option<String>,
    pub(crate) window: Span,
    pub(crate) escalate_after: Span,
    pub(crate) escalate_window: Span,
    pub(crate) escalation_policy_id: Option<String>,
    pub(crate) heartbeat_url_file: Option<PathBuf>,
    pub(crate) heartbeat_interval: Span,
    pub(crate) timeout: Span,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    pub(crate) interval: Span,
}

/// A consumer whose fences are swept and whose queue is measured. What it says must be what the consumer itself is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) queue: String,
    #[serde(default = "standard_run_deadline")]
    pub(crate) run_deadline: Span,
    #[serde(default)]
    pub(crate) retry: Option<Retry>,
    #[serde(default)]
    pub(crate) fence: Fence,
}

fn standard_run_deadline() -> Span {
    Span(Duration::from_secs(60))
}

/// Another policy than the standard one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Retry {
    pub(crate) base: Span,
    pub(crate) cap: Span,
    pub(crate) retries: u32,
    pub(crate) rationale: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fence {
    pub(crate) ttl: Span,
    pub(crate) broker_retention: Span,
    pub(crate) resend_horizon: Span,
    pub(crate) margin: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            database: Database::default(),
            access: Access::default(),
            sweep: Sweep::default(),
            alerts: AlertsSection::default(),
            metrics: Metrics::default(),
            consumers: Vec::new(),
        }
    }
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url_file: None,
            max_connections: PgStoreConfig::default().max_connections,
        }
    }
}

impl Default for JwtSection {
    fn default() -> Self {
        Self {
            algorithm: None,
            issuer: None,
            audience: None,
            leeway: Span(JwtConfig::LEEWAY),
            jwks_file: None,
            secret_file: None,
        }
    }
}

impl Default for Sweep {
    fn default() -> Self {
        let standard = SweeperConfig::new(Vec::new());
        Self {
            interval: Span(standard.interval),
            batch: standard.batch,
        }
    }
}

impl Default for AlertsSection {
    fn default() -> Self {
        let standard = AlertPumpConfig::default();
        Self {
            requester_email: None,
            token_file: None,
            base_url: harness::BetterStackConfig::new("", "").base_url,
            policy_id: None,
            window: Span(standard.window),
            escalate_after: Span(standard.escalate_after),
            escalate_window: Span(standard.escalate_window),
            escalation_policy_id: None,
            heartbeat_url_file: None,
            heartbeat_interval: Span(standard.heartbeat_interval),
            timeout: Span(standard.timeout),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            interval: Span(MeterConfig::default().interval),
        }
    }
}

impl Default for Retry {
    fn default() -> Self {
        let standard = RetryPolicy::default();
        Self {
            base: Span(standard.base()),
            cap: Span(standard.cap()),
            retries: standard.max_runs() - 1,
            rationale: String::new(),
        }
    }
}

impl Default for Fence {
    fn default() -> Self {
        let standard = FencePolicy::default();
        Self {
            ttl: Span(standard.ttl),
            broker_retention: Span(standard.broker_retention),
            resend_horizon: Span(standard.resend_horizon),
            margin: Span(standard.margin),
        }
    }
}

impl Consumer {
    /// As the consumer itself is configured.
    fn built(&self) -> Result<ConsumerConfig, String> {
        let name = harness::ConsumerName::new(&self.name).map_err(|it| format!("name: {it}"))?;
        let queue = harness::QueueName::new(&self.queue).map_err(|it| format!("queue: {it}"))?;
        let mut built = ConsumerConfig::new(name, queue);
        built.run_deadline = self.run_deadline.0;
        if let Some(retry) = &self.retry {
            let Retry {
                base,
                cap,
                retries,
                rationale,
            } = retry;
            built.retry = RetryPolicy::overriding(base.0, cap.0, *retries, rationale)
                .map_err(|it| format!("retry.{it}"))?;
        }
        built.fence = FencePolicy {
            ttl: self.fence.ttl.0,
            broker_retention: self.fence.broker_retention.0,
            resend_horizon: self.fence.resend_horizon.0,
            margin: self.fence.margin.0,
        };
        built.check().map_err(|it| it.to_string())?;
        Ok(built)
    }
}
