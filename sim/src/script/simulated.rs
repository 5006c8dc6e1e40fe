//! The bench of the simulated store and broker: three hosts in turmoil, and nothing goes wrong but what the way says.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use harness::{ConsumerName, JobId, QueueName, StoreError};
use models::lifecycle::cover::Way;

use super::{Bench, Driven, Observed, drive};
use crate::broker::{self, Broker, SimQueue};
use crate::database::{self, Database, SimConnection, SimStore};
use crate::history::{History, Log};
use crate::link::Post;
use crate::plan::Plan;
use crate::timeline::Timeline;

const TICK: Duration = Duration::from_millis(1);

/// Twins wait no longer for the fence.
const FENCE_WAIT: Duration = Duration::from_millis(20);

/// More than any wait takes that is not in vain.
const PATIENCE: Duration = Duration::from_secs(10);

struct Simulated {
    timeline: Timeline,
    post: Post,
    log: Log,
    database: Database,
    broker: Broker,
    places: [QueueName; 2],
}

impl Bench for Simulated {
    type Store = SimStore;
    type Queue = SimQueue;

    fn store(&self) -> SimStore {
        SimStore::new(self.post.clone(), self.log.clone(), FENCE_WAIT)
    }

    fn queue(&self) -> SimQueue {
        SimQueue::new(self.post.clone(), self.log.clone())
    }

    fn place(&self, copy: u8) -> QueueName {
        self.places[usize::from(copy)].clone()
    }

    async fn make_due(&self, queue: &QueueName) -> anyhow::Result<()> {
        self.broker.make_due(queue);
        Ok(())
    }

    fn effect<'a>(
        connection: &'a mut SimConnection,
        job: JobId,
        consumer: &'a str,
        generation: u32,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let consumer =
                ConsumerName::new(consumer).map_err(|error| StoreError::Refused(error.into()))?;
            connection.work((job, consumer), generation).await
        })
    }

    async fn observe(&self, job: JobId, consumer: &str) -> anyhow::Result<Observed> {
        let key = (job, ConsumerName::new(consumer)?);
        let open_transactions = self.database.open_transactions();
        Ok(self.database.look(|tables| Observed {
            effects: tables.effects.get(&key).copied().unwrap_or(0).into(),
            fence: tables.fences.contains_key(&key),
            letters: {
                let letters = tables.letters.values();
                let mut letters: Vec<_> = letters
                    .filter(|it| it.letter.job_id == job && it.letter.consumer == key.1)
                    .map(|it| (it.letter.generation, it.letter.reason, it.status))
                    .collect();
                letters.sort();
                letters
            },
            queues: self
                .places
                .each_ref()
                .map(|place| self.broker.deliveries(place)),
            open_transactions,
        }))
    }

    async fn moment(&self) {
        self.timeline.sleep(TICK * 2).await;
    }

    async fn patience(&self) {
        self.timeline.sleep(PATIENCE).await;
    }
}

/// Drives a way on a world of its own.
///
/// # Errors
/// When the harness deviates from the model, or the simulation breaks.
pub fn run(way: &Way) -> anyhow::Result<Driven> {
    let timeline = Timeline::default();
    let history = History::new(false);
    let log = |host| Log::new(history.clone(), timeline.clone(), host);
    let mut knobs = Plan::draw(0, 1).knobs;
    knobs.contention_per_mille = 0;
    knobs.broker_duplicates_per_mille = 0;
    knobs.broker_ahead_s = 0;
    let broker = Broker::new(timeline.clone(), log("broker"), 1, &knobs);
    let database = Database::new(timeline.clone(), log("database"), broker.clone(), 2, &knobs);
    let bench = Arc::new(Simulated {
        timeline: timeline.clone(),
        post: Post::new(timeline.clone(), 3),
        log: log("bench"),
        database: database.clone(),
        broker: broker.clone(),
        places: [QueueName::new("place_1")?, QueueName::new("place_2")?],
    });
    let mut sim = turmoil::Builder::new()
        .epoch(std::time::UNIX_EPOCH)
        .rng_seed(4)
        .tick_duration(TICK)
        .min_message_latency(TICK)
        .max_message_latency(TICK)
        .simulation_duration(Duration::from_secs(u64::from(u32::MAX)))
        .tcp_capacity(4_096)
        .build();
    let (post, served, logged) = (bench.post.clone(), database, log("database"));
    sim.host("database", move || {
        let (post, served, logged) = (post.clone(), served.clone(), logged.clone());
        async move { Ok(database::serve(served, post, logged).await?) }
    });
    let (post, served, logged) = (bench.post.clone(), broker, log("broker"));
    sim.host("broker", move || {
        let (post, served, logged) = (post.clone(), served.clone(), logged.clone());
        async move { Ok(broker::serve(served, post, logged).await?) }
    });
    let outcome = Arc::new(Mutex::new(None));
    let (told, driven) = (Arc::clone(&outcome), way.clone());
    sim.client("bench", async move {
        let outcome = drive(&*bench, &driven, 1).await;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        Ok(())
    });
    loop {
        timeline.advance(TICK);
        sim.step().map_err(|error| anyhow::anyhow!("{error}"))?;
        let ended = outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ended) = ended {
            return ended;
        }
    }
}
