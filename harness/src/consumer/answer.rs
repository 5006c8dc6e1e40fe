//! The answer to every delivery: ack, retry, defer, or a dead letter and then the ack.
//!
//! An answer is insisted on: a store or a broker that is away is asked again, with growing waits, for as long as the
//! process lives. No ack before the outcome is durable (S3): a dead letter that cannot be written keeps its delivery.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Shared;
use super::held::{Ended, Held};
use crate::dead_letter::{DeadLetterId, NewDeadLetter, Reason, Recorded};
use crate::disposition::{Action, Ending};
use crate::event::{DeferReason, JobRef, Step};
use crate::handler::Handler;
use crate::jsonb::jsonb_text;
use crate::ports::queue::{QueueError, QueuePort, Receipt};
use crate::ports::store::{Store, StoreError};
use crate::time::within;

impl<S: Store, Q: QueuePort, H: Handler<S>> Shared<S, Q, H> {
    /// Does what the table of endings says.
    pub(super) async fn conclude(&self, held: &Held, ended: Ended) {
        match ended.ending.rule().action {
            Action::Retry => self.retry(held).await,
            Action::RetryOrExhaust if held.run() < self.config.retry.max_runs() => {
                self.retry(held).await
            }
            Action::RetryOrExhaust => self.dead_letter(held, Reason::Exhausted, ended).await,
            Action::DeadLetter(reason) => self.dead_letter(held, reason, ended).await,
            Action::Defer => {
                let reason = match ended.ending {
                    Ending::Busy => DeferReason::Busy,
                    Ending::StoreAway => DeferReason::StoreAway,
                    Ending::Shutdown => DeferReason::Shutdown,
                    _ => DeferReason::Contention,
                };
                self.defer(&held.receipt, Some(&held.job), reason).await;
            }
        }
    }

    pub(super) async fn ack(&self, held: &Held) {
        let done = self
            .insist("ack", || self.queue.ack(&self.config.queue, &held.receipt))
            .await;
        self.emit(
            Some(&held.job),
            if done { Step::Acked } else { Step::LeaseLost },
        );
    }

    /// Gives back what was not started when the drain began.
    pub(super) async fn turn_back(&self, receipt: &Receipt) {
        self.defer(receipt, None, DeferReason::Shutdown).await;
    }

    async fn retry(&self, held: &Held) {
        let run = held.run();
        let wait = self.config.retry.wait(run, &*self.env.entropy);
        let done = self
            .insist("retry", || {
                self.queue.retry(&self.config.queue, &held.receipt, wait)
            })
            .await;
        self.emit(
            Some(&held.job),
            if done {
                Step::Retried { run, wait }
            } else {
                Step::LeaseLost
            },
        );
    }

    pub(super) async fn defer(&self, receipt: &Receipt, job: Option<&JobRef>, reason: DeferReason) {
        let wait = match reason {
            DeferReason::Busy | DeferReason::NotAddressed => {
                self.env.jittered(self.config.busy_delay)
            }
            DeferReason::Contention | DeferReason::StoreAway => {
                self.env.jittered(self.config.defer_delay)
            }
            DeferReason::Shutdown => Duration::ZERO,
        };
        let done = self
            .insist("defer", || {
                self.queue.defer(&self.config.queue, receipt, wait)
            })
            .await;
        self.emit(
            job,
            if done {
                Step::Deferred { reason, wait }
            } else {
                Step::LeaseLost
            },
        );
    }

    async fn dead_letter(&self, held: &Held, reason: Reason, ended: Ended) {
        let attempts = match ended.ending {
            // Its runs were the earlier deliveries; this one only found them.
            Ending::Vanished => held.runs_before,
            // Never run: one delivery, one look.
            Ending::Poison => 1,
            _ => held.run(),
        };
        let letter = NewDeadLetter {
            id: DeadLetterId(self.env.new_id()),
            job_id: held.job.id,
            consumer: self.config.consumer.clone(),
            queue: self.config.queue.clone(),
            tenant_id: held.envelope.tenant_id,
            correlation_id: held.job.correlation_id.clone(),
            generation: held.job.generation,
            reason,
            error_class: ended.class,
            attempts,
            last_error: ended.error,
            payload: jsonb_text(&held.envelope.body),
            body: held.envelope.body.clone(),
            headers: held.headers_text(),
        };
        let step = match self.record(&letter).await {
            Recorded::Written => Step::DeadLettered {
                id: letter.id,
                reason,
                class: letter.error_class,
                attempts,
                error: letter.last_error,
            },
            Recorded::Already => Step::DeadLetterAlready,
            Recorded::Applied => Step::DeadLetterApplied,
        };
        self.emit(Some(&held.job), step);
        self.ack(held).await;
    }

    /// Until it is on record, whatever the store says meanwhile.
    async fn record(&self, letter: &NewDeadLetter) -> Recorded {
        let mut backoff = self.outage_backoff();
        loop {
            let call = self.store.record_dead_letter(letter);
            let error = match within(&*self.env.clock, self.config.port_timeout, call).await {
                Ok(Ok(recorded)) => return recorded,
                Ok(Err(error)) => error,
                Err(elapsed) => StoreError::Away(elapsed.into()),
            };
            if matches!(error, StoreError::Away(_)) {
                self.store_away.store(true, Ordering::Release);
            }
            let error = crate::error_text::error_text(&error);
            self.emit(
                None,
                Step::StoreFailed {
                    call: "record_dead_letter".into(),
                    error,
                },
            );
            self.env
                .clock
                .sleep(self.env.jittered(backoff.next_wait()))
                .await;
        }
    }

    /// Asks the queue until it answers. False when the lease is lost: somebody else answers for the message.
    pub(super) async fn insist<F>(&self, call: &'static str, mut ask: impl FnMut() -> F) -> bool
    where
        F: Future<Output = Result<(), QueueError>>,
    {
        let mut backoff = self.outage_backoff();
        loop {
            let error = match within(&*self.env.clock, self.config.port_timeout, ask()).await {
                Ok(Ok(())) => return true,
                Ok(Err(QueueError::LeaseLost)) => return false,
                Ok(Err(error)) => crate::error_text::error_text(&error),
                Err(elapsed) => elapsed.to_string(),
            };
            self.emit(
                None,
                Step::QueueFailed {
                    call: call.into(),
                    error,
                },
            );
            self.env
                .clock
                .sleep(self.env.jittered(backoff.next_wait()))
                .await;
        }
    }
}
