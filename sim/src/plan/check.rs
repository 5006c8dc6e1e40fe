//! What a plan may say: hosts that there are, and numbers that a world can have.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use super::{FaultKind, Plan};

/// Far more than any world lasts, far less than what sums of it could overflow.
const YEARS_S: u64 = 10 * 365 * 86_400;
const YEARS_MS: u64 = YEARS_S * 1_000;
const DAY_MS: u64 = 86_400_000;

/// # Errors
/// When `value` is not in `range`; the error names the field.
fn within(field: &str, value: u64, range: RangeInclusive<u64>) -> anyhow::Result<()> {
    let (least, most) = (range.start(), range.end());
    anyhow::ensure!(
        range.contains(&value),
        "{field}: must be {least} to {most}, is {value}"
    );
    Ok(())
}

impl Plan {
    /// # Errors
    /// When it names what there is not, or a setting that a world cannot have; the error names the field.
    pub fn check(&self) -> anyhow::Result<()> {
        self.check_knobs()?;
        self.check_jobs()?;
        self.check_faults()?;
        crate::world::config(self).map(|_| ())
    }

    fn check_knobs(&self) -> anyhow::Result<()> {
        let it = &self.knobs;
        for (knob, value, range) in [
            ("workers", it.workers as u64, 1..=3),
            ("latency_ms", it.latency_ms, 0..=DAY_MS),
            ("concurrency", it.concurrency as u64, 1..=1_000),
            ("prefetch", it.prefetch as u64, 0..=1_000),
            ("batch", it.batch as u64, 1..=1_000),
            ("lease_s", it.lease_s, 1..=YEARS_S),
            ("run_deadline_s", it.run_deadline_s, 1..=YEARS_S),
            ("fence_wait_ms", it.fence_wait_ms, 0..=YEARS_MS),
            ("retries", it.retries.into(), 0..=1_000),
            ("retry_base_s", it.retry_base_s, 1..=YEARS_S),
            ("retry_cap_s", it.retry_cap_s, 1..=YEARS_S),
            ("ttl_extra_s", it.ttl_extra_s, 0..=YEARS_S),
            ("broker_retention_s", it.broker_retention_s, 0..=YEARS_S),
            ("resend_horizon_s", it.resend_horizon_s, 0..=YEARS_S),
            ("margin_s", it.margin_s, 0..=YEARS_S),
            ("sweep_interval_s", it.sweep_interval_s, 1..=YEARS_S),
            ("sweep_batch", it.sweep_batch.into(), 1..=1_000_000),
            ("poll_interval_s", it.poll_interval_s, 1..=YEARS_S),
            ("outage_backoff_cap_s", it.outage_backoff_cap_s, 1..=YEARS_S),
            ("alert_window_s", it.alert_window_s, 0..=YEARS_S),
            ("escalate_after_s", it.escalate_after_s, 0..=YEARS_S),
            ("escalate_window_s", it.escalate_window_s, 0..=YEARS_S),
            ("contention_per_mille", it.contention_per_mille, 0..=1_000),
            (
                "broker_duplicates_per_mille",
                it.broker_duplicates_per_mille,
                0..=1_000,
            ),
            (
                "broker_ahead_s",
                it.broker_ahead_s.unsigned_abs(),
                0..=YEARS_S,
            ),
            (
                "alert_refusals_per_mille",
                it.alert_refusals_per_mille,
                0..=1_000,
            ),
            ("review_interval_s", it.review_interval_s, 1..=YEARS_S),
            ("replay_percent", it.replay_percent, 0..=100),
            ("discard_percent", it.discard_percent, 0..=100),
        ] {
            within(&format!("knobs.{knob}"), value, range)?;
        }
        Ok(())
    }

    fn check_jobs(&self) -> anyhow::Result<()> {
        let mut ids = BTreeSet::new();
        for (n, job) in self.jobs.iter().enumerate() {
            anyhow::ensure!(
                ids.insert(job.id),
                "jobs[{n}].id: {} is there already",
                job.id
            );
            within(
                &format!("jobs[{n}].publish_at_ms"),
                job.publish_at_ms,
                0..=YEARS_MS,
            )?;
            for after in &job.resend_after_ms {
                within(&format!("jobs[{n}].resend_after_ms"), *after, 0..=YEARS_MS)?;
            }
            within(&format!("jobs[{n}].work_ms"), job.work_ms, 0..=YEARS_MS)?;
        }
        Ok(())
    }

    fn check_faults(&self) -> anyhow::Result<()> {
        let known = crate::world::hosts(self);
        for (n, fault) in self.faults.iter().enumerate() {
            within(&format!("faults[{n}].at_ms"), fault.at_ms, 0..=YEARS_MS)?;
            within(
                &format!("faults[{n}].lasts_ms"),
                fault.lasts_ms,
                0..=YEARS_MS,
            )?;
            let kind = format!("faults[{n}].kind");
            match &fault.kind {
                FaultKind::Loss(per_mille) => within(&kind, *per_mille, 0..=1_000)?,
                FaultKind::Slow(millis) => within(&kind, *millis, 0..=DAY_MS)?,
                FaultKind::ClockJump(_, seconds) => {
                    within(&kind, seconds.unsigned_abs(), 0..=YEARS_S)?;
                }
                FaultKind::Cut { nth, .. } => within(&kind, *nth, 1..=u64::MAX)?,
                FaultKind::Partition(one, other) | FaultKind::PartitionOneWay(one, other) => {
                    anyhow::ensure!(one != other, "{kind}: {one:?} is always with itself");
                }
                _ => {}
            }
            for host in fault.kind.hosts() {
                anyhow::ensure!(
                    known.contains(&host),
                    "{kind}: there is no host {host:?}, there are {}",
                    known.join(", ")
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::FaultPlan;

    fn refused(change: impl FnOnce(&mut Plan)) -> String {
        let mut plan = Plan::draw(1, 3);
        plan.check().unwrap();
        change(&mut plan);
        format!("{:#}", plan.check().unwrap_err())
    }

    /// Each of these once added up to a panic.
    #[test]
    fn sim_numbers_that_no_world_can_have_are_refused_by_name() {
        let error = refused(|plan| plan.knobs.retries = u32::MAX);
        assert!(error.starts_with("knobs.retries: "), "{error}");
        let error = refused(|plan| plan.knobs.broker_retention_s = u64::MAX);
        assert!(error.starts_with("knobs.broker_retention_s: "), "{error}");
        let error = refused(|plan| plan.knobs.broker_ahead_s = i64::MIN);
        assert!(error.starts_with("knobs.broker_ahead_s: "), "{error}");
        let error = refused(|plan| plan.jobs[1].publish_at_ms = u64::MAX);
        assert!(error.starts_with("jobs[1].publish_at_ms: "), "{error}");
        let error = refused(|plan| plan.jobs[1].id = plan.jobs[0].id);
        assert!(error.starts_with("jobs[1].id: "), "{error}");
        let fault = |kind| FaultPlan {
            at_ms: 0,
            lasts_ms: 1,
            kind,
        };
        for kind in [
            FaultKind::Kill("worker9".to_owned()),
            FaultKind::ClockJump("worker0".to_owned(), i64::MIN),
            FaultKind::Partition("clerk".to_owned(), "clerk".to_owned()),
        ] {
            let error = refused(|plan| plan.faults = vec![fault(kind)]);
            assert!(error.starts_with("faults[0].kind: "), "{error}");
        }
    }

    #[test]
    fn sim_what_is_drawn_can_be_run() {
        for seed in 0..500 {
            Plan::draw(seed, 5).check().unwrap();
        }
    }
}
