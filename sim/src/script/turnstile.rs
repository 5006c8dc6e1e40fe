//! Ports and a handler at which every call stops until the driver says how it ends.

use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{
    CommitError, Connection, Delivery, Envelope, Event, Failure, FenceKey, FenceVerdict, Handler,
    Job, NewDeadLetter, Observer, QueueError, QueueName, QueuePort, Receipt, Recorded, Step, Store,
    StoreError, WorkTx,
};
use tokio::sync::{mpsc, oneshot};

use super::Bench;
use crate::jobs::PLANNED_PANIC;

/// A call of the consumer to one of its ports, or to the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Receive,
    Begin,
    Fence,
    Work,
    Commit,
    Rollback,
    RecordDeadLetter,
    Ping,
    Ack,
    Retry,
    Defer,
}

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As it does.
    Pass,
    /// It is not made; nobody answers.
    Away,
    /// It is made; nobody answers.
    AnswerLost,
    /// It is not made; somebody else was in the way.
    Contention,
    /// It is not made, for good.
    Refuse,
    /// The handler ends so, after its effect.
    Work(Work),
}

/// How a handler ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Done,
    Transient,
    Permanent,
    Panic,
    Hang,
    Contention,
}

/// What a process did.
#[derive(Debug)]
pub(super) enum Seen {
    /// It waits for an order.
    Call(Call, oneshot::Sender<Order>),
    /// It received this.
    Received(Receipt),
    /// It says so.
    Said(Box<Step>),
}

#[derive(Debug, thiserror::Error)]
#[error("as the script says")]
struct Planned;

#[derive(Debug, thiserror::Error)]
#[error("contention, as the script says")]
struct PlannedContention;

/// The way from a process to the driver.
#[derive(Debug, Clone)]
pub(super) struct Turnstile(pub(super) mpsc::UnboundedSender<Seen>);

impl Turnstile {
    /// What the driver says. Without a driver nothing goes on.
    async fn ask(&self, call: Call) -> Order {
        let (order, answer) = oneshot::channel();
        let _ = self.0.send(Seen::Call(call, order));
        match answer.await {
            Ok(order) => order,
            Err(_) => std::future::pending().await,
        }
    }
}

impl Observer for Turnstile {
    fn event(&self, event: &Event) {
        // Everything else is about the process, not about the delivery.
        let about = event.job.as_ref().is_some_and(|job| job.delivery.is_some());
        if about || matches!(event.step, Step::QueueFailed { .. }) {
            let _ = self.0.send(Seen::Said(Box::new(event.step.clone())));
        }
    }
}

/// A port of a driven process.
#[derive(Debug, Clone)]
pub(super) struct Driven<T> {
    pub(super) inner: T,
    pub(super) turnstile: Turnstile,
    /// The queue that stands for the one that the process knows, and whether everybody has a copy of its own.
    pub(super) place: QueueName,
    pub(super) fan_out: bool,
}

impl<T> Driven<T> {
    fn with<U>(&self, inner: U) -> Driven<U> {
        Driven {
            inner,
            turnstile: self.turnstile.clone(),
            place: self.place.clone(),
            fan_out: self.fan_out,
        }
    }

    async fn store_call<V>(
        &self,
        call: Call,
        made: impl Future<Output = Result<V, StoreError>>,
    ) -> Result<V, StoreError> {
        match self.turnstile.ask(call).await {
            Order::Away => Err(StoreError::Away(Planned.into())),
            Order::Contention => Err(StoreError::Contention(Planned.into())),
            Order::Refuse => Err(StoreError::Refused(Planned.into())),
            Order::AnswerLost => {
                let _ = made.await;
                Err(StoreError::Away(Planned.into()))
            }
            Order::Pass | Order::Work(_) => made.await,
        }
    }

    async fn queue_call<V>(
        &self,
        call: Call,
        made: impl Future<Output = Result<V, QueueError>>,
    ) -> Result<V, QueueError> {
        match self.turnstile.ask(call).await {
            Order::Pass | Order::Work(_) => made.await,
            Order::AnswerLost => {
                let _ = made.await;
                Err(QueueError::Away(Planned.into()))
            }
            Order::Away | Order::Contention => Err(QueueError::Away(Planned.into())),
            Order::Refuse => Err(QueueError::Refused(Planned.into())),
        }
    }
}

