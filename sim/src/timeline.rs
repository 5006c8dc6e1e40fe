//! Simulated time: one clock for all hosts, and everybody who waits on it.
//!
//! Time passes in turmoil's ticks while something is under way, and jumps to the next deadline when nothing is: a week in
//! which nobody has anything to do costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::BoxFuture;
use harness::Clock;

use crate::history::{Fact, Log};

/// Who waits. The world itself never pauses; a host may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub u8);

/// What waits for nobody's host.
pub const WORLD: Owner = Owner(0);

#[derive(Debug)]
struct Timer {
    owner: Owner,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    next_timer: u64,
    /// Waiting timers by deadline, then by age.
    timers: BTreeMap<(Duration, u64), Timer>,
    paused: BTreeSet<Owner>,
}

/// The one clock of a simulated world. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Timeline(Arc<Mutex<State>>);

impl Timeline {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the world began.
    pub fn now(&self) -> Duration {
        self.state().now
    }

    /// The calendar time of a moment; the world begins with the year 2026.
    pub fn calendar(moment: Duration) -> DateTime<Utc> {
        let start = DateTime::from_timestamp(1_767_225_600, 0).unwrap_or_default();
        start + TimeDelta::from_std(moment).unwrap_or(TimeDelta::MAX)
    }

    /// Lets time pass, and wakes whose time has come.
    pub fn advance(&self, by: Duration) {
        self.state().now += by;
        self.wake_due();
    }

    fn wake_due(&self) {
        let due = {
            let mut state = self.state();
            let State {
                now,
                timers,
                paused,
                ..
            } = &mut *state;
            let mut due = Vec::new();
            for ((deadline, _), timer) in timers.iter_mut() {
                if deadline > now {
                    break;
                }
                if !paused.contains(&timer.owner) {
                    due.extend(timer.waker.take());
                }
            }
            due
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Nothing that `owner` waits for comes true before it is resumed, as if its process were stopped.
    pub fn pause(&self, owner: Owner) {
        self.state().paused.insert(owner);
    }

    /// Goes on; what was due meanwhile is due now.
    pub fn resume(&self, owner: Owner) {
        self.state().paused.remove(&owner);
        self.wake_due();
    }

    /// How long until the next deadline that somebody waits for who is not paused.
    pub fn until_next_deadline(&self) -> Option<Duration> {
        let state = self.state();
        let (deadline, _) = state
            .timers
            .iter()
            .find(|(_, timer)| !state.paused.contains(&timer.owner))?
            .0;
        Some(deadline.saturating_sub(state.now))
    }

    /// Ready after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_of(WORLD, duration)
    }

    fn sleep_of(&self, owner: Owner, duration: Duration) -> Sleep {
        let mut state = self.state();
        let id = state.next_timer;
        state.next_timer += 1;
        let key = (state.now.saturating_add(duration), id);
        state.timers.insert(key, Timer { owner, waker: None });
        Sleep {
            timeline: self.clone(),
            key,
            owner,
        }
    }
}

/// A wait on a [`Timeline`]. Gives its place up when dropped, also by a crash of its host.
#[derive(Debug)]
pub struct Sleep {
    timeline: Timeline,
    key: (Duration, u64),
    owner: Owner,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.timeline.state();
        if state.now >= self.key.0 && !state.paused.contains(&self.owner) {
            return Poll::Ready(());
        }
        if let Some(timer) = state.timers.get_mut(&self.key) {
            timer.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.timeline.state().timers.remove(&self.key);
    }
}

/// One host's clock: the timeline, with a calendar that may be wrong, and a process that may be paused.
#[derive(Debug, Clone)]
pub struct SimClock {
    timeline: Timeline,
    owner: Owner,
    skew: Arc<Mutex<TimeDelta>>,
    log: Log,
}

impl SimClock {
    /// A clock that is right.
    pub fn new(timeline: Timeline, owner: Owner, log: Log) -> Self {
        Self {
            timeline,
            owner,
            skew: Arc::default(),
            log,
        }
    }

    /// Makes the calendar jump. What measures and waits is not touched.
    pub fn jump(&self, by: TimeDelta) {
        *self.skew.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }

    /// Stops the process that waits on it, or lets it go on.
    pub fn set_paused(&self, paused: bool) {
        if paused {
            self.timeline.pause(self.owner);
        } else {
            self.timeline.resume(self.owner);
        }
    }
}

impl Clock for SimClock {
    fn now(&self) -> DateTime<Utc> {
        self.log.detail(|| Fact::ReadClock);
        Timeline::calendar(self.timeline.now())
            + *self.skew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn elapsed(&self) -> Duration {
        self.log.detail(|| Fact::ReadClock);
        self.timeline.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.log.detail(|| Fact::Slept { duration });
        Box::pin(self.timeline.sleep_of(self.owner, duration))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn time_passes_for_those_whose_deadline_has_come() {
        let timeline = Timeline::default();
        let mut short = timeline.sleep(Duration::from_secs(1));
        let mut long = timeline.sleep(Duration::from_secs(604_800));
        assert_eq!((&mut short).now_or_never(), None);
        assert_eq!(timeline.until_next_deadline(), Some(Duration::from_secs(1)));
        timeline.advance(Duration::from_secs(1));
        assert_eq!((&mut short).now_or_never(), Some(()));
        drop(short);
        assert_eq!((&mut long).now_or_never(), None);
        assert_eq!(
            timeline.until_next_deadline(),
            Some(Duration::from_secs(604_799))
        );
        drop(long);
        assert_eq!(timeline.until_next_deadline(), None);
    }

    #[test]
    fn a_paused_host_wakes_when_it_is_resumed() {
        let timeline = Timeline::default();
        let owner = Owner(1);
        let mut theirs = timeline.sleep_of(owner, Duration::from_secs(1));
        timeline.pause(owner);
        timeline.advance(Duration::from_secs(2));
        assert_eq!((&mut theirs).now_or_never(), None);
        assert_eq!(timeline.until_next_deadline(), None, "nobody else waits");
        timeline.resume(owner);
        assert_eq!((&mut theirs).now_or_never(), Some(()));
    }
}
