//! Twins, crashes and lost answers around one fence.
//!
//! One job, several copies of its message, several workers. A worker takes a copy, opens a transaction, takes the fence key,
//! works, commits effect and fence together, and acknowledges last. Anything may happen in between: the process dies, the
//! answer to a commit or an acknowledgement is lost, a lease ends while its holder goes on.

use stateright::{Model, Property};

use crate::kit::{Told, is_over};

/// How the consumer is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// Fence and effect in one transaction, the key held until it ends, the ack last.
    Right,
    /// The fence is committed by itself, before the work.
    FenceBeforeWork,
    /// The fence is committed by itself, after the work.
    FenceAfterWork,
    /// Whether there is a fence is looked up, and it is inserted later; nobody waits for anybody.
    LookThenInsert,
    /// No fence at all: the broker is trusted.
    NoFence,
    /// The message is acknowledged when the work is done, and then the transaction is committed.
    AckBeforeCommit,
    /// A commit that nobody answered is taken for a success.
    UnknownIsSuccess,
    /// Whoever finds a twin running takes the job for done.
    BusyIsDuplicate,
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// How the consumer is built.
    pub design: Design,
    /// Worker processes.
    pub workers: u8,
    /// Copies of the message.
    pub copies: u8,
    /// Processes that may die.
    pub crashes: u8,
    /// Commits and acks that may be lost, or their answers.
    pub losses: u8,
    /// Leases that may end while they are held.
    pub expiries: u8,
    /// Times that a twin may be turned away.
    pub defers: u8,
    /// Runs that may fail.
    pub failures: u8,
}

/// Where a worker is with its copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// It has a delivery.
    Received,
    /// Its transaction is open.
    Open,
    /// It may work.
    Fenced,
    /// It worked; nothing is durable.
    Worked,
    /// It knows that everything is durable.
    Committed,
    /// Its effect is durable, its fence is not yet.
    EffectOnly,
    /// The fence said that the job is applied.
    Duplicate,
    /// Nobody answered its commit.
    Unknown,
}

/// One worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Worker {
    copy: u8,
    phase: Phase,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Copies that can be delivered; those that are gone.
    visible: u8,
    gone: u8,
    workers: Vec<Option<Worker>>,
    /// Whose open transaction holds the fence key.
    key: Option<u8>,
    fence: bool,
    effects: u8,
    crashes: u8,
    losses: u8,
    expiries: u8,
    defers: u8,
    failures: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The broker hands a copy to a worker.
    Deliver(u8, u8),
    /// A lease ends while somebody holds the copy.
    LeaseEnds(u8),
    /// A worker opens its transaction.
    Begin(u8),
    /// A worker asks the fence.
    Fence(u8),
    /// A worker waited long enough for a twin.
    Defer(u8),
    /// A handler works.
    Work(u8),
    /// A handler fails.
    Fail(u8),
    /// A worker commits and is answered.
    Commit(u8),
    /// A worker commits, and the answer is lost.
    CommitAnswerLost(u8),
    /// A commit does not arrive.
    CommitLost(u8),
    /// In a wrong design: the fence comes after its effect.
    LateFence(u8),
    /// A worker gives its copy back.
    GiveBack(u8),
    /// A worker acknowledges.
    Ack(u8),
    /// An acknowledgement does not arrive.
    AckLost(u8),
    /// A worker's process dies.
    Crash(u8),
}

impl Fence {
    /// Twins in three processes.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            workers: 3,
            copies: 2,
            crashes: 2,
            losses: 2,
            expiries: 1,
            defers: 2,
            failures: 1,
        }
    }

    fn worker(state: &State, w: u8) -> Option<Worker> {
        state.workers.get(usize::from(w)).copied().flatten()
    }

    fn set(state: &mut State, w: u8, phase: Phase) {
        if let Some(Some(worker)) = state.workers.get_mut(usize::from(w)) {
            worker.phase = phase;
        }
    }

    /// The worker has no copy any more; its transaction, if any, is rolled back.
    fn idle(state: &mut State, w: u8) {
        if let Some(worker) = state.workers.get_mut(usize::from(w)) {
            *worker = None;
        }
        if state.key == Some(w) {
            state.key = None;
        }
    }

    /// … and the copy can be delivered again, unless it is gone.
    fn give_back(state: &mut State, w: u8) {
        if let Some(worker) = Self::worker(state, w) {
            state.visible |= bit(worker.copy) & !state.gone;
        }
        Self::idle(state, w);
    }

    fn make_durable(&self, state: &mut State, w: u8) {
        state.effects += 1;
        match self.design {
            Design::FenceBeforeWork | Design::FenceAfterWork | Design::NoFence => {}
            _ => state.fence = true,
        }
        if state.key == Some(w) {
            state.key = None;
        }
    }
}

