//! What every part of the harness is given: clock, randomness, and who watches.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::event::{Event, Observer};
use crate::ports::clock::{Clock, SystemClock};
use crate::ports::entropy::{Entropy, SystemEntropy};
use crate::telemetry::Telemetry;

/// The environment of a harness component. Cloning shares it.
#[derive(Clone)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Told of every step.
    pub observer: Arc<dyn Observer>,
}

impl Env {
    /// The machine's clock and randomness, with metrics and traces.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn system() -> Result<Self, rand::rngs::SysError> {
        Ok(Self {
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy::new()?),
            observer: Arc::new(Telemetry),
        })
    }

    /// The same environment, watched by `observer` instead.
    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = observer;
        self
    }

    /// A new id (UUID v7) from the injected clock and randomness.
    pub fn new_id(&self) -> Uuid {
        let millis = u64::try_from(self.clock.now().timestamp_millis()).unwrap_or(0);
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.entropy.next_u64().to_le_bytes());
        random[8..].copy_from_slice(&self.entropy.next_u64().to_le_bytes()[..2]);
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }

    /// `duration` stretched by a random factor from 1 to 1.5, so that many who wait for the same thing do not all come
    /// back at once.
    pub fn jittered(&self, duration: Duration) -> Duration {
        duration.mul_f64(1.0 + 0.5 * self.entropy.next_unit())
    }

    pub(crate) fn emit(&self, event: Event) {
        self.observer.event(&event);
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
