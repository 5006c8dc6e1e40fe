//! What happened, in order: what the harness said, and what the world really did.

mod fact;
mod file;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{Entropy, Event, Observer, SeededEntropy};
use serde::{Deserialize, Serialize};

pub use self::fact::{Fact, Key};
pub use self::file::{Header, Stored};
use crate::timeline::Timeline;

/// One entry's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Said {
    Harness(Event),
    World(Fact),
}

/// When, where, what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Entry {
    pub at: Duration,
    pub host: Cow<'static, str>,
    pub said: Said,
}

impl Entry {
    /// One line of a trace.
    pub fn line(&self) -> String {
        let mut line = String::new();
        let _ = write!(line, "{:>14.6} {:<8} ", self.at.as_secs_f64(), self.host);
        let _ = match &self.said {
            Said::World(fact) => write!(line, "{fact:?}"),
            Said::Harness(Event {
                job: Some(job),
                step,
                ..
            }) => write!(line, "{} generation {}: {step:?}", job.id, job.generation),
            Said::Harness(event) => write!(line, "{:?}", event.step),
        };
        line
    }
}

#[derive(Debug, Default)]
struct Shared {
    entries: Mutex<Vec<Entry>>,
    detailed: AtomicBool,
}

/// The history of one world. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct History(Arc<Shared>);

impl History {
    /// With `detailed`, also every message on the network, every look at a clock and every draw of randomness is written
    /// down. What happens is the same.
    pub fn new(detailed: bool) -> Self {
        let history = Self::default();
        history.0.detailed.store(detailed, Ordering::Relaxed);
        history
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one entry down.
    pub fn push(&self, at: Duration, host: &'static str, said: Said) {
        self.entries().push(Entry {
            at,
            host: Cow::Borrowed(host),
            said,
        });
    }

    /// Looks at all entries from number `from` on.
    pub fn look<T>(&self, from: usize, look: impl FnOnce(&[Entry]) -> T) -> T {
        let entries = self.entries();
        look(entries.get(from..).unwrap_or_default())
    }

    /// All entries; the history is empty then.
    pub fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.entries())
    }
}

/// All entries as text, a line each; the same seed gives the same bytes.
pub fn trace(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        text.push_str(&entry.line());
        text.push('\n');
    }
    text
}

/// FNV-1a over the entries, details left out: short, and the same everywhere.
pub fn digest(entries: &[Entry]) -> u64 {
    struct Fnv(u64);
    impl std::fmt::Write for Fnv {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            for byte in text.bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            Ok(())
        }
    }
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for entry in entries {
        if !matches!(&entry.said, Said::World(fact) if fact.is_detail()) {
            let _ = write!(
                hash,
                "{} {} {:?}",
                entry.at.as_nanos(),
                entry.host,
                entry.said
            );
        }
    }
    hash.0
}

/// One host's pen: writes what happens there into the history.
#[derive(Debug, Clone)]
pub struct Log {
    history: History,
    timeline: Timeline,
    host: &'static str,
}

impl Log {
    /// For one host.
    pub fn new(history: History, timeline: Timeline, host: &'static str) -> Self {
        Self {
            history,
            timeline,
            host,
        }
    }

    /// The host.
    pub fn host(&self) -> &'static str {
        self.host
    }

    /// A fact.
    pub fn fact(&self, fact: Fact) {
        self.history
            .push(self.timeline.now(), self.host, Said::World(fact));
    }

    /// Something that matters only to who wants to know everything.
    pub fn detail(&self, fact: impl FnOnce() -> Fact) {
        if self.history.0.detailed.load(Ordering::Relaxed) {
            self.fact(fact());
        }
    }
}

impl Observer for Log {
    fn event(&self, event: &Event) {
        self.history
            .push(self.timeline.now(), self.host, Said::Harness(event.clone()));
    }
}

/// Randomness of one host, written down where everything is.
pub struct LoggedEntropy {
    entropy: SeededEntropy,
    log: Log,
}

impl LoggedEntropy {
    /// Starts from `seed`.
    pub fn new(seed: u64, log: Log) -> Self {
        Self {
            entropy: SeededEntropy::new(seed),
            log,
        }
    }
}

impl Entropy for LoggedEntropy {
    fn next_u64(&self) -> u64 {
        let bits = self.entropy.next_u64();
        self.log.detail(|| Fact::Drew { bits });
        bits
    }
}
