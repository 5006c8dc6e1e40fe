//! The invariants, each a named check of its own over one history. A check is told every entry as it is written, and once
//! that the history ended; it knows nothing but the plan and what it was told, so a stored history can be checked again.

mod alerts;
mod effects;
mod leases;
mod letters;
mod outcomes;
mod protocol;
mod retries;
mod settles;
mod sweeps;

use std::fmt;

use harness::{JobId, RetryPolicy};
use serde::Serialize;

use crate::history::{Entry, Fact, Said};
use crate::jobs::id_of;
use crate::plan::{Behaviour, Plan};

/// A broken invariant, with the events that prove it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// The job, if it is about one.
    pub job: Option<JobId>,
    /// What is wrong.
    pub what: String,
    /// Entries of the history, by number.
    pub proof: Vec<usize>,
}

impl Violation {
    /// Whether something did not happen, rather than something happened that must not.
    pub fn is_liveness(&self) -> bool {
        self.invariant.starts_with('L')
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)?;
        if let Some(job) = self.job {
            write!(f, " (job {job})")?;
        }
        Ok(())
    }
}

/// What a check finds, before it gets the check's name.
struct Found {
    job: Option<JobId>,
    what: String,
    proof: Vec<usize>,
}

impl Found {
    fn about(job: JobId, proof: impl Into<Vec<usize>>, what: impl Into<String>) -> Self {
        Self {
            job: Some(job),
            what: what.into(),
            proof: proof.into(),
        }
    }

    fn at(proof: impl Into<Vec<usize>>, what: impl Into<String>) -> Self {
        Self {
            job: None,
            what: what.into(),
            proof: proof.into(),
        }
    }
}

/// One invariant.
trait Check: Send {
    /// Entry number `n`.
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>);

    /// There are no more entries.
    fn end(&mut self, _found: &mut Vec<Found>) {}
}

/// What checks know beforehand.
#[derive(Debug, Clone)]
struct Known {
    /// Jobs of the plan, and how they behave.
    jobs: std::collections::BTreeMap<JobId, Behaviour>,
    retry: RetryPolicy,
    retry_window: std::time::Duration,
    alert_window: std::time::Duration,
    escalate_after: std::time::Duration,
    escalate_window: std::time::Duration,
    broker_duplicates: bool,
}

impl Known {
    fn of(plan: &Plan) -> anyhow::Result<Self> {
        let (config, queue) = (crate::world::config(plan)?, crate::world::queue()?);
        Ok(Self {
            jobs: plan
                .jobs
                .iter()
                .map(|job| (id_of(job, &queue), job.behaviour))
                .collect(),
            retry_window: harness::FencePolicy::retry_window(&config.retry, config.run_deadline),
            retry: config.retry,
            alert_window: std::time::Duration::from_secs(plan.knobs.alert_window_s),
            escalate_after: std::time::Duration::from_secs(plan.knobs.escalate_after_s),
            escalate_window: std::time::Duration::from_secs(plan.knobs.escalate_window_s),
            broker_duplicates: plan.knobs.broker_duplicates_per_mille > 0,
        })
    }
}

/// All invariants over one history.
pub struct Checkers {
    checks: Vec<(&'static str, Box<dyn Check>)>,
    seen: usize,
    violations: Vec<Violation>,
    ended: bool,
}

impl Checkers {
    /// For one plan.
    ///
    /// # Errors
    /// When the plan cannot be run.
    pub fn new(plan: &Plan) -> anyhow::Result<Self> {
        let known = Known::of(plan)?;
        let checks: Vec<(&'static str, Box<dyn Check>)> = vec![
            ("S1 one effect", Box::new(effects::OneEffect::new(&known))),
            ("S2 atomic fence", Box::new(effects::AtomicFence)),
            (
                "S3 nothing vanishes",
                Box::new(outcomes::NothingVanishes::default()),
            ),
            ("S4 one outcome", Box::new(outcomes::OneOutcome::default())),
            (
                "S5 bounded runs",
                Box::new(retries::BoundedRuns::new(&known)),
            ),
            (
                "S6 growing waits",
                Box::new(retries::GrowingWaits::new(&known)),
            ),
            ("S7 poison", Box::new(letters::Poison::new(&known))),
            ("S8 append-only", Box::new(letters::AppendOnly::default())),
            ("S9 alerted", Box::new(alerts::Alerted::new(&known))),
            ("S10 safe sweep", Box::new(sweeps::SafeSweep::new(&known))),
            (
                "S11 no success rows",
                Box::new(letters::NoSuccessRows::default()),
            ),
            (
                "S12 quiet duplicates",
                Box::new(letters::QuietDuplicates::default()),
            ),
            ("H1 leases are kept", Box::new(leases::Kept::new(&known))),
            (
                "C1 follows the model",
                Box::new(protocol::FollowsTheModel::default()),
            ),
            ("L1 settles", Box::new(settles::Settles::new(&known))),
        ];
        Ok(Self {
            checks,
            seen: 0,
            violations: Vec::new(),
            ended: false,
        })
    }

    /// Names of all invariants that are checked.
    pub fn names(&self) -> Vec<&'static str> {
        self.checks.iter().map(|(name, _)| *name).collect()
    }

    /// How many entries were seen.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Looks at what was written since. True when there is no need to go on: the history ended, or something is broken.
    pub fn see(&mut self, new: &[Entry]) -> bool {
        for entry in new {
            let n = self.seen;
            self.seen += 1;
            for (name, check) in &mut self.checks {
                let mut found = Vec::new();
                check.see(n, entry, &mut found);
                self.violations.extend(named(name, found));
            }
            self.ended |= matches!(
                entry.said,
                Said::World(Fact::Settled | Fact::Unsettled { .. })
            );
        }
        self.ended || !self.violations.is_empty()
    }

    /// There are no more entries. What never came is broken only in a history that came to its end.
    pub fn end(mut self) -> Vec<Violation> {
        if self.ended {
            for (name, check) in &mut self.checks {
                let mut found = Vec::new();
                check.end(&mut found);
                self.violations.extend(named(name, found));
            }
        }
        self.violations
    }
}

fn named(name: &'static str, found: Vec<Found>) -> impl Iterator<Item = Violation> {
    found.into_iter().map(move |found| Violation {
        invariant: name,
        job: found.job,
        what: found.what,
        proof: found.proof,
    })
}

/// Checks a whole history.
///
/// # Errors
/// When the plan cannot be run.
pub fn check(plan: &Plan, entries: &[Entry]) -> anyhow::Result<Vec<Violation>> {
    let mut checkers = Checkers::new(plan)?;
    checkers.see(entries);
    Ok(checkers.end())
}
