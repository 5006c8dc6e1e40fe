//! An observer that remembers every step, lets tests wait for one, and holds all of them against the lifecycle model.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness::{Event, JobId, Observer, Step};
use models::lifecycle::conform::{Conformance, Refusal};

use crate::clock::eventually;

/// Remembers every event of the components that it watches.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    events: Vec<Event>,
    model: Conformance,
    /// What the model does not allow.
    refusals: Vec<Refusal>,
}

impl Observer for Recorder {
    fn event(&self, event: &Event) {
        let mut seen = self.seen();
        seen.events.push(event.clone());
        if let Err(refusal) = seen.model.see("the consumer", event) {
            seen.refusals.push(refusal);
        }
    }
}

impl Recorder {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything so far. No test may look at what the model does not allow: it fails here.
    #[track_caller]
    pub fn events(&self) -> Vec<Event> {
        let seen = self.seen();
        if let Some(refusal) = seen.refusals.first() {
            let refusal = refusal.to_string();
            drop(seen);
            panic!("the lifecycle model does not allow what happened: {refusal}");
        }
        seen.events.clone()
    }

    /// Everything that was received was answered, and the model allows all of it.
    #[track_caller]
    pub fn all_answered(&self) {
        let _ = self.events();
        let unanswered = self.seen().model.unanswered();
        assert!(unanswered.is_empty(), "never answered: {unanswered:?}");
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
