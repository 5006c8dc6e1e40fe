//! Queues with one mistake each, made of a good one. They are here so that the suite is seen to fail.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{
    Clock, Delivery, Envelope, JobId, Message, QueueError, QueueName, QueuePort, Receipt,
};

use super::queue::QueueBench;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum QueueFlaw {
    ForgetsRedeliveries,
    CountsEveryDelivery,
    AcksOnDefer,
    AcksOnRetry,
    CountsDeferrals,
    ForgivesRetries,
    IgnoresDelays,
    ForgetsExtensions,
    ExtendsForEver,
    CutsLeases,
    LeasesForEver,
    HandsOutTwice,
    SharesReceipts,
    TakesOldReceipts,
    CallsLostLeasesDone,
    GuardsAcks,
    RefusesSecondAcks,
    ForgetsAcks,
    SendsAgainOnRetry,
    LosesWhatWasPublished,
    PublishesTwice,
    MixesQueues,
    GivesMoreThanAsked,
    LastInFirstOut,
    BodiesAreText,
    EmptyBodiesAreNone,
    LosesHeaders,
    OldestForgetsHeldOnes,
    OldestIsTheYoungest,
    AwayIsEmpty,
    AwayIsRefused,
    AwayIsDone,
    MakesMessagesUp,
}

impl QueueFlaw {
    /// Each with the case that must find it.
    pub const ALL: [(Self, &str); 33] = [
        (Self::ForgetsRedeliveries, "b3_counts_add_up"),
        (
            Self::CountsEveryDelivery,
            "b3_a_deferral_waits_and_does_not_count",
        ),
        (Self::AcksOnDefer, "b3_a_deferral_waits_and_does_not_count"),
        (Self::AcksOnRetry, "b3_a_retry_waits_and_counts"),
        (
            Self::CountsDeferrals,
            "b3_a_deferral_waits_and_does_not_count",
        ),
        (Self::ForgivesRetries, "b3_a_retry_waits_and_counts"),
        (Self::IgnoresDelays, "a_receipt_is_good_for_one_answer"),
        (
            Self::ForgetsExtensions,
            "an_extended_lease_lasts_longer_and_not_for_ever",
        ),
        (
            Self::ExtendsForEver,
            "an_extended_lease_lasts_longer_and_not_for_ever",
        ),
        (Self::CutsLeases, "a_held_message_is_nobody_elses"),
        (
            Self::LeasesForEver,
            "a_lease_that_ran_out_is_a_redelivery_that_counts",
        ),
        (
            Self::HandsOutTwice,
            "clients_that_compete_get_different_messages",
        ),
        (Self::SharesReceipts, "no_two_deliveries_share_a_receipt"),
        (
            Self::TakesOldReceipts,
            "an_answer_to_an_earlier_delivery_changes_nothing",
        ),
        (
            Self::CallsLostLeasesDone,
            "an_answer_for_a_message_that_is_gone_changes_nothing",
        ),
        (Self::GuardsAcks, "an_ack_counts_whoever_holds_the_message"),
        (Self::RefusesSecondAcks, "an_ack_may_be_repeated"),
        (Self::ForgetsAcks, "an_acknowledged_message_is_gone"),
        (Self::SendsAgainOnRetry, "b7_the_enqueue_time_stays"),
        (
            Self::LosesWhatWasPublished,
            "what_was_published_survives_the_server",
        ),
        (
            Self::PublishesTwice,
            "every_message_comes_once_in_about_this_order",
        ),
        (Self::MixesQueues, "queues_do_not_mix"),
        (Self::GivesMoreThanAsked, "no_more_come_than_were_asked_for"),
        (
            Self::LastInFirstOut,
            "every_message_comes_once_in_about_this_order",
        ),
        (Self::BodiesAreText, "a_message_comes_as_it_was_published"),
        (
            Self::EmptyBodiesAreNone,
            "bodies_may_be_empty_or_a_megabyte",
        ),
        (Self::LosesHeaders, "a_message_comes_as_it_was_published"),
        (
            Self::OldestForgetsHeldOnes,
            "b7_the_oldest_message_is_seen_wherever_it_is",
        ),
        (
            Self::OldestIsTheYoungest,
            "b7_the_oldest_message_is_seen_wherever_it_is",
        ),
        (
            Self::AwayIsEmpty,
            "a_queue_that_is_away_says_so_and_is_usable_again",
        ),
        (
            Self::AwayIsRefused,
            "a_queue_that_is_away_says_so_and_is_usable_again",
        ),
        (
            Self::AwayIsDone,
            "a_queue_that_is_away_says_so_and_is_usable_again",
        ),
        (Self::MakesMessagesUp, "an_empty_queue_gives_nothing"),
    ];
}

