//! Makes a way happen to the real consumer, and compares everything with the model after each step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use chrono::TimeDelta;
use harness::{
    Consumer, ConsumerConfig, ConsumerName, DeferReason, DiscardError, DiscardReason, Discarded,
    Ending, Env, Envelope, JobId, LetterFilter, LetterQuery, OutsidePublisher, QueueError,
    QueueName, QueuePort, Receipt, ReplayError, Replayed, RetryPolicy, Review, ReviewStore,
    Reviewer, SeededEntropy, Shutdown, Step, SweepBatch, SweepStore,
};
use models::kit::Told as _;
use models::lifecycle::conform::move_of;
use models::lifecycle::cover::Way;
use models::lifecycle::protocol::{Move, Stage, edge};
use models::lifecycle::world::{GHOST, Kind, State, Status};
use models::lifecycle::{Action, Lifecycle};
use stateright::Model as _;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::clock::HandClock;
use super::turnstile::{Call, Driven as Port, DrivenHandler, Order, Seen, Turnstile, Work};
use super::{Bench, Observed};

/// Longer than any wait but those that a way asks for.
const RUN_DEADLINE: Duration = Duration::from_secs(2 * 3_600);
const GRACE: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(24 * 3_600);
const PORT_TIMEOUT: Duration = Duration::from_secs(48 * 3_600);

/// When everything that can expire has.
const LATER: TimeDelta = TimeDelta::days(400);

/// Where the harness did something else than the model.
#[derive(Debug, thiserror::Error)]
#[error("step {step}, {action}: {what}; the model was in: {state}")]
pub struct Deviation {
    /// From 1; 0: before the first.
    pub step: usize,
    /// What was to happen.
    pub action: String,
    /// What happened instead.
    pub what: String,
    /// Where the model was before.
    pub state: String,
}

/// What was driven.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Driven {
    /// Steps of the way.
    pub steps: usize,
    /// Things that the model does not allow and that were tried: nothing changed.
    pub refused: usize,
    /// Edges of the protocol that were gone.
    pub edges: BTreeSet<(String, String)>,
}

/// Drives a way from its beginning to its end.
///
/// # Errors
/// [`Deviation`] when the harness does something else than the model, or the store is somewhere else; another error when
/// the bench is broken.
pub async fn drive<B: Bench + 'static>(
    bench: &B,
    way: &Way,
    number: u64,
) -> anyhow::Result<Driven> {
    anyhow::ensure!(
        (1..=2).contains(&way.copies),
        "copies: must be 1 or 2, is {}",
        way.copies
    );
    let mut driver = Driver::new(bench, way, number)?;
    driver.publish(way).await?;
    for (n, action) in way.actions.iter().enumerate() {
        let before = driver.state.clone();
        let deviation = |what: String| Deviation {
            step: n + 1,
            action: models::kit::sentence(&way.model, action),
            what,
            state: way.model.show(&before),
        };
        let mut possible = Vec::new();
        driver.model.actions(&driver.state, &mut possible);
        let next = possible
            .contains(action)
            .then(|| driver.model.next_state(&driver.state, *action))
            .flatten();
        let Some(next) = next else {
            let what = "the model does not have that there".to_owned();
            return Err(deviation(what).into());
        };
        driver
            .act(*action, &next)
            .await
            .map_err(|error| deviation(format!("{error:#}")))?;
        driver.state = next;
        driver
            .compare()
            .await
            .map_err(|error| deviation(format!("{error:#}")))?;
        driver
            .try_what_is_refused()
            .await
            .map_err(|error| deviation(format!("{error:#}")))?;
        driver.driven.steps += 1;
    }
    driver.stop_all().await;
    Ok(driver.driven)
}

/// One holder: a process with one consumer, which is handed one delivery.
struct Process {
    task: tokio::task::JoinHandle<()>,
    seen: mpsc::UnboundedReceiver<Seen>,
    /// What was seen already and is not needed yet.
    ahead: VecDeque<Seen>,
    /// Calls that are not to go on.
    stuck: Vec<oneshot::Sender<Order>>,
    clock: HandClock,
    shutdown: Shutdown,
    place: QueueName,
    receipt: Option<Receipt>,
}

struct Driver<'b, B: Bench> {
    bench: &'b B,
    model: Lifecycle,
    state: State,
    config: ConsumerConfig,
    job: JobId,
    number: u64,
    processes: BTreeMap<u8, Process>,
    started: u64,
    /// The last receipt of each place that is no longer good.
    spent: [Option<Receipt>; 2],
    driven: Driven,
}

