//! Plays a plan on PostgreSQL.
//!
//! What a plan says about time is taken as an order: what is close together happens at once, and where a plan waits for
//! longer than a first retry takes, everything settles first. A killed process is a task that is aborted; a server that is
//! away, or a cut connection, is a port whose calls fail. What only a simulated network can do (loss, delay, pauses) is left
//! out.

use std::collections::{BTreeMap, BTreeSet};

use acceptance::clock::{DEADLINE, eventually};
use acceptance::db::{Db, queue_name};
use acceptance::faults::Faulty;
use acceptance::rig::watched;
use acceptance::watch::Recorder;
use harness::{
    Clock as _, DiscardReason, JobId, LetterFilter, LetterQuery, Message, OutsidePublisher,
    PgStore, PgmqQueue, Review, ReviewStore as _, Reviewer, Status, SweepTarget, Sweeper,
    SweeperConfig, SystemClock,
};
use sim::jobs::{id_of, message};
use sim::plan::{Decision, FaultKind, JobPlan, Plan};

use crate::workers::{Player, Trouble, Worker, config};

/// Longer waits of a plan let everything settle.
const SETTLES_AFTER_MS: u64 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Ends(usize),
    Begins(usize),
    Publish(usize),
}

/// What it left, beside the tables.
pub struct Played {
    /// What each process of each worker did.
    pub seen: Vec<Recorder>,
    /// Those that were not killed.
    pub stopped: Vec<Recorder>,
    /// Fences were swept before their time.
    pub swept: bool,
}

struct Stage<'a> {
    db: &'a Db,
    plan: &'a Plan,
    trouble: Trouble,
    workers: Vec<Worker>,
    /// Faults that keep a worker down, by worker.
    down: BTreeMap<usize, u32>,
    /// Workers that were told to shut down, and are not started again yet.
    deploying: BTreeSet<usize>,
    queue: PgmqQueue,
    store: PgStore,
    review: Review<PgStore, OutsidePublisher<Faulty<PgmqQueue>>>,
    decisions: BTreeMap<JobId, Vec<Decision>>,
    swept: bool,
}

/// # Errors
/// When it does not settle (L1).
pub async fn play(db: &Db, plan: &Plan) -> Result<Played, String> {
    let trouble = Trouble::default();
    let player = Player::default();
    let workers = 0..plan.knobs.workers;
    let (queue, store) = (db.queue().await, db.store());
    let publisher = OutsidePublisher(Faulty::new(queue.clone(), trouble.plan_of(None)));
    let jobs = plan.jobs.iter();
    let mut stage = Stage {
        db,
        plan,
        workers: workers
            .map(|n| Worker::new(n, trouble.clone(), player.clone()))
            .collect(),
        trouble,
        down: BTreeMap::new(),
        deploying: BTreeSet::new(),
        review: Review::new(store.clone(), publisher, watched().0),
        queue,
        store,
        decisions: jobs
            .map(|job| (id_of(job, &queue_name()), job.decisions.clone()))
            .collect(),
        swept: false,
    };
    for worker in &mut stage.workers {
        worker.start(db, &plan.knobs).await;
    }
    let moments = moments(plan);
    let mut now = moments.first().map_or(0, |(at, _)| *at);
    for (at, moment) in moments {
        if at - now > SETTLES_AFTER_MS && stage.is_whole() {
            stage.settle().await?;
        }
        now = at;
        stage.happens(moment).await;
    }
    stage.settle().await?;
    stage.sweep().await?;
    let (mut seen, mut stopped) = (Vec::new(), Vec::new());
    for worker in &mut stage.workers {
        worker.stop().await;
        stopped.extend(worker.seen.last().cloned());
        seen.append(&mut worker.seen);
    }
    Ok(Played {
        seen,
        stopped,
        swept: stage.swept,
    })
}

fn moments(plan: &Plan) -> Vec<(u64, Moment)> {
    let mut moments = Vec::new();
    for (n, job) in plan.jobs.iter().enumerate() {
        moments.push((job.publish_at_ms, Moment::Publish(n)));
        let copies = job.resend_after_ms.iter();
        moments.extend(copies.map(|after| (job.publish_at_ms + after, Moment::Publish(n))));
    }
    for (n, fault) in plan.faults.iter().enumerate() {
        moments.push((fault.at_ms, Moment::Begins(n)));
        moments.push((fault.at_ms + fault.lasts_ms.max(1), Moment::Ends(n)));
    }
    moments.sort_unstable();
    moments
}

/// As both sides know it.
fn server(host: &str) -> Option<&'static str> {
    ["database", "broker"].into_iter().find(|it| *it == host)
}

fn worker(host: &str) -> Option<usize> {
    host.strip_prefix("worker")?.parse().ok()
}

