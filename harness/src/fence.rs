//! The fence: whose it is, what it says (B1), and how long it must live (B7).
//!
//! A fence protects while a copy of its job can still arrive. Copies come from three places, and a copy that comes from
//! the last of them can be the first run of a whole retry window:
//!
//! * the broker may hold one for its retention time, and hand it out then;
//! * a producer may send the job again, up to its resend horizon later;
//! * a run of that copy may fail and be retried through the whole retry window, the runs themselves included.
//!
//! The sweep adds what no fixed time can give: it never passes the oldest message that is still queued.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{JobId, TenantId};
use crate::names::ConsumerName;
use crate::ports::store::StoreError;
use crate::retry::RetryPolicy;

/// Whose effect a fence stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceKey {
    /// The job.
    pub job_id: JobId,
    /// The consumer whose effect it is.
    pub consumer: ConsumerName,
    /// How often the job was replayed before.
    pub generation: u32,
    /// Whose job it is; kept with the fence.
    pub tenant_id: Option<TenantId>,
}

/// Whose keys they are, for [`WorkTx::fence_all`](crate::WorkTx::fence_all).
///
/// # Errors
/// [`StoreError::Refused`] when there is none, when a job is there twice, or when consumers differ: a job that meets its own
/// fence would be taken for applied.
pub fn consumer_of(keys: &[FenceKey]) -> Result<&str, StoreError> {
    let refused = |why: &'static str| Err(StoreError::Refused(why.into()));
    let Some(first) = keys.first() else {
        return refused("a batch of no jobs");
    };
    if keys.iter().any(|key| key.consumer != first.consumer) {
        return refused("a batch for several consumers");
    }
    let jobs: BTreeSet<_> = keys.iter().map(|key| key.job_id).collect();
    if jobs.len() < keys.len() {
        return refused("a batch with a job that is there twice");
    }
    Ok(first.consumer.as_str())
}

/// What the fence said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Hash)]
#[serde(rename_all = "snake_case")]
pub enum FenceVerdict {
    /// The key is ours until the transaction ends: do the work.
    Acquired,
    /// The effect is committed already.
    Duplicate,
    /// This generation was dead-lettered, or the one before was discarded: its outcome is settled.
    Settled,
}

/// How long fences live, and the assumptions that make this long enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FencePolicy {
    /// Time to live of a fence. Default 7 days.
    pub ttl: Duration,
    /// The longest that the broker keeps a message that nobody acknowledged. Default 4 days.
    pub broker_retention: Duration,
    /// The longest time after which a producer may still send the same job again. Default 1 day.
    pub resend_horizon: Duration,
    /// What is added for everything nobody thought of. Default 1 day.
    pub margin: Duration,
}

/// The TTL is not longer than the time in which a copy of the job can still arrive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "ttl: {ttl:?} is not longer than {needed:?} = retry window {retry_window:?} + broker retention {broker_retention:?} \
     + resend horizon {resend_horizon:?} + margin {margin:?}; a copy that arrives after the fence is gone would be \
     applied again. Raise ttl, or lower a term if the queue really guarantees it"
)]
pub struct FencePolicyError {
    /// As configured.
    pub ttl: Duration,
    /// The sum that it must exceed.
    pub needed: Duration,
    /// Longest waits plus the runs between them.
    pub retry_window: Duration,
    /// As configured.
    pub broker_retention: Duration,
    /// As configured.
    pub resend_horizon: Duration,
    /// As configured.
    pub margin: Duration,
}

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for FencePolicy {
    fn default() -> Self {
        Self {
            ttl: DAY.saturating_mul(7),
            broker_retention: DAY.saturating_mul(4),
            resend_horizon: DAY,
            margin: DAY,
        }
    }
}

impl FencePolicy {
    /// The longest time from the start of a job's first run to the end of its last.
    pub fn retry_window(retry: &RetryPolicy, run_deadline: Duration) -> Duration {
        retry
            .longest_waits()
            .saturating_add(run_deadline.saturating_mul(retry.max_runs()))
    }

