//! One job from its publication to its outcome, with everything that can happen to its deliveries: the model that the code
//! is held against.
//!
//! Two copies of a job's message are delivered again and again. What a delivery may do is the [`protocol`]; what the world
//! answers (is there a fence, a letter, does a twin hold the key) decides which of it happens. The same protocol judges
//! histories of real and simulated runs ([`conform`]).

pub mod conform;
pub mod protocol;

use harness::{DeferReason, Ending, FenceVerdict, Reason};
use stateright::{Model, Property};

use self::protocol::{Move, Rules, Stage};
use crate::kit::{Told, is_over};

/// How the consumer is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// As it is.
    Right,
    /// The dead letter does not look at the fence.
    LetterWithoutFence,
    /// The fence does not look for dead letters.
    FenceIgnoresLetter,
    /// A delivery is acknowledged as soon as its handler worked.
    AckBeforeCommit,
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifecycle {
    /// How the consumer is built.
    pub design: Design,
    /// Runs that are allowed.
    pub max_runs: u32,
    /// Processes that may die.
    pub crashes: u8,
    /// Commits and acks that may be lost, or their answers.
    pub losses: u8,
    /// Deliveries that may be given back uncounted.
    pub defers: u8,
}

/// One copy of the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Copy {
    /// In the queue, delivered so many counted times.
    Queued(u32),
    /// Delivered.
    Held(u32, Stage),
    /// Acknowledged.
    Gone,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    poison: bool,
    copies: [Copy; 2],
    /// Which copy's transaction holds the fence key.
    key: Option<u8>,
    fence: bool,
    effects: u8,
    letter: Option<Reason>,
    runs: [u8; 2],
    /// A copy was acknowledged too early.
    vanished: bool,
    /// The world did what the protocol does not allow.
    refused: bool,
    crashes: u8,
    losses: u8,
    defers: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The broker hands a copy out.
    Deliver(u8),
    /// A delivery moves on.
    Step(u8, Move),
    /// A commit happens, and nobody answers.
    CommitAnswerLost(u8),
    /// An acknowledgement does not arrive.
    AckLost(u8),
    /// A process dies.
    Crash(u8),
}

impl Lifecycle {
    /// Two copies, two runs each.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            max_runs: 2,
            crashes: 2,
            losses: 2,
            defers: 2,
        }
    }

    fn rules(&self) -> Rules {
        Rules {
            max_runs: self.max_runs,
        }
    }

    /// What the world lets a delivery do.
    fn moves(&self, state: &State, copy: u8, stage: Stage) -> Vec<Move> {
        let others_key = state.key.is_some_and(|holder| holder != copy);
        let may_defer = state.defers > 0;
        match stage {
            Stage::Received(_) if state.poison => vec![Move::Poison],
            Stage::Received(_) => {
                let mut moves = vec![match () {
                    () if state.fence => Move::Fence(FenceVerdict::Duplicate),
                    () if others_key && may_defer => Move::Busy,
                    () if others_key => return Vec::new(),
                    () if state.letter.is_some() && self.design != Design::FenceIgnoresLetter => {
                        Move::Fence(FenceVerdict::Settled)
                    }
                    () => Move::Fence(FenceVerdict::Acquired),
                }];
                if may_defer {
                    moves.push(Move::Defer(DeferReason::StoreAway));
                }
                moves
            }
            Stage::Fenced(before) if before >= self.max_runs => {
                self.letters(state, Reason::Exhausted)
            }
            Stage::Fenced(before) => vec![Move::StartRun(before + 1)],
            Stage::Running(_) => {
                let mut moves = vec![
                    Move::Worked,
                    Move::Failed(Ending::Transient),
                    Move::Failed(Ending::Permanent),
                ];
                if may_defer {
                    moves.push(Move::Failed(Ending::Contention));
                }
                moves
            }
            Stage::Committing(_) if self.design == Design::AckBeforeCommit => vec![Move::Ack],
            Stage::Committing(_) if state.losses > 0 => vec![Move::Committed, Move::CommitUnknown],
            Stage::Committing(_) => vec![Move::Committed],
            Stage::GivingUp(_) if others_key => Vec::new(),
            Stage::GivingUp(reason) => self.letters(state, reason),
            Stage::ToAck => vec![Move::Ack],
            Stage::ToRetry(run) => vec![Move::Retry(run)],
            Stage::ToDefer(reason) => vec![Move::Defer(reason)],
            Stage::Over => Vec::new(),
        }
    }

    fn letters(&self, state: &State, reason: Reason) -> Vec<Move> {
        vec![
            if state.fence && self.design != Design::LetterWithoutFence {
                Move::LetterApplied
            } else if state.letter.is_some() {
                Move::LetterThere
            } else {
                Move::Letter(reason)
            },
        ]
    }

    fn apply(state: &mut State) {
        state.fence = true;
        state.effects += 1;
        state.key = None;
    }

    /// What a move does to the world.
    fn act(&self, state: &mut State, copy: u8, made: Move) {
        let at = usize::from(copy);
        match made {
            Move::Fence(FenceVerdict::Acquired) => state.key = Some(copy),
            Move::StartRun(_) => state.runs[at] += 1,
            Move::Failed(ending) => {
                state.key = None;
                if ending == Ending::Contention {
                    state.runs[at] -= 1;
                }
            }
            Move::Committed => Self::apply(state),
            Move::CommitUnknown => {
                state.losses -= 1;
                state.key = None;
            }
            Move::Letter(reason) => {
                state.letter = Some(reason);
                state.key = None;
            }
            Move::LetterThere | Move::LetterApplied => state.key = None,
            Move::Ack => state.vanished |= !state.fence && state.letter.is_none(),
            _ => {}
        }
    }

    /// Where a copy is after a move that leads to `next`.
    fn place(state: &mut State, made: Move, count: u32, next: Stage) -> Copy {
        match (next, made) {
            (Stage::Over, Move::Ack) => Copy::Gone,
            (Stage::Over, Move::Defer(_)) => {
                state.defers = state.defers.saturating_sub(1);
                Copy::Queued(count - 1)
            }
            (Stage::Over, _) => Copy::Queued(count),
            _ => Copy::Held(count, next),
        }
    }
}

