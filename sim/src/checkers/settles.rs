//! L1: after all faults healed, everything settles.

use std::collections::BTreeMap;

use harness::JobId;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

/// Every planned job that its producer did not give up was published and has an outcome, nothing is queued, every alert is delivered, every due fence is
/// gone.
pub(super) struct Settles {
    /// Planned jobs without an outcome, and where they were published.
    open: BTreeMap<JobId, Vec<usize>>,
    unsettled: bool,
}

impl Settles {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            open: known.jobs.keys().map(|job| (*job, Vec::new())).collect(),
            unsettled: false,
        }
    }
}

impl Check for Settles {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        match &entry.said {
            Said::World(Fact::Published { job, .. }) => {
                if let Some(places) = self.open.get_mut(job) {
                    places.push(n);
                }
            }
            // What was never published needs no outcome.
            Said::World(Fact::GaveUp { job }) if self.open.get(job).is_some_and(Vec::is_empty) => {
                self.open.remove(job);
            }
            Said::World(Fact::Committed { key, .. } | Fact::LetterWritten { key, .. }) => {
                self.open.remove(&key.0);
            }
            Said::World(Fact::Unsettled { what }) => {
                self.unsettled = true;
                found.push(Found::at([n], what.clone()));
            }
            _ => {}
        }
    }

    fn end(&mut self, found: &mut Vec<Found>) {
        if self.unsettled {
            return;
        }
        for (job, places) in &self.open {
            found.push(Found::about(
                *job,
                places.clone(),
                "settled without an outcome",
            ));
        }
    }
}
