//! When a failed job runs again (B3). Pure: nothing is stored, randomness is injected.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ports::entropy::Entropy;

/// Runs of one generation: the first and five retries.
pub const MAX_RUNS_DEFAULT: u32 = 6;

/// Exponential backoff with upward jitter: wait *k* (from 0) is `base * 2^k`, stretched by a random factor in
/// `[1, 1.5)`, at most `cap`. The factor stays below 2, so that a wait is longer than the one before it, until the cap.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct RetryPolicy {
    base: Duration,
    cap: Duration,
    retries: u32,
    rationale: Option<String>,
}

/// Why a retry policy was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetryPolicyError {
    /// B3: another policy than the standard one needs a reason that people can read.
    #[error(
        "rationale: overriding the retry policy needs one, in words; it is kept with the policy"
    )]
    NoRationale,
    /// A wait of nothing never grows.
    #[error("base: must be at least 1 ms, is {} us", .0.as_micros())]
    NoBase(Duration),
    /// The first wait would already be cut.
    #[error("cap: must not be less than base ({} ms), is {} ms", .base.as_millis(), .cap.as_millis())]
    CapBelowBase {
        /// The first wait.
        base: Duration,
        /// The longest wait.
        cap: Duration,
    },
}

/// As it is stored; what comes back went through the same rules.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    base: Duration,
    cap: Duration,
    retries: u32,
    rationale: Option<String>,
}

impl From<RetryPolicy> for Stored {
    fn from(policy: RetryPolicy) -> Self {
        Self {
            base: policy.base,
            cap: policy.cap,
            retries: policy.retries,
            rationale: policy.rationale,
        }
    }
}

impl TryFrom<Stored> for RetryPolicy {
    type Error = RetryPolicyError;

    fn try_from(stored: Stored) -> Result<Self, RetryPolicyError> {
        let standard = Self::default();
        let is_standard = stored.rationale.is_none()
            && (stored.base, stored.cap, stored.retries)
                == (standard.base, standard.cap, standard.retries);
        if is_standard {
            return Ok(standard);
        }
        let rationale = stored.rationale.unwrap_or_default();
        Self::overriding(stored.base, stored.cap, stored.retries, &rationale)
    }
}

impl Default for RetryPolicy {
    /// B3: base 30 s, cap 1 h, 5 retries.
    fn default() -> Self {
        Self {
            base: Duration::from_secs(30),
            cap: Duration::from_secs(3600),
            retries: 5,
            rationale: None,
        }
    }
}

impl RetryPolicy {
    /// Another policy than the standard one, for one queue.
    ///
    /// # Errors
    /// When there is no rationale, or the waits could not grow.
    pub fn overriding(
        base: Duration,
        cap: Duration,
        retries: u32,
        rationale: &str,
    ) -> Result<Self, RetryPolicyError> {
        if rationale.trim().is_empty() {
            return Err(RetryPolicyError::NoRationale);
        }
        if base < Duration::from_millis(1) {
            return Err(RetryPolicyError::NoBase(base));
        }
        if cap < base {
            return Err(RetryPolicyError::CapBelowBase { base, cap });
        }
        Ok(Self {
            base,
            cap,
            retries,
            rationale: Some(rationale.trim().to_owned()),
        })
    }

    /// Runs of one generation, the first included.
    pub fn max_runs(&self) -> u32 {
        self.retries.saturating_add(1)
    }

    /// The first wait, before jitter.
    pub fn base(&self) -> Duration {
        self.base
    }

    /// The longest wait.
    pub fn cap(&self) -> Duration {
        self.cap
    }

    /// Why this is not the standard policy; `None` when it is.
    pub fn rationale(&self) -> Option<&str> {
        self.rationale.as_deref()
    }

    /// The wait after run `run` (from 1) failed, without jitter.
    pub fn shortest_wait(&self, run: u32) -> Duration {
        let (doublings, base) = (run.saturating_sub(1), self.base.as_nanos());
        if doublings >= base.leading_zeros() {
            return self.cap;
        }
        from_nanos(base << doublings).min(self.cap)
    }

    /// The wait after run `run` (from 1) failed. Within `shortest_wait(run) ..= longest_wait(run)`.
    pub fn wait(&self, run: u32, entropy: &dyn Entropy) -> Duration {
        let shortest = self.shortest_wait(run);
        shortest
            .saturating_add(scaled(shortest, entropy.next_u64()) / 2)
            .min(self.cap)
    }

    /// What [`wait`](Self::wait) stays below, or the cap.
    pub fn longest_wait(&self, run: u32) -> Duration {
        let shortest = self.shortest_wait(run);
        shortest.saturating_add(shortest / 2).min(self.cap)
    }

    /// The sum of the longest waits: the time from the end of the first run to the start of the last, apart from the
    /// runs themselves.
    pub fn longest_waits(&self) -> Duration {
        // A policy may allow any number of retries; after this many every wait is the cap.
        let distinct = self.retries.min(MOST_DOUBLINGS);
        let sum = (1..=distinct).fold(Duration::ZERO, |sum, run| {
            sum.saturating_add(self.longest_wait(run))
        });
        sum.saturating_add(self.cap.saturating_mul(self.retries - distinct))
    }
}

/// From the shortest base, 1 ms or more than 2^19 ns, to more than the longest `Duration`, which has 94 bits of nanoseconds.
const MOST_DOUBLINGS: u32 = 75;

/// The longest `Duration` where there is none so long.
fn from_nanos(nanos: u128) -> Duration {
    const NANOS_PER_SEC: u128 = 1_000_000_000;
    match u64::try_from(nanos / NANOS_PER_SEC) {
        Ok(secs) => Duration::new(secs, u32::try_from(nanos % NANOS_PER_SEC).unwrap_or(0)),
        Err(_) => Duration::MAX,
    }
}

