//! Both stores against a model of a few lines, one operation at a time: what the answers must be when nobody meets anybody.

use std::cell::RefCell;
use std::collections::BTreeMap;

use harness::{Reason, Status};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use tokio::runtime::Runtime;

use crate::real::Real;
use crate::script::{Act, Key, Step, consumer_name, job_id, letter_id};
use crate::simulated::{FIRST_COME, Simulated, knobs};

const TTL_HOURS: u64 = 24;

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    /// An SQL error that nobody minded, then a commit.
    SwallowedError,
}

#[derive(Debug, Clone)]
enum Operation {
    Apply { job: u8, generation: u32, end: End },
    Record { job: u8, generation: u32 },
    Replay { letter: u8 },
    Discard { letter: u8 },
    Sweep,
    Pass { hours: u64 },
}

#[derive(Debug, Clone)]
struct Letter {
    job: u8,
    generation: u32,
    status: Status,
    decided: u64,
}

/// What there must be.
#[derive(Debug, Clone, Default)]
struct Model {
    hour: u64,
    /// When the fence of a job expires.
    fences: BTreeMap<u8, u64>,
    effects: BTreeMap<u8, u32>,
    letters: Vec<Letter>,
    /// What the last operation must have answered.
    answers: Vec<&'static str>,
}

impl Model {
    fn letter_of(&self, job: u8, generation: u32) -> Option<&Letter> {
        self.letters
            .iter()
            .find(|it| it.job == job && it.generation == generation)
    }

    fn verdict(&self, job: u8, generation: u32) -> &'static str {
        let before = generation
            .checked_sub(1)
            .and_then(|before| self.letter_of(job, before));
        if self.fences.contains_key(&job) {
            "duplicate"
        } else if self.letter_of(job, generation).is_some()
            || before.is_some_and(|it| it.status == Status::Discarded)
        {
            "settled"
        } else {
            "acquired"
        }
    }

    fn decide(&mut self, letter: u8, status: Status) {
        let hour = self.hour;
        if let Some(it) = self.letters.get_mut(usize::from(letter)) {
            (it.status, it.decided) = (status, hour);
        }
    }

    fn is_needed(&self, job: u8) -> bool {
        let mut letters = self.letters.iter().filter(|it| it.job == job);
        letters.any(|it| it.status == Status::PendingReview || it.decided + 24 > self.hour)
    }

    fn step(&mut self, operation: &Operation) {
        self.answers.clear();
        match *operation {
            Operation::Apply {
                job,
                generation,
                end,
            } => {
                let verdict = self.verdict(job, generation);
                self.answers.push(verdict);
                if verdict == "acquired" && end == End::Commit {
                    self.fences.insert(job, self.hour + TTL_HOURS);
                    *self.effects.entry(job).or_default() += 1;
                }
                let refused = verdict == "acquired" && end == End::SwallowedError;
                self.answers.push(if refused { "refused" } else { "done" });
            }
            Operation::Record { job, generation } => {
                let answer = if self.fences.contains_key(&job) {
                    "applied"
                } else if self.letter_of(job, generation).is_some() {
                    "already"
                } else {
                    let status = Status::PendingReview;
                    self.letters.push(Letter {
                        job,
                        generation,
                        status,
                        decided: 0,
                    });
                    "written"
                };
                self.answers.push(answer);
            }
            Operation::Replay { letter } => {
                let status = self.letters.get(usize::from(letter)).map(|it| it.status);
                let answer = match status {
                    None => "none",
                    Some(Status::PendingReview) => {
                        self.decide(letter, Status::Replayed);
                        "done"
                    }
                    Some(_) => "refused",
                };
                self.answers.push(answer);
            }
            Operation::Discard { letter } => {
                let there = self
                    .letters
                    .get(usize::from(letter))
                    .map(|it| (it.status, it.job));
                let answer = match there {
                    None => "NotFound",
                    Some((Status::Discarded, _)) => "Already",
                    Some((Status::Replayed, _)) => "WasReplayed",
                    Some((_, job)) if self.fences.contains_key(&job) => "WasApplied",
                    Some(_) => {
                        self.decide(letter, Status::Discarded);
                        "Discarded"
                    }
                };
                self.answers.push(answer);
            }
            Operation::Sweep => {
                let mut fences = std::mem::take(&mut self.fences);
                fences.retain(|job, expires| *expires > self.hour || self.is_needed(*job));
                self.fences = fences;
            }
            Operation::Pass { hours } => self.hour += hours,
        }
    }

    /// What is in the tables, without times.
    fn rows(&self) -> Vec<String> {
        let consumer = consumer_name(0);
        let mut rows = Vec::new();
        rows.extend(
            self.fences
                .keys()
                .map(|job| format!("fence {} {consumer}", job_id(*job))),
        );
        let effects = self.effects.iter();
        rows.extend(effects.map(|(job, n)| format!("effect {} {consumer}: {n}", job_id(*job))));
        rows.extend(self.letters.iter().zip(0..).map(|(it, n)| {
            let (id, job) = (letter_id(n), job_id(it.job));
            let (generation, status) = (it.generation, it.status);
            format!("letter {id}: {job} {consumer} generation {generation} hard {status}")
        }));
        rows.sort();
        rows
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Operation;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<Operation> {
        let end = prop_oneof![
            3 => Just(End::Commit),
            1 => Just(End::Rollback),
            1 => Just(End::SwallowedError)
        ];
        prop_oneof![
            4 => (0..2u8, 0..3u32, end)
                .prop_map(|(job, generation, end)| Operation::Apply { job, generation, end }),
            4 => (0..2u8, 0..3u32).prop_map(|(job, generation)| Operation::Record { job, generation }),
            2 => (0..4u8).prop_map(|letter| Operation::Replay { letter }),
            2 => (0..4u8).prop_map(|letter| Operation::Discard { letter }),
            2 => Just(Operation::Sweep),
            2 => prop_oneof![Just(1), Just(30), Just(60)].prop_map(|hours| Operation::Pass { hours }),
        ]
        .boxed()
    }

    fn apply(mut state: Self, operation: &Operation) -> Self {
        state.step(operation);
        state
    }
}

