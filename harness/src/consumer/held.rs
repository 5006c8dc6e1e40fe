//! A delivery that we answer for, and how it ended.

use crate::disposition::Ending;
use crate::envelope::{Envelope, Malformed};
use crate::error_text::storable;
use crate::event::{JobRef, RunResult};
use crate::failure::ErrorClass;
use crate::handler::Job;
use crate::jsonb::jsonb_text;
use crate::ports::queue::Receipt;

/// A delivery that we answer for.
pub(super) struct Held {
    pub(super) receipt: Receipt,
    pub(super) job: JobRef,
    pub(super) envelope: Envelope,
    /// Runs of this generation that were started before this delivery.
    pub(super) runs_before: u32,
    /// Headers that the envelope does not hold, because they could not be read.
    unreadable: Option<serde_json::Value>,
}

impl Held {
    pub(super) fn new(receipt: Receipt, envelope: Envelope, redeliveries: u32) -> Self {
        Self::with_headers(receipt, envelope, redeliveries, None)
    }

    pub(super) fn malformed(receipt: Receipt, malformed: Malformed, redeliveries: u32) -> Self {
        let envelope = Envelope::new(malformed.job_id, malformed.body);
        Self::with_headers(receipt, envelope, redeliveries, Some(malformed.headers))
    }

    fn with_headers(
        receipt: Receipt,
        envelope: Envelope,
        redeliveries: u32,
        unreadable: Option<serde_json::Value>,
    ) -> Self {
        let job = JobRef {
            id: envelope.job_id,
            generation: envelope.generation,
            correlation_id: envelope.correlation_id.clone(),
            delivery: Some(receipt.clone()),
        };
        let runs_before = envelope.attempts.saturating_add(redeliveries);
        Self {
            receipt,
            job,
            envelope,
            runs_before,
            unreadable,
        }
    }

    /// All headers as received, as a JSON object that JSONB can hold. Only a dead letter needs it.
    pub(super) fn headers_text(&self) -> String {
        let headers = match &self.unreadable {
            Some(headers) => headers.to_string(),
            None => serde_json::json!(self.envelope.wire_headers()).to_string(),
        };
        jsonb_text(headers.as_bytes())
    }

    /// What the handler is given.
    pub(super) fn to_job<P>(&self, payload: P) -> Job<P> {
        Job {
            id: self.job.id,
            tenant_id: self.envelope.tenant_id,
            correlation_id: self.job.correlation_id.clone(),
            generation: self.job.generation,
            run: self.run(),
            trace: self.envelope.trace(),
            payload,
        }
    }

    /// The run that this delivery is for, from 1.
    pub(super) fn run(&self) -> u32 {
        self.runs_before.saturating_add(1)
    }
}

/// A delivery that was not applied and is no duplicate: how it ended, and what to say about it.
#[derive(Clone)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) class: ErrorClass,
    pub(super) error: String,
}

impl Ended {
    /// The process stops.
    pub(super) fn shutdown() -> Self {
        Self::new(Ending::Shutdown, "shutdown", "shutting down")
    }

    pub(super) fn new(ending: Ending, class: &str, error: impl Into<String>) -> Self {
        Self {
            ending,
            class: ErrorClass::of(class),
            error: storable(&error.into()),
        }
    }
}

impl RunResult {
    /// How a handler's call ended, for those who watch.
    pub(super) fn of<T>(worked: &Result<T, Ended>) -> Self {
        match worked {
            Ok(_) => Self::Worked,
            Err(ended) => Self::Failed {
                ending: ended.ending,
                class: ended.class.clone(),
                error: ended.error.clone(),
            },
        }
    }
}