impl<S: Store> Store for Driven<S> {
    type Tx = Driven<S::Tx>;

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        let tx = self.store_call(Call::Begin, self.inner.begin()).await?;
        Ok(self.with(tx))
    }

    async fn record_dead_letter(&self, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
        // Where it came from, for a replay, is what the process knows.
        let made = self.inner.record_dead_letter(letter);
        self.store_call(Call::RecordDeadLetter, made).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.store_call(Call::Ping, self.inner.ping()).await
    }

    fn is_contention(error: &(dyn std::error::Error + 'static)) -> bool {
        error.is::<PlannedContention>() || S::is_contention(error)
    }
}

impl<T: WorkTx> WorkTx for Driven<T> {
    type Conn = T::Conn;

    async fn fence(
        &mut self,
        key: &FenceKey,
        ttl: Duration,
        deadline: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        match self.turnstile.ask(Call::Fence).await {
            Order::Away => Err(StoreError::Away(Planned.into())),
            _ => self.inner.fence(key, ttl, deadline).await,
        }
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        ttl: Duration,
        deadline: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        match self.turnstile.ask(Call::Fence).await {
            Order::Away => Err(StoreError::Away(Planned.into())),
            _ => self.inner.fence_all(keys, ttl, deadline).await,
        }
    }

    fn connection(&mut self) -> &mut T::Conn {
        self.inner.connection()
    }

    async fn commit(self) -> Result<(), CommitError> {
        match self.turnstile.ask(Call::Commit).await {
            Order::Pass | Order::Work(_) => self.inner.commit().await,
            Order::AnswerLost => {
                let _ = self.inner.commit().await;
                Err(CommitError::Unknown(Planned.into()))
            }
            Order::Away => Err(CommitError::Unknown(Planned.into())),
            Order::Contention => Err(CommitError::Contention(Planned.into())),
            Order::Refuse => Err(CommitError::Refused(Planned.into())),
        }
    }

    async fn rollback(self) -> Result<(), StoreError> {
        match self.turnstile.ask(Call::Rollback).await {
            Order::Away => Err(StoreError::Away(Planned.into())),
            _ => self.inner.rollback().await,
        }
    }
}

impl<Q: QueuePort> QueuePort for Driven<Q> {
    fn fan_out(&self) -> bool {
        self.fan_out
    }

    async fn receive(
        &self,
        _queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let made = self.inner.receive(&self.place, max, lease);
        let deliveries = self.queue_call(Call::Receive, made).await?;
        for delivery in &deliveries {
            let _ = self
                .turnstile
                .0
                .send(Seen::Received(delivery.receipt.clone()));
        }
        Ok(deliveries)
    }

    async fn ack(&self, _queue: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        let made = self.inner.ack(&self.place, receipt);
        self.queue_call(Call::Ack, made).await
    }

    async fn retry(
        &self,
        _queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let made = self.inner.retry(&self.place, receipt, delay);
        self.queue_call(Call::Retry, made).await
    }

    async fn defer(
        &self,
        _queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let made = self.inner.defer(&self.place, receipt, delay);
        self.queue_call(Call::Defer, made).await
    }

    /// The driver says when leases run out.
    async fn extend(&self, _: &QueueName, _: &Receipt, _: Duration) -> Result<(), QueueError> {
        Ok(())
    }

    async fn publish(&self, _queue: &QueueName, envelope: &Envelope) -> Result<(), QueueError> {
        self.inner.publish(&self.place, envelope).await
    }

    async fn oldest(&self, _queue: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        self.inner.oldest(&self.place).await
    }
}

/// Makes one effect, and ends as it is told.
pub(super) struct DrivenHandler<B> {
    pub(super) turnstile: Turnstile,
    pub(super) consumer: String,
    pub(super) bench: std::marker::PhantomData<fn() -> B>,
}

impl<B: Bench + 'static> Handler<Driven<B::Store>> for DrivenHandler<B> {
    type Payload = serde_json::Value;

    #[allow(clippy::panic)]
    async fn handle(
        &self,
        job: Job<serde_json::Value>,
        tx: &mut Connection<Driven<B::Store>>,
    ) -> Result<(), Failure> {
        B::effect(tx, job.id, &self.consumer, job.generation).await?;
        match self.turnstile.ask(Call::Work).await {
            Order::Work(Work::Transient) => Err(Failure::transient(Planned)),
            Order::Work(Work::Permanent) => Err(Failure::permanent(Planned)),
            Order::Work(Work::Contention) => Err(Failure::transient(PlannedContention)),
            Order::Work(Work::Panic) => panic!("{PLANNED_PANIC}"),
            Order::Work(Work::Hang) => std::future::pending().await,
            _ => Ok(()),
        }
    }
}
