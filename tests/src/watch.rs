//! An observer that remembers every step and lets tests wait for one.

use std::sync::{Arc, Mutex, PoisonError};

use harness::{Event, JobId, Observer, Step};

use crate::clock::eventually;

/// Remembers every event of the components that it watches.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Observer for Recorder {
    fn event(&self, event: &Event) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event.clone());
    }
}

impl Recorder {
    /// Everything so far.
    pub fn events(&self) -> Vec<Event> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Everything so far that is about one job.
    pub fn steps_of(&self, job: JobId) -> Vec<Step> {
        self.events()
            .into_iter()
            .filter(|event| event.job.as_ref().is_some_and(|it| it.id == job))
            .map(|event| event.step)
            .collect()
    }

    /// How many steps so far are such.
    pub fn count(&self, such: impl Fn(&Step) -> bool) -> usize {
        self.events()
            .iter()
            .filter(|event| such(&event.step))
            .count()
    }

    /// Waits until at least `n` steps are such.
    pub async fn wait_for(&self, what: &str, n: usize, such: impl Fn(&Step) -> bool) {
        eventually(what, async || match self.count(&such) {
            seen if seen >= n => Ok(()),
            seen => Err(format!("{seen} of {n}; all steps: {:#?}", self.tail())),
        })
        .await;
    }

    /// The last steps, for messages.
    fn tail(&self) -> Vec<Step> {
        let events = self.events();
        events
            .into_iter()
            .rev()
            .take(30)
            .rev()
            .map(|event| event.step)
            .collect()
    }
}
