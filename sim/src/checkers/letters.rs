//! S7, S8, S11, S12: what dead letters are for, and what they are not for.

use std::collections::{BTreeMap, BTreeSet};

use harness::{DeadLetterId, FenceVerdict, JobId, Reason, Step};

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Key, Said};
use crate::plan::Behaviour;

/// What can never be valid is not run and not retried: one dead letter, one attempt. What has no headers gets some when it
/// is replayed.
pub(super) struct Poison {
    jobs: BTreeMap<JobId, Behaviour>,
}

impl Poison {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            jobs: known.jobs.clone(),
        }
    }

    fn is_poison(&self, job: &JobId, generation: u32) -> bool {
        let behaviour = self.jobs.get(job);
        behaviour.is_some_and(|behaviour| behaviour.is_poison(generation))
    }
}

impl Check for Poison {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::World(fact) = &entry.said else {
            return;
        };
        match fact {
            Fact::Ran {
                job, generation, ..
            } if self.is_poison(job, *generation) => {
                found.push(Found::about(*job, [n], "a poison message was run"));
            }
            Fact::GivenBack {
                job,
                generation,
                counted: true,
                ..
            } if self.is_poison(job, *generation) => {
                found.push(Found::about(*job, [n], "a poison message was retried"));
            }
            Fact::LetterWritten {
                key,
                generation,
                reason,
                attempts,
                ..
            } => {
                let poison = self.is_poison(&key.0, *generation);
                if poison != (*reason == Reason::Poison) || (poison && *attempts != 1) {
                    let what = format!("its dead letter says {reason:?} after {attempts} attempts");
                    found.push(Found::about(key.0, [n], what));
                }
            }
            _ => {}
        }
    }
}

/// A dead letter is decided at most once, and a discard has a reason.
#[derive(Default)]
pub(super) struct AppendOnly {
    decided: BTreeMap<DeadLetterId, usize>,
}

impl Check for AppendOnly {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let id = match &entry.said {
            Said::World(Fact::LetterReplayed { id }) => *id,
            Said::World(Fact::LetterDiscarded { id, reason }) => {
                // Not with the harness's own rule: that is what is checked.
                let visible = |c: char| {
                    !c.is_whitespace() && !c.is_control() && !('\u{200b}'..='\u{200f}').contains(&c)
                };
                if !reason.chars().any(visible) {
                    let what = format!("dead letter {id} was discarded for no reason: {reason:?}");
                    found.push(Found::at([n], what));
                }
                *id
            }
            _ => return,
        };
        if let Some(before) = self.decided.insert(id, n) {
            found.push(Found::at(
                [before, n],
                format!("dead letter {id} was decided twice"),
            ));
        }
    }
}

/// A success leaves its fence and its effect: a job that was applied in its first generation has no dead letter.
#[derive(Default)]
pub(super) struct NoSuccessRows {
    applied: BTreeMap<Key, usize>,
    lettered: BTreeMap<Key, usize>,
}

impl Check for NoSuccessRows {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        match &entry.said {
            Said::World(Fact::Committed {
                key, generation: 0, ..
            }) => {
                self.applied.insert(key.clone(), n);
                if let Some(before) = self.lettered.get(key) {
                    let what = "a job that has a dead letter was applied without a replay";
                    found.push(Found::about(key.0, [*before, n], what));
                }
            }
            Said::World(Fact::LetterWritten { key, .. }) => {
                self.lettered.insert(key.clone(), n);
                if let Some(before) = self.applied.get(key) {
                    let what = "a job that was applied has a dead letter";
                    found.push(Found::about(key.0, [*before, n], what));
                }
            }
            _ => {}
        }
    }
}

/// A duplicate is acknowledged and counted, nothing else: no dead letter, no run, and no attempt to write one.
#[derive(Default)]
pub(super) struct QuietDuplicates {
    applied: BTreeMap<Key, usize>,
    /// By host and job: the fence said that it was applied.
    known: BTreeSet<(String, JobId)>,
    /// By host and job: deliveries that were not answered yet, oldest first.
    held: BTreeMap<(String, JobId), Vec<usize>>,
}

impl QuietDuplicates {
    fn see_step(&mut self, n: usize, place: (String, JobId), step: &Step) -> Option<Found> {
        match step {
            Step::Fence {
                verdict: FenceVerdict::Duplicate,
                ..
            } => {
                self.known.insert(place);
            }
            Step::Received { .. } => {
                self.known.remove(&place);
                self.held.entry(place).or_default().push(n);
            }
            Step::RunStarted { .. } if self.known.contains(&place) => {
                return Some(Found::about(place.1, [n], "a duplicate was run"));
            }
            Step::DeadLetterApplied => {
                // It may be applied while this delivery runs, but not before it came.
                let oldest = *self.held.get(&place)?.first()?;
                let mut applied = self.applied.iter();
                let (_, before) = applied.find(|(key, _)| key.0 == place.1)?;
                if *before < oldest {
                    let what = "a duplicate was taken for a failure";
                    return Some(Found::about(place.1, [*before, oldest, n], what));
                }
            }
            // Nobody asks the fence about what cannot be read.
            Step::Poison { .. } | Step::Acked | Step::Retried { .. } | Step::Deferred { .. } => {
                // Which of several was answered is not said: the oldest is kept, which excuses most.
                if let Some(held) = self.held.get_mut(&place) {
                    held.pop();
                }
            }
            _ => {}
        }
        None
    }
}

impl Check for QuietDuplicates {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        match &entry.said {
            Said::World(Fact::Committed { key, effects, .. }) if *effects > 0 => {
                self.applied.insert(key.clone(), n);
            }
            Said::World(Fact::LetterWritten { key, .. }) => {
                if let Some(before) = self.applied.get(key) {
                    let what = "a duplicate was dead-lettered";
                    found.push(Found::about(key.0, [*before, n], what));
                }
            }
            Said::Harness(event) => match (&event.step, &event.job) {
                // A process that starts holds nothing.
                (Step::Started { .. }, _) => {
                    self.held.retain(|(host, _), _| *host != entry.host);
                }
                (step, Some(job)) => {
                    let place = (entry.host.to_string(), job.id);
                    found.extend(self.see_step(n, place, step));
                }
                _ => {}
            },
            Said::World(_) => {}
        }
    }
}

/// The reasons that operators may give are checked with another rule than the one under test; this keeps the two in step
/// where they must agree.
#[cfg(test)]
mod tests {
    use harness::DiscardReason;

    #[test]
    fn b8_the_harness_refuses_what_is_no_reason() {
        for bad in ["", " ", "\t\n", "\u{200b}"] {
            assert!(DiscardReason::new(bad).is_err(), "{bad:?}");
        }
    }
}
