//! Decorators around the ports: something goes wrong at a chosen call. The harness itself has no hooks for tests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{
    CommitError, Connection, Delivery, Envelope, Failure, FenceKey, FenceVerdict, Handler, Job,
    NewDeadLetter, QueueError, QueueName, QueuePort, Receipt, Recorded, Store, StoreError, WorkTx,
};

/// A call of the harness to one of its ports, or to the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Call {
    Receive,
    Begin,
    Fence,
    Work,
    Commit,
    Rollback,
    RecordDeadLetter,
    Ping,
    Ack,
    Retry,
    Defer,
    Extend,
    Publish,
    Oldest,
}

impl Call {
    /// Every call.
    pub const ALL: [Self; 14] = [
        Self::Receive,
        Self::Begin,
        Self::Fence,
        Self::Work,
        Self::Commit,
        Self::Rollback,
        Self::RecordDeadLetter,
        Self::Ping,
        Self::Ack,
        Self::Retry,
        Self::Defer,
        Self::Extend,
        Self::Publish,
        Self::Oldest,
    ];
}

/// Before the call, or after it had its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum When {
    Before,
    After,
}

/// Where something may go wrong. As text, `before:commit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Point {
    pub when: When,
    pub call: Call,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{:?}", self.when, self.call)
    }
}

impl FromStr for Point {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [When::Before, When::After]
            .into_iter()
            .flat_map(|when| Call::ALL.into_iter().map(move |call| Self { when, call }))
            .find(|point| point.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| format!("{text:?} is no point such as before:commit or after:ack"))
    }
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The other side cannot be reached; behind the call, its answer is lost.
    Away,
    /// This process dies.
    Kill,
    /// This process stands still (SIGSTOP) until somebody lets it go on.
    Stop,
}

/// Decides at every point. Also the place to write calls down.
pub type Plan = Arc<dyn Fn(Point) -> Fault + Send + Sync>;

/// Ends this process without any clean-up.
pub fn kill_self() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGKILL);
}

/// Any port, or a handler, at which things go wrong as planned.
#[derive(Clone)]
pub struct Faulty<T> {
    inner: T,
    plan: Plan,
}

impl<T> Faulty<T> {
    /// Decorates `inner`.
    pub fn new(inner: T, plan: Plan) -> Self {
        Self { inner, plan }
    }

    /// Makes one call with what is planned around it.
    async fn around<V, E>(
        plan: &Plan,
        call: Call,
        away: impl Fn(Point) -> E,
        future: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let check = |when| {
            let point = Point { when, call };
            match plan(point) {
                Fault::None => Ok(()),
                Fault::Away => Err(away(point)),
                Fault::Kill => {
                    kill_self();
                    Err(away(point))
                }
                Fault::Stop => {
                    let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
                    Ok(())
                }
            }
        };
        check(When::Before)?;
        let value = future.await?;
        check(When::After)?;
        Ok(value)
    }
}

fn store_away(point: Point) -> StoreError {
    StoreError::Away(format!("planned: {point}").into())
}

fn queue_away(point: Point) -> QueueError {
    QueueError::Away(format!("planned: {point}").into())
}

impl<S: Store> Store for Faulty<S> {
    type Tx = Faulty<S::Tx>;

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        let begin = Self::around(&self.plan, Call::Begin, store_away, self.inner.begin());
        Ok(Faulty {
            inner: begin.await?,
            plan: Arc::clone(&self.plan),
        })
    }

    async fn record_dead_letter(&self, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
        let record = self.inner.record_dead_letter(letter);
        Self::around(&self.plan, Call::RecordDeadLetter, store_away, record).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Self::around(&self.plan, Call::Ping, store_away, self.inner.ping()).await
    }

    fn is_contention(error: &(dyn std::error::Error + 'static)) -> bool {
        S::is_contention(error)
    }
}

impl<T: WorkTx> WorkTx for Faulty<T> {
    type Conn = T::Conn;