    /// # Errors
    /// When the TTL is not longer than retry window + broker retention + resend horizon + margin. The error names
    /// every term.
    pub fn check(
        &self,
        retry: &RetryPolicy,
        run_deadline: Duration,
    ) -> Result<(), FencePolicyError> {
        let retry_window = Self::retry_window(retry, run_deadline);
        let needed = retry_window
            .saturating_add(self.broker_retention)
            .saturating_add(self.resend_horizon)
            .saturating_add(self.margin);
        if self.ttl > needed {
            return Ok(());
        }
        Err(FencePolicyError {
            ttl: self.ttl,
            needed,
            retry_window,
            broker_retention: self.broker_retention,
            resend_horizon: self.resend_horizon,
            margin: self.margin,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn b7_the_standard_policies_fit_together() {
        FencePolicy::default()
            .check(&RetryPolicy::default(), MINUTE)
            .unwrap();
    }

    #[test]
    fn b7_a_ttl_equal_to_the_sum_is_refused_and_the_error_names_every_term() {
        let retry = RetryPolicy::default();
        let mut policy = FencePolicy::default();
        policy.ttl = FencePolicy::retry_window(&retry, MINUTE)
            + policy.broker_retention
            + policy.resend_horizon
            + policy.margin;
        let error = policy.check(&retry, MINUTE).unwrap_err();
        let text = error.to_string();
        for term in [
            "ttl: 520155s",
            "retry window 1755s",
            "broker retention 345600s",
            "resend horizon 86400s",
            "margin 86400s",
        ] {
            assert!(text.contains(term), "{term} is missing from: {text}");
        }
        policy.ttl += Duration::from_nanos(1);
        policy.check(&retry, MINUTE).unwrap();
    }

    #[test]
    fn b7_absurd_terms_do_not_overflow() {
        let retry = RetryPolicy::overriding(MINUTE, Duration::MAX, u32::MAX, "absurd").unwrap();
        let policy = FencePolicy {
            margin: Duration::MAX,
            ..FencePolicy::default()
        };
        assert_eq!(
            policy.check(&retry, Duration::MAX).unwrap_err().needed,
            Duration::MAX
        );
    }
    /// Mostly lengths that add up, now and then ones that cannot.
    fn length() -> impl Strategy<Value = Duration> {
        prop_oneof![
            4 => (0_u64..20 * 86_400).prop_map(Duration::from_secs),
            1 => (0_u64..5).prop_map(Duration::from_nanos),
            1 => any::<u64>().prop_map(Duration::from_secs),
        ]
    }

    proptest! {
        #[test]
        fn b7_a_ttl_is_accepted_exactly_if_it_is_longer_than_the_sum(
            terms in proptest::array::uniform3(length()), deadline in length(), retries in 0_u32..50,
            nearby in -2_i64..=2, far in length(), near in any::<bool>(),
        ) {
            let retry = RetryPolicy::overriding(MINUTE, MINUTE * 60, retries, "property").unwrap();
            let [broker_retention, resend_horizon, margin] = terms;
            // Counted again, in a type that no sum of these overflows.
            let window = FencePolicy::retry_window(&retry, deadline);
            let sum = [window, broker_retention, resend_horizon, margin].iter().map(Duration::as_nanos).sum::<u128>();
            let at_sum = Duration::new(u64::try_from(sum / 1_000_000_000).unwrap_or(u64::MAX), (sum % 1_000_000_000) as u32);
            let by = Duration::from_nanos(nearby.unsigned_abs());
            let ttl = match (near, nearby < 0) {
                (false, _) => far,
                (true, true) => at_sum.saturating_sub(by),
                (true, false) => at_sum.saturating_add(by),
            };
            let policy = FencePolicy { ttl, broker_retention, resend_horizon, margin };
            let accepted = policy.check(&retry, deadline).is_ok();
            prop_assert_eq!(accepted, ttl.as_nanos() > sum);
            // The runs themselves are part of the window, and so are the waits between them.
            prop_assert!(window >= deadline.saturating_mul(retries + 1));
            prop_assert!(window >= retry.longest_waits());
        }
    }
}
