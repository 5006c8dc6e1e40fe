//! H1: in a world where nothing went wrong yet, a lease is kept for as long as its message is held.
//!
//! No safety rests on leases (the fence holds without them), so this is no invariant of the design. It is checked because
//! nothing else would notice a consumer that lets its leases run out: only work and time are lost.

use std::collections::BTreeMap;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

/// No message is handed out a second time before its first delivery was answered.
pub(super) struct Kept {
    /// A fault began, or the broker hands messages out twice: from here on leases may be lost.
    excused: bool,
    held: BTreeMap<u64, usize>,
}

impl Kept {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            excused: known.broker_duplicates,
            held: BTreeMap::new(),
        }
    }
}

impl Check for Kept {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        if self.excused {
            return;
        }
        match &entry.said {
            Said::World(Fact::FaultBegan { .. }) => self.excused = true,
            Said::World(Fact::Delivered { message, job, .. }) => {
                if let Some(before) = self.held.insert(*message, n) {
                    let what = format!("message {message} was handed out again while it was held");
                    found.push(Found::about(*job, [before, n], what));
                }
            }
            Said::World(Fact::Removed { message, .. } | Fact::GivenBack { message, .. }) => {
                self.held.remove(message);
            }
            _ => {}
        }
    }
}
