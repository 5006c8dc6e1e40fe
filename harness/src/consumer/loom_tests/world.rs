//! A queue, a store, a clock and a handler that threads share through loom, and what they saw.
//!
//! Where the gate would catch a panic, nothing is asserted: what is wrong is written down, and [`World::check`] tells.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::super::{Consumer, ConsumerConfig, Shared};
use crate::dead_letter::{NewDeadLetter, Recorded};
use crate::envelope::{Envelope, Message};
use crate::event::{Event, Observer};
use crate::failure::Failure;
use crate::fence::{FenceKey, FenceVerdict};
use crate::handler::{Handler, Job};
use crate::ids::JobId;
use crate::names::{ConsumerName, QueueName};
use crate::ports::clock::Clock;
use crate::ports::entropy::Entropy;
use crate::ports::env::Env;
use crate::ports::queue::{Delivery, QueueError, QueuePort, Receipt};
use crate::ports::store::{CommitError, Store, StoreError, WorkTx};
use crate::sync::{CancellationToken, Mutex, Semaphore};

/// Three quarters of the grace period: then running handlers are dropped.
pub(super) const PATIENCE: Duration = Duration::from_secs(3_000);
/// What is left of it then.
pub(super) const REST: Duration = Duration::from_secs(1_000);
/// From one extension of a lease to the next.
pub(super) const EXTENSION: Duration = Duration::from_secs(20);

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Acked,
    Retried,
    Deferred,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Delivery>,
    handed_out: BTreeSet<String>,
    answers: BTreeMap<String, Vec<Answer>>,
    most_held: usize,
    extensions: usize,
}

#[derive(Default)]
struct Ledger {
    away: bool,
    answered_pings: usize,
    /// Transactions that hold a fence key.
    open: BTreeMap<JobId, usize>,
    effects: BTreeMap<JobId, usize>,
    working: usize,
    most_at_work: usize,
    runs: usize,
}

/// Everything outside of the consumer.
#[derive(Clone)]
pub(super) struct World(Arc<Inner>);

#[derive(Default)]
struct Inner {
    queue: Mutex<Queue>,
    ledger: Mutex<Ledger>,
    /// No loom: only ever added to.
    wrong: std::sync::Mutex<BTreeSet<String>>,
    /// What `extend` is answered.
    extending: Extending,
    /// Every message was answered.
    answered: CancellationToken,
    /// Set when the consumer said that it stopped.
    over: Mutex<bool>,
}

/// What the broker says to an extension.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Extending {
    #[default]
    Granted,
    Lost,
    Unanswered,
}

impl World {
    /// A queue with a message each for `jobs`.
    pub(super) fn new(jobs: &[&str]) -> Self {
        Self::with(jobs, Extending::Granted)
    }

    pub(super) fn with(jobs: &[&str], extending: Extending) -> Self {
        let waiting = (0..).zip(jobs).map(|(n, job)| delivery(n, job)).collect();
        let queue = Queue {
            waiting,
            ..Queue::default()
        };
        Self(Arc::new(Inner {
            queue: Mutex::new(queue),
            extending,
            ..Inner::default()
        }))
    }