/// A store that does one step after the other.
trait Machine {
    fn new() -> Self;
    fn say(&mut self, act: Act) -> String;
    fn pass(&mut self, hours: u64);
    fn rows(&mut self) -> Vec<String>;
}

struct Tried<M> {
    machine: M,
    letters: u8,
}

impl<M: Machine> Tried<M> {
    fn answers(&mut self, operation: &Operation, written: bool) -> Vec<String> {
        let machine = &mut self.machine;
        match *operation {
            Operation::Apply {
                job,
                generation,
                end,
            } => {
                let key = Key { job, consumer: 0 };
                machine.say(Act::Begin);
                let ttl_hours = TTL_HOURS;
                let verdict = machine.say(Act::Fence {
                    key,
                    generation,
                    ttl_hours,
                });
                if verdict != "acquired" {
                    return vec![verdict, machine.say(Act::Rollback)];
                }
                machine.say(Act::Effect);
                let last = match end {
                    End::Commit => Act::Commit,
                    End::Rollback => Act::Rollback,
                    End::SwallowedError => {
                        machine.say(Act::SwallowError);
                        Act::Commit
                    }
                };
                vec![verdict, machine.say(last)]
            }
            Operation::Record { job, generation } => {
                let (letter, key) = (self.letters, Key { job, consumer: 0 });
                let reason = Reason::Hard;
                let said = machine.say(Act::Record {
                    letter,
                    key,
                    generation,
                    reason,
                });
                self.letters += u8::from(written);
                vec![said]
            }
            Operation::Replay { letter } => {
                let found = machine.say(Act::Lock { letter });
                if found == "none" {
                    return vec![found];
                }
                vec![machine.say(Act::MarkReplayed)]
            }
            Operation::Discard { letter } => vec![machine.say(Act::Discard { letter })],
            Operation::Sweep => {
                machine.say(Act::Sweep {
                    consumer: 0,
                    oldest_hours_ago: None,
                    retry_window_hours: 0,
                    limit: 100,
                });
                Vec::new()
            }
            Operation::Pass { hours } => {
                machine.pass(hours);
                Vec::new()
            }
        }
    }

