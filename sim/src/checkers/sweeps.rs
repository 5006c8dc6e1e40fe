//! S10: a fence stays as long as its job can still come back.

use std::time::Duration;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

/// No fence goes while a copy of its job is queued, while a dead letter of its job may still be replayed, or before the
/// retry window is over, whatever its `expires_at` says. (That due ones do go is part of L1.)
pub(super) struct SafeSweep {
    retry_window: Duration,
}

impl SafeSweep {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            retry_window: known.retry_window,
        }
    }
}

impl Check for SafeSweep {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::World(Fact::FenceSwept {
            key,
            age,
            copies_queued,
            letters_pending,
        }) = &entry.said
        else {
            return;
        };
        if *copies_queued > 0 {
            let what =
                format!("a fence was swept while {copies_queued} copies of its job were queued");
            found.push(Found::about(key.0, [n], what));
        }
        if *letters_pending > 0 {
            let what = "a fence was swept while a dead letter of its job could still be replayed";
            found.push(Found::about(key.0, [n], what));
        }
        if *age <= self.retry_window {
            let what = format!(
                "a fence {age:?} old was swept, the retry window is {:?}",
                self.retry_window
            );
            found.push(Found::about(key.0, [n], what));
        }
    }
}