/// What the flawed queue remembers, for all of its clients.
#[derive(Debug, Default)]
struct Memory {
    /// The last receipt of each message, and what it carried.
    last: BTreeMap<(QueueName, String), (Receipt, Message)>,
    acked: BTreeMap<(QueueName, String), ()>,
    /// Held ones, and what an oldest could be taken for.
    held: usize,
    youngest: Option<DateTime<Utc>>,
    /// Deliveries by message.
    deliveries: BTreeMap<(QueueName, String), u32>,
    /// Published and kept here.
    kept: Vec<(QueueName, Envelope)>,
    /// The queue that stands for all.
    only: Option<QueueName>,
    again: Vec<Delivery>,
}

/// A queue with a mistake.
#[derive(Debug, Clone)]
pub struct Flawed<Q> {
    inner: Q,
    flaw: QueueFlaw,
    memory: Arc<Mutex<Memory>>,
}

impl<Q: QueuePort> Flawed<Q> {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, queue: &QueueName) -> QueueName {
        if self.flaw != QueueFlaw::MixesQueues {
            return queue.clone();
        }
        self.memory().only.get_or_insert(queue.clone()).clone()
    }

    /// The receipt that the server is told.
    fn receipt(&self, queue: &QueueName, receipt: &Receipt) -> Receipt {
        let newest = matches!(
            self.flaw,
            QueueFlaw::TakesOldReceipts | QueueFlaw::SharesReceipts
        );
        let key = (queue.clone(), receipt.message.clone());
        match self.memory().last.get(&key) {
            Some((last, _)) if newest => last.clone(),
            _ => receipt.clone(),
        }
    }

    fn released(&self) {
        let mut memory = self.memory();
        memory.held = memory.held.saturating_sub(1);
    }

    /// What becomes of an answer.
    fn told<T>(&self, outcome: Result<T, QueueError>, instead: T) -> Result<T, QueueError> {
        match (outcome, self.flaw) {
            (Err(QueueError::LeaseLost), QueueFlaw::CallsLostLeasesDone) => Ok(instead),
            (Err(QueueError::Away(error)), QueueFlaw::AwayIsRefused) => {
                Err(QueueError::Refused(error))
            }
            (Err(QueueError::Away(_)), QueueFlaw::AwayIsDone) => Ok(instead),
            (outcome, _) => outcome,
        }
    }

    fn altered(&self, message: Message) -> Message {
        let Message::Wire { mut headers, body } = message else {
            return message;
        };
        let body = match self.flaw {
            QueueFlaw::BodiesAreText => String::from_utf8_lossy(&body).into_owned().into_bytes(),
            QueueFlaw::EmptyBodiesAreNone if body.is_empty() => b"null".to_vec(),
            _ => body,
        };
        if self.flaw == QueueFlaw::LosesHeaders {
            headers.retain(|name, _| harness::RESERVED_HEADERS.contains(&name.as_str()));
        }
        Message::Wire { headers, body }
    }

    /// Notes what came, and makes a mistake with it.
    fn noted(&self, queue: &QueueName, mut it: Delivery) -> Delivery {
        let mut memory = self.memory();
        let key = (queue.clone(), it.receipt.message.clone());
        memory
            .last
            .insert(key.clone(), (it.receipt.clone(), it.message.clone()));
        memory.held += 1;
        memory.youngest = memory.youngest.max(Some(it.enqueued_at));
        let deliveries = memory.deliveries.entry(key).or_default();
        *deliveries += 1;
        match self.flaw {
            QueueFlaw::ForgetsRedeliveries => it.redeliveries = 0,
            QueueFlaw::CountsEveryDelivery => it.redeliveries = *deliveries - 1,
            QueueFlaw::SharesReceipts => it.receipt.delivery = 1,
            QueueFlaw::HandsOutTwice => memory.again.push(it.clone()),
            _ => {}
        }
        drop(memory);
        it.message = self.altered(it.message);
        it
    }

    async fn last_of_all(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let mut all = self.inner.receive(queue, 1_000, lease).await?;
        all.sort_by_key(|it| it.enqueued_at);
        let first = all.len().saturating_sub(max);
        let last = all.split_off(first);
        for it in all {
            self.inner.defer(queue, &it.receipt, Duration::ZERO).await?;
        }
        Ok(last)
    }
}