impl<'b, B: Bench + 'static> Driver<'b, B> {
    fn new(bench: &'b B, way: &Way, number: u64) -> anyhow::Result<Self> {
        let model = way.model.clone();
        let consumer = ConsumerName::new(&format!("driven_{number}"))?;
        let mut config = ConsumerConfig::new(consumer, QueueName::new("driven")?);
        config.concurrency = 1;
        config.run_deadline = RUN_DEADLINE;
        config.grace = GRACE;
        config.lease = LEASE;
        config.port_timeout = PORT_TIMEOUT;
        let wait = Duration::from_secs(30);
        config.retry = RetryPolicy::overriding(
            wait,
            wait,
            model.max_runs.saturating_sub(1),
            "as the model has it",
        )?;
        config.check()?;
        let name = format!("driven {number}");
        Ok(Self {
            bench,
            state: State::new(&model, way.kind, way.copies),
            model,
            config,
            job: JobId::from_key(Uuid::NAMESPACE_OID, &name),
            number,
            processes: BTreeMap::new(),
            started: 0,
            spent: [None, None],
            driven: Driven::default(),
        })
    }

    async fn publish(&self, way: &Way) -> anyhow::Result<()> {
        let body = match way.kind {
            Kind::Poison => "no JSON",
            _ => "{}",
        };
        let mut envelope = Envelope::new(self.job, body);
        if matches!(way.kind, Kind::Foreign | Kind::ForeignCopy) {
            envelope.consumer = Some(ConsumerName::new("somebody_else")?);
        }
        for copy in (0..2).take(way.copies) {
            let place = self.bench.place(copy);
            self.bench.queue().publish(&place, &envelope).await?;
        }
        Ok(())
    }

    fn env(&mut self, turnstile: &Turnstile, clock: &HandClock) -> Env {
        self.started += 1;
        Env {
            clock: Arc::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(self.number * 1_000 + self.started)),
            observer: Arc::new(turnstile.clone()),
        }
    }

    fn port<T>(&self, inner: T, turnstile: &Turnstile, copy: u8) -> Port<T> {
        Port {
            inner,
            turnstile: turnstile.clone(),
            place: self.bench.place(copy),
            fan_out: self.state.kind == Kind::ForeignCopy,
        }
    }

    fn start(&mut self, copy: u8) -> anyhow::Result<()> {
        let (sender, seen) = mpsc::unbounded_channel();
        let turnstile = Turnstile(sender);
        let clock = HandClock::default();
        let handler = DrivenHandler::<B> {
            turnstile: turnstile.clone(),
            consumer: self.config.consumer.to_string(),
            bench: std::marker::PhantomData,
        };
        let consumer = Consumer::new(
            self.config.clone(),
            self.port(self.bench.store(), &turnstile, copy),
            self.port(self.bench.queue(), &turnstile, copy),
            handler,
            self.env(&turnstile, &clock),
        )?;
        let shutdown = Shutdown::new();
        let stopping = shutdown.clone();
        let process = Process {
            task: tokio::spawn(async move {
                consumer.run(stopping).await;
            }),
            seen,
            ahead: VecDeque::new(),
            stuck: Vec::new(),
            clock,
            shutdown,
            place: self.bench.place(copy),
            receipt: None,
        };
        self.processes.insert(copy, process);
        Ok(())
    }

    /// A process dies.
    async fn kill(&mut self, at: u8) {
        if let Some(process) = self.processes.remove(&at) {
            process.task.abort();
            let _ = process.task.await;
        }
    }

    async fn stop_all(&mut self) {
        while let Some(at) = self.processes.keys().next().copied() {
            self.kill(at).await;
        }
    }

    /// Makes one action happen.
    async fn act(&mut self, action: Action, next: &State) -> anyhow::Result<()> {
        match action {
            Action::Deliver(copy) => self.deliver(copy).await,
            Action::LeaseExpires(copy) => {
                let process = self.processes.remove(&copy).context("nobody holds it")?;
                self.processes.insert(GHOST, process);
                Ok(())
            }
            Action::Crash(at) => {
                let receipt = self.processes.get(&at).and_then(|it| it.receipt.clone());
                self.kill(at).await;
                // It is good until the message is handed out again, and that is when it is tried.
                if at != GHOST {
                    self.spent[usize::from(at)] = receipt;
                }
                Ok(())
            }
            Action::Step(at, made) => {
                let stage = self.stage(at)?;
                self.driven.edges.insert(edge(stage, made));
                self.expect(at, stage, made, None).await?;
                self.park(at, next).await
            }
            Action::CommitAnswerLost(at) => {
                let stage = self.stage(at)?;
                let answer = Some((Call::Commit, Order::AnswerLost));
                self.expect(at, stage, Move::CommitUnknown, answer).await?;
                self.park(at, next).await
            }
            Action::AckLost(at) => self.lose_ack(at).await,
            Action::Replay => self.replay(0, &Replayed::Published { generation: 1 }).await,
            Action::Discard(generation) => self.discard(generation, Discarded::Discarded).await,
            Action::Sweep => {
                let rows = self.sweep().await?;
                anyhow::ensure!(rows == 1, "the sweep took {rows} fences");
                Ok(())
            }
        }
    }

    fn stage(&self, at: u8) -> anyhow::Result<Stage> {
        Ok(self.state.holder(at).context("nobody is there")?.stage)
    }

    async fn deliver(&mut self, copy: u8) -> anyhow::Result<()> {
        let place = usize::from(copy);
        self.bench.make_due(&self.bench.place(copy)).await?;
        if let Some(ghost) = self.processes.get(&GHOST)
            && ghost.place == self.bench.place(copy)
        {
            self.spent[place] = ghost.receipt.clone();
        }
        self.start(copy)?;
        let count = self.state.messages[place].context("no message")?.count;
        loop {
            match self.next(copy).await? {
                Seen::Call(Call::Receive, order) if self.receipt(copy).is_none() => {
                    let _ = order.send(Order::Pass);
                }
                Seen::Received(receipt) => {
                    if let Some(process) = self.processes.get_mut(&copy) {
                        process.receipt = Some(receipt);
                    }
                }
                Seen::Said(step) => {
                    let Step::Received { runs_before } = *step else {
                        anyhow::bail!("{step:?}");
                    };
                    anyhow::ensure!(
                        runs_before == count,
                        "received after {runs_before} runs, should be {count}"
                    );
                    return Ok(());
                }
                Seen::Call(call, _) => anyhow::bail!("it calls {call:?}"),
            }
        }
    }

    fn receipt(&self, at: u8) -> Option<&Receipt> {
        self.processes.get(&at)?.receipt.as_ref()
    }

    /// The next thing that a process does.
    async fn next(&mut self, at: u8) -> anyhow::Result<Seen> {
        let process = self.processes.get_mut(&at).context("no such process")?;
        if let Some(seen) = process.ahead.pop_front() {
            return Ok(seen);
        }
        tokio::select! {
            biased;
            seen = process.seen.recv() => seen.context("the process ended"),
            () = self.bench.patience() => anyhow::bail!("it does nothing more"),
        }
    }

    /// Lets a holder go on until it says that it made this move.
    async fn expect(
        &mut self,
        at: u8,
        stage: Stage,
        made: Move,
        special: Option<(Call, Order)>,
    ) -> anyhow::Result<()> {
        if made == Move::Failed(Ending::Shutdown) {
            let process = self.processes.get(&at).context("no such process")?;
            process.shutdown.begin();
            // Not before it knows, or nobody waits for the time that passes.
            self.bench.moment().await;
            let process = self.processes.get(&at).context("no such process")?;
            process.clock.advance(GRACE.mul_f64(0.8));
        }
        loop {
            match self.next(at).await? {
                Seen::Call(call, order) => {
                    let what = match special {
                        Some((special, what)) if special == call => Some(what),
                        _ => order_for(call, stage, made),
                    };
                    let Some(process) = self.processes.get_mut(&at) else {
                        continue;
                    };
                    match what {
                        Some(what) => {
                            let _ = order.send(what);
                            if what == Order::Work(Work::Hang) {
                                self.bench.moment().await;
                                process.clock.advance(RUN_DEADLINE);
                            }
                        }
                        None => process.stuck.push(order),
                    }
                }
                Seen::Said(step) if matches!(*step, Step::QueueFailed { .. }) => {}
                Seen::Said(step) => {
                    let did = move_of(&step);
                    anyhow::ensure!(did == Some(made), "it did {did:?}: {step:?}");
                    return Ok(());
                }
                Seen::Received(_) => anyhow::bail!("it received another message"),
            }
        }
    }

    /// Lets a holder go on to where it waits for something that the way decides.
    async fn park(&mut self, at: u8, next: &State) -> anyhow::Result<()> {
        if next.holder(at).is_none() {
            let receipt = self.receipt(at).cloned();
            let place = self.state.holder(at).map(|holder| holder.copy);
            if let (Some(place), Some(receipt)) = (place, receipt) {
                let current = self.receipt(place);
                if current.is_none_or(|current| *current == receipt) {
                    self.spent[usize::from(place)] = Some(receipt);
                }
            }
            self.kill(at).await;
            return Ok(());
        }
        let mut said = VecDeque::new();
        loop {
            match self.next(at).await? {
                Seen::Call(Call::Rollback, order) => {
                    let _ = order.send(Order::Pass);
                }
                seen @ Seen::Call(..) => {
                    said.push_back(seen);
                    break;
                }
                seen => said.push_back(seen),
            }
        }
        if let Some(process) = self.processes.get_mut(&at) {
            process.ahead.extend(said);
        }
        Ok(())
    }

    async fn lose_ack(&mut self, at: u8) -> anyhow::Result<()> {
        loop {
            match self.next(at).await? {
                Seen::Call(Call::Ack, order) => {
                    let _ = order.send(Order::Away);
                }
                Seen::Call(Call::Rollback, order) => {
                    let _ = order.send(Order::Pass);
                }
                Seen::Said(step) if matches!(*step, Step::QueueFailed { .. }) => return Ok(()),
                seen => anyhow::bail!("{seen:?}"),
            }
        }
    }

    fn review(&mut self) -> Review<B::Store, OutsidePublisher<Port<B::Queue>>> {
        // Nobody waits for what it says.
        let (sender, _) = mpsc::unbounded_channel();
        let turnstile = Turnstile(sender);
        let free = self.state.free_place().unwrap_or(0);
        let port = self.port(self.bench.queue(), &turnstile, free);
        let env = self.env(&turnstile, &HandClock::default());
        Review::new(self.bench.store(), OutsidePublisher(port), env)
    }

    async fn letter(&self, generation: u8) -> anyhow::Result<harness::DeadLetterId> {
        let filter = LetterFilter {
            consumer: Some(self.config.consumer.clone()),
            ..LetterFilter::default()
        };
        let query = LetterQuery::first(filter, 10);
        let letters = self.bench.store().dead_letters(&query).await?;
        let letter = letters
            .into_iter()
            .find(|it| it.letter.generation == u32::from(generation));
        Ok(letter.context("there is no such dead letter")?.letter.id)
    }

    async fn replay(&mut self, generation: u8, expected: &Replayed) -> anyhow::Result<()> {
        let id = self.letter(generation).await?;
        let replayed = self.review().replay(id, &Reviewer::new("driver")?).await?;
        anyhow::ensure!(replayed == *expected, "replayed: {replayed:?}");
        Ok(())
    }

    async fn discard(&mut self, generation: u8, expected: Discarded) -> anyhow::Result<()> {
        let id = self.letter(generation).await?;
        let reason = DiscardReason::new("as the script says")?;
        let by = Reviewer::new("driver")?;
        let discarded = self.review().discard(id, &reason, &by).await?;
        anyhow::ensure!(discarded == expected, "discarded: {discarded:?}");
        Ok(())
    }

    /// A sweep, long after everything that can expire has.
    async fn sweep(&self) -> anyhow::Result<u64> {
        let store = self.bench.store();
        let mut oldest = None;
        for copy in 0..2 {
            let there = self.bench.queue().oldest(&self.bench.place(copy)).await?;
            oldest = oldest.into_iter().chain(there).min();
        }
        let batch = SweepBatch {
            consumer: self.config.consumer.clone(),
            asked_at: store.now().await? + LATER,
            oldest,
            retry_window: Duration::ZERO,
            limit: 10,
        };
        Ok(store.sweep(&batch).await?)
    }

    /// The store and the queues are where the model is.
    async fn compare(&self) -> anyhow::Result<()> {
        let expected = expected(&self.state);
        let patience = self.bench.patience();
        tokio::pin!(patience);
        loop {
            let consumer = self.config.consumer.as_str();
            let observed = self.bench.observe(self.job, consumer).await?;
            if observed == expected {
                return Ok(());
            }
            // A process that was killed takes its transaction along, in a moment.
            tokio::select! {
                biased;
                () = &mut patience => anyhow::bail!("there is {observed:?}, should be {expected:?}"),
                () = self.bench.moment() => {}
            }
        }
    }

    /// Whatever the model does not allow here changes nothing.
    async fn try_what_is_refused(&mut self) -> anyhow::Result<()> {
        let mut tried = 0;
        for copy in 0..2 {
            let (at, place) = (usize::from(copy), self.bench.place(copy));
            let is_held = self.state.holders[at].is_some();
            if is_held || self.state.messages[at].is_none() {
                let got = self.bench.queue().receive(&place, 1, LEASE).await?;
                anyhow::ensure!(got.is_empty(), "copy {copy} was handed out twice");
                tried += 1;
            }
            // Until the message is handed out again, whoever crashed with it may still be heard.
            let is_fresh = self.state.messages[at].is_some() && !is_held;
            if let Some(spent) = self.spent[at].as_ref().filter(|_| !is_fresh) {
                let queue = self.bench.queue();
                let late = [
                    queue.retry(&place, spent, Duration::ZERO).await,
                    queue.defer(&place, spent, Duration::ZERO).await,
                    queue.extend(&place, spent, LEASE).await,
                ];
                let lost = |it: &Result<(), QueueError>| matches!(it, Err(QueueError::LeaseLost));
                anyhow::ensure!(late.iter().all(lost), "a late answer was taken: {late:?}");
                tried += 3;
            }
        }
        for generation in 0..2 {
            let letter = self.state.letters[usize::from(generation)];
            match letter.map(|letter| letter.status) {
                Some(Status::Replayed) => {
                    self.replay(generation, &Replayed::Already).await?;
                    let error = self.discard(generation, Discarded::Already).await;
                    let refused = error.is_err_and(|error| {
                        matches!(error.downcast_ref(), Some(DiscardError::WasReplayed(_)))
                    });
                    anyhow::ensure!(refused, "what was replayed was discarded");
                    tried += 2;
                }
                Some(Status::Discarded) => {
                    let error = self.replay(generation, &Replayed::Already).await;
                    let refused = error.is_err_and(|error| {
                        matches!(error.downcast_ref(), Some(ReplayError::WasDiscarded(_)))
                    });
                    anyhow::ensure!(refused, "what was discarded was replayed");
                    self.discard(generation, Discarded::Already).await?;
                    tried += 2;
                }
                Some(Status::Pending) | None => {}
            }
        }
        if !self.state.is_sweepable(self.model.design) {
            let rows = self.sweep().await?;
            anyhow::ensure!(rows == 0, "the sweep took a fence that may still be needed");
            tried += 1;
        }
        self.driven.refused += tried;
        self.compare().await.context("after what is not allowed")
    }
}

