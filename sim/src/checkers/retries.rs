//! S5 and S6: how often and when a job runs, counted from what the world saw, not from what the harness says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::{JobId, Receipt, RetryPolicy, RunResult, Step};

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

#[derive(Debug, Default)]
struct Runs {
    copies: u32,
    started: u32,
    /// Ended in a way that does not count: contention, an outage, a shutdown.
    uncounted: u32,
    proof: Vec<usize>,
}

/// At most as many counted runs per copy of a generation as the policy allows, crashed ones included.
pub(super) struct BoundedRuns {
    most: u32,
    runs: BTreeMap<(JobId, u32), Runs>,
    /// Deliveries whose handler worked; their commit may still meet contention.
    worked: BTreeSet<Receipt>,
    /// Deliveries in batches, and how often their jobs were run before.
    batched: BTreeMap<Receipt, u32>,
}

impl BoundedRuns {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            most: known.retry.max_runs(),
            runs: BTreeMap::new(),
            worked: BTreeSet::new(),
            batched: BTreeMap::new(),
        }
    }
}

impl Check for BoundedRuns {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        match &entry.said {
            Said::World(Fact::Published {
                job, generation, ..
            }) => self.runs.entry((*job, *generation)).or_default().copies += 1,
            Said::World(Fact::Ran {
                job, generation, ..
            }) => {
                let runs = self.runs.entry((*job, *generation)).or_default();
                runs.started += 1;
                runs.proof.push(n);
                // The run that just started may turn out not to count: it is judged by those before it.
                let before = (runs.started - 1).saturating_sub(runs.uncounted);
                let most = self.most * runs.copies;
                if before >= most {
                    let what = format!(
                        "a run of generation {generation} started after {before} that counted; {} copies allow {most}",
                        runs.copies
                    );
                    found.push(Found::about(*job, runs.proof.clone(), what));
                }
            }
            Said::Harness(event) => {
                let Some(job) = &event.job else { return };
                let place = (job.id, job.generation);
                let started =
                    |runs: &BTreeMap<_, Runs>| runs.get(&place).map_or(0, |runs| runs.started);
                let uncounted = match (&event.step, &job.delivery) {
                    (Step::BatchStarted { .. }, Some(delivery)) => {
                        let before = started(&self.runs);
                        self.batched.insert(delivery.clone(), before);
                        false
                    }
                    // Its handler may not have come to it before the batch failed.
                    (Step::LeftBatch { .. }, Some(delivery)) => {
                        let before = self.batched.remove(delivery);
                        before.is_some_and(|before| started(&self.runs) > before)
                    }
                    (Step::RunEnded { result, .. }, Some(delivery)) => match result {
                        RunResult::Worked => {
                            self.worked.insert(delivery.clone());
                            false
                        }
                        RunResult::Failed { ending, .. } => !ending.rule().counts,
                    },
                    // With its lease lost nobody says what became of the commit: it may be contention.
                    (Step::Deferred { .. } | Step::LeaseLost, Some(delivery)) => {
                        self.worked.remove(delivery)
                    }
                    (_, Some(delivery)) => {
                        self.worked.remove(delivery);
                        false
                    }
                    _ => false,
                };
                if uncounted {
                    let runs = self.runs.entry(place).or_default();
                    runs.uncounted += 1;
                }
            }
            Said::World(_) => {}
        }
    }
}

/// After counted run k a message stays away for at least `base * 2^(k-1)`, longer than after the run before, until the cap;
/// and the broker does not hand it out earlier.
pub(super) struct GrowingWaits {
    policy: RetryPolicy,
    duplicates: bool,
    /// By message: the last counted wait, its delivery, when it ends, and where it was asked for.
    waits: BTreeMap<u64, (Duration, u64, Duration, usize)>,
}

impl GrowingWaits {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            policy: known.retry.clone(),
            duplicates: known.broker_duplicates,
            waits: BTreeMap::new(),
        }
    }
}

impl Check for GrowingWaits {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        match &entry.said {
            Said::World(Fact::GivenBack {
                message,
                job,
                delivery,
                counted: true,
                delay,
                ..
            }) => {
                let run = u32::try_from(*delivery).unwrap_or(u32::MAX);
                let (least, most) = (
                    self.policy.shortest_wait(run),
                    self.policy.longest_wait(run),
                );
                let before = self
                    .waits
                    .insert(*message, (*delay, *delivery, entry.at + *delay, n));
                if *delay < least || *delay > most {
                    let what = format!(
                        "after run {run} it waits {delay:?}, which is not within {least:?} and {most:?}"
                    );
                    found.push(Found::about(*job, [n], what));
                } else if let Some((shorter, earlier, _, place)) = before
                    && earlier < *delivery
                    && *delay <= shorter
                    && least < self.policy.longest_wait(u32::MAX)
                    && *delay < self.policy.longest_wait(u32::MAX)
                {
                    let what =
                        format!("after run {run} it waits {delay:?}, before it was {shorter:?}");
                    found.push(Found::about(*job, [place, n], what));
                }
            }
            Said::World(Fact::Delivered { message, job, .. }) => {
                if let Some((_, _, until, place)) = self.waits.get(message)
                    && entry.at < *until
                    && !self.duplicates
                {
                    let what = "a message that waits for its next run was handed out early";
                    found.push(Found::about(*job, [*place, n], what));
                }
            }
            _ => {}
        }
    }
}
