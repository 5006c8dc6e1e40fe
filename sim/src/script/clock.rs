//! The clock of a driven process: time passes when the driver says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use harness::Clock;

use crate::timeline::Timeline;

/// Waits that are shorter take no time: nothing in a way depends on them.
const SHORT: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct State {
    now: Duration,
    next: u64,
    wakers: BTreeMap<u64, std::task::Waker>,
}

/// Clones share the time.
#[derive(Debug, Clone, Default)]
pub(super) struct HandClock(Arc<Mutex<State>>);

impl HandClock {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn advance(&self, by: Duration) {
        let wakers = {
            let mut state = self.state();
            state.now += by;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(std::task::Waker::wake);
    }
}

impl Clock for HandClock {
    fn now(&self) -> DateTime<Utc> {
        Timeline::calendar(self.elapsed())
    }

    fn elapsed(&self) -> Duration {
        self.state().now
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration < SHORT {
            return Box::pin(tokio::task::yield_now());
        }
        let clock = self.clone();
        let (until, id) = {
            let mut state = self.state();
            state.next += 1;
            (state.now + duration, state.next)
        };
        Box::pin(std::future::poll_fn(move |context| {
            let mut state = clock.state();
            if state.now >= until {
                return Poll::Ready(());
            }
            state.wakers.insert(id, context.waker().clone());
            Poll::Pending
        }))
    }
}