impl<Q: QueuePort> QueuePort for Flawed<Q> {
    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let queue = self.place(queue);
        let lease = match self.flaw {
            QueueFlaw::CutsLeases => lease / 10,
            QueueFlaw::LeasesForEver => lease * 10_000,
            _ => lease,
        };
        let outcome = match self.flaw {
            QueueFlaw::LastInFirstOut => self.last_of_all(&queue, max, lease).await,
            QueueFlaw::GivesMoreThanAsked => self.inner.receive(&queue, max + 1, lease).await,
            _ => self.inner.receive(&queue, max, lease).await,
        };
        let came = match (self.told(outcome, Vec::new()), self.flaw) {
            (Err(QueueError::Away(_)), QueueFlaw::AwayIsEmpty) => return Ok(Vec::new()),
            (came, _) => came?,
        };
        let mut came: Vec<_> = came.into_iter().map(|it| self.noted(&queue, it)).collect();
        if self.flaw == QueueFlaw::HandsOutTwice && came.len() < max {
            let mut memory = self.memory();
            let again = memory.again.iter().rposition(|it| it.queue == queue);
            came.extend(again.map(|at| memory.again.remove(at)));
        }
        if self.flaw == QueueFlaw::MakesMessagesUp && came.is_empty() {
            let bytes = b"nobody published this".to_vec();
            came.push(Delivery {
                receipt: Receipt {
                    message: "0".to_owned(),
                    delivery: 1,
                },
                queue: queue.clone(),
                message: Message::Foreign {
                    bytes,
                    problem: "made up".to_owned(),
                },
                redeliveries: 0,
                enqueued_at: DateTime::UNIX_EPOCH,
            });
        }
        Ok(came)
    }

    async fn ack(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        let queue = self.place(queue);
        let key = (queue.clone(), receipt.message.clone());
        self.released();
        let refused = {
            let mut memory = self.memory();
            let last = memory.last.get(&key).map(|(last, _)| last.clone());
            let repeated = memory.acked.insert(key, ()).is_some();
            match self.flaw {
                QueueFlaw::ForgetsAcks => return Ok(()),
                QueueFlaw::GuardsAcks => last.is_some_and(|last| last != *receipt),
                QueueFlaw::RefusesSecondAcks => repeated,
                _ => false,
            }
        };
        if refused {
            return Err(QueueError::LeaseLost);
        }
        let outcome = self.inner.ack(&queue, receipt).await;
        self.told(outcome, ())
    }

    async fn retry(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let queue = self.place(queue);
        let receipt = self.receipt(&queue, receipt);
        self.released();
        let outcome = match self.flaw {
            QueueFlaw::AcksOnRetry => self.inner.ack(&queue, &receipt).await,
            QueueFlaw::ForgivesRetries => self.inner.defer(&queue, &receipt, delay).await,
            QueueFlaw::IgnoresDelays => {
                let delay = Duration::ZERO;
                self.inner.retry(&queue, &receipt, delay).await
            }
            QueueFlaw::SendsAgainOnRetry => {
                let key = (queue.clone(), receipt.message.clone());
                let message = self.memory().last.get(&key).map(|(_, it)| it.clone());
                self.inner.ack(&queue, &receipt).await?;
                match message.and_then(|it| Envelope::decode(&queue, it).ok()) {
                    Some(mut envelope) => {
                        envelope.attempts += 1;
                        self.inner.publish(&queue, &envelope).await
                    }
                    None => Ok(()),
                }
            }
            _ => self.inner.retry(&queue, &receipt, delay).await,
        };
        self.told(outcome, ())
    }

    async fn defer(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let queue = self.place(queue);
        let receipt = self.receipt(&queue, receipt);
        self.released();
        let outcome = match self.flaw {
            QueueFlaw::AcksOnDefer => self.inner.ack(&queue, &receipt).await,
            QueueFlaw::CountsDeferrals => self.inner.retry(&queue, &receipt, delay).await,
            QueueFlaw::IgnoresDelays => {
                let delay = Duration::ZERO;
                self.inner.defer(&queue, &receipt, delay).await
            }
            _ => self.inner.defer(&queue, &receipt, delay).await,
        };
        self.told(outcome, ())
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        lease: Duration,
    ) -> Result<(), QueueError> {
        let queue = self.place(queue);
        let receipt = self.receipt(&queue, receipt);
        let outcome = match self.flaw {
            QueueFlaw::ForgetsExtensions => Ok(()),
            QueueFlaw::ExtendsForEver => self.inner.extend(&queue, &receipt, lease * 10_000).await,
            _ => self.inner.extend(&queue, &receipt, lease).await,
        };
        self.told(outcome, ())
    }

    async fn publish(&self, queue: &QueueName, envelope: &Envelope) -> Result<(), QueueError> {
        let queue = self.place(queue);
        if self.flaw == QueueFlaw::LosesWhatWasPublished {
            // On its way when the next one is published.
            let before = {
                let mut memory = self.memory();
                let before = std::mem::take(&mut memory.kept);
                memory.kept.push((queue, envelope.clone()));
                before
            };
            for (queue, envelope) in before {
                self.inner.publish(&queue, &envelope).await?;
            }
            return Ok(());
        }
        let outcome = self.inner.publish(&queue, envelope).await;
        if self.flaw == QueueFlaw::PublishesTwice && is_odd(envelope.job_id) {
            self.inner.publish(&queue, envelope).await?;
        }
        self.told(outcome, ())
    }

    async fn oldest(&self, queue: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        let queue = self.place(queue);
        let oldest = self.inner.oldest(&queue).await;
        let oldest = self.told(oldest, None)?;
        let memory = self.memory();
        Ok(match self.flaw {
            QueueFlaw::OldestForgetsHeldOnes if memory.held > 0 => None,
            QueueFlaw::OldestIsTheYoungest => oldest.max(memory.youngest),
            _ => oldest,
        })
    }
}

