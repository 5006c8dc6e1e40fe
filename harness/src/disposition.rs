//! What happens after a run, or instead of one: one table for every way in which it can end.

use serde::{Deserialize, Serialize};

use crate::dead_letter::Reason;

/// How a delivery ended that was not applied and was no duplicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Hash)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The handler returned a transient failure.
    Transient,
    /// The handler returned a permanent failure.
    Permanent,
    /// The handler panicked.
    Panic,
    /// The handler ran longer than its deadline.
    Deadline,
    /// The transaction could not be committed: the handler swallowed an SQL error, ended the transaction, or broke a
    /// deferred constraint.
    CommitRefused,
    /// Nobody answered the COMMIT.
    CommitUnknown,
    /// All runs were started, none of them reported an outcome that is on record.
    Vanished,
    /// The message or its payload can never be valid.
    Poison,
    /// A twin holds the fence.
    Busy,
    /// Lock timeout, deadlock or serialization failure.
    Contention,
    /// The store cannot be reached.
    StoreAway,
    /// We are shutting down.
    Shutdown,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Back to the queue with the policy's next wait; a dead letter (exhausted) if this was the last run.
    RetryOrExhaust,
    /// Back to the queue with the policy's next wait, whichever run this was: the next delivery asks the fence.
    Retry,
    /// A dead letter now.
    DeadLetter(Reason),
    /// Back to the queue, as if never delivered.
    Defer,
}

/// One line of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Whether the delivery counts as an attempt.
    pub counts: bool,
    /// What happens to the job.
    pub action: Action,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 12] = [
        Self::Transient,
        Self::Permanent,
        Self::Panic,
        Self::Deadline,
        Self::CommitRefused,
        Self::CommitUnknown,
        Self::Vanished,
        Self::Poison,
        Self::Busy,
        Self::Contention,
        Self::StoreAway,
        Self::Shutdown,
    ];

    /// The table. A run that was started counts, also one whose worker died; contention, outages and deploys are not
    /// the job's failures.
    pub const fn rule(self) -> Rule {
        let (counts, action) = match self {
            Self::Transient | Self::Panic | Self::Deadline | Self::CommitRefused => {
                (true, Action::RetryOrExhaust)
            }
            Self::CommitUnknown => (true, Action::Retry),
            Self::Permanent => (true, Action::DeadLetter(Reason::Hard)),
            Self::Vanished => (true, Action::DeadLetter(Reason::Exhausted)),
            Self::Poison => (true, Action::DeadLetter(Reason::Poison)),
            Self::Busy | Self::Contention | Self::StoreAway | Self::Shutdown => {
                (false, Action::Defer)
            }
        };
        Rule { counts, action }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_exactly_the_uncounted_endings_are_deferred() {
        for ending in Ending::ALL {
            let rule = ending.rule();
            assert_eq!(!rule.counts, rule.action == Action::Defer, "{ending:?}");
        }
    }

    #[test]
    fn b5_only_poison_is_recorded_as_poison() {
        for ending in Ending::ALL {
            let is_poison = ending.rule().action == Action::DeadLetter(Reason::Poison);
            assert_eq!(is_poison, ending == Ending::Poison, "{ending:?}");
        }
    }

    /// The table once more, as decision 4 of the design says it.
    #[test]
    fn b3_b4_s5_what_counts_and_what_follows() {
        let table = [
            (Ending::Transient, true, Action::RetryOrExhaust),
            (Ending::Permanent, true, Action::DeadLetter(Reason::Hard)),
            (Ending::Panic, true, Action::RetryOrExhaust),
            (Ending::Deadline, true, Action::RetryOrExhaust),
            (Ending::CommitRefused, true, Action::RetryOrExhaust),
            // Whichever run it was: the next delivery asks the fence.
            (Ending::CommitUnknown, true, Action::Retry),
            (
                Ending::Vanished,
                true,
                Action::DeadLetter(Reason::Exhausted),
            ),
            (Ending::Poison, true, Action::DeadLetter(Reason::Poison)),
            (Ending::Busy, false, Action::Defer),
            (Ending::Contention, false, Action::Defer),
            (Ending::StoreAway, false, Action::Defer),
            (Ending::Shutdown, false, Action::Defer),
        ];
        assert_eq!(table.map(|(ending, ..)| ending), Ending::ALL);
        for (ending, counts, action) in table {
            assert_eq!(ending.rule(), Rule { counts, action }, "{ending:?}");
        }
    }
}
