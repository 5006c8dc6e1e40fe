//! Alerts from the table, not from memory: every dead letter is covered by a delivered incident, and incidents are few.
//!
//! Letters of one kind are written at any time. Two pumps claim what has no alert yet, open one incident for all of it, and
//! mark it as covered. Pumps die, the alert service refuses, answers are lost, claims run out.

use stateright::{Model, Property};

use crate::kit::{Told, is_over};

/// How alerting is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// Claim, send, mark.
    Right,
    /// The process that wrote the letter remembers to alert it.
    FromMemory,
    /// Claim, mark, send.
    MarkBeforeSend,
    /// A refused incident is forgotten.
    ForgetsRefusals,
    /// Nobody claims: each pump sends what it finds.
    NoClaim,
    /// Marking covers whatever is there by then, also what the incident did not speak of.
    MarksTooMuch,
    /// An incident for every letter.
    OnePerLetter,
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alert {
    /// How it is built.
    pub design: Design,
    /// Letters that are written.
    pub letters: u8,
    /// Pumps that may die.
    pub crashes: u8,
    /// Incidents that the service refuses.
    pub refusals: u8,
    /// Answers of the service that are lost.
    pub losses: u8,
}

/// A pump, with the letters (as bits) that it is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pump {
    /// Nothing to do.
    Idle,
    /// It claimed them.
    Claimed(u8),
    /// The incident was accepted.
    Accepted(u8),
}

/// A state. Sets of letters are bits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    written: u8,
    covered: u8,
    /// Letters that some delivered incident speaks of.
    told: u8,
    pumps: [Pump; 2],
    /// Somebody's claim is on record.
    claimed: bool,
    incidents: u8,
    /// Incidents that a crash or a lost answer excuses.
    excused: u8,
    /// A pump claimed less than there was.
    left_behind: bool,
    crashes: u8,
    refusals: u8,
    losses: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A consumer writes the next letter.
    Write,
    /// A pump claims what has no alert.
    Claim(u8),
    /// The service accepts a pump's incident.
    Send(u8),
    /// The service accepts it, the answer is lost.
    AnswerLost(u8),
    /// The service refuses it.
    Refuse(u8),
    /// A pump marks what it is about as covered.
    Mark(u8),
    /// A pump dies.
    Crash(u8),
    /// The claim of a dead pump runs out.
    ClaimEnds,
}

impl Alert {
    /// Four letters, two pumps.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            letters: 4,
            crashes: 2,
            refusals: 2,
            losses: 2,
        }
    }

    fn set(state: &mut State, p: u8, pump: Pump) {
        if let Some(place) = state.pumps.get_mut(usize::from(p)) {
            *place = pump;
        }
    }

    /// What a pump finds: letters that are written and not covered.
    fn due(&self, state: &State) -> u8 {
        let due = state.written & !state.covered;
        match self.design {
            // The lowest bit.
            Design::OnePerLetter => due & due.wrapping_neg(),
            _ => due,
        }
    }

    fn mark(&self, state: &mut State, letters: u8) {
        state.covered |= match self.design {
            Design::MarksTooMuch => state.written,
            _ => letters,
        };
    }
}

