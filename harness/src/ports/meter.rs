//! What can be measured from outside. Everything here only reads, and reads a bounded amount.

use std::future::Future;
use std::time::Duration;

use crate::names::{ConsumerName, QueueName};
use crate::ports::queue::QueueError;
use crate::ports::store::StoreError;

/// What is in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStock {
    /// Messages, leased and delayed ones included.
    pub messages: u64,
    /// For how long the oldest of them has been there, by the queue's clock; zero when there is none.
    pub oldest: Duration,
}

/// A queue that can tell how full it is.
pub trait MeterQueue: Clone + Send + Sync + 'static {
    /// Counts.
    fn measure(
        &self,
        queue: &QueueName,
    ) -> impl Future<Output = Result<QueueStock, QueueError>> + Send;
}

/// Dead letters of one queue and consumer that wait for a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterStock {
    /// Where their jobs came from.
    pub queue: QueueName,
    /// Who failed on them.
    pub consumer: ConsumerName,
    /// How many; only the oldest [`LetterStock::AT_MOST`] of all are counted.
    pub letters: u64,
    /// For how long the oldest has waited, by the store's clock.
    pub oldest: Duration,
}

impl LetterStock {
    /// Letters that are counted, of all queues and consumers together: enough to know that there are too many.
    pub const AT_MOST: u32 = 10_000;
}

/// A store that can tell what waits in it.
pub trait MeterStore: Clone + Send + Sync + 'static {
    /// The oldest pending letters, by queue and consumer.
    fn pending_letters(&self) -> impl Future<Output = Result<Vec<LetterStock>, StoreError>> + Send;

    /// Dead letters that no delivered incident covers yet; at most [`LetterStock::AT_MOST`] are counted.
    fn owed_alerts(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// For how long the oldest expired fence of a consumer has been expired; zero when none is.
    fn oldest_due_fence(
        &self,
        consumer: &ConsumerName,
    ) -> impl Future<Output = Result<Duration, StoreError>> + Send;
}
