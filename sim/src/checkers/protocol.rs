//! C1: the harness goes only ways that the lifecycle model has.

use harness::Step;
use models::lifecycle::conform::Conformance;

use super::{Check, Found};
use crate::history::{Entry, Said};

/// Every event of every host is a legal move of the model, in the order in which they came.
#[derive(Default)]
pub(super) struct FollowsTheModel {
    model: Conformance,
}

impl Check for FollowsTheModel {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::Harness(event) = &entry.said else {
            return;
        };
        // A process that starts holds nothing of what the one before it held.
        if matches!(event.step, Step::Started { .. }) {
            self.model.ended(&entry.host);
        }
        if let Err(refusal) = self.model.see(&entry.host, event) {
            found.push(Found {
                job: event.job.as_ref().map(|job| job.id),
                what: refusal.to_string(),
                proof: vec![n],
            });
        }
    }
}
