//! S1 and S2: what handlers did, and the fences beside it.

use std::collections::{BTreeMap, BTreeSet};

use harness::JobId;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Key, Said};

/// At most one effect per job and consumer, for ever; and none of a job that nobody sent, for that is a second effect under
/// another name.
pub(super) struct OneEffect {
    planned: BTreeSet<JobId>,
    effects: BTreeMap<Key, (u32, Vec<usize>)>,
}

impl OneEffect {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            planned: known.jobs.keys().copied().collect(),
            effects: BTreeMap::new(),
        }
    }
}

impl Check for OneEffect {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        match &entry.said {
            Said::World(Fact::Committed { key, effects, .. }) if *effects > 0 => {
                let (sum, proof) = self.effects.entry(key.clone()).or_default();
                *sum += effects;
                proof.push(n);
                if *sum > 1 {
                    found.push(Found::about(key.0, proof.clone(), format!("{sum} effects")));
                }
            }
            Said::World(Fact::Published { job, .. }) if !self.planned.contains(job) => {
                let what = "a message has a job id that no producer gave: its effect would be another one's second";
                found.push(Found::about(*job, [n], what));
            }
            _ => {}
        }
    }
}

/// An effect is committed with its fence, and a fence with its effect.
pub(super) struct AtomicFence;

impl Check for AtomicFence {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::World(Fact::Committed {
            key,
            effects,
            fence,
            ..
        }) = &entry.said
        else {
            return;
        };
        let what = match (*effects > 0, fence) {
            (true, false) => "an effect was committed without its fence",
            (false, true) => "a fence was committed without its effect",
            _ => return,
        };
        found.push(Found::about(key.0, [n], what));
    }
}
