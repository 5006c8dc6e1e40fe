//! Workers that can be killed, and what is wrong around them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use acceptance::db::{Db, consumer_name};
use acceptance::faults::{Call, Fault, Faulty, ForStore, Point, When};
use acceptance::watch::Recorder;
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::BoxFuture;
use harness::{
    Clock, Consumer, ConsumerConfig, Env, Failure, Handler, Job, JobId, PgStore, PgStoreConfig,
    RetryPolicy, Shutdown, SystemClock,
};
use sim::jobs::{PLANNED_PANIC, Task};
use sim::plan::{Knobs, RunEnd};
use sqlx::PgConnection;
use tokio::task::JoinHandle;

/// What is wrong at the moment. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Trouble(Arc<Mutex<Wrong>>);

#[derive(Debug, Default)]
struct Wrong {
    /// Servers that nobody reaches, and that one worker does not, with how many faults say so.
    away: BTreeMap<(Option<usize>, &'static str), u32>,
    /// Calls to be cut, by fault.
    cuts: BTreeMap<usize, Cut>,
}

#[derive(Debug)]
struct Cut {
    at: Point,
    /// Calls of this name until it is the one.
    left: u64,
}

/// Whose call it is.
fn server(call: Call) -> &'static str {
    match call {
        Call::Begin
        | Call::Fence
        | Call::Commit
        | Call::Rollback
        | Call::RecordDeadLetter
        | Call::Ping => "database",
        Call::Work => "nobody",
        _ => "broker",
    }
}

impl Trouble {
    fn with<T>(&self, change: impl FnOnce(&mut Wrong) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A server cannot be reached by one worker, or by nobody.
    pub fn take_away(&self, worker: Option<usize>, server: &'static str) {
        self.with(|wrong| *wrong.away.entry((worker, server)).or_default() += 1);
    }

    /// It can again.
    pub fn bring_back(&self, worker: Option<usize>, server: &'static str) {
        self.with(|wrong| {
            if let Some(faults) = wrong.away.get_mut(&(worker, server)) {
                *faults -= 1;
            }
            wrong.away.retain(|_, faults| *faults > 0);
        });
    }

    /// Whether some server is out of reach for somebody.
    pub fn is_outage(&self) -> bool {
        self.with(|wrong| !wrong.away.is_empty())
    }

    /// The so-manieth call of this name is cut.
    pub fn cut(&self, fault: usize, call: &str, answer: bool, nth: u64) {
        let (call, when) = match (call, answer) {
            // The letter is marked in the same breath: what gets lost is all behind the publish.
            ("mark_replayed", _) => (Call::Publish, When::After),
            (name, answer) => {
                let called =
                    |it: &Call| format!("{it:?}").eq_ignore_ascii_case(&name.replace('_', ""));
                let Some(call) = Call::ALL.into_iter().find(called) else {
                    return;
                };
                (call, if answer { When::After } else { When::Before })
            }
        };
        let at = Point { when, call };
        self.with(|wrong| wrong.cuts.insert(fault, Cut { at, left: nth }));
    }

    /// It is not, if it was not yet.
    pub fn mend(&self, fault: usize) {
        self.with(|wrong| wrong.cuts.remove(&fault));
    }

    /// What goes wrong at the calls of one worker; none: at those of an operator.
    pub fn plan_of(&self, worker: Option<usize>) -> acceptance::faults::Plan {
        let trouble = self.clone();
        Arc::new(move |point| trouble.with(|wrong| wrong.at(worker, point)))
    }
}

impl Wrong {
    fn at(&mut self, worker: Option<usize>, point: Point) -> Fault {
        let server = server(point.call);
        let away = |whose| self.away.contains_key(&(whose, server));
        if point.when == When::Before && worker.is_some() && (away(None) || away(worker)) {
            return Fault::Away;
        }
        let mut hit = None;
        for (fault, cut) in &mut self.cuts {
            if cut.at == point {
                cut.left = cut.left.saturating_sub(1);
                if cut.left == 0 {
                    hit = Some(*fault);
                }
            }
        }
        match hit {
            Some(fault) => {
                self.cuts.remove(&fault);
                Fault::Away
            }
            None => Fault::None,
        }
    }
}

/// A calendar that may be wrong.
#[derive(Debug, Clone)]
pub struct Jumping {
    clock: SystemClock,
    seconds: Arc<AtomicI64>,
}

impl Jumping {
    fn new() -> Self {
        Self {
            clock: SystemClock::new(),
            seconds: Arc::default(),
        }
    }