    /// A consumer in this world.
    pub(super) fn shared(
        &self,
        concurrency: usize,
        prefetch: usize,
        alarms: &Alarms,
        handler: impl Fn(JobId) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Shared<World, World, Doing>> {
        let mut config = ConsumerConfig::new(
            ConsumerName::new("awards").unwrap(),
            QueueName::new("points").unwrap(),
        );
        config.concurrency = concurrency;
        config.prefetch = prefetch;
        config.grace = PATIENCE + REST;
        let env = Env {
            clock: Arc::new(alarms.clone()),
            entropy: Arc::new(Even),
            observer: Arc::new(Nobody),
        };
        let handler = Doing(Box::new(handler));
        let consumer = Consumer::new(config, self.clone(), self.clone(), handler, env);
        consumer.unwrap().shared
    }

    /// Hands everything out at once, for tests that do without the consumer's loop.
    pub(super) fn hand_out(&self) -> Vec<Delivery> {
        self.take(usize::MAX)
    }

    fn take(&self, max: usize) -> Vec<Delivery> {
        let mut queue = lock(&self.0.queue);
        let count = queue.waiting.len().min(max);
        let taken: Vec<_> = queue.waiting.drain(..count).collect();
        for delivery in &taken {
            queue.handed_out.insert(delivery.receipt.message.clone());
        }
        let held = queue.handed_out.len() - queue.answers.len();
        queue.most_held = queue.most_held.max(held);
        taken
    }

    fn answer(&self, receipt: &Receipt, answer: Answer) {
        self.not_over("an answer");
        let mut queue = lock(&self.0.queue);
        let answers = queue.answers.entry(receipt.message.clone());
        answers.or_default().push(answer);
        let all = queue.waiting.is_empty() && queue.answers.len() == queue.handed_out.len();
        drop(queue);
        if all {
            self.0.answered.cancel();
        }
    }

    /// Ready when every message was answered.
    pub(super) async fn answered(&self) {
        self.0.answered.cancelled().await;
    }

    fn prolong(&self, receipt: &Receipt) {
        let mut queue = lock(&self.0.queue);
        queue.extensions += 1;
        if queue.answers.contains_key(&receipt.message) {
            self.wrong("a lease extended after its delivery was answered");
        }
    }

    pub(super) fn wrong(&self, what: impl Into<String>) {
        let mut wrong = self.0.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.insert(what.into());
    }

    /// From here on, the consumer says, nothing of it is left.
    pub(super) fn over(&self) {
        *lock(&self.0.over) = true;
    }

    fn not_over(&self, what: &str) {
        let over = *lock(&self.0.over);
        assert!(!over, "{what} after the consumer had stopped");
    }

    /// The store goes away.
    pub(super) fn go_away(&self) {
        lock(&self.0.ledger).away = true;
    }

    fn answer_ping(&self) -> bool {
        let mut ledger = lock(&self.0.ledger);
        ledger.answered_pings += usize::from(!ledger.away);
        !ledger.away
    }

    pub(super) fn answered_pings(&self) -> usize {
        lock(&self.0.ledger).answered_pings
    }

    pub(super) fn handed_out(&self) -> usize {
        lock(&self.0.queue).handed_out.len()
    }

    pub(super) fn extensions(&self) -> usize {
        lock(&self.0.queue).extensions
    }

    pub(super) fn most_held(&self) -> usize {
        lock(&self.0.queue).most_held
    }

    pub(super) fn most_at_work(&self) -> usize {
        lock(&self.0.ledger).most_at_work
    }

    pub(super) fn runs(&self) -> usize {
        lock(&self.0.ledger).runs
    }

    /// How often each answer was given.
    pub(super) fn count(&self, answer: Answer) -> usize {
        let queue = lock(&self.0.queue);
        let given = queue.answers.values().flatten();
        given.filter(|given| **given == answer).count()
    }

    pub(super) fn effects(&self) -> usize {
        lock(&self.0.ledger).effects.values().sum()
    }

    /// That nothing went wrong, nothing is held without an answer but `abandoned` deliveries, and an ack stands for an
    /// effect that is there.
    pub(super) fn check(&self, abandoned: usize) {
        let wrong = self.0.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(wrong.is_empty(), "{wrong:?}");
        let queue = lock(&self.0.queue);
        let ledger = lock(&self.0.ledger);
        for (message, answers) in &queue.answers {
            assert_eq!(answers.len(), 1, "one answer: {message} has {answers:?}");
        }
        let forgotten = queue.handed_out.len() - queue.answers.len();
        assert_eq!(forgotten, abandoned, "handed out and forgotten");
        for (job, effects) in &ledger.effects {
            assert_eq!(*effects, 1, "one effect of {job}");
        }
        assert!(ledger.open.is_empty(), "open: {:?}", ledger.open);
        assert_eq!(ledger.working, 0, "at work");
    }
}

/// One delivery of a message for the job of that name; messages of one name are twins.
fn delivery(number: u64, job: &str) -> Delivery {
    let id = JobId::from_key(Uuid::NAMESPACE_OID, job);
    let envelope = Envelope::new(id, "null");
    Delivery {
        receipt: Receipt {
            message: format!("{number} {job}"),
            delivery: 1,
        },
        queue: QueueName::new("points").unwrap(),
        message: Message::Wire {
            headers: envelope.wire_headers(),
            body: envelope.body,
        },
        redeliveries: 0,
        enqueued_at: DateTime::UNIX_EPOCH,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pending once: whatever is ready by now can go first.
pub(super) async fn step() {
    let mut stepped = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut stepped, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

impl QueuePort for World {
    async fn receive(
        &self,
        _: &QueueName,
        max: usize,
        _: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let taken = self.take(max);
        if !taken.is_empty() {
            step().await; // on its way
        }
        Ok(taken)
    }

    async fn ack(&self, _: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        self.answer(receipt, Answer::Acked);
        Ok(())
    }

    async fn retry(&self, _: &QueueName, it: &Receipt, _: Duration) -> Result<(), QueueError> {
        self.answer(it, Answer::Retried);
        Ok(())
    }

    async fn defer(&self, _: &QueueName, it: &Receipt, _: Duration) -> Result<(), QueueError> {
        self.answer(it, Answer::Deferred);
        Ok(())
    }

    async fn extend(&self, _: &QueueName, it: &Receipt, _: Duration) -> Result<(), QueueError> {
        self.prolong(it);
        match self.0.extending {
            Extending::Granted => Ok(()),
            Extending::Lost => Err(QueueError::LeaseLost),
            Extending::Unanswered => pending().await,
        }
    }

    async fn publish(&self, _: &QueueName, _: &Envelope) -> Result<(), QueueError> {
        Ok(())
    }

    async fn oldest(&self, _: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        Ok(None)
    }
}

impl Store for World {
    type Tx = Tx;

    async fn begin(&self) -> Result<Tx, StoreError> {
        Ok(Tx {
            world: self.clone(),
            holds: Vec::new(),
            connection: (),
        })
    }

    async fn record_dead_letter(&self, _: &NewDeadLetter) -> Result<Recorded, StoreError> {
        self.wrong("a dead letter");
        Ok(Recorded::Written)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if !self.answer_ping() {
            return Err(StoreError::Away("away".into()));
        }
        step().await; // the answer is on its way
        Ok(())
    }

    fn is_contention(_: &(dyn std::error::Error + 'static)) -> bool {
        false
    }
}

/// A transaction; dropped, it is rolled back.
pub(super) struct Tx {
    world: World,
    holds: Vec<JobId>,
    connection: (),
}

impl WorkTx for Tx {
    type Conn = ();

    async fn fence(
        &mut self,
        key: &FenceKey,
        _: Duration,
        _: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        Ok(self.take(key.job_id))
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        _: Duration,
        _: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        Ok(keys.iter().map(|key| self.take(key.job_id)).collect())
    }

    fn connection(&mut self) -> &mut () {
        &mut self.connection
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        self.world.not_over("a commit");
        if !self.holds.is_empty() {
            {
                let mut ledger = lock(&self.world.0.ledger);
                for job in &self.holds {
                    *ledger.effects.entry(*job).or_default() += 1;
                }
            }
            step().await; // committed; the answer is on its way
        }
        self.end();
        Ok(())
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        self.end();
        Ok(())
    }
}

impl Tx {
    fn take(&mut self, job: JobId) -> FenceVerdict {
        let mut ledger = lock(&self.world.0.ledger);
        if ledger.effects.contains_key(&job) {
            return FenceVerdict::Duplicate;
        }
        let open = ledger.open.entry(job).or_default();
        *open += 1;
        let twins = *open > 1;
        drop(ledger);
        self.holds.push(job);
        if twins {
            self.world.wrong("twins met in the store");
        }
        FenceVerdict::Acquired
    }

    fn end(&mut self) {
        for job in self.holds.drain(..) {
            let mut ledger = lock(&self.world.0.ledger);
            let open = ledger.open.remove(&job).unwrap_or_default();
            if open > 1 {
                ledger.open.insert(job, open - 1);
            }
        }
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.end();
    }
}

/// The handler: counts who is at work, and does what the test says.
pub(super) struct Doing(Box<dyn Fn(JobId) -> BoxFuture<'static, ()> + Send + Sync>);

struct AtWork(World);

impl AtWork {
    fn new(world: World) -> Self {
        world.not_over("a run");
        let mut ledger = lock(&world.0.ledger);
        ledger.runs += 1;
        ledger.working += 1;
        ledger.most_at_work = ledger.most_at_work.max(ledger.working);
        drop(ledger);
        Self(world)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        lock(&self.0.0.ledger).working -= 1;
    }
}

impl Doing {
    pub(super) fn work(world: &World, doing: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let world = world.clone();
        Box::pin(async move {
            let _at_work = AtWork::new(world);
            doing.await;
        })
    }
}

impl Handler<World> for Doing {
    type Payload = ();

    async fn handle(&self, job: Job<()>, (): &mut ()) -> Result<(), Failure> {
        self.0(job.id).await;
        Ok(())
    }
}

/// A clock on which time passes when a test says so: a sleep of one of its durations ends with the next ring for it, all
/// others never.
#[derive(Clone, Default)]
pub(super) struct Alarms(BTreeMap<Duration, Arc<Semaphore>>);

impl Alarms {
    pub(super) fn of(durations: &[Duration]) -> Self {
        let alarm = |it: &Duration| (*it, Arc::new(Semaphore::new(0)));
        Self(durations.iter().map(alarm).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn ring(&self, duration: Duration) {
        if let Some(alarm) = self.0.get(&duration) {
            alarm.add_permit();
        }
    }
}

impl Clock for Alarms {
    fn now(&self) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH
    }

    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let Some(alarm) = self.0.get(&duration).cloned() else {
            return Box::pin(pending());
        };
        Box::pin(async move {
            let Ok(rung) = alarm.acquire().await;
            rung.forget();
        })
    }
}

struct Even;

impl Entropy for Even {
    fn next_u64(&self) -> u64 {
        0
    }
}

struct Nobody;

impl Observer for Nobody {
    fn event(&self, _: &Event) {}
}
