//! The simulated broker: at-least-once, with leases, redelivery counts and delays. It may deliver out of order and hand a
//! leased message out twice. What it was given survives a crash of its host.

mod client;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use harness::{Delivery, Entropy, Envelope, JobId, Message, QueueName, Receipt};

pub use self::client::SimQueue;
use crate::history::{Fact, Log, LoggedEntropy};
use crate::link::{Named, Post, Session};
use crate::plan::Knobs;
use crate::timeline::Timeline;

#[derive(Debug, Clone)]
struct Row {
    queue: QueueName,
    message: Message,
    job: JobId,
    generation: u32,
    visible_at: Duration,
    /// Deliveries that count.
    deliveries: u64,
    /// The receipt of the delivery that was not answered yet.
    receipt: Option<u64>,
    enqueued_at: Duration,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<u64, Row>,
    next: u64,
    /// Receipts that were given out.
    receipts: u64,
}

/// The broker of a world. Clones share it.
#[derive(Clone)]
pub struct Broker {
    state: Arc<Mutex<State>>,
    dice: Arc<LoggedEntropy>,
    /// Of 1,000 receives, how many hand out a message that is leased to somebody else.
    duplicates_per_mille: u64,
    /// How much its calendar is ahead of the database's.
    skew: TimeDelta,
    timeline: Timeline,
    log: Log,
}

/// A call.
pub(crate) enum Request {
    Receive {
        queue: QueueName,
        max: usize,
        lease: Duration,
    },
    Ack(Receipt),
    Retry {
        receipt: Receipt,
        delay: Duration,
    },
    Defer {
        receipt: Receipt,
        delay: Duration,
    },
    Extend {
        receipt: Receipt,
        lease: Duration,
    },
    Publish {
        queue: QueueName,
        message: Message,
    },
    Oldest(QueueName),
}

impl Named for Request {
    fn name(&self) -> &'static str {
        match self {
            Self::Receive { .. } => "receive",
            Self::Ack(_) => "ack",
            Self::Retry { .. } => "retry",
            Self::Defer { .. } => "defer",
            Self::Extend { .. } => "extend",
            Self::Publish { .. } => "publish",
            Self::Oldest(_) => "oldest",
        }
    }

    fn message(&self) -> Option<u64> {
        match self {
            Self::Ack(receipt)
            | Self::Retry { receipt, .. }
            | Self::Defer { receipt, .. }
            | Self::Extend { receipt, .. } => receipt.message.parse().ok(),
            _ => None,
        }
    }
}

/// Its answer.
pub(crate) enum Response {
    Deliveries(Vec<Delivery>),
    Done,
    LeaseLost,
    Oldest(Option<DateTime<Utc>>),
}

