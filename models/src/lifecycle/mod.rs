//! One job from its publication to its outcome, with everything that can happen to its deliveries, and with what operators
//! and the sweep do: the model that the code is held against.
//!
//! Copies of a job's message are delivered again and again. What a delivery may do is the [`protocol`]; what the [`world`]
//! answers (is there a fence, a letter, does a twin hold the key) decides which of it happens. The same protocol judges
//! histories of real and simulated runs ([`conform`]), and ways through this model ([`cover`]) are driven through the real
//! harness: one alphabet for all of them, [`Action`].

pub mod conform;
pub mod cover;
pub mod protocol;
mod tell;
pub mod world;

use serde::{Deserialize, Serialize};
use stateright::{Model, Property};

use self::protocol::{Move, Rules};
use self::world::{Kind, State, Status};
use crate::kit::is_over;

/// How the consumer is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// As it is.
    Right,
    /// The dead letter does not look at the fence.
    LetterWithoutFence,
    /// The fence does not look for dead letters.
    FenceIgnoresLetter,
    /// A delivery is acknowledged as soon as its handler worked.
    AckBeforeCommit,
    /// The sweep does not look for copies that are still queued.
    SweepIgnoresQueue,
}

impl Design {
    /// Every wrong one, in the order of the catalogue.
    pub const WRONG: [Self; 4] = [
        Self::LetterWithoutFence,
        Self::FenceIgnoresLetter,
        Self::AckBeforeCommit,
        Self::SweepIgnoresQueue,
    ];
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Leases that may run out under a holder that lives on.
    pub leases: u8,
    /// Dead letters that may be replayed.
    pub replays: u8,
    /// Batches that may be run. The other jobs in them are not looked at: they only make a batch fail.
    #[serde(default)]
    pub batches: u8,
}

/// A step. Holders are numbered: 0 and 1 hold that copy, 2 ([`world::GHOST`]) held one until its lease ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The broker hands a copy out.
    Deliver(u8),
    /// A holder moves on.
    Step(u8, Move),
    /// A commit happens, and nobody answers.
    CommitAnswerLost(u8),
    /// An acknowledgement does not arrive, and is sent again.
    AckLost(u8),
    /// A process dies.
    Crash(u8),
    /// Time passes: the lease of a copy runs out, and its holder does not notice.
    LeaseExpires(u8),
    /// An operator replays the job's dead letter.
    Replay,
    /// An operator discards the job's dead letter of this generation.
    Discard(u8),
    /// Time passes: the fence expires, and the sweep takes it.
    Sweep,
}

impl Lifecycle {
    /// Two copies, two runs each.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            max_runs: 2,
            crashes: 1,
            losses: 1,
            defers: 1,
            leases: 1,
            replays: 1,
            // Where a wrong design goes wrong, batches are not needed; and what is driven through the harness has none.
            batches: u8::from(design == Design::Right),
        }
    }

    /// What the consumer was told at its start.
    pub fn rules(&self) -> Rules {
        Rules {
            max_runs: self.max_runs,
        }
    }
}

impl Model for Lifecycle {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut states = Vec::new();
        for kind in Kind::ALL {
            // With one copy from the beginning, the other place is free for a replay.
            for copies in [1, 2] {
                states.push(State::new(self, kind, copies));
            }
        }
        states
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.every_action(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.after(last, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1 one effect", |_, state: &State| state.effects <= 1),
            Property::always("S3 nothing vanishes", |_, state: &State| !state.vanished),
            Property::always("S4 one outcome", |_, state: &State| {
                let applied = state.applied_generation;
                applied.is_none_or(|at| state.letters[usize::from(at)].is_none())
            }),
            Property::always("S4 discarded means never applied", |_, state: &State| {
                let mut letters = state.letters.iter().flatten();
                state.effects == 0 || letters.all(|letter| letter.status != Status::Discarded)
            }),
            Property::always("S5 bounded runs", |model: &Self, state: &State| {
                let mut runs = state.runs.iter();
                runs.all(|runs| u32::from(*runs) <= model.max_runs)
            }),
            Property::always("S7 poison", |_, state: &State| {
                state.kind != Kind::Poison || state.runs == [0; 2]
            }),
            Property::always("the protocol allows it", |_, state: &State| !state.refused),
            Property::always("L1 settles", |model: &Self, state: &State| {
                let ours = matches!(state.kind, Kind::Job | Kind::Poison);
                let last_letter = state.letters.iter().flatten().next_back();
                let given_up = last_letter.is_some_and(|it| it.status != Status::Replayed);
                !is_over(model, state)
                    || !ours
                    || (state.is_quiet() && ((state.effects == 1) != given_up))
            }),
            Property::sometimes("the job is applied", |_, state: &State| state.effects == 1),
            Property::sometimes("it is given up", |_, state: &State| {
                state.letters[0].is_some()
            }),
            Property::sometimes("a replay is applied", |_, state: &State| {
                state.applied_generation == Some(1)
            }),
            Property::sometimes("a replay is given up", |_, state: &State| {
                state.letters[1].is_some()
            }),
            Property::sometimes(
                "all runs of both copies are used",
                |model: &Self, state: &State| {
                    let mut runs = state.runs.iter();
                    runs.all(|runs| u32::from(*runs) == model.max_runs)
                },
            ),
            Property::sometimes("a copy waits for another one's key", |_, state: &State| {
                (0..).zip(&state.holders).any(|(at, holder)| {
                    state.key.is_some_and(|key| key != at)
                        && holder.is_some_and(|holder| holder.stage.needs_key())
                })
            }),
            Property::sometimes("a holder without a lease commits", |_, state: &State| {
                state.effects == 1
                    && state.holders[usize::from(world::GHOST)]
                        .is_some_and(|ghost| ghost.stage == protocol::Stage::ToAck)
            }),
            Property::sometimes("it is applied in a batch", |_, state: &State| {
                state.effects == 1 && state.runs == [0; 2]
            }),
            Property::sometimes("the fence is swept", |_, state: &State| state.swept),
        ]
    }
}
