//! H1: in a world where nothing went wrong yet, a lease is kept for as long as its message is held.
//!
//! No safety rests on leases (the fence holds without them), so this is no invariant of the design. It is checked because
//! nothing else would notice a consumer that lets its leases run out: only work and time are lost.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::JobId;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

#[derive(Debug)]
struct Lease {
    job: JobId,
    ends: Duration,
    place: usize,
}

/// No lease runs out before its delivery was answered.
pub(super) struct Kept {
    /// A fault began, or the broker hands messages out twice: from here on leases may be lost.
    excused: bool,
    held: BTreeMap<u64, Lease>,
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
        let message = match &entry.said {
            Said::World(Fact::FaultBegan { .. }) => {
                self.excused = true;
                return;
            }
            Said::World(
                Fact::Delivered { message, .. }
                | Fact::Extended { message, .. }
                | Fact::Removed { message, .. }
                | Fact::GivenBack { message, .. },
            ) => message,
            _ => return,
        };
        // Whatever happens to a message that is held, its lease must not have run out before.
        if let Some(lease) = self.held.get(message)
            && lease.ends < entry.at
        {
            let what = format!("the lease of message {message} ran out while it was held");
            found.push(Found::about(lease.job, [lease.place, n], what));
        }
        match &entry.said {
            Said::World(Fact::Delivered { job, lease, .. }) => {
                let lease = Lease {
                    job: *job,
                    ends: entry.at + *lease,
                    place: n,
                };
                self.held.insert(*message, lease);
            }
            Said::World(Fact::Extended { lease, .. }) => {
                if let Some(held) = self.held.get_mut(message) {
                    held.ends = entry.at + *lease;
                }
            }
            _ => {
                self.held.remove(message);
            }
        }
    }
}
