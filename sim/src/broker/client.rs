//! The queue as the harness sees it: calls over the network.

use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{Delivery, Envelope, Message, QueueError, QueueName, QueuePort, Receipt};

use super::{Request, Response};
use crate::history::Log;
use crate::link::{Link, Post};

/// A queue client on one host. Clones share its connection.
#[derive(Clone)]
pub struct SimQueue(Link<Request, Response>);

impl SimQueue {
    /// A client that connects when it is first used.
    pub fn new(post: Post, log: Log) -> Self {
        Self(Link::new("broker", post, log))
    }

    async fn ask(&self, request: Request) -> Result<Response, QueueError> {
        match self.0.call(request, None).await {
            Ok(Response::LeaseLost) => Err(QueueError::LeaseLost),
            Ok(response) => Ok(response),
            Err(lost) => Err(QueueError::Away(lost.into())),
        }
    }

    /// Puts any message on the queue, as a producer that knows nothing of envelopes.
    ///
    /// # Errors
    /// When the broker is away.
    pub async fn publish_message(
        &self,
        queue: &QueueName,
        message: Message,
    ) -> Result<(), QueueError> {
        self.ask(Request::Publish {
            queue: queue.clone(),
            message,
        })
        .await
        .map(|_| ())
    }
}

impl QueuePort for SimQueue {
    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        match self
            .ask(Request::Receive {
                queue: queue.clone(),
                max,
                lease,
            })
            .await?
        {
            Response::Deliveries(deliveries) => Ok(deliveries),
            _ => Err(QueueError::Refused("an answer to another call".into())),
        }
    }

    async fn ack(&self, _: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        self.ask(Request::Ack(receipt.clone())).await.map(|_| ())
    }

    async fn retry(
        &self,
        _: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        self.ask(Request::Retry {
            receipt: receipt.clone(),
            delay,
        })
        .await
        .map(|_| ())
    }

    async fn defer(
        &self,
        _: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        self.ask(Request::Defer {
            receipt: receipt.clone(),
            delay,
        })
        .await
        .map(|_| ())
    }

    async fn extend(
        &self,
        _: &QueueName,
        receipt: &Receipt,
        lease: Duration,
    ) -> Result<(), QueueError> {
        self.ask(Request::Extend {
            receipt: receipt.clone(),
            lease,
        })
        .await
        .map(|_| ())
    }

    async fn publish(&self, queue: &QueueName, envelope: &Envelope) -> Result<(), QueueError> {
        let message = Message::Wire {
            headers: envelope.wire_headers(),
            body: envelope.body.clone(),
        };
        self.publish_message(queue, message).await
    }

    async fn oldest(&self, queue: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        match self.ask(Request::Oldest(queue.clone())).await? {
            Response::Oldest(oldest) => Ok(oldest),
            _ => Err(QueueError::Refused("an answer to another call".into())),
        }
    }
}
