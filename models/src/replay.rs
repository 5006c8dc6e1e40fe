//! What operators decide about dead letters, at once and in spite of crashes, against copies that are still around.
//!
//! A job failed and has a dead letter of generation 0; a stale copy of generation 0 may still be queued. Two operators lock,
//! publish, mark or discard. A replay publishes the next generation; a crash between publish and mark leaves the letter
//! pending.

use stateright::{Model, Property};

use crate::kit::{Told, is_over};

/// How replay, discard and gate are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// Lock, publish the next generation, mark, commit; the gate looks for letters, the discard for the fence.
    Right,
    /// The letter is marked, then published.
    MarkBeforePublish,
    /// A replay gets a job id of its own, so it meets no fence.
    NewId,
    /// A replay is published with the generation of its letter.
    NoGeneration,
    /// The gate does not look for a dead letter of its generation.
    GateIgnoresLetter,
    /// The gate does not look whether the generation before was discarded.
    GateIgnoresDiscard,
    /// Nobody locks the letter; each decides by what it read.
    NoLock,
    /// A discard does not look at the fence.
    DiscardIgnoresFence,
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// How it is built.
    pub design: Design,
    /// The highest generation that is replayed to.
    pub generations: u8,
    /// Decisions that the operators begin, together.
    pub decisions: u8,
    /// Crashes between publish and mark.
    pub crashes: u8,
    /// Runs that fail for good again.
    pub failures: u8,
}

/// A dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// Nobody decided.
    Pending,
    /// Published again.
    Replayed,
    /// Given up.
    Discarded,
}

/// What an operator is doing, with the letter of which generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Nothing.
    Idle,
    /// It holds (or read) the letter, and will replay it.
    Replaying(u8),
    /// It published (or, wrongly, marked) and has one thing left to do.
    Half(u8),
    /// It read the letter, and will discard it. Only where nobody locks.
    Discarding(u8),
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Letters by generation, with how often each changed.
    letters: Vec<(Status, u8)>,
    /// Queued messages, by generation.
    queued: Vec<u8>,
    operators: [Operator; 2],
    /// Which generation was applied, if one was.
    applied: Option<u8>,
    effects: u8,
    /// Generations that were published.
    published: u8,
    decisions: u8,
    crashes: u8,
    failures: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// An operator takes a letter to replay it.
    Take(u8, u8),
    /// An operator publishes.
    Publish(u8),
    /// An operator marks the letter as replayed.
    Mark(u8),
    /// An operator's call dies.
    Crash(u8),
    /// An operator reads a letter to discard it. Only where nobody locks.
    Read(u8, u8),
    /// An operator discards a letter.
    Discard(u8, u8),
    /// A worker runs a message (by its place in the queue), and it succeeds.
    Apply(u8),
    /// … and it fails for good.
    Fail(u8),
}

impl Replay {
    /// Two operators, three generations.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            generations: 2,
            decisions: 5,
            crashes: 2,
            failures: 2,
        }
    }

    fn status(state: &State, generation: u8) -> Option<Status> {
        state
            .letters
            .get(usize::from(generation))
            .map(|(status, _)| *status)
    }

    fn is_locked(&self, state: &State, generation: u8) -> bool {
        self.design != Design::NoLock
            && state.operators.iter().any(|operator| match operator {
                Operator::Replaying(theirs) | Operator::Half(theirs) => *theirs == generation,
                _ => false,
            })
    }

    fn set(state: &mut State, generation: u8, status: Status) {
        if let Some(letter) = state.letters.get_mut(usize::from(generation)) {
            *letter = (status, letter.1 + 1);
        }
    }

    fn publish(&self, state: &mut State, generation: u8) {
        let next = match self.design {
            Design::NoGeneration => generation,
            _ => generation + 1,
        };
        state.published |= 1 << (generation + 1);
        state.queued.push(next);
        state.queued.sort_unstable();
    }

    /// Whether the gate lets a message run.
    fn passes(&self, state: &State, generation: u8) -> bool {
        if self.design == Design::NewId && generation > 0 {
            return true;
        }
        let lettered = Self::status(state, generation).is_some();
        let discarded = generation
            .checked_sub(1)
            .is_some_and(|before| Self::status(state, before) == Some(Status::Discarded));
        state.applied.is_none()
            && (!lettered || self.design == Design::GateIgnoresLetter)
            && (!discarded || self.design == Design::GateIgnoresDiscard)
    }
}

