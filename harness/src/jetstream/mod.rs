//! Queues on NATS JetStream.
//!
//! What JetStream itself knows of a delivery is not enough. Its count of deliveries and its waits are forgotten when the
//! server is killed, an answer of a worker whose lease ran out acts on whoever holds the message now, and the time until a
//! message comes again is one for all. So a queue is **two streams**:
//!
//! * `JOBS_<queue>` holds the messages, each under its own sequence until it is acknowledged. Nothing of them ever changes,
//!   so the first one that is left is the oldest, and the server knows it without looking (B7).
//! * `JOBS_<queue>_STATE` holds at most one record for each message that was delivered: how many runs count, who holds it,
//!   and how long until it comes again. A record replaces the one before it if and only if that one is still the last
//!   (`Nats-Expected-Last-Subject-Sequence`), so of two that answer for a delivery one wins, also through restarts.
//!
//! The server's own consumers are only asked which message or record to look at next. What they repeat, the record decides;
//! what they forget is found by looking after the oldest message (`neglect`).
//!
//! | a message is | in the first stream | in the second |
//! |---|---|---|
//! | new | yes | no record |
//! | held, or waiting for a retry | yes | a record with a wait |
//! | acknowledged | no | no record (one that is left over is removed when it comes up) |

mod answer;
mod errors;
mod neglect;
mod receive;
mod server_time;
mod setup;
mod state;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::Stream;
use chrono::{DateTime, Utc};

use self::errors::{api_error, publish_error};
use self::neglect::Neglect;
use self::server_time::ServerTime;
pub use self::setup::JetStreamSetupError;
use crate::envelope::Envelope;
use crate::names::QueueName;
use crate::ports::clock::Clock;
use crate::ports::meter::{MeterQueue, QueueStock};
use crate::ports::queue::{Delivery, QueueError, QueuePort, Receipt};

/// How queues are kept on the server, and how long a call may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JetStreamConfig {
    /// Copies of every stream, on as many servers: 1, 3 or 5. One is lost with its server's disk. Default 1.
    pub replicas: usize,
    /// How long one call to the server may take. Default 5 s.
    pub timeout: Duration,
}

impl Default for JetStreamConfig {
    fn default() -> Self {
        Self {
            replicas: 1,
            timeout: Duration::from_secs(5),
        }
    }
}

/// Queues on NATS JetStream. Clones share the connection.
#[derive(Clone)]
pub struct JetStreamQueue {
    context: Context,
    config: JetStreamConfig,
    clock: Arc<dyn Clock>,
    queues: Arc<Mutex<BTreeMap<QueueName, Arc<Opened>>>>,
}

/// The server's side of one queue.
struct Opened {
    names: Names,
    messages: Stream<()>,
    states: Stream<()>,
    new: PullConsumer,
    due: PullConsumer,
    time: ServerTime,
    neglect: Neglect,
}

/// What a queue's streams and subjects are called.
#[derive(Debug, Clone)]
struct Names {
    messages: String,
    /// Where producers publish.
    subject: String,
    states: String,
    state_prefix: String,
}

impl Names {
    fn of(queue: &QueueName) -> Self {
        Self {
            messages: format!("JOBS_{queue}"),
            subject: format!("jobs.{queue}"),
            // No queue's name has a capital letter, so no two queues share a stream.
            states: format!("JOBS_{queue}_STATE"),
            state_prefix: format!("jobs-state.{queue}"),
        }
    }

    /// Where the record of one message is.
    fn state_of(&self, message: u64) -> String {
        format!("{}.message.{message}", self.state_prefix)
    }

    /// The records of all messages.
    fn all_states(&self) -> String {
        format!("{}.message.*", self.state_prefix)
    }

    /// Where the server is asked for its time.
    fn time(&self) -> String {
        format!("{}.time", self.state_prefix)
    }
}

impl std::fmt::Debug for JetStreamQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JetStreamQueue")
    }
}

impl JetStreamQueue {
    /// Uses a connection of the caller's, which may be shared. `clock` measures how long ago the server was asked for its
    /// time; leases and waits are by the server's clock.
    pub fn new(client: async_nats::Client, config: JetStreamConfig, clock: Arc<dyn Clock>) -> Self {
        let mut context = async_nats::jetstream::new(client);
        context.set_timeout(config.timeout);
        Self {
            context,
            config,
            clock,
            queues: Arc::default(),
        }
    }