/// `duration * bits / 2^64`, rounded down: less than `duration`. Whole nanoseconds and 32 bits of the randomness, so that
/// nothing overflows (a `Duration` has 94 bits of nanoseconds).
fn scaled(duration: Duration, bits: u64) -> Duration {
    from_nanos((duration.as_nanos() * u128::from(bits >> 32)) >> 32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ports::entropy::SeededEntropy;

    struct Fixed(u64);
    impl Entropy for Fixed {
        fn next_u64(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn b3_the_standard_policy_is_base_30_s_cap_1_h_5_retries() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.max_runs(), MAX_RUNS_DEFAULT);
        assert_eq!(policy.rationale(), None);
        let shortest: Vec<u64> = (1..=9)
            .map(|run| policy.shortest_wait(run).as_secs())
            .collect();
        assert_eq!(shortest, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(
            policy.longest_waits(),
            Duration::from_secs(45 + 90 + 180 + 360 + 720)
        );
    }

    #[test]
    fn b3_an_override_needs_a_rationale() {
        let second = Duration::from_secs(1);
        for blank in ["", "  \n\t"] {
            assert_eq!(
                RetryPolicy::overriding(second, second, 1, blank),
                Err(RetryPolicyError::NoRationale)
            );
        }
        let policy =
            RetryPolicy::overriding(second, second, 1, " provider bans us after 2 calls ").unwrap();
        assert_eq!(policy.rationale(), Some("provider bans us after 2 calls"));
        assert!(RetryPolicy::overriding(Duration::ZERO, second, 1, "x").is_err());
        assert!(RetryPolicy::overriding(second, Duration::from_millis(999), 1, "x").is_err());
    }

    #[test]
    fn a3_each_wait_is_longer_than_the_one_before_even_with_the_worst_luck() {
        let policy = RetryPolicy::default();
        for run in 1..=5 {
            let longest = policy.wait(run, &Fixed(u64::MAX));
            assert!(longest < policy.wait(run + 1, &Fixed(0)), "wait {run}");
            assert!(policy.wait(run, &Fixed(0)) == policy.shortest_wait(run));
            assert!(longest < policy.shortest_wait(run).mul_f64(1.5));
        }
    }

    #[test]
    fn a3_waits_double_to_a_cap_that_is_many_doublings_away() {
        let (ms, cap) = (Duration::from_millis(1), Duration::from_secs(u64::MAX));
        let policy = RetryPolicy::overriding(ms, cap, 100, "a test").unwrap();
        assert_eq!(policy.shortest_wait(34), 2 * policy.shortest_wait(33));
        assert_eq!(policy.shortest_wait(MOST_DOUBLINGS + 1), cap);
        assert_eq!(policy.shortest_wait(u32::MAX), cap);
    }

    proptest! {
        #[test]
        fn b3_waits_are_bounded_and_never_overflow(
            base in 1_u64..=u64::MAX / 1_000_000, extra in 0_u64..=u64::MAX / 2, run in prop_oneof![1_u32..70, any::<u32>()],
            retries in any::<u32>(), seed in any::<u64>(),
        ) {
            let base = Duration::from_millis(base);
            let cap = base.saturating_add(Duration::from_millis(extra));
            let policy = RetryPolicy::overriding(base, cap, retries, "property").unwrap();
            let wait = policy.wait(run, &SeededEntropy::new(seed));
            prop_assert!(wait <= cap);
            prop_assert!(wait <= policy.longest_wait(run));
            prop_assert!(wait >= policy.shortest_wait(run));
            prop_assert!(policy.shortest_wait(run) >= policy.shortest_wait(run.saturating_sub(1)));
            prop_assert!(policy.longest_waits() >= policy.longest_wait(1).min(cap.saturating_mul(retries)));
        }

        #[test]
        fn a3_waits_grow_until_the_cap_whatever_the_policy_and_the_luck(
            base in 1_u64..100_000_000, extra in 0_u64..=u64::MAX / 2, run in prop_oneof![1_u32..40, any::<u32>()],
            luck in any::<u64>(), worse in any::<u64>(),
        ) {
            let base = Duration::from_millis(base);
            let cap = base.saturating_add(Duration::from_millis(extra));
            let policy = RetryPolicy::overriding(base, cap, 5, "property").unwrap();
            let (wait, next) = (policy.wait(run, &Fixed(luck)), policy.wait(run.saturating_add(1), &Fixed(worse)));
            // At the cap there is no more to grow.
            prop_assert!(wait < next || (wait <= next && next == cap) || policy.shortest_wait(run) == cap, "{wait:?}, {next:?}");
        }

        #[test]
        fn b3_a_policy_survives_its_storage(
            base in 1_u64..1_000_000, extra in 0_u64..1_000_000, retries in any::<u32>(), rationale in "[!-~].{0,40}",
        ) {
            let base = Duration::from_micros(base * 1_000);
            let policy = RetryPolicy::overriding(base, base + Duration::from_nanos(extra), retries, &rationale).unwrap();
            let stored = serde_json::to_string(&policy).unwrap();
            prop_assert_eq!(serde_json::from_str::<RetryPolicy>(&stored).unwrap(), policy);
        }

        #[test]
        fn b3_jitter_spreads(seed in any::<u64>()) {
            let entropy = SeededEntropy::new(seed);
            let policy = RetryPolicy::default();
            let waits: std::collections::BTreeSet<_> = (0..100).map(|_| policy.wait(1, &entropy)).collect();
            prop_assert!(waits.len() > 90);
        }
    }
}
