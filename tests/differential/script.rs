//! What is done to a store, step by step, and by whom.

use std::fmt;

use harness::{AlertKind, ConsumerName, DeadLetterId, JobId, Reason};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Clients at most; each has a connection of its own and does one thing at a time.
pub const ACTORS: usize = 4;

/// This one waits for no lock. The others wait until it is free, or until the script lets their time run out.
pub const IMPATIENT: usize = 3;

/// A job of a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    pub job: u8,
    pub consumer: u8,
}

/// Which of the dead letters a page has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Page {
    All,
    NewestTwo,
    Pending,
    OfJob(u8),
    /// One letter, behind the first.
    Second,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    Begin,
    Fence {
        key: Key,
        generation: u32,
        ttl_hours: u64,
    },
    /// A batch: fences of several jobs at once, of which no other can be asked for in the transaction.
    FenceAll {
        jobs: Vec<u8>,
        consumer: u8,
        generation: u32,
        ttl_hours: u64,
    },
    /// Of the job that was fenced last, or of job 0; of a batch, of the first job that was acquired.
    Effect,
    /// A statement that fails; nobody minds.
    SwallowError,
    Commit,
    Rollback,
    /// Lets go of a transaction without a word.
    Drop,
    LoseConnection,
    Record {
        letter: u8,
        key: Key,
        generation: u32,
        reason: Reason,
    },
    Lock {
        letter: u8,
    },
    MarkReplayed,
    Discard {
        letter: u8,
    },
    Sweep {
        consumer: u8,
        oldest_hours_ago: Option<i64>,
        retry_window_hours: u64,
        limit: u32,
    },
    Read {
        letter: u8,
    },
    List {
        page: Page,
    },
    Pending,
    Count,
    ClaimAlert {
        claim: u8,
        kind: AlertKind,
        age_hours: u64,
        window_minutes: u64,
    },
    Delivered {
        claim: u8,
        named: bool,
    },
    AlertFailed {
        claim: u8,
    },
    ClaimResolve {
        claim: u8,
    },
    Resolved {
        claim: u8,
    },
    ResolveFailed {
        claim: u8,
    },
    AlertsFailing {
        escalate_hours: u64,
    },
    /// Time passes, and who waits for a lock for too long gives up.
    Advance {
        seconds: u64,
    },
}

/// Who does it. It is left out when its client is not in a state to do it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub actor: usize,
    #[serde(flatten)]
    pub act: Act,
}

/// In what state a client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Idle,
    /// Has a transaction to work in; has it a fence in it?
    Working {
        fenced: bool,
        batch: bool,
    },
    /// Holds a dead letter.
    Reviewing,
    /// Waits for a lock.
    Blocked,
}

impl Act {
    /// Whether a client in this state can do it.
    pub fn is_possible(&self, state: State) -> bool {
        match self {
            Self::Advance { .. } => true,
            Self::LoseConnection => state != State::Idle,
            Self::Drop => matches!(state, State::Working { .. } | State::Reviewing),
            Self::MarkReplayed => state == State::Reviewing,
            Self::Fence { .. } => matches!(state, State::Working { batch: false, .. }),
            Self::FenceAll { .. } => {
                state
                    == State::Working {
                        fenced: false,
                        batch: false,
                    }
            }
            Self::Effect | Self::SwallowError | Self::Commit | Self::Rollback => {
                matches!(state, State::Working { .. })
            }
            _ => state == State::Idle,
        }
    }
}

const JOBS: u128 = 0x1000;
const LETTERS: u128 = 0x2000;
const CLAIMS: u128 = 0x3000;

pub fn job_id(job: u8) -> JobId {
    JobId::new(Uuid::from_u128(JOBS + u128::from(job))).unwrap()
}

pub fn consumer_name(consumer: u8) -> ConsumerName {
    ConsumerName::new(["awards", "badges"][usize::from(consumer % 2)]).unwrap()
}

pub fn letter_id(letter: u8) -> DeadLetterId {
    DeadLetterId(Uuid::from_u128(LETTERS + u128::from(letter)))
}

pub fn claim_id(claim: u8) -> Uuid {
    Uuid::from_u128(CLAIMS + u128::from(claim))
}

/// The same text with names instead of ids.
pub fn readable(text: &str) -> String {
    let mut text = text.to_owned();
    for (what, base) in [("job", JOBS), ("letter", LETTERS), ("claim", CLAIMS)] {
        let shared = Uuid::from_u128(base).to_string();
        let shared = &shared[..shared.len() - 2];
        while let Some(at) = text.find(shared) {
            let end = at + shared.len();
            let n = text
                .get(end..end + 2)
                .and_then(|hex| u8::from_str_radix(hex, 16).ok());
            let Some(n) = n else { break };
            text.replace_range(at..end + 2, &format!("{what} {n}"));
        }
    }
    text
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} of {}", self.job, consumer_name(self.consumer))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = ["a", "b", "c", "impatient d"]
            .get(self.actor)
            .unwrap_or(&"?");
        match &self.act {
            Act::Advance { seconds } => write!(f, "{seconds} s pass"),
            Act::Fence {
                key,
                generation,
                ttl_hours,
            } => {
                write!(
                    f,
                    "{who}: fence {key}, generation {generation}, for {ttl_hours} h"
                )
            }
            Act::Record {
                letter,
                key,
                generation,
                reason,
            } => {
                write!(
                    f,
                    "{who}: record letter {letter}: {key}, generation {generation}, {reason}"
                )
            }
            act => {
                let text = serde_json::json!(act).to_string();
                let text: String = text.chars().filter(|c| !"{}\"".contains(*c)).collect();
                write!(f, "{who}: {}", text.replace(['_', ':', ','], " "))
            }
        }
    }
}