    /// Creates what is missing of a queue, and checks what is there.
    ///
    /// # Errors
    /// When the server is away, has no JetStream, or when a stream or consumer is there with a setting under which jobs
    /// could be lost: the error names the setting and what it must be.
    pub async fn create(&self, queue: &QueueName) -> Result<(), JetStreamSetupError> {
        setup::create(self, queue).await.map(drop)
    }

    /// Checks that a queue is there and that no setting of the server's loses jobs. Meant for the start of a worker.
    ///
    /// # Errors
    /// As [`create`](Self::create); and when it is not there.
    pub async fn check(&self, queue: &QueueName) -> Result<(), JetStreamSetupError> {
        setup::check(self, queue).await.map(drop)
    }

    /// The server's side of a queue: looked up and checked once.
    async fn open(&self, queue: &QueueName) -> Result<Arc<Opened>, QueueError> {
        if let Some(opened) = self.opened().get(queue) {
            return Ok(Arc::clone(opened));
        }
        let opened = Arc::new(setup::check(self, queue).await?);
        self.opened().insert(queue.clone(), Arc::clone(&opened));
        Ok(opened)
    }

    fn opened(&self) -> std::sync::MutexGuard<'_, BTreeMap<QueueName, Arc<Opened>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client would keep a request until it is connected again, and send it when nobody waits for it any more.
    fn connected(&self) -> Result<(), QueueError> {
        match self.context.client().connection_state() {
            async_nats::connection::State::Connected => Ok(()),
            state => Err(QueueError::Away(
                format!("the connection to NATS is {state}").into(),
            )),
        }
    }

    async fn state_of_stream(
        &self,
        queue: &QueueName,
    ) -> Result<(Arc<Opened>, async_nats::jetstream::stream::State), QueueError> {
        self.connected()?;
        let at = self.open(queue).await?;
        let info = at.messages.get_info().await.map_err(api_error)?;
        Ok((at, info.state))
    }
}

impl QueuePort for JetStreamQueue {
    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        self.connected()?;
        let at = self.open(queue).await?;
        receive::receive(self, &at, queue, max, lease).await
    }

    async fn ack(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        self.connected()?;
        let at = self.open(queue).await?;
        answer::ack(&at, receipt).await
    }

    async fn ack_all(&self, queue: &QueueName, receipts: &[Receipt]) -> Result<(), QueueError> {
        self.connected()?;
        let at = self.open(queue).await?;
        let all = receipts.iter().map(|receipt| answer::ack(&at, receipt));
        futures_util::future::try_join_all(all).await.map(drop)
    }

    async fn retry(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        self.answer(queue, receipt, |state| state.given_back(delay))
            .await
    }

    async fn defer(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        self.answer(queue, receipt, |state| state.deferred(delay))
            .await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        lease: Duration,
    ) -> Result<(), QueueError> {
        self.answer(queue, receipt, |state| {
            state.extended(receipt.delivery, lease)
        })
        .await
    }

    async fn publish(&self, queue: &QueueName, envelope: &Envelope) -> Result<(), QueueError> {
        let headers = wire::headers(&envelope.wire_headers())?;
        self.connected()?;
        let at = self.open(queue).await?;
        let stored = self
            .context
            .publish_with_headers(
                at.names.subject.clone(),
                headers,
                envelope.body.clone().into(),
            )
            .await
            .map_err(publish_error)?;
        stored.await.map_err(publish_error)?;
        Ok(())
    }

    async fn oldest(&self, queue: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        let (_, state) = self.state_of_stream(queue).await?;
        Ok((state.messages > 0).then_some(state.first_timestamp))
    }
}

impl MeterQueue for JetStreamQueue {
    async fn measure(&self, queue: &QueueName) -> Result<QueueStock, QueueError> {
        let (at, state) = self.state_of_stream(queue).await?;
        let oldest = match state.messages {
            0 => Duration::ZERO,
            _ => {
                let now = at.time.now(self, &at).await?;
                (now - state.first_timestamp).to_std().unwrap_or_default()
            }
        };
        Ok(QueueStock {
            messages: state.messages,
            oldest,
        })
    }
}
