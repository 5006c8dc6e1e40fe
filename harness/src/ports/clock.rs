//! Time, injected. The only place that reads the machine's clock or sleeps.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;

/// Reads time and waits. All waiting of the harness goes through here, so that a simulation can jump.
pub trait Clock: Send + Sync + 'static {
    /// Calendar time, for what people read and for new ids. It may jump. Nothing that decides about a fence uses it:
    /// those times are the database's.
    fn now(&self) -> DateTime<Utc>;

    /// Time since an arbitrary start, never going back, for measuring.
    fn elapsed(&self) -> Duration;

    /// Waits `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    started: std::time::Instant,
}

impl SystemClock {
    /// A clock whose [`elapsed`](Clock::elapsed) starts now.
    #[allow(clippy::disallowed_methods)]
    pub fn new() -> Self {
        Self {
            started: std::time::Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)]
    fn now(&self) -> DateTime<Utc> {
        std::time::SystemTime::now().into()
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    #[allow(clippy::disallowed_methods)]
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}
