//! What one measurement gives.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use harness::{Clock as _, Event, Observer, Step, SystemClock};
use serde::Serialize;

/// Bytes on disk.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Sizes {
    /// The rows themselves.
    pub(crate) heap: i64,
    /// The index of the primary key, `(job_id, consumer)`.
    pub(crate) key: i64,
    /// The index of the sweep, `(consumer, expires_at)`.
    pub(crate) expiry: i64,
}

/// One consumer swept.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Phase {
    pub(crate) batch: u32,
    pub(crate) rows: u32,
    pub(crate) rows_per_second: f64,
    /// With no dead rows in the way yet.
    pub(crate) first_tenth_per_second: f64,
    /// With nine tenths of the rows dead and not cleaned up.
    pub(crate) last_tenth_per_second: f64,
    pub(crate) vacuum: Vacuum,
}

/// What VACUUM did, at the pace of autovacuum.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Vacuum {
    /// As PostgreSQL counts them.
    pub(crate) dead_before: i64,
    pub(crate) seconds: f64,
    pub(crate) dead_after: i64,
    /// Of the files afterwards: room inside them is free, the files stay.
    pub(crate) sizes: Sizes,
}

/// When how many rows were gone.
pub(crate) struct Speeds {
    clock: SystemClock,
    times: Mutex<Vec<(Duration, u64)>>,
}

impl Speeds {
    pub(crate) fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            times: Mutex::default(),
        }
    }

    pub(crate) fn begin(&self) {
        self.note(0);
    }

    fn note(&self, rows: u64) {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let before = times.last().map_or(0, |(_, rows)| *rows);
        times.push((self.clock.elapsed(), before + rows));
    }

    /// Rows per second: of all, of the first tenth, of the last.
    pub(crate) fn per_second(&self, rows: u32) -> (f64, f64, f64) {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let tenth = u64::from(rows / 10);
        let speed = |from: Option<&(Duration, u64)>, to: Option<&(Duration, u64)>| match (from, to)
        {
            (Some((began, before)), Some((ended, after))) if ended > began => {
                (after - before) as f64 / (*ended - *began).as_secs_f64()
            }
            _ => f64::NAN,
        };
        let (begin, end) = (times.first(), times.last());
        let early = times.iter().find(|(_, gone)| *gone >= tenth);
        let late = times
            .iter()
            .rfind(|(_, gone)| *gone <= u64::from(rows) - tenth);
        (speed(begin, end), speed(begin, early), speed(late, end))
    }
}

impl Observer for Speeds {
    fn event(&self, event: &Event) {
        if let Step::Swept { rows } = event.step {
            self.note(rows);
        }
    }
}
