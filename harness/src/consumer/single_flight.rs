//! Twins inside one process: the second one is turned away before it takes a connection.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::ids::JobId;

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
        running.insert(job).then_some(Flight { flights: self, job })
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
