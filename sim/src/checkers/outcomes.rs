//! S3 and S4: every job's outcome, durable before the message is gone, and only one.

use std::collections::{BTreeMap, BTreeSet};

use harness::{DeadLetterId, JobId};

use super::{Check, Found};
use crate::history::{Entry, Fact, Key, Said};

/// A message is removed only after its outcome is durable: applied, dead-lettered, or its generation cannot matter any
/// more because the one before was discarded.
#[derive(Default)]
pub(super) struct NothingVanishes {
    applied: BTreeSet<JobId>,
    dead: BTreeSet<(JobId, u32)>,
    letters: BTreeMap<DeadLetterId, (JobId, u32)>,
    discarded: BTreeSet<(JobId, u32)>,
}

impl Check for NothingVanishes {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::World(fact) = &entry.said else {
            return;
        };
        match fact {
            Fact::Committed { key, effects, .. } if *effects > 0 => {
                self.applied.insert(key.0);
            }
            Fact::LetterWritten {
                id,
                key,
                generation,
                ..
            } => {
                self.dead.insert((key.0, *generation));
                self.letters.insert(*id, (key.0, *generation));
            }
            Fact::LetterDiscarded { id, .. } => {
                self.discarded.extend(self.letters.get(id));
            }
            Fact::Removed {
                message,
                job,
                generation,
            } => {
                let settled = self.applied.contains(job)
                    || self.dead.contains(&(*job, *generation))
                    || (generation.checked_sub(1))
                        .is_some_and(|before| self.discarded.contains(&(*job, before)));
                if !settled {
                    let what = format!(
                        "message {message} was acknowledged before its outcome was durable"
                    );
                    found.push(Found::about(*job, [n], what));
                }
            }
            _ => {}
        }
    }
}

/// Per job, consumer and generation: applied or dead-lettered, once. And what was applied once is not dead-lettered in
/// another generation.
#[derive(Default)]
pub(super) struct OneOutcome {
    outcomes: BTreeMap<(Key, u32), Vec<usize>>,
}

impl Check for OneOutcome {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let (key, generation) = match &entry.said {
            Said::World(
                Fact::Committed {
                    key, generation, ..
                }
                | Fact::LetterWritten {
                    key, generation, ..
                },
            ) => (key, *generation),
            _ => return,
        };
        let proof = self.outcomes.entry((key.clone(), generation)).or_default();
        proof.push(n);
        if proof.len() > 1 {
            let what = format!("{} outcomes of generation {generation}", proof.len());
            found.push(Found::about(key.0, proof.clone(), what));
        }
    }
}