impl Stage<'_> {
    /// Whether everything is up, so that everything can settle.
    fn is_whole(&self) -> bool {
        self.down.is_empty() && self.deploying.is_empty() && !self.trouble.is_outage()
    }

    async fn happens(&mut self, moment: Moment) {
        let (fault, begins) = match moment {
            Moment::Publish(n) => return self.publish(&self.plan.jobs[n]).await,
            Moment::Begins(n) => (n, true),
            Moment::Ends(n) => (n, false),
        };
        match &self.plan.faults[fault].kind {
            FaultKind::Kill(host) | FaultKind::PowerLoss(host) | FaultKind::Pause(host) => {
                match (worker(host), server(host)) {
                    (Some(n), _) => self.keep_down(n, begins).await,
                    (_, Some(server)) => self.keep_away(None, server, begins),
                    // Operators and alerts are not what is tried here.
                    (None, None) => {}
                }
            }
            FaultKind::Deploy(host) => {
                if let Some(n) = worker(host) {
                    self.deploy(n, begins).await;
                }
            }
            FaultKind::Partition(one, other) | FaultKind::PartitionOneWay(one, other) => {
                if let (Some(n), Some(server)) = (worker(one), server(other)) {
                    self.keep_away(Some(n), server, begins);
                }
            }
            FaultKind::Cut { call, answer, nth } if begins => {
                self.trouble.cut(fault, call, *answer, *nth)
            }
            FaultKind::Cut { .. } => self.trouble.mend(fault),
            FaultKind::ClockJump(host, seconds) if begins => {
                if let Some(n) = worker(host) {
                    self.workers[n].clock.jump(*seconds);
                }
            }
            FaultKind::ExpireFences if begins => self.expire_fences().await,
            _ => {}
        }
    }

    fn keep_away(&self, worker: Option<usize>, server: &'static str, begins: bool) {
        match begins {
            true => self.trouble.take_away(worker, server),
            false => self.trouble.bring_back(worker, server),
        }
    }

    async fn keep_down(&mut self, n: usize, begins: bool) {
        let faults = self.down.entry(n).or_default();
        if begins {
            *faults += 1;
            self.workers[n].kill().await;
            return;
        }
        *faults -= 1;
        if *faults == 0 {
            self.down.remove(&n);
            self.workers[n].start(self.db, &self.plan.knobs).await;
        }
    }

    async fn deploy(&mut self, n: usize, begins: bool) {
        if begins {
            self.deploying.insert(n);
            self.workers[n].begin_shutdown();
            return;
        }
        self.deploying.remove(&n);
        if self.workers[n].is_up() {
            self.workers[n].stop().await;
            self.workers[n].start(self.db, &self.plan.knobs).await;
        }
    }

    async fn publish(&self, job: &JobPlan) {
        let Message::Wire { headers, body } = message(job) else {
            panic!("planned messages have headers and a body");
        };
        let mut connection = self.db.pool.acquire().await.unwrap();
        let queue = queue_name();
        let published = self
            .queue
            .publish_wire(&mut *connection, &queue, headers, &body);
        published.await.unwrap();
    }

    /// Somebody sets `expires_at` to now, of fences whose jobs are not sent again; and a retry window has passed.
    async fn expire_fences(&mut self) {
        let resent = |job: &&JobPlan| !job.resend_after_ms.is_empty();
        let resent = self.plan.jobs.iter().filter(resent);
        let resent: Vec<_> = resent
            .map(|job| id_of(job, &queue_name()).as_uuid())
            .collect();
        sqlx::query(
            "UPDATE core.processed_jobs SET processed_at = clock_timestamp() - interval '30 days', \
             expires_at = clock_timestamp() WHERE job_id <> ALL($1)",
        )
        .bind(resent)
        .execute(&self.db.pool)
        .await
        .unwrap();
        self.swept = true;
        self.sweep().await.unwrap();
    }

    async fn sweep(&self) -> Result<(), String> {
        let target = SweepTarget::of(&config(self.db, &self.plan.knobs));
        let mut sweeping = SweeperConfig::new(vec![target]);
        sweeping.batch = self.plan.knobs.sweep_batch;
        let sweeper = Sweeper::new(
            sweeping,
            self.store.clone(),
            self.queue.clone(),
            watched().0,
        );
        let failures = sweeper.round().await.failures;
        if failures.is_empty() {
            Ok(())
        } else {
            Err(format!("L1 a sweep failed: {failures:?}"))
        }
    }

    /// Until nothing is queued and the operators have decided what they want to decide.
    async fn settle(&self) -> Result<(), String> {
        let clock = SystemClock::new();
        loop {
            self.empty().await;
            if !self.review().await {
                return Ok(());
            }
            if clock.elapsed() > DEADLINE {
                return Err("L1 the operators are never done".to_owned());
            }
        }
    }

    async fn empty(&self) {
        eventually("L1 the queue is empty", async || {
            match self.db.queued().await {
                0 => Ok(()),
                n => Err(format!("{n} messages")),
            }
        })
        .await;
    }

    /// Whether there was something to decide.
    async fn review(&self) -> bool {
        let (by, reason) = (
            Reviewer::new("olga").unwrap(),
            DiscardReason::new("as planned").unwrap(),
        );
        let pending = LetterFilter::of_status(Status::PendingReview);
        let letters = self
            .store
            .dead_letters(&LetterQuery::first(pending, 1_000))
            .await
            .unwrap();
        let mut decided = false;
        for letter in letters {
            let (id, generation) = (letter.letter.id, letter.letter.generation as usize);
            let decisions = self.decisions.get(&letter.letter.job_id);
            let Some(decision) = decisions.and_then(|it| it.get(generation)) else {
                continue;
            };
            let replay = || self.review.replay(id, &by);
            let discard = || self.review.discard(id, &reason, &by);
            match decision {
                Decision::Leave => continue,
                Decision::Replay => drop(replay().await),
                Decision::ReplayTwice => drop(tokio::join!(replay(), replay())),
                Decision::ReplayAndDiscard => drop(tokio::join!(replay(), discard())),
                Decision::Discard => drop(discard().await),
            }
            decided = true;
        }
        decided
    }
}

/// All ids of the plan.
pub fn ids(plan: &Plan) -> BTreeSet<JobId> {
    plan.jobs
        .iter()
        .map(|job| id_of(job, &queue_name()))
        .collect()
}