    /// The calendar jumps.
    pub fn jump(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for Jumping {
    fn now(&self) -> DateTime<Utc> {
        self.clock.now() + TimeDelta::seconds(self.seconds.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}

/// Writes one entry to the ledger, and ends as the simulation's handler does.
#[derive(Debug, Clone, Default)]
pub struct Player {
    ran: Arc<Mutex<BTreeSet<JobId>>>,
}

impl Handler<PgStore> for Player {
    type Payload = Task;

    async fn handle(&self, job: Job<Task>, tx: &mut PgConnection) -> Result<(), Failure> {
        let first = self
            .ran
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(job.id);
        sqlx::query(
            "INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, $2, 'ada', 1)",
        )
        .bind(job.id.as_uuid())
        .bind(consumer_name().as_str())
        .execute(&mut *tx)
        .await?;
        // Time is short here: long work is a moment longer.
        let work = job.payload.work_ms.min(30);
        SystemClock::new().sleep(Duration::from_millis(work)).await;
        match job.payload.behaviour.ends(job.run, job.generation, first) {
            RunEnd::Succeeds => Ok(()),
            RunEnd::FailsTransiently => Err(Failure::transient("fails as planned")),
            RunEnd::FailsForGood => Err(Failure::permanent("fails for good as planned")),
            RunEnd::SwallowsAnError => {
                let _ = sqlx::query("SELECT 1 / 0").execute(tx).await;
                Ok(())
            }
            RunEnd::Panics => panic!("{PLANNED_PANIC}"),
        }
    }
}

/// The standard policies, all waits of a second and more shortened to milliseconds.
pub fn config(db: &Db, knobs: &Knobs) -> ConsumerConfig {
    let mut config = db.config();
    config.concurrency = knobs.concurrency;
    config.prefetch = knobs.prefetch;
    config.batch = knobs.batch;
    config.lease = Duration::from_secs(1);
    config.run_deadline = Duration::from_secs(20);
    config.busy_delay = Duration::from_millis(20);
    config.defer_delay = Duration::from_millis(20);
    config.outage_backoff_cap = Duration::from_millis(50);
    let (base, cap) = (Duration::from_millis(10), Duration::from_millis(100));
    config.retry = RetryPolicy::overriding(base, cap, 5, "tests are in a hurry").unwrap();
    config
}

struct Process {
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

/// One worker, and how often it was started.
pub struct Worker {
    number: usize,
    trouble: Trouble,
    player: Player,
    /// Of this worker, whatever process it is.
    pub clock: Jumping,
    process: Option<Process>,
    /// What its processes did, each for itself.
    pub seen: Vec<Recorder>,
}

impl Worker {
    /// It is not started yet.
    pub fn new(number: usize, trouble: Trouble, player: Player) -> Self {
        Self {
            number,
            trouble,
            player,
            clock: Jumping::new(),
            process: None,
            seen: Vec::new(),
        }
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Starts it, unless it runs.
    pub async fn start(&mut self, db: &Db, knobs: &Knobs) {
        if self.is_up() {
            return;
        }
        let seen = Recorder::default();
        let env = Env {
            clock: Arc::new(self.clock.clone()),
            observer: Arc::new(seen.clone()),
            ..Env::system().unwrap()
        };
        self.seen.push(seen);
        let plan = self.trouble.plan_of(Some(self.number));
        let store = db.store_with(PgStoreConfig {
            max_connections: 5,
            fence_wait: Duration::from_millis(knobs.fence_wait_ms),
            ..PgStoreConfig::default()
        });
        let consumer = Consumer::new(
            config(db, knobs),
            Faulty::new(store, Arc::clone(&plan)),
            Faulty::new(db.queue().await, Arc::clone(&plan)),
            Faulty::new(ForStore::<PgStore, _>::new(self.player.clone()), plan),
            env,
        )
        .unwrap();
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let task = tokio::spawn(async move {
            consumer.run(stop).await;
        });
        self.process = Some(Process { shutdown, task });
    }

    /// Kills it in the middle of whatever it does.
    pub async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.task.abort();
            let _ = process.task.await;
        }
    }

    /// Tells it to shut down.
    pub fn begin_shutdown(&self) {
        if let Some(process) = &self.process {
            process.shutdown.begin();
        }
    }

    /// Shuts it down and waits for the end.
    pub async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.shutdown.begin();
            let ended = acceptance::clock::in_time("a worker shuts down", process.task).await;
            ended.expect("no worker panics");
        }
    }
}