fn bit(copy: u8) -> u8 {
    1 << copy
}

impl Model for Fence {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            visible: (1 << self.copies) - 1,
            gone: 0,
            workers: vec![None; usize::from(self.workers)],
            key: None,
            fence: false,
            effects: 0,
            crashes: self.crashes,
            losses: self.losses,
            expiries: self.expiries,
            defers: self.defers,
            failures: self.failures,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for copy in 0..self.copies {
            if state.visible & bit(copy) != 0 {
                // Idle workers are alike: the first takes it.
                let idle = (0..self.workers).find(|w| Self::worker(state, *w).is_none());
                actions.extend(idle.map(|w| Action::Deliver(w, copy)));
            } else if state.expiries > 0
                && state.gone & bit(copy) == 0
                && state
                    .workers
                    .iter()
                    .flatten()
                    .any(|worker| worker.copy == copy)
            {
                actions.push(Action::LeaseEnds(copy));
            }
        }
        for w in 0..self.workers {
            let Some(worker) = Self::worker(state, w) else {
                continue;
            };
            if state.crashes > 0 {
                actions.push(Action::Crash(w));
            }
            match worker.phase {
                Phase::Received => actions.push(Action::Begin(w)),
                Phase::Open => {
                    let blocked = state.key.is_some() && !state.fence;
                    if !blocked {
                        actions.push(Action::Fence(w));
                    } else if state.defers > 0 || self.design == Design::BusyIsDuplicate {
                        actions.push(Action::Defer(w));
                    }
                }
                Phase::Fenced => {
                    actions.push(Action::Work(w));
                    if state.failures > 0 {
                        actions.push(Action::Fail(w));
                    }
                }
                Phase::Worked => {
                    let gone = state.gone & bit(worker.copy) != 0;
                    if self.design == Design::AckBeforeCommit && !gone {
                        actions.push(Action::Ack(w));
                        continue;
                    }
                    actions.push(Action::Commit(w));
                    if state.losses > 0 {
                        actions.extend([Action::CommitAnswerLost(w), Action::CommitLost(w)]);
                    }
                }
                Phase::EffectOnly => actions.push(Action::LateFence(w)),
                Phase::Committed | Phase::Duplicate => {
                    actions.push(Action::Ack(w));
                    if state.losses > 0 {
                        actions.push(Action::AckLost(w));
                    }
                }
                Phase::Unknown => actions.push(match self.design {
                    Design::UnknownIsSuccess => Action::Ack(w),
                    _ => Action::GiveBack(w),
                }),
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(w, copy) => {
                state.visible &= !bit(copy);
                let worker = Worker {
                    copy,
                    phase: Phase::Received,
                };
                *state.workers.get_mut(usize::from(w))? = Some(worker);
            }
            Action::LeaseEnds(copy) => {
                state.expiries -= 1;
                state.visible |= bit(copy);
            }
            Action::Begin(w) => Self::set(&mut state, w, Phase::Open),
            Action::Fence(w) if state.fence => Self::set(&mut state, w, Phase::Duplicate),
            Action::Fence(w) => {
                match self.design {
                    Design::FenceBeforeWork => state.fence = true,
                    Design::FenceAfterWork | Design::LookThenInsert | Design::NoFence => {}
                    _ => state.key = Some(w),
                }
                Self::set(&mut state, w, Phase::Fenced);
            }
            Action::Defer(w) if self.design == Design::BusyIsDuplicate => {
                Self::set(&mut state, w, Phase::Duplicate);
            }
            Action::Defer(w) => {
                state.defers -= 1;
                Self::give_back(&mut state, w);
            }
            Action::Work(w) => Self::set(&mut state, w, Phase::Worked),
            Action::Fail(w) => {
                state.failures -= 1;
                Self::give_back(&mut state, w);
            }
            Action::Commit(w) => {
                self.make_durable(&mut state, w);
                let phase = match self.design {
                    Design::FenceAfterWork => Phase::EffectOnly,
                    _ => Phase::Committed,
                };
                Self::set(&mut state, w, phase);
            }
            Action::CommitAnswerLost(w) => {
                state.losses -= 1;
                self.make_durable(&mut state, w);
                Self::set(&mut state, w, Phase::Unknown);
            }
            Action::CommitLost(w) => {
                state.losses -= 1;
                if state.key == Some(w) {
                    state.key = None;
                }
                Self::set(&mut state, w, Phase::Unknown);
            }
            Action::LateFence(w) => {
                state.fence = true;
                Self::set(&mut state, w, Phase::Committed);
            }
            Action::GiveBack(w) | Action::Crash(w) => {
                if matches!(action, Action::Crash(_)) {
                    state.crashes -= 1;
                }
                Self::give_back(&mut state, w);
            }
            Action::Ack(w) => {
                let worker = Self::worker(&state, w)?;
                state.gone |= bit(worker.copy);
                state.visible &= !bit(worker.copy);
                if worker.phase != Phase::Worked {
                    Self::idle(&mut state, w);
                }
            }
            Action::AckLost(w) => {
                state.losses -= 1;
                Self::give_back(&mut state, w);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn holds(state: &State, phase: Phase) -> bool {
            state
                .workers
                .iter()
                .flatten()
                .any(|worker| worker.phase == phase)
        }
        vec![
            Property::always("S1 one effect", |_, state: &State| state.effects <= 1),
            Property::always("S2 atomic fence", |_, state: &State| {
                (state.effects > 0) == state.fence
            }),
            Property::always("S3 nothing vanishes", |_, state: &State| {
                state.gone == 0 || state.effects > 0
            }),
            Property::always("L1 settles", |model: &Self, state: &State| {
                let all = (1 << model.copies) - 1;
                !is_over(model, state) || (state.gone == all && state.effects > 0)
            }),
            Property::sometimes("the job is applied", |_, state: &State| state.effects == 1),
            Property::sometimes("a duplicate is found", |_, state: &State| {
                holds(state, Phase::Duplicate)
            }),
            Property::sometimes(
                "a commit that nobody answered happened",
                |_, state: &State| holds(state, Phase::Unknown) && state.effects > 0,
            ),
            Property::sometimes(
                "a commit that nobody answered did not happen",
                |_, state: &State| holds(state, Phase::Unknown) && state.effects == 0,
            ),
            Property::sometimes("two workers hold the same copy", |_, state: &State| {
                let mut copies: Vec<u8> =
                    state.workers.iter().flatten().map(|it| it.copy).collect();
                copies.sort_unstable();
                copies.windows(2).any(|pair| pair[0] == pair[1])
            }),
            Property::sometimes("a twin waits for the key", |_, state: &State| {
                state.key.is_some() && holds(state, Phase::Open)
            }),
        ]
    }
}

impl Told for Fence {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Deliver(..) | Action::LeaseEnds(_) => "the broker".to_owned(),
            Action::CommitLost(_) | Action::AckLost(_) | Action::CommitAnswerLost(_) => {
                "the network".to_owned()
            }
            Action::Begin(w)
            | Action::Fence(w)
            | Action::Defer(w)
            | Action::Work(w)
            | Action::Fail(w)
            | Action::Commit(w)
            | Action::LateFence(w)
            | Action::GiveBack(w)
            | Action::Ack(w)
            | Action::Crash(w) => worker_name(*w),
        }
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Deliver(w, copy) => {
                format!("hands copy {} to {}", copy + 1, worker_name(*w))
            }
            Action::LeaseEnds(copy) => {
                format!(
                    "finds that the lease of copy {} is over, and will hand it out again",
                    copy + 1
                )
            }
            Action::Begin(_) => "opens a transaction".to_owned(),
            Action::Fence(_) => "asks the fence".to_owned(),
            Action::Defer(_) if self.design == Design::BusyIsDuplicate => {
                "finds a twin running and takes the job for done".to_owned()
            }
            Action::Defer(_) => {
                "waited long enough for its twin and gives its copy back".to_owned()
            }
            Action::Work(_) => "works".to_owned(),
            Action::Fail(_) => "fails and rolls back".to_owned(),
            Action::Commit(_) => "commits".to_owned(),
            Action::CommitAnswerLost(w) => {
                format!(
                    "carries {}'s commit to the database and loses the answer",
                    worker_name(*w)
                )
            }
            Action::CommitLost(w) => format!("loses {}'s commit on the way", worker_name(*w)),
            Action::LateFence(_) => "writes the fence, in a transaction of its own".to_owned(),
            Action::GiveBack(_) => "gives its copy back".to_owned(),
            Action::Ack(_) => "acknowledges its copy".to_owned(),
            Action::AckLost(w) => format!("loses {}'s acknowledgement", worker_name(*w)),
            Action::Crash(_) => "dies".to_owned(),
        }
    }

    fn show(&self, state: &State) -> String {
        let fence = if state.fence { "a fence" } else { "no fence" };
        let effects = match state.effects {
            1 => "1 effect".to_owned(),
            n => format!("{n} effects"),
        };
        let left = self.copies - u8::try_from(state.gone.count_ones()).unwrap_or(0);
        format!("{effects}, {fence}, {left} of {} copies left", self.copies)
    }
}

fn worker_name(w: u8) -> String {
    format!("worker {}", char::from(b'A' + w))
}