impl Model for Alert {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            written: 0,
            covered: 0,
            told: 0,
            pumps: [Pump::Idle; 2],
            claimed: false,
            incidents: 0,
            excused: 0,
            left_behind: false,
            crashes: self.crashes,
            refusals: self.refusals,
            losses: self.losses,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.written.count_ones() < u32::from(self.letters) {
            actions.push(Action::Write);
        }
        let free = !state.claimed || self.design == Design::NoClaim;
        for (p, pump) in (0..).zip(&state.pumps) {
            match pump {
                Pump::Idle => {
                    if self.due(state) != 0 && free && self.design != Design::FromMemory {
                        actions.push(Action::Claim(p));
                    }
                    continue;
                }
                Pump::Claimed(letters) => {
                    let marked = *letters & !state.covered == 0;
                    if self.design == Design::MarkBeforeSend && !marked {
                        actions.push(Action::Mark(p));
                    } else {
                        actions.push(Action::Send(p));
                        if state.losses > 0 {
                            actions.push(Action::AnswerLost(p));
                        }
                        if state.refusals > 0 {
                            actions.push(Action::Refuse(p));
                        }
                    }
                }
                Pump::Accepted(_) => actions.push(Action::Mark(p)),
            }
            if state.crashes > 0 {
                actions.push(Action::Crash(p));
            }
        }
        if state.claimed && state.pumps == [Pump::Idle; 2] {
            actions.push(Action::ClaimEnds);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Write => {
                let letter = 1 << state.written.count_ones();
                state.written |= letter;
                if self.design == Design::FromMemory {
                    // The first process that has nothing else in mind.
                    let idle = state.pumps.iter().position(|pump| *pump == Pump::Idle);
                    let p = u8::try_from(idle?).ok()?;
                    Self::set(&mut state, p, Pump::Claimed(letter));
                }
            }
            Action::Claim(p) => {
                let due = self.due(&state);
                state.left_behind |= due != state.written & !state.covered;
                state.claimed = true;
                Self::set(&mut state, p, Pump::Claimed(due));
            }
            Action::Send(p) | Action::AnswerLost(p) => {
                let Pump::Claimed(letters) = state.pumps[usize::from(p)] else {
                    return None;
                };
                state.incidents += 1;
                state.told |= letters;
                let lost = matches!(action, Action::AnswerLost(_));
                let marked = self.design == Design::MarkBeforeSend;
                if lost {
                    state.losses -= 1;
                    state.excused += 1;
                }
                if lost || marked {
                    state.claimed = false;
                    Self::set(&mut state, p, Pump::Idle);
                } else {
                    Self::set(&mut state, p, Pump::Accepted(letters));
                }
            }
            Action::Refuse(p) => {
                state.refusals -= 1;
                if self.design == Design::ForgetsRefusals
                    && let Pump::Claimed(letters) = state.pumps[usize::from(p)]
                {
                    state.covered |= letters;
                }
                // Asked again later, by whoever finds it.
                state.claimed = false;
                if self.design != Design::FromMemory {
                    Self::set(&mut state, p, Pump::Idle);
                }
            }
            Action::Mark(p) => match state.pumps[usize::from(p)] {
                Pump::Claimed(letters) => self.mark(&mut state, letters),
                Pump::Accepted(letters) => {
                    self.mark(&mut state, letters);
                    state.claimed = false;
                    Self::set(&mut state, p, Pump::Idle);
                }
                Pump::Idle => return None,
            },
            Action::Crash(p) => {
                state.crashes -= 1;
                if matches!(state.pumps[usize::from(p)], Pump::Accepted(_)) {
                    state.excused += 1;
                }
                Self::set(&mut state, p, Pump::Idle);
            }
            Action::ClaimEnds => state.claimed = false,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S9 alerted: covered means delivered", |_, state: &State| {
                state.covered & !state.told == 0
                    // A wrong order is no lie yet while its pump lives.
                    || state.pumps.iter().any(|pump| matches!(pump, Pump::Claimed(letters) if state.covered & letters != 0))
            }),
            Property::always("S9 alerted: one incident at a time", |_, state: &State| {
                // Whoever sends, sends something that nobody else is sending.
                match state.pumps {
                    [
                        Pump::Claimed(one) | Pump::Accepted(one),
                        Pump::Claimed(two) | Pump::Accepted(two),
                    ] => one & two == 0,
                    _ => true,
                }
            }),
            Property::always("S9 alerted: a burst is one incident", |_, state: &State| {
                !state.left_behind
            }),
            Property::always("L1 settles", |model: &Self, state: &State| {
                !is_over(model, state)
                    || (state.covered == state.written && state.written & !state.told == 0)
            }),
            Property::sometimes("everything is covered", |model: &Self, state: &State| {
                state.covered.count_ones() == u32::from(model.letters)
            }),
            Property::sometimes(
                "one incident covers a burst",
                |model: &Self, state: &State| {
                    state.incidents == 1 && state.covered.count_ones() == u32::from(model.letters)
                },
            ),
            Property::sometimes(
                "an incident is sent twice because its answer was lost",
                |_, state: &State| state.excused > 0 && state.incidents > 1,
            ),
        ]
    }
}

impl Told for Alert {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Write => "a consumer".to_owned(),
            Action::ClaimEnds => "the clock".to_owned(),
            Action::Refuse(_) => "the alert service".to_owned(),
            Action::AnswerLost(_) => "the network".to_owned(),
            Action::Claim(p) | Action::Send(p) | Action::Mark(p) | Action::Crash(p) => {
                format!("pump {}", p + 1)
            }
        }
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Write => "writes a dead letter".to_owned(),
            Action::Claim(_) => "claims what has no alert".to_owned(),
            Action::Send(_) => "opens an incident".to_owned(),
            Action::AnswerLost(p) => {
                format!(
                    "carries pump {}'s incident to the service and loses the answer",
                    p + 1
                )
            }
            Action::Refuse(p) => format!("refuses pump {}'s incident", p + 1),
            Action::Mark(_) => "marks its letters as covered".to_owned(),
            Action::Crash(_) => "dies".to_owned(),
            Action::ClaimEnds => "ends the claim of a pump that is gone".to_owned(),
        }
    }

    fn show(&self, state: &State) -> String {
        let count = |set: u8| set.count_ones();
        format!(
            "{} letters written, {} covered, {} told of in {} incidents",
            count(state.written),
            count(state.covered),
            count(state.told),
            state.incidents
        )
    }
}