    /// Without times, and without what alerting remembers.
    fn rows(&mut self) -> Vec<String> {
        let rows =
            self.machine
                .rows()
                .into_iter()
                .filter_map(|row| match row.split(' ').next()? {
                    "fence" => Some(row.split(':').next()?.to_owned()),
                    "letter" => Some(row.split(" because").next()?.to_owned()),
                    "effect" => Some(row),
                    _ => None,
                });
        rows.collect()
    }
}

impl<M: Machine> StateMachineTest for Tried<M> {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        Self {
            machine: M::new(),
            letters: 0,
        }
    }

    fn apply(mut state: Self, model: &Model, operation: Operation) -> Self {
        let written = model.answers == ["written"];
        let answers = state.answers(&operation, written);
        assert_eq!(answers, model.answers, "{operation:?}");
        assert_eq!(state.rows(), model.rows(), "{operation:?}");
        state
    }
}

fn step(act: Act) -> Step {
    Step { actor: 0, act }
}

impl Machine for (Simulated, Runtime) {
    fn new() -> Self {
        // Dropped transactions look for a runtime.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        (Simulated::new(&knobs()), runtime)
    }

    fn say(&mut self, act: Act) -> String {
        let _entered = self.1.enter();
        self.0
            .advance(std::time::Duration::from_millis(1), &FIRST_COME);
        self.0.step(&step(act), &FIRST_COME).remove(0).said
    }

    fn pass(&mut self, hours: u64) {
        self.0
            .advance(std::time::Duration::from_secs(hours * 3_600), &FIRST_COME);
    }

    fn rows(&mut self) -> Vec<String> {
        self.0.rows()
    }
}

thread_local! {
    /// One database for all cases: making one takes longer than a case.
    static REAL: RefCell<Option<(Runtime, Real)>> = const { RefCell::new(None) };
}

/// PostgreSQL, and the time there in milliseconds.
struct OnPostgres(i64);

fn on_postgres<T>(work: impl AsyncFnOnce(&mut Real) -> T) -> T {
    REAL.with_borrow_mut(|lane| {
        let (runtime, real) = lane.get_or_insert_with(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let real = runtime.block_on(Real::new());
            (runtime, real)
        });
        runtime.block_on(work(real))
    })
}

impl Machine for OnPostgres {
    fn new() -> Self {
        on_postgres(async |real| real.reset().await);
        Self(0)
    }

    fn say(&mut self, act: Act) -> String {
        self.0 += 1;
        let now = self.0;
        on_postgres(async |real| {
            real.set_clock(now).await;
            real.step(&step(act), 1).await.remove(0).said
        })
    }

    fn pass(&mut self, hours: u64) {
        self.0 += i64::try_from(hours * 3_600_000).unwrap_or(0);
    }

    fn rows(&mut self) -> Vec<String> {
        on_postgres(Real::rows)
    }
}

/// The same cases each time, and those that ever failed first.
fn config(cases: u32) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(1),
        max_shrink_iters: 2_000,
        ..Config::default()
    }
}

prop_state_machine! {
    #![proptest_config(config(1_000))]

    #[test]
    fn s1_s2_s4_s8_s10_the_simulated_store_answers_as_the_model_says(
        sequential 1..30 => Tried<(Simulated, Runtime)>
    );
}

prop_state_machine! {
    #![proptest_config(config(40))]

    #[test]
    fn s1_s2_s4_s8_s10_postgresql_answers_as_the_model_says(
        sequential 1..30 => Tried<OnPostgres>
    );
}
