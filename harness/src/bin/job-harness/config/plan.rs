//! What the configuration comes to: everything checked, all problems told at once.

use harness::ops::Access;
use harness::{
    AlertPumpConfig, BetterStack, BetterStackConfig, ConsumerConfig, MeterConfig, SweepTarget,
    SweeperConfig,
};

use super::access::access;
use super::{Config, Secrets};

/// How alerts are sent.
pub(crate) struct Alerts {
    pub(crate) pump: AlertPumpConfig,
    pub(crate) service: BetterStack,
}

/// What is to be done.
pub(crate) struct Plan {
    pub(crate) consumers: Vec<ConsumerConfig>,
    pub(crate) sweeper: SweeperConfig,
    pub(crate) meter: MeterConfig,
    pub(crate) alerts: Option<Alerts>,
    /// None where no credentials are configured.
    pub(crate) access: Option<Access>,
}

impl Plan {
    /// Adds what is wrong to `problems`.
    pub(crate) fn of(config: &Config, secrets: &Secrets, problems: &mut Vec<String>) -> Self {
        let mut consumers: Vec<ConsumerConfig> = Vec::new();
        for (n, it) in config.consumers.iter().enumerate() {
            match it.built() {
                Ok(built) => {
                    let twice = (consumers.iter()).any(|other| {
                        other.consumer == built.consumer && other.queue == built.queue
                    });
                    if twice {
                        problems.push(format!(
                            "consumers[{n}]: {} on {} is there already",
                            built.consumer, built.queue
                        ));
                    }
                    consumers.push(built);
                }
                Err(problem) => problems.push(format!("consumers[{n}].{problem}")),
            }
        }
        let mut sweeper = SweeperConfig::new(consumers.iter().map(SweepTarget::of).collect());
        sweeper.interval = config.sweep.interval.0;
        sweeper.batch = config.sweep.batch;
        let intervals = [
            ("sweep.interval", config.sweep.interval),
            ("metrics.interval", config.metrics.interval),
            ("alerts.timeout", config.alerts.timeout),
            ("alerts.escalate_after", config.alerts.escalate_after),
            (
                "alerts.heartbeat_interval",
                config.alerts.heartbeat_interval,
            ),
        ];
        for (key, interval) in intervals {
            if interval.0.is_zero() {
                problems.push(format!("{key}: must be longer than nothing, such as 15s"));
            }
        }
        if config.sweep.batch == 0 {
            problems.push("sweep.batch: must be at least 1".to_owned());
        }
        if config.database.max_connections < 2 {
            problems.push("database.max_connections: must be at least 2".to_owned());
        }
        let meter = MeterConfig {
            consumers: consumers.iter().map(|it| it.consumer.clone()).collect(),
            queues: consumers.iter().map(|it| it.queue.clone()).collect(),
            interval: config.metrics.interval.0,
            ..MeterConfig::default()
        };
        Self {
            consumers,
            sweeper,
            meter,
            alerts: alerts(config, secrets, problems),
            access: access(config, secrets, problems),
        }
    }
}

fn alerts(config: &Config, secrets: &Secrets, problems: &mut Vec<String>) -> Option<Alerts> {
    let section = &config.alerts;
    let (email, token) = match (&section.requester_email, &secrets.better_stack_token) {
        (None, None) => {
            if secrets.heartbeat_url.is_some() {
                problems.push(
                    "alerts.requester_email: is not set, but there is a heartbeat's URL; say who opens incidents, or leave the URL out"
                        .to_owned(),
                );
            }
            return None;
        }
        (Some(email), Some(token)) => (email, token),
        (Some(_), None) => {
            problems.push(
                "alerts.requester_email: needs the API token; set BETTER_STACK_TOKEN, or alerts.token_file"
                    .to_owned(),
            );
            return None;
        }
        (None, Some(_)) => {
            problems.push(
                "alerts.requester_email: is not set, but there is a token; say who opens incidents"
                    .to_owned(),
            );
            return None;
        }
    };
    let service = BetterStack::new(BetterStackConfig {
        base_url: section.base_url.clone(),
        policy_id: section.policy_id.clone(),
        escalation_policy_id: section.escalation_policy_id.clone(),
        heartbeat_url: (secrets.heartbeat_url.as_ref()).map(|url| url.expose().to_owned()),
        timeout: section.timeout.0,
        ..BetterStackConfig::new(token.expose(), email)
    });
    match service {
        Ok(service) => Some(Alerts {
            pump: AlertPumpConfig {
                window: section.window.0,
                escalate_after: section.escalate_after.0,
                escalate_window: section.escalate_window.0,
                heartbeat_interval: section.heartbeat_interval.0,
                timeout: section.timeout.0,
                ..AlertPumpConfig::default()
            },
            service,
        }),
        Err(problem) => {
            problems.push(format!("alerts.{problem}"));
            None
        }
    }
}