impl Broker {
    /// An empty one.
    pub fn new(timeline: Timeline, log: Log, seed: u64, knobs: &Knobs) -> Self {
        Self {
            state: Arc::default(),
            dice: Arc::new(LoggedEntropy::new(seed, log.clone())),
            duplicates_per_mille: knobs.broker_duplicates_per_mille,
            skew: TimeDelta::seconds(knobs.broker_ahead_s),
            timeline,
            log,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fact(&self, fact: Fact) {
        self.log.fact(fact);
    }

    /// Messages that are still there, leased and delayed ones included.
    pub fn queued(&self) -> usize {
        self.state().rows.len()
    }

    /// Messages of one job that are still there.
    pub fn copies_of(&self, job: JobId) -> usize {
        self.state()
            .rows
            .values()
            .filter(|row| row.job == job)
            .count()
    }

    /// How often each message of a queue was delivered.
    pub fn deliveries(&self, queue: &QueueName) -> Vec<u32> {
        let state = self.state();
        let rows = state.rows.values().filter(|row| row.queue == *queue);
        rows.map(|row| u32::try_from(row.deliveries).unwrap_or(u32::MAX))
            .collect()
    }

    /// Time passes until whatever is leased or delayed on a queue is due.
    pub fn make_due(&self, queue: &QueueName) {
        let now = self.timeline.now();
        for row in self.state().rows.values_mut() {
            if row.queue == *queue {
                row.visible_at = now;
            }
        }
    }

    fn receive(&self, queue: &QueueName, max: usize, lease: Duration) -> Vec<Delivery> {
        let now = self.timeline.now();
        let mut facts = Vec::new();
        let deliveries = {
            let mut state = self.state();
            let twice = self.dice.next_u64() % 1_000 < self.duplicates_per_mille;
            let mut ids: Vec<u64> = state
                .rows
                .iter()
                .filter(|(_, row)| {
                    row.queue == *queue && (row.visible_at <= now || (twice && row.deliveries > 0))
                })
                .map(|(id, _)| *id)
                .collect();
            // Out of order, a little.
            for at in (1..ids.len()).rev() {
                if self.dice.next_u64().is_multiple_of(8) {
                    ids.swap(at, at - 1);
                }
            }
            ids.truncate(max);
            let mut deliveries = Vec::new();
            let mut last_receipt = state.receipts;
            for id in ids {
                let Some(row) = state.rows.get_mut(&id) else {
                    continue;
                };
                row.deliveries += 1;
                last_receipt += 1;
                row.receipt = Some(last_receipt);
                row.visible_at = now + lease;
                facts.push(Fact::Delivered {
                    message: id,
                    job: row.job,
                    generation: row.generation,
                    delivery: row.deliveries,
                    lease,
                });
                deliveries.push(Delivery {
                    receipt: Receipt {
                        message: id.to_string(),
                        delivery: last_receipt,
                    },
                    queue: queue.clone(),
                    message: row.message.clone(),
                    redeliveries: u32::try_from(row.deliveries - 1).unwrap_or(u32::MAX),
                    enqueued_at: Timeline::calendar(row.enqueued_at) + self.skew,
                });
            }
            state.receipts = last_receipt;
            deliveries
        };
        facts.into_iter().for_each(|fact| self.fact(fact));
        deliveries
    }

    fn ack(&self, receipt: &Receipt) -> Response {
        let Ok(message) = receipt.message.parse::<u64>() else {
            return Response::LeaseLost;
        };
        let removed = self.state().rows.remove(&message);
        if let Some(row) = removed {
            self.fact(Fact::Removed {
                message,
                job: row.job,
                generation: row.generation,
            });
        }
        Response::Done
    }

    /// Changes the lease of one delivery, unless the message was handed out again.
    fn give_back(&self, receipt: &Receipt, delay: Duration, counted: Option<bool>) -> Response {
        let now = self.timeline.now();
        let Ok(message) = receipt.message.parse::<u64>() else {
            return Response::LeaseLost;
        };
        let (job, generation, delivery) = {
            let mut state = self.state();
            let Some(row) = state
                .rows
                .get_mut(&message)
                .filter(|row| row.receipt == Some(receipt.delivery))
            else {
                return Response::LeaseLost;
            };
            let delivery = row.deliveries;
            row.visible_at = now + delay;
            if counted.is_some() {
                row.receipt = None;
            }
            if counted == Some(false) {
                row.deliveries -= 1;
            }
            (row.job, row.generation, delivery)
        };
        self.fact(match counted {
            Some(counted) => Fact::GivenBack {
                message,
                job,
                generation,
                delivery,
                counted,
                delay,
            },
            None => Fact::Extended {
                message,
                lease: delay,
            },
        });
        Response::Done
    }

    /// Puts a message on a queue.
    pub fn publish(&self, queue: &QueueName, message: Message) {
        let now = self.timeline.now();
        let (job, generation) = match Envelope::decode(queue, message.clone()) {
            Ok(envelope) => (envelope.job_id, envelope.generation),
            Err(malformed) => (malformed.job_id, 0),
        };
        let id = {
            let mut state = self.state();
            state.next += 1;
            let id = state.next;
            let row = Row {
                queue: queue.clone(),
                message,
                job,
                generation,
                visible_at: now,
                deliveries: 0,
                receipt: None,
                enqueued_at: now,
            };
            state.rows.insert(id, row);
            id
        };
        self.fact(Fact::Published {
            message: id,
            job,
            generation,
        });
    }

    fn answer(&self, request: Request) -> Response {
        match request {
            Request::Receive { queue, max, lease } => {
                Response::Deliveries(self.receive(&queue, max, lease))
            }
            Request::Ack(receipt) => self.ack(&receipt),
            Request::Retry { receipt, delay } => self.give_back(&receipt, delay, Some(true)),
            Request::Defer { receipt, delay } => self.give_back(&receipt, delay, Some(false)),
            Request::Extend { receipt, lease } => self.give_back(&receipt, lease, None),
            Request::Publish { queue, message } => {
                self.publish(&queue, message);
                Response::Done
            }
            Request::Oldest(queue) => {
                let state = self.state();
                let rows = state.rows.values().filter(|row| row.queue == queue);
                let oldest = rows.map(|row| row.enqueued_at).min();
                Response::Oldest(oldest.map(|at| Timeline::calendar(at) + self.skew))
            }
        }
    }
}

#[derive(Clone)]
struct BrokerSession(Broker);

impl Session<Request, Response> for BrokerSession {
    async fn answer(&self, request: Request) -> Response {
        self.0.answer(request)
    }

    fn closed(&self) {}
}

/// Serves the broker.
///
/// # Errors
/// When the port cannot be bound.
pub async fn serve(broker: Broker, post: Post, log: Log) -> std::io::Result<()> {
    crate::link::serve(post, log, move || BrokerSession(broker.clone())).await
}
