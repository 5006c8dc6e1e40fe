//! What is there, measured from time to time: messages in queues, letters that wait, alerts that are owed, fences that are
//! due. Counters say what this process did; these say what is left to do, whoever did not do it.
//!
//! Several meters may run at once; they only read, and what they read is bounded.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::consumer::Shutdown;
use crate::event::{Event, Step};
use crate::names::{ConsumerName, QueueName};
use crate::ports::env::Env;
use crate::ports::meter::{MeterQueue, MeterStore};
use crate::ports::queue::QueueError;
use crate::ports::store::StoreError;
use crate::time::within;

/// What to measure, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeterConfig {
    /// Whose due fences are looked at.
    pub consumers: BTreeSet<ConsumerName>,
    /// Whose messages are counted.
    pub queues: BTreeSet<QueueName>,
    /// From the end of a round to the start of the next. Default 15 s.
    pub interval: Duration,
    /// The longest that one call may take. Default 10 s.
    pub port_timeout: Duration,
}

impl Default for MeterConfig {
    fn default() -> Self {
        Self {
            consumers: BTreeSet::new(),
            queues: BTreeSet::new(),
            interval: Duration::from_secs(15),
            port_timeout: Duration::from_secs(10),
        }
    }
}

/// Measures, round by round.
#[derive(Debug)]
pub struct Meter<S, Q> {
    config: MeterConfig,
    store: S,
    queue: Q,
    env: Env,
    /// Where letters waited in some round before: a gauge that is not set any more would keep its last value for ever.
    waited: BTreeSet<(QueueName, ConsumerName)>,
}

impl<S: MeterStore, Q: MeterQueue> Meter<S, Q> {
    /// Measures what `config` names, and letters and alerts of everybody.
    pub fn new(config: MeterConfig, store: S, queue: Q, env: Env) -> Self {
        Self {
            config,
            store,
            queue,
            env,
            waited: BTreeSet::new(),
        }
    }

    /// Round after round, until `shutdown` begins.
    pub async fn run(mut self, shutdown: Shutdown) {
        while !shutdown.has_begun() {
            self.round().await;
            tokio::select! {
                biased;
                () = shutdown.begun() => {}
                () = self.env.clock.sleep(self.config.interval) => {}
            }
        }
    }

    /// Measures everything once. What cannot be measured is told, and the rest is measured all the same.
    pub async fn round(&mut self) {
        for queue in self.config.queues.clone() {
            let call = within(
                &*self.env.clock,
                self.config.port_timeout,
                self.queue.measure(&queue),
            );
            let measured = call
                .await
                .unwrap_or_else(|elapsed| Err(QueueError::Away(elapsed.into())));
            let step = match measured {
                Ok(stock) => Step::QueueMeasured {
                    messages: stock.messages,
                    oldest: stock.oldest,
                },
                Err(error) => Step::QueueFailed {
                    call: "measure".into(),
                    error: crate::error_text::error_text(&error),
                },
            };
            self.emit(Some(queue), None, step);
        }
        for consumer in self.config.consumers.clone() {
            if let Some(overdue) = self.asked(self.store.oldest_due_fence(&consumer)).await {
                self.emit(None, Some(consumer), Step::FencesMeasured { overdue });
            }
        }
        if let Some(waiting) = self.asked(self.store.pending_letters()).await {
            let mut gone = std::mem::take(&mut self.waited);
            for stock in waiting {
                let place = (stock.queue.clone(), stock.consumer.clone());
                gone.remove(&place);
                self.waited.insert(place);
                let step = Step::LettersMeasured {
                    pending: stock.letters,
                    oldest: stock.oldest,
                };
                self.emit(Some(stock.queue), Some(stock.consumer), step);
            }
            for (queue, consumer) in gone {
                let step = Step::LettersMeasured {
                    pending: 0,
                    oldest: Duration::ZERO,
                };
                self.emit(Some(queue), Some(consumer), step);
            }
        }
        if let Some(owed) = self.asked(self.store.owed_alerts()).await {
            self.emit(None, None, Step::AlertsMeasured { owed });
        }
    }

    async fn asked<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Option<T> {
        let error = match within(&*self.env.clock, self.config.port_timeout, call).await {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => crate::error_text::error_text(&error),
            Err(elapsed) => elapsed.to_string(),
        };
        let call = "measure".into();
        self.emit(None, None, Step::StoreFailed { call, error });
        None
    }

    fn emit(&self, queue: Option<QueueName>, consumer: Option<ConsumerName>, step: Step) {
        self.env.emit(Event {
            consumer,
            queue,
            job: None,
            step,
        });
    }
}