/// How a call ends, so that the move comes about. None: it must not go on.
fn order_for(call: Call, stage: Stage, made: Move) -> Option<Order> {
    let received = matches!(stage, Stage::Received(_));
    let committing = matches!(stage, Stage::Committing(_));
    Some(match (call, made) {
        (Call::Receive, _) => return None,
        (Call::Begin, Move::Defer(DeferReason::Contention)) => Order::Contention,
        (Call::Begin, Move::Defer(_) | Move::LeaseLost) if received => Order::Away,
        (Call::Work, Move::Worked) => Order::Work(Work::Done),
        (Call::Work, Move::Failed(ending)) => Order::Work(match ending {
            Ending::Permanent => Work::Permanent,
            Ending::Panic => Work::Panic,
            Ending::Deadline => Work::Hang,
            Ending::Contention => Work::Contention,
            Ending::Shutdown => return None,
            _ => Work::Transient,
        }),
        (Call::Rollback | Call::Ping, Move::Failed(Ending::StoreAway)) => Order::Away,
        (Call::Ping, _) => return None,
        (Call::Commit, Move::CommitUnknown) => Order::Away,
        (Call::Commit, Move::Committed) => Order::Pass,
        (Call::Commit, Move::Defer(_)) if committing => Order::Contention,
        (Call::Commit, _) if committing => Order::Refuse,
        _ => Order::Pass,
    })
}

fn expected(state: &State) -> Observed {
    let letters = (0..).zip(&state.letters);
    let letters = letters.filter_map(|(generation, letter)| {
        let letter = (*letter)?;
        let status = match letter.status {
            Status::Pending => harness::Status::PendingReview,
            Status::Replayed => harness::Status::Replayed,
            Status::Discarded => harness::Status::Discarded,
        };
        Some((generation, letter.reason, status))
    });
    Observed {
        effects: u64::from(state.effects),
        fence: state.fence,
        letters: letters.collect(),
        queues: state
            .messages
            .map(|message| message.iter().map(|message| message.count).collect()),
        open_transactions: state.open_transactions(),
    }
}
