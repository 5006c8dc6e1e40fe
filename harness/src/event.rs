//! What the harness does, step by step, as one stream: metrics, traces and test signals all come from it. Events can be
//! stored (serde), so that a run can be checked long after it ended.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::dead_letter::{DeadLetterId, Reason};
use crate::disposition::Ending;
use crate::failure::ErrorClass;
use crate::fence::FenceVerdict;
use crate::ids::{CorrelationId, JobId};
use crate::names::{ConsumerName, QueueName};
use crate::ports::queue::Receipt;
use crate::retry::RetryPolicy;

/// Whose step it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRef {
    /// The job.
    pub id: JobId,
    /// How often it was replayed.
    pub generation: u32,
    /// The chain of events that it belongs to.
    pub correlation_id: CorrelationId,
    /// Which delivery of which message, where it is about one.
    pub delivery: Option<Receipt>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The consumer, if it is a consumer's step.
    pub consumer: Option<ConsumerName>,
    /// The queue, if it is about one.
    pub queue: Option<QueueName>,
    /// The job, if it is about one.
    pub job: Option<JobRef>,
    /// What was done.
    pub step: Step,
}

/// How a handler's run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunResult {
    /// It returned `Ok`; nothing is committed yet.
    Worked,
    /// It failed.
    Failed {
        /// In which way.
        ending: Ending,
        /// The kind of error.
        class: ErrorClass,
        /// The error and its causes.
        error: String,
    },
}

/// Why a delivery was given back uncounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeferReason {
    /// A twin is running, here or elsewhere.
    Busy,
    /// Lock timeout, deadlock or serialization failure.
    Contention,
    /// The store cannot be reached.
    StoreAway,
    /// We are shutting down.
    Shutdown,
    /// The message is a replay for another consumer of the same queue.
    NotAddressed,
}

impl DeferReason {
    /// As a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Contention => "contention",
            Self::StoreAway => "store_away",
            Self::Shutdown => "shutdown",
            Self::NotAddressed => "not_addressed",
        }
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A consumer starts.
    Started {
        /// With this policy; what differs from the standard one says why.
        retry: RetryPolicy,
    },
    /// A delivery arrived; runs before it.
    Received {
        /// Runs started before this delivery.
        runs_before: u32,
    },
    /// The message or its payload can never be valid.
    Poison {
        /// The kind of error.
        class: ErrorClass,
        /// What is wrong.
        error: String,
    },
    /// The message is a replay for another consumer.
    NotAddressed,
    /// The fence answered.
    Fence {
        /// What it said.
        verdict: FenceVerdict,
        /// How long it took.
        waited: Duration,
    },
    /// A twin holds the fence.
    Busy,
    /// The handler starts.
    RunStarted {
        /// Which run, from 1.
        run: u32,
    },
    /// The handler ended.
    RunEnded {
        /// Which run, from 1.
        run: u32,
        /// How.
        result: RunResult,
        /// How long it ran.
        took: Duration,
    },
    /// It is run together with others, in one transaction.
    BatchStarted {
        /// Jobs in the batch.
        jobs: usize,
    },
    /// The handler ended a batch.
    BatchEnded {
        /// Jobs in the batch.
        jobs: usize,
        /// How.
        result: RunResult,
        /// How long it ran.
        took: Duration,
    },
    /// Its batch was given up and rolled back; it goes through the gate alone now.
    LeftBatch {
        /// What went wrong; perhaps with a neighbour.
        error: String,
    },
    /// Effect and fence are committed.
    Committed,
    /// Nobody answered the COMMIT.
    CommitUnknown {
        /// What happened to the connection.
        error: String,
    },
    /// The message is gone from the queue.
    Acked,
    /// Given back, counted.
    Retried {
        /// The run that failed, from 1.
        run: u32,
        /// How long until it is delivered again.
        wait: Duration,
    },
    /// Given back, uncounted.
    Deferred {
        /// Why.
        reason: DeferReason,
        /// How long until it is delivered again.
        wait: Duration,
    },
    /// A dead letter is on record.
    DeadLettered {
        /// Which.
        id: DeadLetterId,
        /// Why.
        reason: Reason,
        /// The kind of error.
        class: ErrorClass,
        /// Runs started.
        attempts: u32,
        /// The error and its causes.
        error: String,
    },
    /// The dead letter was not needed: this generation was on record already.
    DeadLetterAlready,
    /// The dead letter was not needed: the job was applied.
    DeadLetterApplied,
    /// The lease was lost while we held the delivery. The fence keeps this safe.
    LeaseLost,
    /// A call to the store failed and is tried again.
    StoreFailed {
        /// Which call.
        call: Cow<'static, str>,
        /// What happened.
        error: String,
    },
    /// A call to the queue failed.
    QueueFailed {
        /// Which call.
        call: Cow<'static, str>,
        /// What happened.
        error: String,
    },
    /// No new work is taken while the store is away.
    Paused,
    /// New work is taken again.
    Resumed,
    /// No new work is taken: shutdown began.
    Draining,
    /// A dead letter was published again.
    Replayed {
        /// Which.
        id: DeadLetterId,
    },
    /// A dead letter was given up.
    Discarded {
        /// Which.
        id: DeadLetterId,
    },
    /// Fences were removed.
    Swept {
        /// How many.
        rows: u64,
    },
    /// What is in a queue.
    QueueMeasured {
        /// Messages, leased and delayed ones included.
        messages: u64,
        /// For how long the oldest has been there.
        oldest: Duration,
    },
    /// What waits for a decision, of one queue and consumer.
    LettersMeasured {
        /// Letters.
        pending: u64,
        /// For how long the oldest has waited.
        oldest: Duration,
    },
    /// Fences of one consumer that could go.
    FencesMeasured {
        /// For how long the oldest has been expired.
        overdue: Duration,
    },
    /// Alerts that are owed.
    AlertsMeasured {
        /// Dead letters that no delivered incident covers yet.
        owed: u64,
    },
    /// An incident was accepted.
    Alerted {
        /// How many letters it covers.
        letters: u64,
        /// Of which kind.
        fingerprint: String,
    },
    /// An incident for letters that wait for too long was accepted.
    Escalated {
        /// How many letters it speaks of.
        letters: u64,
        /// Of which kind.
        fingerprint: String,
    },
    /// An incident was closed, because no letter of its kind is pending.
    Resolved {
        /// Of which kind.
        fingerprint: String,
    },
    /// An incident was not closed and is tried again.
    ResolveFailed {
        /// Of which kind.
        fingerprint: String,
        /// What happened.
        error: String,
    },
    /// The alert pump could not say that it is alive. It tries again.
    HeartbeatFailed {
        /// What happened.
        error: String,
    },
    /// An incident was not accepted and is tried again.
    AlertFailed {
        /// Of which kind.
        fingerprint: String,
        /// What happened.
        error: String,
    },
}

/// Told of every step, in the task that makes it: must not block.
pub trait Observer: Send + Sync + 'static {
    /// One step was made.
    fn event(&self, event: &Event);
}

/// Tells several.
impl<O: Observer + ?Sized> Observer for Vec<std::sync::Arc<O>> {
    fn event(&self, event: &Event) {
        for observer in self {
            observer.event(event);
        }
    }
}