fn is_odd(job: JobId) -> bool {
    job.as_uuid().as_u128() & 1 == 1
}

/// A bench whose clients are flawed.
#[derive(Debug)]
pub struct FlawedBench<B> {
    inner: B,
    flaw: QueueFlaw,
    memory: Arc<Mutex<Memory>>,
}

impl<B> FlawedBench<B> {
    /// Plants the mistake.
    pub fn new(inner: B, flaw: QueueFlaw) -> Self {
        Self {
            inner,
            flaw,
            memory: Arc::default(),
        }
    }
}

impl<B: QueueBench> QueueBench for FlawedBench<B> {
    type Queue = Flawed<B::Queue>;

    async fn client(&self) -> anyhow::Result<Self::Queue> {
        Ok(Flawed {
            inner: self.inner.client().await?,
            flaw: self.flaw,
            memory: Arc::clone(&self.memory),
        })
    }

    async fn fresh(&self) -> anyhow::Result<QueueName> {
        self.inner.fresh().await
    }

    fn unit(&self) -> Duration {
        self.inner.unit()
    }

    async fn pass(&self, queue: &QueueName, time: Duration) -> anyhow::Result<()> {
        self.inner.pass(queue, time).await
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.inner.take_away().await
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.inner.bring_back().await
    }

    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }
}
