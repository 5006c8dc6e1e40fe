//! What the configuration comes to: everything checked, all problems told at once.

use std::path::PathBuf;

use harness::ops::{Access, Token};
use harness::{
    AlertPumpConfig, BetterStack, BetterStackConfig, ConsumerConfig, MeterConfig, SweepTarget,
    SweeperConfig,
};

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
    pub(crate) tokens: usize,
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
        let (access, tokens) = access(config, problems);
        Self {
            consumers,
            sweeper,
            meter,
            alerts: alerts(config, secrets, problems),
            access,
            tokens,
        }
    }
}

fn access(config: &Config, problems: &mut Vec<String>) -> (Option<Access>, usize) {
    let Some(file) = &config.access.tokens_file else {
        return (None, 0);
    };
    match tokens(file) {
        Ok((access, tokens)) => (Some(access), tokens),
        Err(problem) => {
            let file = file.display();
            problems.push(format!("access.tokens_file: {file}: {problem}"));
            (None, 0)
        }
    }
}

fn tokens(file: &PathBuf) -> Result<(Access, usize), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let tokens: Vec<Token> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let access = Access::tokens(&tokens).map_err(|error| error.to_string())?;
    Ok((access, tokens.len()))
}

fn alerts(config: &Config, secrets: &Secrets, problems: &mut Vec<String>) -> Option<Alerts> {
    let section = &config.alerts;
    let (email, token) = match (&section.requester_email, &secrets.better_stack_token) {
        (None, None) => return None,
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
        timeout: section.timeout.0,
        ..BetterStackConfig::new(token.expose(), email)
    });
    match service {
        Ok(service) => Some(Alerts {
            pump: AlertPumpConfig {
                window: section.window.0,
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
