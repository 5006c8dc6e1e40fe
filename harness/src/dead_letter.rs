//! A failure on record (B4, D2).

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::failure::ErrorClass;
use crate::ids::{CorrelationId, JobId, TenantId};
use crate::names::{ConsumerName, QueueName};

/// Names one dead letter (UUID v7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeadLetterId(pub Uuid);

impl fmt::Display for DeadLetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! text_enum {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Hash)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "ops", derive(utoipa::ToSchema))]
        pub enum $type { $($(#[$variant_doc])* $variant,)* }

        impl $type {
            /// As it is written in the database.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = UnknownText;
            fn from_str(text: &str) -> Result<Self, UnknownText> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(UnknownText { what: stringify!($type), text: text.to_owned() }),
                }
            }
        }
    };
}

/// A text that names no variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {what}")]
pub struct UnknownText {
    what: &'static str,
    text: String,
}

text_enum! {
    /// Why the job was given up.
    Reason {
        /// All runs of the policy failed.
        Exhausted = "exhausted",
        /// The handler said that trying again cannot help.
        Hard = "hard",
        /// The message or its payload can never be valid.
        Poison = "poison",
    }
}

text_enum! {
    /// Where a dead letter is in its life (B8).
    Status {
        /// Nobody decided yet.
        PendingReview = "pending_review",
        /// Published again, with the same job id.
        Replayed = "replayed",
        /// Given up for ever, with a reason.
        Discarded = "discarded",
    }
}

/// A dead letter to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// Its id.
    pub id: DeadLetterId,
    /// The job.
    pub job_id: JobId,
    /// Who failed on it.
    pub consumer: ConsumerName,
    /// Where it came from.
    pub queue: QueueName,
    /// Whose it is.
    pub tenant_id: Option<TenantId>,
    /// The chain of events that it belongs to.
    pub correlation_id: CorrelationId,
    /// How often it was replayed before.
    pub generation: u32,
    /// Why it was given up.
    pub reason: Reason,
    /// The kind of error.
    pub error_class: ErrorClass,
    /// Runs started; 1 for poison, which has none.
    pub attempts: u32,
    /// The last error and its causes.
    pub last_error: String,
    /// The payload as JSON that JSONB can hold, for people.
    pub payload: String,
    /// The payload's bytes as received; what a replay publishes.
    pub body: Vec<u8>,
    /// The headers as a JSON object that JSONB can hold.
    pub headers: String,
}

impl NewDeadLetter {
    /// Its kind of failure, by which incidents are grouped: queue, consumer, reason and error class.
    pub fn fingerprint(&self) -> String {
        let Self {
            queue,
            consumer,
            reason,
            error_class,
            ..
        } = self;
        format!("{queue}/{consumer}/{reason}/{}", error_class.as_str())
    }
}

/// A dead letter that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// What was written.
    pub letter: NewDeadLetter,
    /// Where it is in its life.
    pub status: Status,
    /// Why it was discarded.
    pub discard_reason: Option<String>,
    /// When it was written, by the database's clock.
    pub created_at: DateTime<Utc>,
    /// When it was replayed or discarded, by the database's clock.
    pub reviewed_at: Option<DateTime<Utc>>,
    /// By whom.
    pub reviewed_by: Option<String>,
}

/// What became of writing a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// It is on record now.
    Written,
    /// This generation of the job was on record already.
    Already,
    /// The job was applied: no failure to record.
    Applied,
}
