//! The gate (B1, B2, B5): decode, begin, fence, work, commit, ack.
//!
//! The order is the design:
//! * the fence is asked **before** the attempt limit, so that a job that succeeded but whose ack was lost is a duplicate
//!   and never a dead letter;
//! * after any failure the transaction is rolled back **first**, and bookkeeping happens in a fresh one;
//! * a COMMIT that nobody answered is neither success nor failure: the next delivery asks the fence;
//! * the ack comes **last**, when the outcome is durable (S3).

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use tracing::Instrument as _;

use super::Shared;
use super::held::{Ended, Held};
use crate::disposition::Ending;
use crate::envelope::Envelope;
use crate::event::{DeferReason, RunResult, Step};
use crate::failure::{Failure, FailureKind};
use crate::fence::{FenceKey, FenceVerdict};
use crate::handler::Handler;
use crate::ports::queue::{Delivery, QueuePort};
use crate::ports::store::{CommitError, Store, StoreError, WorkTx};
use crate::time::within;

impl<S: Store, Q: QueuePort, H: Handler<S>> Shared<S, Q, H> {
    /// Takes one delivery to its answer.
    pub(super) async fn gate(&self, delivery: Delivery) {
        self.enter(&self.arrived(delivery)).await;
    }

    /// Decodes one delivery. Nothing is said about it yet.
    pub(super) fn arrived(&self, delivery: Delivery) -> Arrived {
        let Delivery {
            receipt,
            queue,
            message,
            redeliveries,
            ..
        } = delivery;
        let (held, malformed) = match Envelope::decode(&queue, message) {
            Ok(envelope) => (Held::new(receipt, envelope, redeliveries), None),
            Err(malformed) => {
                let error = malformed.error.to_string();
                let ended = Ended::new(Ending::Poison, "poison:headers", error);
                (
                    Held::malformed(receipt, *malformed, redeliveries),
                    Some(ended),
                )
            }
        };
        let span = tracing::info_span!(
            "job",
            consumer = %self.config.consumer,
            queue = %self.config.queue,
            job_id = %held.job.id,
            correlation_id = %held.job.correlation_id,
            generation = held.job.generation,
            run = held.run(),
            trace_id = tracing::field::Empty,
            parent_id = tracing::field::Empty,
        );
        if let Some(trace) = held.envelope.trace() {
            span.record("trace_id", trace.trace_id());
            span.record("parent_id", trace.parent_id());
        }
        Arrived {
            held,
            malformed,
            span,
        }
    }

    /// Says a step of one delivery.
    pub(super) fn say(&self, arrived: &Arrived, step: Step) {
        arrived
            .span
            .in_scope(|| self.emit(Some(&arrived.held.job), step));
    }

    /// Says that it came.
    pub(super) fn arrive(&self, arrived: &Arrived) {
        let runs_before = arrived.held.runs_before;
        self.say(arrived, Step::Received { runs_before });
    }

    /// The same for one that was decoded.
    pub(super) async fn enter(&self, arrived: &Arrived) {
        self.arrive(arrived);
        let held = &arrived.held;
        let pass = async {
            match &arrived.malformed {
                Some(ended) => self.poison(held, ended.clone()).await,
                None => self.pass(held).await,
            }
        };
        pass.instrument(arrived.span.clone()).await;
    }

    /// Whether it is for this consumer.
    pub(super) fn is_addressed(&self, held: &Held) -> bool {
        let consumer = held.envelope.consumer.as_ref();
        consumer.is_none_or(|consumer| *consumer == self.config.consumer)
    }

    /// What its fence is about.
    pub(super) fn key(&self, held: &Held) -> FenceKey {
        FenceKey {
            job_id: held.job.id,
            consumer: self.config.consumer.clone(),
            generation: held.job.generation,
            tenant_id: held.envelope.tenant_id,
        }
    }

    /// A delivery whose headers can be read.
    pub(super) async fn pass(&self, held: &Held) {
        if !self.is_addressed(held) {
            self.emit(Some(&held.job), Step::NotAddressed);
            if self.queue.fan_out() {
                return self.ack(held).await;
            }
            // Ours is the only copy: taking it away would be a failure that vanishes.
            return self
                .defer(&held.receipt, Some(&held.job), DeferReason::NotAddressed)
                .await;
        }
        let payload = match serde_json::from_slice::<H::Payload>(&held.envelope.body) {
            Ok(payload) => payload,
            Err(error) => {
                let class = match error.classify() {
                    serde_json::error::Category::Data => "poison:schema",
                    _ => "poison:json",
                };
                return self
                    .poison(held, Ended::new(Ending::Poison, class, error.to_string()))
                    .await;
            }
        };
        let Some(_flight) = self.running.enter(held.job.id) else {
            self.emit(Some(&held.job), Step::Busy);
            let ended = Ended::new(Ending::Busy, "busy", "a twin is running in this process");
            return self.conclude(held, ended).await;
        };
        match self.attempt(held, payload).await {
            Ok(()) => self.ack(held).await,
            Err(ended) => self.conclude(held, ended).await,
        }
    }

