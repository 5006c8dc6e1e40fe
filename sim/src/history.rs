//! What happened, in order: what the harness said, and what the world really did.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{ConsumerName, DeadLetterId, Event, JobId, Observer, Reason};

use crate::timeline::Timeline;

/// A job as one consumer sees it.
pub type Key = (JobId, ConsumerName);

/// What the world did, whatever anybody was told about it.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Fact {
    Published {
        message: u64,
        job: Option<JobId>,
        generation: u32,
    },
    Delivered {
        message: u64,
        delivery: u64,
    },
    /// The broker removed a message; the job's state at that moment.
    Removed {
        message: u64,
        job: Option<JobId>,
        generation: u32,
        settled: bool,
    },
    GivenBack {
        message: u64,
        counted: bool,
        delay: Duration,
    },
    Committed {
        key: Key,
        generation: u32,
        effects: usize,
        fence: bool,
    },
    RolledBack {
        key: Option<Key>,
    },
    LetterWritten {
        id: DeadLetterId,
        key: Key,
        generation: u32,
        reason: Reason,
        attempts: u32,
        applied: bool,
    },
    LetterReplayed {
        id: DeadLetterId,
    },
    LetterDiscarded {
        id: DeadLetterId,
        reason: String,
    },
    FenceSwept {
        key: Key,
        copies_queued: usize,
        age: Duration,
    },
    IncidentAccepted {
        fingerprint: String,
        letters: u64,
    },
    LettersCovered {
        letters: u64,
    },
    Fault(String),
    Jumped {
        by: Duration,
    },
    Healed,
}

/// One entry.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Said {
    Harness(Event),
    World(Fact),
}

/// When, where, what.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Entry {
    pub at: Duration,
    pub host: &'static str,
    pub said: Said,
}

/// The history of one world. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Mutex<Vec<Entry>>>);

impl History {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one entry down.
    pub fn push(&self, at: Duration, host: &'static str, said: Said) {
        self.entries().push(Entry { at, host, said });
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether nothing happened yet.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// Everything so far.
    pub fn all(&self) -> Vec<Entry> {
        self.entries().clone()
    }

    /// Everything so far as text, a line an entry; the same seed gives the same bytes.
    pub fn trace(&self) -> String {
        let mut text = String::new();
        for entry in self.entries().iter() {
            let _ = writeln!(
                text,
                "{:>14.6} {:<8} {:?}",
                entry.at.as_secs_f64(),
                entry.host,
                entry.said
            );
        }
        text
    }
}

/// Writes down what the harness on one host says.
#[derive(Debug, Clone)]
pub struct Recorder {
    history: History,
    timeline: Timeline,
    host: &'static str,
}

impl Recorder {
    /// For one host.
    pub fn new(history: History, timeline: Timeline, host: &'static str) -> Self {
        Self {
            history,
            timeline,
            host,
        }
    }
}

impl Observer for Recorder {
    fn event(&self, event: &Event) {
        self.history
            .push(self.timeline.now(), self.host, Said::Harness(event.clone()));
    }
}