impl Model for Replay {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |queued| State {
            letters: vec![(Status::Pending, 0)],
            queued,
            operators: [Operator::Idle; 2],
            applied: None,
            effects: 0,
            published: 1,
            decisions: self.decisions,
            crashes: self.crashes,
            failures: self.failures,
        };
        vec![state(Vec::new()), state(vec![0])]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (o, operator) in (0..).zip(&state.operators) {
            match operator {
                Operator::Idle if state.decisions > 0 => {
                    let letters = u8::try_from(state.letters.len()).unwrap_or(0);
                    for generation in 0..letters {
                        if Self::status(state, generation) != Some(Status::Pending)
                            || self.is_locked(state, generation)
                        {
                            continue;
                        }
                        if generation < self.generations {
                            actions.push(Action::Take(o, generation));
                        }
                        actions.push(match self.design {
                            Design::NoLock => Action::Read(o, generation),
                            _ => Action::Discard(o, generation),
                        });
                    }
                }
                Operator::Idle => {}
                Operator::Replaying(_) | Operator::Half(_) => {
                    let first = matches!(operator, Operator::Replaying(_));
                    let publishes = first != (self.design == Design::MarkBeforePublish);
                    actions.push(if publishes {
                        Action::Publish(o)
                    } else {
                        Action::Mark(o)
                    });
                    if state.crashes > 0 {
                        actions.push(Action::Crash(o));
                    }
                }
                Operator::Discarding(generation) => actions.push(Action::Discard(o, *generation)),
            }
        }
        let places = u8::try_from(state.queued.len()).unwrap_or(0);
        for place in 0..places {
            actions.push(Action::Apply(place));
            let generation = state.queued[usize::from(place)];
            let known = usize::from(generation) < state.letters.len();
            if state.failures > 0 && self.passes(state, generation) && !known {
                actions.push(Action::Fail(place));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Take(o, generation) => {
                state.decisions -= 1;
                *state.operators.get_mut(usize::from(o))? = Operator::Replaying(generation);
            }
            Action::Read(o, generation) => {
                state.decisions -= 1;
                *state.operators.get_mut(usize::from(o))? = Operator::Discarding(generation);
            }
            Action::Publish(o) | Action::Mark(o) => {
                let operator = state.operators.get_mut(usize::from(o))?;
                let (generation, next) = match *operator {
                    Operator::Replaying(generation) => (generation, Operator::Half(generation)),
                    Operator::Half(generation) => (generation, Operator::Idle),
                    _ => return None,
                };
                *operator = next;
                match action {
                    Action::Publish(_) => self.publish(&mut state, generation),
                    _ => Self::set(&mut state, generation, Status::Replayed),
                }
            }
            Action::Crash(o) => {
                state.crashes -= 1;
                *state.operators.get_mut(usize::from(o))? = Operator::Idle;
            }
            Action::Discard(o, generation) => {
                let operator = state.operators.get_mut(usize::from(o))?;
                if *operator == Operator::Idle {
                    state.decisions -= 1;
                }
                *operator = Operator::Idle;
                let refused = state.applied.is_some() && self.design != Design::DiscardIgnoresFence;
                if !refused {
                    Self::set(&mut state, generation, Status::Discarded);
                }
            }
            Action::Apply(place) => {
                let generation = state.queued.remove(usize::from(place));
                if self.passes(&state, generation) {
                    state.effects += 1;
                    state.applied.get_or_insert(generation);
                }
            }
            Action::Fail(place) => {
                state.failures -= 1;
                state.queued.remove(usize::from(place));
                state.letters.push((Status::Pending, 0));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1 one effect", |_, state: &State| state.effects <= 1),
            Property::always("S4 one outcome", |_, state: &State| {
                state
                    .applied
                    .is_none_or(|applied| Replay::status(state, applied).is_none())
            }),
            Property::always("S8 append-only", |_, state: &State| {
                state.letters.iter().all(|(_, changes)| *changes <= 1)
            }),
            Property::always(
                "S3 nothing vanishes: replayed means published",
                |_, state: &State| {
                    (0_u8..)
                        .zip(&state.letters)
                        .all(|(generation, (status, _))| {
                            // While its call lives, a wrong design may still publish.
                            *status != Status::Replayed
                                || state.published & (1 << (generation + 1)) != 0
                                || state.operators.contains(&Operator::Half(generation))
                        })
                },
            ),
            Property::always("S4 discarded means never applied", |_, state: &State| {
                // Neither by a late copy of its own generation nor by a replay of it that was published and not recorded.
                // (A later letter of the same job may still be replayed: that is a decision of its own.)
                state.applied.is_none_or(|applied| {
                    let discarded = |at| Replay::status(state, at) == Some(Status::Discarded);
                    !discarded(applied) && !applied.checked_sub(1).is_some_and(discarded)
                })
            }),
            Property::always("L1 settles", |model: &Self, state: &State| {
                // Whatever was replayed led to an outcome of a later generation.
                let replayed = state
                    .letters
                    .iter()
                    .rposition(|it| it.0 == Status::Replayed);
                !is_over(model, state)
                    || replayed.is_none_or(|at| state.effects > 0 || at + 1 < state.letters.len())
            }),
            Property::sometimes("a replay is applied", |_, state: &State| {
                state.applied.is_some_and(|generation| generation > 0)
            }),
            Property::sometimes("a letter is discarded", |_, state: &State| {
                state
                    .letters
                    .iter()
                    .any(|(status, _)| *status == Status::Discarded)
            }),
            Property::sometimes("a replay fails again", |_, state: &State| {
                state.letters.len() > 1
            }),
            Property::sometimes("one letter is published twice", |_, state: &State| {
                state.queued.windows(2).any(|pair| pair[0] == pair[1])
            }),
            Property::sometimes("a pending letter's job is applied", |_, state: &State| {
                state.applied.is_some()
                    && state
                        .letters
                        .iter()
                        .any(|(status, _)| *status == Status::Pending)
            }),
        ]
    }
}

impl Told for Replay {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Take(o, _)
            | Action::Publish(o)
            | Action::Mark(o)
            | Action::Crash(o)
            | Action::Read(o, _)
            | Action::Discard(o, _) => ["Olga", "Omar"][usize::from(*o)].to_owned(),
            Action::Apply(_) | Action::Fail(_) => "a worker".to_owned(),
        }
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Take(_, generation) => {
                format!("takes the letter of generation {generation} to replay it")
            }
            Action::Publish(_) => "publishes the job again".to_owned(),
            Action::Mark(_) => "marks the letter as replayed".to_owned(),
            Action::Crash(_) => "loses the connection in the middle".to_owned(),
            Action::Read(_, generation) => {
                format!("reads the letter of generation {generation} to discard it")
            }
            Action::Discard(_, generation) => {
                format!("discards the letter of generation {generation}")
            }
            Action::Apply(place) => format!("runs message {} of the queue, if it may", place + 1),
            Action::Fail(place) => format!(
                "runs message {} of the queue, and it fails for good",
                place + 1
            ),
        }
    }

    fn show(&self, state: &State) -> String {
        let letters: Vec<String> = (0..)
            .zip(&state.letters)
            .map(|(generation, (status, _)): (u8, _)| {
                format!("{generation} {status:?}").to_lowercase()
            })
            .collect();
        let queued: Vec<String> = state.queued.iter().map(u8::to_string).collect();
        format!(
            "letters: {}; queued generations: {}; {} effects",
            letters.join(", "),
            if queued.is_empty() {
                "none".to_owned()
            } else {
                queued.join(", ")
            },
            state.effects
        )
    }
}