    async fn poison(&self, held: &Held, ended: Ended) {
        let (class, error) = (ended.class.clone(), ended.error.clone());
        self.emit(Some(&held.job), Step::Poison { class, error });
        self.conclude(held, ended).await;
    }

    /// Everything that happens in the transaction. `Ok`: the job is applied, by us or before us, or settled otherwise.
    async fn attempt(&self, held: &Held, payload: H::Payload) -> Result<(), Ended> {
        let mut tx = self.store_call("begin", self.store.begin()).await?;
        match self.fence(held, &mut tx).await? {
            FenceVerdict::Duplicate | FenceVerdict::Settled => {
                // Nothing was written. Should this fail, dropping the connection does the same.
                let _ = within(&*self.env.clock, self.config.port_timeout, tx.rollback()).await;
                return Ok(());
            }
            FenceVerdict::Acquired => {}
        }
        if held.runs_before >= self.config.retry.max_runs() {
            let _ = within(&*self.env.clock, self.config.port_timeout, tx.rollback()).await;
            let error = format!(
                "{} runs were started and none of them left an outcome on record: the worker vanished, or the answer \
                 to its commit did",
                held.runs_before
            );
            return Err(Ended::new(Ending::Vanished, "vanished", error));
        }
        self.work(held, tx, payload).await
    }

    async fn fence(&self, held: &Held, tx: &mut S::Tx) -> Result<FenceVerdict, Ended> {
        let key = self.key(held);
        let asked_at = self.env.clock.elapsed();
        let call = tx.fence(&key, self.config.fence.ttl, self.config.run_deadline);
        let verdict = match self.store_call("fence", call).await {
            Ok(verdict) => verdict,
            Err(ended) if ended.ending == Ending::Contention => {
                self.emit(Some(&held.job), Step::Busy);
                return Err(Ended {
                    ending: Ending::Busy,
                    ..ended
                });
            }
            Err(ended) => return Err(ended),
        };
        let waited = self.env.clock.elapsed().saturating_sub(asked_at);
        self.emit(Some(&held.job), Step::Fence { verdict, waited });
        Ok(verdict)
    }

    /// Runs the handler and commits what it did.
    async fn work(&self, held: &Held, mut tx: S::Tx, payload: H::Payload) -> Result<(), Ended> {
        let run = held.run();
        self.emit(Some(&held.job), Step::RunStarted { run });
        let started_at = self.env.clock.elapsed();
        let handled = self.handle(held, &mut tx, payload).await;
        let took = self.env.clock.elapsed().saturating_sub(started_at);
        let worked = self.undone_if_failed(tx, handled).await;
        let result = RunResult::of(&worked);
        self.emit(Some(&held.job), Step::RunEnded { run, result, took });
        self.commit(held, worked?).await
    }

    async fn handle(&self, held: &Held, tx: &mut S::Tx, payload: H::Payload) -> Handled {
        let job = held.to_job(payload);
        let handler = &self.handler;
        self.bounded(async { handler.handle(job, tx.connection()).await })
            .await
    }

    /// A call of the handler, in a block of its own, so that a panic before the first await is caught as well.
    pub(super) async fn bounded(&self, call: impl Future<Output = Result<(), Failure>>) -> Handled {
        let deadline = self.config.run_deadline;
        let run = AssertUnwindSafe(call).catch_unwind();
        tokio::select! {
            biased;
            () = self.abort.cancelled() => Handled::Dropped(Ended::shutdown()),
            outcome = within(&*self.env.clock, deadline, run) => match outcome {
                Ok(Ok(result)) => Handled::Returned(result),
                Ok(Err(panic)) => {
                    Handled::Dropped(Ended::new(Ending::Panic, "panic", panic_text(panic.as_ref())))
                }
                Err(_) => Handled::Dropped(Ended::new(
                    Ending::Deadline,
                    "deadline",
                    format!("the handler was still running after {} ms", deadline.as_millis()),
                )),
            },
        }
    }

