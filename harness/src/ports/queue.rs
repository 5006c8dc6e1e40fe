//! The queue, as the harness needs it. Every queue is at-least-once.

use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::envelope::{Envelope, Message};
use crate::names::QueueName;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A broker's name for one delivery of one message. A message that is delivered again gets another receipt, and a receipt
/// is good for one answer: once the message was given back, or delivered again, whatever comes with it (but an ack) changes
/// nothing and is answered with [`QueueError::LeaseLost`]. Answers may be repeated and may come late.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Receipt {
    /// The message, as the broker knows it.
    pub message: String,
    /// Which delivery of it: a number that no other delivery of this message ever has.
    pub delivery: u64,
}

/// One delivery of one message, leased to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// How to answer for it.
    pub receipt: Receipt,
    /// Where it came from.
    pub queue: QueueName,
    /// What it carries.
    pub message: Message,
    /// How often it was delivered before, not counting deliveries that were deferred. Runs so far are this plus the
    /// attempts that the envelope carries.
    pub redeliveries: u32,
    /// When the message was first put on the queue, by the queue's clock. Retry and defer do not change it.
    pub enqueued_at: DateTime<Utc>,
}

/// Why the queue did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The broker cannot be reached or did not answer in time; whether it acted is unknown.
    #[error("the queue is away: {0}")]
    Away(#[source] BoxError),
    /// The lease ran out and the message was delivered again, or it was given back or removed. Whoever holds it now answers
    /// for it.
    #[error("the lease on this delivery is lost")]
    LeaseLost,
    /// The broker understood and refused.
    #[error("the queue refused: {0}")]
    Refused(#[source] BoxError),
}

/// An at-least-once queue with leases. Implementations are cheap to clone.
///
/// Calls may be dropped before they finish; a call that was dropped may or may not have had its effect.
pub trait QueuePort: Clone + Send + Sync + 'static {
    /// Whether every consumer of a queue gets a copy of its own of every message. Default: they compete for messages.
    ///
    /// It decides what becomes of a replay that is for another consumer: where each has its own copy, ours is
    /// acknowledged; where consumers compete, it is given back for the right one.
    fn fan_out(&self) -> bool {
        false
    }

    /// Takes up to `max` messages for `lease`, without waiting for more to come. None available is an empty list.
    fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Delivery>, QueueError>> + Send;

    /// Removes the message: its outcome is durable (S3), so it does not matter who holds it by now. A message that is gone
    /// already is `Ok`.
    fn ack(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Removes several. When this fails, some may be gone; it may be repeated. Default: one after the other.
    fn ack_all(
        &self,
        queue: &QueueName,
        receipts: &[Receipt],
    ) -> impl Future<Output = Result<(), QueueError>> + Send {
        async move {
            for receipt in receipts {
                self.ack(queue, receipt).await?;
            }
            Ok(())
        }
    }

    /// Gives the message back for delivery after `delay`; the run it was given to counts.
    fn retry(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Gives the message back for delivery after `delay`, as if this delivery had never been made.
    fn defer(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Makes the lease last `lease` from now. Changes nothing once the message was given back: an extension that was still on
    /// its way must not cut the wait (S6).
    fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        lease: Duration,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Puts a message on the queue, durably when this returns.
    fn publish(
        &self,
        queue: &QueueName,
        envelope: &Envelope,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// When the oldest message that is still there, leased and delayed ones included, was enqueued.
    fn oldest(
        &self,
        queue: &QueueName,
    ) -> impl Future<Output = Result<Option<DateTime<Utc>>, QueueError>> + Send;
}
