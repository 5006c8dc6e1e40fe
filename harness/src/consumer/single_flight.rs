//! Twins inside one process: the second one is turned away before it takes a connection.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use crate::ids::JobId;
use crate::sync::Mutex;

/// The jobs that are running in this process.
#[derive(Debug, Default)]
pub(super) struct SingleFlight(Mutex<BTreeSet<JobId>>);

/// Keeps others out until dropped.
#[derive(Debug)]
pub(super) struct Flight<'a> {
    flights: &'a SingleFlight,
    job: JobId,
}

impl SingleFlight {
    /// `None` while the job is running.
    pub(super) fn enter(&self, job: JobId) -> Option<Flight<'_>> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Made only when it is ours: dropping one takes the lock and lets the next run in.
        if running.insert(job) {
            Some(Flight { flights: self, job })
        } else {
            None
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.flights
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a1_a_twin_in_this_process_is_turned_away_until_the_first_has_ended() {
        let flights = SingleFlight::default();
        let job = JobId::from_key(uuid::Uuid::NAMESPACE_OID, "one");
        let other = JobId::from_key(uuid::Uuid::NAMESPACE_OID, "two");
        let first = flights.enter(job).unwrap();
        assert!(flights.enter(job).is_none());
        assert!(
            flights.enter(job).is_none(),
            "being turned away lets nobody in"
        );
        assert!(flights.enter(other).is_some());
        drop(first);
        assert!(flights.enter(job).is_some());
    }
}