    /// The transaction, if the handler worked; else it is rolled back.
    pub(super) async fn undone_if_failed(
        &self,
        tx: S::Tx,
        handled: Handled,
    ) -> Result<S::Tx, Ended> {
        match handled {
            Handled::Returned(Ok(())) => Ok(tx),
            Handled::Returned(Err(failure)) => Err(self.roll_back(tx, &failure).await),
            // A handler that did not return may have left the connection in the middle of a statement: dropping the
            // transaction closes it, and the server rolls back.
            Handled::Dropped(ended) => {
                drop(tx);
                Err(ended)
            }
        }
    }

    /// Rolls back after a failure, and tells the job's own failures from those that are not.
    async fn roll_back(&self, tx: S::Tx, failure: &Failure) -> Ended {
        let ended = |ending| Ended {
            ending,
            class: failure.error_class().clone(),
            error: failure.text(),
        };
        let rolled_back = within(&*self.env.clock, self.config.port_timeout, tx.rollback()).await;
        match failure.kind() {
            FailureKind::Permanent => ended(Ending::Permanent),
            FailureKind::Transient if S::is_contention(failure.error()) => {
                ended(Ending::Contention)
            }
            FailureKind::Transient
                if !matches!(rolled_back, Ok(Ok(()))) && !self.store_answers().await =>
            {
                self.store_away.store(true, Ordering::Release);
                ended(Ending::StoreAway)
            }
            // The connection may be lost and the store be there: a job that kills its connection counts.
            FailureKind::Transient => ended(Ending::Transient),
        }
    }

    async fn store_answers(&self) -> bool {
        matches!(
            within(
                &*self.env.clock,
                self.config.port_timeout,
                self.store.ping()
            )
            .await,
            Ok(Ok(()))
        )
    }

    async fn commit(&self, held: &Held, tx: S::Tx) -> Result<(), Ended> {
        let committed = self.seal(tx).await;
        match &committed {
            Ok(()) => self.emit(Some(&held.job), Step::Committed),
            Err(ended) if ended.ending == Ending::CommitUnknown => {
                let error = ended.error.clone();
                self.emit(Some(&held.job), Step::CommitUnknown { error });
            }
            Err(_) => {}
        }
        committed
    }

    /// Commits. No answer in time is an unknown outcome too.
    pub(super) async fn seal(&self, tx: S::Tx) -> Result<(), Ended> {
        let outcome = within(&*self.env.clock, self.config.port_timeout, tx.commit())
            .await
            .unwrap_or_else(|elapsed| Err(CommitError::Unknown(elapsed.into())));
        let Err(error) = outcome else {
            return Ok(());
        };
        let text = crate::error_text::error_text(&error);
        Err(match error {
            CommitError::Refused(_) => Ended::new(Ending::CommitRefused, "commit_refused", text),
            CommitError::Contention(_) => Ended::new(Ending::Contention, "contention", text),
            CommitError::Unknown(_) => {
                self.store_away.store(true, Ordering::Release);
                Ended::new(Ending::CommitUnknown, "commit_unknown", text)
            }
        })
    }

    /// A call that comes before the handler: whatever goes wrong is not the job's failure.
    pub(super) async fn store_call<T>(
        &self,
        call: &'static str,
        future: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, Ended> {
        let error = match within(&*self.env.clock, self.config.port_timeout, future).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(elapsed) => StoreError::Away(elapsed.into()),
        };
        let text = crate::error_text::error_text(&error);
        Err(match error {
            StoreError::Contention(_) => Ended::new(Ending::Contention, "contention", text),
            // A store that refuses to open a transaction or to fence is as little use as one that is away.
            StoreError::Away(_) | StoreError::Refused(_) => {
                self.store_away.store(true, Ordering::Release);
                self.emit(
                    None,
                    Step::StoreFailed {
                        call: call.into(),
                        error: text.clone(),
                    },
                );
                Ended::new(Ending::StoreAway, "store_away", text)
            }
        })
    }
}

/// A delivery that was decoded.
pub(super) struct Arrived {
    pub(super) held: Held,
    /// Why it can never be valid, if its headers say so.
    pub(super) malformed: Option<Ended>,
    /// Everything that is logged about this delivery carries its ids, also what the handler logs.
    pub(super) span: tracing::Span,
}

/// How a call of the handler ended.
pub(super) enum Handled {
    /// By itself.
    Returned(Result<(), Failure>),
    /// Its future was dropped, or it panicked.
    Dropped(Ended),
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    match text {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked with a payload that is not text".to_owned(),
    }
}