    async fn fence(
        &mut self,
        key: &FenceKey,
        ttl: Duration,
        deadline: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        let fence = self.inner.fence(key, ttl, deadline);
        Self::around(&self.plan, Call::Fence, store_away, fence).await
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        ttl: Duration,
        deadline: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        let fence = self.inner.fence_all(keys, ttl, deadline);
        Self::around(&self.plan, Call::Fence, store_away, fence).await
    }

    fn connection(&mut self) -> &mut T::Conn {
        self.inner.connection()
    }

    async fn commit(self) -> Result<(), CommitError> {
        let away = |point: Point| CommitError::Unknown(format!("planned: {point}").into());
        Self::around(&self.plan, Call::Commit, away, self.inner.commit()).await
    }

    async fn rollback(self) -> Result<(), StoreError> {
        Self::around(
            &self.plan,
            Call::Rollback,
            store_away,
            self.inner.rollback(),
        )
        .await
    }
}

impl<Q: QueuePort> QueuePort for Faulty<Q> {
    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        // An empty queue is asked all the time: only a receive that brings something is a point.
        let deliveries = self.inner.receive(queue, max, lease).await?;
        if deliveries.is_empty() {
            return Ok(deliveries);
        }
        Self::around(&self.plan, Call::Receive, queue_away, async {
            Ok(deliveries)
        })
        .await
    }

    async fn ack(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        Self::around(
            &self.plan,
            Call::Ack,
            queue_away,
            self.inner.ack(queue, receipt),
        )
        .await
    }

    async fn ack_all(&self, queue: &QueueName, receipts: &[Receipt]) -> Result<(), QueueError> {
        let ack = self.inner.ack_all(queue, receipts);
        Self::around(&self.plan, Call::Ack, queue_away, ack).await
    }

    async fn retry(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        Self::around(
            &self.plan,
            Call::Retry,
            queue_away,
            self.inner.retry(queue, receipt, delay),
        )
        .await
    }

    async fn defer(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        Self::around(
            &self.plan,
            Call::Defer,
            queue_away,
            self.inner.defer(queue, receipt, delay),
        )
        .await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        lease: Duration,
    ) -> Result<(), QueueError> {
        Self::around(
            &self.plan,
            Call::Extend,
            queue_away,
            self.inner.extend(queue, receipt, lease),
        )
        .await
    }

    async fn publish(&self, queue: &QueueName, envelope: &Envelope) -> Result<(), QueueError> {
        Self::around(
            &self.plan,
            Call::Publish,
            queue_away,
            self.inner.publish(queue, envelope),
        )
        .await
    }

    async fn oldest(&self, queue: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        Self::around(
            &self.plan,
            Call::Oldest,
            queue_away,
            self.inner.oldest(queue),
        )
        .await
    }
}

/// A handler of `S`, called by a consumer of `Faulty<S>`: both give it the same connection.
impl<S: Store, H: Handler<S>> Handler<Faulty<S>> for Faulty<ForStore<S, H>> {
    type Payload = H::Payload;

    async fn handle(
        &self,
        job: Job<H::Payload>,
        tx: &mut Connection<Faulty<S>>,
    ) -> Result<(), Failure> {
        let away = |point: Point| Failure::transient(format!("planned: {point}"));
        Self::around(
            &self.plan,
            Call::Work,
            away,
            self.inner.handler.handle(job, tx),
        )
        .await
    }

    async fn handle_batch(
        &self,
        jobs: Vec<Job<H::Payload>>,
        tx: &mut Connection<Faulty<S>>,
    ) -> Result<(), Failure> {
        let away = |point: Point| Failure::transient(format!("planned: {point}"));
        let work = self.inner.handler.handle_batch(jobs, tx);
        Self::around(&self.plan, Call::Work, away, work).await
    }
}

/// Says which store a handler was written for.
#[derive(Debug, Clone)]
pub struct ForStore<S, H> {
    handler: H,
    store: std::marker::PhantomData<fn() -> S>,
}

impl<S, H> ForStore<S, H> {
    /// Wraps `handler`.
    pub fn new(handler: H) -> Self {
        Self {
            handler,
            store: std::marker::PhantomData,
        }
    }
}
