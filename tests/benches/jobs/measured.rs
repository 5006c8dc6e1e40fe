//! What one measurement gives.

use std::time::Duration;

use serde::Serialize;

/// Messages in a time, and how long single ones took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// Messages, duplicates included, per second.
    pub(crate) per_second: f64,
    /// Half of them took so long or less, in milliseconds, from delivery to ack; none where only the mean is known.
    pub(crate) p50_ms: Option<f64>,
    /// 99 of 100 took so long or less.
    pub(crate) p99_ms: Option<f64>,
}

impl Measured {
    pub(crate) fn of(messages: u32, took: Duration, mut each: Vec<Duration>) -> Self {
        each.sort_unstable();
        let at = |share: usize| {
            each.get(each.len() * share / 100)
                .map(|it| it.as_secs_f64() * 1e3)
        };
        Self {
            per_second: f64::from(messages) / took.as_secs_f64(),
            p50_ms: at(50),
            p99_ms: at(99),
        }
    }
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
