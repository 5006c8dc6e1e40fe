//! Waiting with a limit, on the injected clock.

use std::future::Future;
use std::time::Duration;

use crate::ports::clock::Clock;

/// The limit passed before the future was ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no answer within {} ms", .limit.as_millis())]
pub(crate) struct Elapsed {
    /// How long was waited.
    pub limit: Duration,
}

/// Runs `future` for at most `limit`, then drops it.
pub(crate) async fn within<F: Future>(
    clock: &dyn Clock,
    limit: Duration,
    future: F,
) -> Result<F::Output, Elapsed> {
    let timer = clock.sleep(limit);
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = timer => Err(Elapsed { limit }),
    }
}

/// Growing waits for something that is away: doubling from `first` to `cap`, without overflow.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    next: Duration,
    first: Duration,
    cap: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self {
            next: first.min(cap),
            first,
            cap,
        }
    }

    pub(crate) fn next_wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = self.next.saturating_mul(2).min(self.cap);
        wait
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first.min(self.cap);
    }
}
