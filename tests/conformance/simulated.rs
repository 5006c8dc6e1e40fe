//! The simulation's broker and database, each on a host of its own, under the suites.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use acceptance::conformance::queue::QueueBench;
use acceptance::conformance::store::StoreBench;
use acceptance::conformance::{queue, store};
use futures_util::future::BoxFuture;
use harness::{Clock, Connection, ConsumerName, JobId, QueueName, StoreError};
use sim::broker::{self, Broker, SimQueue};
use sim::database::{self, Database, SimStore};
use sim::history::{History, Log};
use sim::link::Post;
use sim::plan::Plan;
use sim::timeline::{SimClock, Timeline, WORLD};
use tokio::sync::{mpsc, oneshot};

const TICK: Duration = Duration::from_millis(1);

/// What only the world itself can do.
enum Order {
    TakeAway,
    BringBack,
}

/// A world with a database, a broker, and a host for the suite.
pub struct Simulated {
    timeline: Timeline,
    post: Post,
    log: Log,
    clock: SimClock,
    database: Database,
    queues: AtomicU32,
    orders: mpsc::UnboundedSender<(Order, oneshot::Sender<()>)>,
}

impl Simulated {
    async fn order(&self, order: Order) -> anyhow::Result<()> {
        let (done, when_done) = oneshot::channel();
        self.orders.send((order, done))?;
        Ok(when_done.await?)
    }
}

/// Runs `job` on a host of a world of its own.
pub fn in_a_world<T, F>(job: impl FnOnce(Simulated) -> F + 'static) -> T
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let timeline = Timeline::default();
    let history = History::new(false);
    let log = |host| Log::new(history.clone(), timeline.clone(), host);
    let mut knobs = Plan::draw(0, 1).knobs;
    knobs.contention_per_mille = 0;
    knobs.broker_duplicates_per_mille = 0;
    let broker = Broker::new(timeline.clone(), log("broker"), 1, &knobs);
    let database = Database::new(timeline.clone(), log("database"), broker.clone(), 2, &knobs);
    let (orders, mut ordered) = mpsc::unbounded_channel();
    let bench = Simulated {
        timeline: timeline.clone(),
        post: Post::new(timeline.clone(), 3),
        log: log("bench"),
        clock: SimClock::new(timeline.clone(), WORLD, log("bench")),
        database: database.clone(),
        queues: AtomicU32::new(0),
        orders,
    };
    let mut sim = turmoil::Builder::new()
        .epoch(std::time::UNIX_EPOCH)
        .rng_seed(4)
        .tick_duration(TICK)
        .min_message_latency(TICK)
        .max_message_latency(TICK)
        .simulation_duration(Duration::from_secs(u64::from(u32::MAX)))
        .tcp_capacity(4_096)
        .build();
    let (post, served, logged) = (bench.post.clone(), database.clone(), log("database"));
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
    let told = Arc::clone(&outcome);
    sim.client("bench", async move {
        let ended = job(bench).await;
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        Ok(())
    });
    loop {
        timeline.advance(TICK);
        sim.step().expect("the world goes on");
        while let Ok((order, done)) = ordered.try_recv() {
            for host in ["database", "broker"] {
                match order {
                    Order::TakeAway => sim.crash(host),
                    Order::BringBack => sim.bounce(host),
                }
            }
            if matches!(order, Order::TakeAway) {
                database.crash();
            }
            let _ = done.send(());
        }
        let ended = outcome
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(ended) = ended {
            return ended;
        }
    }
}

impl QueueBench for Simulated {
    type Queue = SimQueue;

    async fn client(&self) -> anyhow::Result<SimQueue> {
        Ok(SimQueue::new(self.post.clone(), self.log.clone()))
    }

    async fn fresh(&self) -> anyhow::Result<QueueName> {
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        Ok(QueueName::new(&format!("queue_{number}"))?)
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn pass(&self, _: &QueueName, time: Duration) -> anyhow::Result<()> {
        self.timeline.advance(time);
        Ok(())
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.order(Order::TakeAway).await
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.order(Order::BringBack).await
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

impl StoreBench for Simulated {
    type Store = SimStore;

    fn client(&self, patient: bool) -> SimStore {
        let fence_wait = Duration::from_millis(if patient { 10_000 } else { 20 });
        SimStore::new(self.post.clone(), self.log.clone(), fence_wait)
    }

    fn effect<'a>(
        connection: &'a mut Connection<SimStore>,
        job: JobId,
        consumer: &'a ConsumerName,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(connection.work((job, consumer.clone()), 0))
    }

    fn failing_statement(connection: &mut Connection<SimStore>) -> BoxFuture<'_, ()> {
        Box::pin(async { drop(connection.fail().await) })
    }

    async fn look(&self, job: JobId, consumer: &ConsumerName) -> anyhow::Result<(u64, bool)> {
        let key = (job, consumer.clone());
        Ok(self.database.look(|tables| {
            let effects = tables.effects.get(&key).copied().unwrap_or(0);
            (effects.into(), tables.fences.contains_key(&key))
        }))
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.order(Order::TakeAway).await
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.order(Order::BringBack).await
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

/// What the simulation does not do on purpose.
///
/// The database makes durable whatever a transaction did: that an effect has its fence is for the harness to see to, and for
/// a check of the simulation (S2) to watch.
pub const EXEMPT: [&str; 1] = ["b1_a_commit_without_a_fence_is_refused"];

macro_rules! on_the_broker {
    ($($case:ident,)*) => { mod broker_ { use super::*; $(
        #[test]
        fn $case() {
            in_a_world(|bench| async move { queue::run(stringify!($case), &bench).await }).unwrap();
        }
    )* } };
}
acceptance::queue_cases!(on_the_broker);

macro_rules! on_the_database {
    ($($case:ident,)*) => { mod database_ { use super::*; $(
        #[test]
        fn $case() {
            let ended = in_a_world(|bench| async move { store::run(stringify!($case), &bench).await });
            if EXEMPT.contains(&stringify!($case)) {
                ended.expect_err("it is exempt, and need not be");
            } else {
                ended.unwrap();
            }
        }
    )* } };
}
acceptance::store_cases!(on_the_database);