impl Model for Lifecycle {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |poison| State {
            poison,
            copies: [Copy::Queued(0); 2],
            key: None,
            fence: false,
            effects: 0,
            letter: None,
            runs: [0; 2],
            vanished: false,
            refused: false,
            crashes: self.crashes,
            losses: self.losses,
            defers: self.defers,
        };
        vec![state(false), state(true)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (copy, place) in (0..).zip(&state.copies) {
            match *place {
                Copy::Queued(_) => actions.push(Action::Deliver(copy)),
                Copy::Gone => {}
                Copy::Held(_, stage) => {
                    let moves = self.moves(state, copy, stage).into_iter();
                    actions.extend(moves.map(|made| Action::Step(copy, made)));
                    if state.losses > 0 {
                        match stage {
                            Stage::Committing(_) if self.design != Design::AckBeforeCommit => {
                                actions.push(Action::CommitAnswerLost(copy));
                            }
                            Stage::ToAck => actions.push(Action::AckLost(copy)),
                            _ => {}
                        }
                    }
                    if state.crashes > 0 {
                        actions.push(Action::Crash(copy));
                    }
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let (Action::Deliver(copy)
        | Action::Step(copy, _)
        | Action::CommitAnswerLost(copy)
        | Action::AckLost(copy)
        | Action::Crash(copy)) = action;
        let at = usize::from(copy);
        let place = match (action, state.copies[at]) {
            (Action::Deliver(_), Copy::Queued(before)) => {
                Copy::Held(before + 1, Stage::Received(before))
            }
            (Action::Step(_, made), Copy::Held(count, stage)) => {
                let early = self.design == Design::AckBeforeCommit && made == Move::Ack;
                let next = self
                    .rules()
                    .next(stage, made)
                    .or(early.then_some(Stage::Over));
                state.refused |= next.is_none();
                self.act(&mut state, copy, made);
                if early && matches!(stage, Stage::Committing(_)) {
                    Self::apply(&mut state);
                }
                Self::place(&mut state, made, count, next.unwrap_or(Stage::Over))
            }
            (Action::CommitAnswerLost(_), Copy::Held(count, Stage::Committing(run))) => {
                state.losses -= 1;
                Self::apply(&mut state);
                Copy::Held(count, Stage::ToRetry(run))
            }
            (Action::AckLost(_), Copy::Held(count, _)) => {
                state.losses -= 1;
                Copy::Queued(count)
            }
            (Action::Crash(_), Copy::Held(count, _)) => {
                state.crashes -= 1;
                if state.key == Some(copy) {
                    state.key = None;
                }
                Copy::Queued(count)
            }
            _ => return None,
        };
        state.copies[at] = place;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1 one effect", |_, state: &State| state.effects <= 1),
            Property::always("S3 nothing vanishes", |_, state: &State| !state.vanished),
            Property::always("S4 one outcome", |_, state: &State| {
                state.effects == 0 || state.letter.is_none()
            }),
            Property::always("S5 bounded runs", |model: &Self, state: &State| {
                state
                    .runs
                    .iter()
                    .all(|runs| u32::from(*runs) <= model.max_runs)
            }),
            Property::always("S7 poison", |_, state: &State| {
                !state.poison || state.runs == [0; 2]
            }),
            Property::always("the protocol allows it", |_, state: &State| !state.refused),
            Property::always("L1 settles", |model: &Self, state: &State| {
                !is_over(model, state)
                    || (state.copies == [Copy::Gone; 2] && (state.fence != state.letter.is_some()))
            }),
            Property::sometimes("the job is applied", |_, state: &State| state.effects == 1),
            Property::sometimes("it is given up", |_, state: &State| state.letter.is_some()),
            Property::sometimes(
                "all runs of both copies are used",
                |model: &Self, state: &State| {
                    state
                        .runs
                        .iter()
                        .all(|runs| u32::from(*runs) == model.max_runs)
                },
            ),
            Property::sometimes(
                "a copy waits for the other one's key",
                |_, state: &State| {
                    state.key.is_some_and(|holder| {
                        matches!(
                            state.copies[1 - usize::from(holder)],
                            Copy::Held(_, Stage::Received(_) | Stage::GivingUp(_))
                        )
                    })
                },
            ),
        ]
    }
}

impl Told for Lifecycle {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Deliver(_) => "the broker".to_owned(),
            Action::CommitAnswerLost(_) | Action::AckLost(_) => "the network".to_owned(),
            Action::Step(copy, _) | Action::Crash(copy) => {
                format!("the holder of copy {}", copy + 1)
            }
        }
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Deliver(copy) => format!("hands copy {} out", copy + 1),
            Action::Step(_, made) => match made {
                Move::Poison => "finds that it can never be valid".to_owned(),
                Move::NotAddressed => "finds that it is for somebody else".to_owned(),
                Move::Busy => "finds a twin running".to_owned(),
                Move::Fence(verdict) => format!("asks the fence: {verdict:?}").to_lowercase(),
                Move::StartRun(run) => format!("starts run {run}"),
                Move::Worked => "worked".to_owned(),
                Move::Failed(ending) => format!("fails: {ending:?}").to_lowercase(),
                Move::Committed => "commits".to_owned(),
                Move::CommitUnknown => "commits, and the commit is lost".to_owned(),
                Move::Letter(reason) => format!("writes a dead letter: {reason:?}").to_lowercase(),
                Move::LetterThere => "finds a dead letter there".to_owned(),
                Move::LetterApplied => {
                    "finds the job applied, and writes no dead letter".to_owned()
                }
                Move::Ack => "acknowledges".to_owned(),
                Move::Retry(_) => "gives it back, counted".to_owned(),
                Move::Defer(_) => "gives it back, uncounted".to_owned(),
                Move::LeaseLost => "finds its lease lost".to_owned(),
            },
            Action::CommitAnswerLost(copy) => {
                format!(
                    "carries the commit of copy {} and loses the answer",
                    copy + 1
                )
            }
            Action::AckLost(copy) => format!("loses the acknowledgement of copy {}", copy + 1),
            Action::Crash(_) => "dies".to_owned(),
        }
    }

    fn show(&self, state: &State) -> String {
        let outcome = match (state.effects, state.letter) {
            (0, None) => "no outcome".to_owned(),
            (n, None) => format!("{n} effect"),
            (0, Some(reason)) => format!("a dead letter ({reason:?})"),
            (n, Some(reason)) => format!("{n} effect AND a dead letter ({reason:?})"),
        };
        let place = |copy: &Copy| match copy {
            Copy::Queued(count) => format!("queued after {count}"),
            Copy::Held(_, stage) => format!("{stage:?}"),
            Copy::Gone => "gone".to_owned(),
        };
        let kind = if state.poison { "poison" } else { "a job" };
        format!(
            "{kind}, {outcome}; copy 1 {}, copy 2 {}",
            place(&state.copies[0]),
            place(&state.copies[1])
        )
    }
}
