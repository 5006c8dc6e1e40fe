//! The record that decides about a message: how many runs count, who holds it, and how long until it comes again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A wait that no record exceeds: ten years, in microseconds.
const LONGEST_US: u64 = 10 * 365 * 24 * 3_600 * 1_000_000;

/// A record. It is stored at a time of the server's, and is due when its wait has passed since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct State {
    /// Runs that count, the one that is on included.
    runs: u32,
    /// Microseconds from the record's own time until the message comes again.
    wait_us: u64,
    holder: Holder,
}

/// Who may answer for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Holder {
    /// It waits.
    Nobody,
    /// The delivery that is called after this record's own sequence.
    This,
    /// A delivery that was extended.
    Delivery(u64),
}

impl State {
    /// A message is handed out, for the first time or after the record before was due.
    pub fn handed_out(before: Option<Self>, lease: Duration) -> Self {
        Self {
            runs: before.map_or(0, |it| it.runs).saturating_add(1),
            wait_us: micros(lease),
            holder: Holder::This,
        }
    }

    /// Runs that count, before the one that is on.
    pub fn redeliveries(self) -> u32 {
        self.runs.saturating_sub(1)
    }

    /// Its run counts.
    pub fn given_back(self, delay: Duration) -> Self {
        Self {
            wait_us: micros(delay),
            holder: Holder::Nobody,
            ..self
        }
    }

    /// As if it had never been handed out.
    pub fn deferred(self, delay: Duration) -> Self {
        Self {
            runs: self.redeliveries(),
            ..self.given_back(delay)
        }
    }

    /// The same delivery holds it for longer.
    pub fn extended(self, delivery: u64, lease: Duration) -> Self {
        Self {
            wait_us: micros(lease),
            holder: Holder::Delivery(delivery),
            ..self
        }
    }

    /// Which delivery holds it, when this is the record at `sequence`.
    pub fn holder(self, sequence: u64) -> Option<u64> {
        match self.holder {
            Holder::Nobody => None,
            Holder::This => Some(sequence),
            Holder::Delivery(delivery) => Some(delivery),
        }
    }

    /// From the record's time until the message comes again.
    pub fn wait(self) -> Duration {
        Duration::from_micros(self.wait_us.min(LONGEST_US))
    }

    /// As it is stored.
    pub fn encode(self) -> Vec<u8> {
        // Numbers and names of variants: it cannot fail.
        serde_json::to_vec(&self).unwrap_or_default()
    }

    /// What was stored. One that somebody else wrote is as good as none: the message comes again, as if for the first time.
    pub fn decode(stored: &[u8]) -> Option<Self> {
        serde_json::from_slice(stored).ok()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).map_or(LONGEST_US, |it| it.min(LONGEST_US))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn b3_runs_are_counted_and_deferrals_are_not() {
        let first = State::handed_out(None, SECOND);
        assert_eq!(first.redeliveries(), 0);
        let retried = State::handed_out(Some(first.given_back(SECOND)), SECOND);
        assert_eq!(retried.redeliveries(), 1);
        let deferred = State::handed_out(Some(retried.deferred(SECOND)), SECOND);
        assert_eq!(deferred.redeliveries(), 1);
        let lease_lost = State::handed_out(Some(deferred), SECOND);
        assert_eq!(lease_lost.redeliveries(), 2);
        let extended = State::handed_out(Some(lease_lost.extended(7, SECOND)), SECOND);
        assert_eq!(extended.redeliveries(), 3);
    }

    #[test]
    fn a_delivery_keeps_its_name_when_it_is_extended() {
        let held = State::handed_out(None, SECOND);
        assert_eq!(held.holder(7), Some(7));
        let extended = held.extended(7, SECOND * 2);
        assert_eq!(extended.holder(9), Some(7));
        assert_eq!(extended.extended(7, SECOND).holder(12), Some(7));
        assert_eq!(extended.given_back(SECOND).holder(13), None);
    }

    #[test]
    fn what_is_stored_is_read_again() {
        let states = [
            State::handed_out(None, SECOND),
            State::handed_out(None, Duration::MAX).extended(u64::MAX, Duration::from_micros(1)),
            State::handed_out(None, SECOND).given_back(Duration::ZERO),
        ];
        for state in states {
            assert_eq!(State::decode(&state.encode()), Some(state));
        }
        for other in [
            "",
            "{}",
            "[1]",
            "{\"runs\":-1,\"wait_us\":0,\"holder\":\"nobody\"}",
        ] {
            assert_eq!(State::decode(other.as_bytes()), None);
        }
    }

    #[test]
    fn waits_are_bounded() {
        let ten_years = Duration::from_secs(10 * 365 * 24 * 3_600);
        assert_eq!(State::handed_out(None, Duration::MAX).wait(), ten_years);
        let stored = format!(
            "{{\"runs\":1,\"wait_us\":{},\"holder\":\"this\"}}",
            u64::MAX
        );
        let read = State::decode(stored.as_bytes()).unwrap();
        assert_eq!(read.wait(), ten_years);
    }
}
