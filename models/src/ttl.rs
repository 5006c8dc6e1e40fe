//! How long a fence must live: the sweep against everything that can still bring a copy.
//!
//! Time passes in ticks. A first copy is applied at some time; a producer sends a second one within its resend horizon; the
//! broker keeps copies for its retention, or without end; consumers are away for as long as they like; a dead letter whose
//! replay was published and never recorded may be replayed again at any time.

use stateright::{Model, Property};

use crate::kit::Told;

/// How the sweep is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// Expired, no older message queued, no letter pending, older than the retry window.
    Right,
    /// Expired is enough.
    WallClock,
    /// Queued messages are looked at, dead letters are not.
    IgnoresLetters,
    /// A decided letter is forgotten at once, though its replay may be queued.
    ForgetsReplays,
    /// Whatever `expires_at` says is believed.
    NoWindowGuard,
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ttl {
    /// How the sweep is built.
    pub design: Design,
    /// How long a fence lives, in ticks.
    pub ttl: u8,
    /// The longest time from a copy's first run to its last.
    pub retry_window: u8,
    /// How long the broker keeps a copy; `None`: without end, as long as consumers are away.
    pub retention: Option<u8>,
    /// The longest time after which a producer sends the job again.
    pub resend_horizon: u8,
    /// Whether a letter of the job is pending whose replay may have been applied.
    pub letter: bool,
    /// Whether somebody sets `expires_at` to now.
    pub tampering: bool,
    /// The world ends here.
    pub end: u8,
}

/// A copy of the job's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Copy {
    /// Not sent.
    Unsent,
    /// In the queue since then; runs began at the second moment, if any did.
    Queued(u8, Option<u8>),
    /// Acknowledged, or dropped by the broker.
    Gone,
}

/// A dead letter of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Letter {
    /// There is none.
    None,
    /// It may be replayed.
    Pending,
    /// It was, then.
    Decided(u8),
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    /// The original, the resend, the replay.
    copies: [Copy; 3],
    letter: Letter,
    /// When it was written, and when it expires.
    fence: Option<(u8, u8)>,
    effects: u8,
    swept: bool,
    tampering: bool,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A tick passes.
    Tick,
    /// The producer sends the job again.
    Resend,
    /// The operator replays the letter.
    Replay,
    /// A copy is run and fails; it stays queued.
    Fail(u8),
    /// A copy is run: applied, or found to be a duplicate.
    Run(u8),
    /// The sweep comes by.
    Sweep,
    /// Somebody sets `expires_at` to now.
    Tamper,
}

const NAMES: [&str; 3] = ["the original", "the resend", "the replay"];

impl Ttl {
    /// A TTL that start-up accepts, and a broker that keeps messages for ever.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            ttl: 5,
            retry_window: 2,
            retention: None,
            resend_horizon: 4,
            letter: true,
            tampering: false,
            end: 14,
        }
    }

    /// Somebody tampers with `expires_at`; nothing but retries can come late.
    pub fn tampered(design: Design) -> Self {
        Self {
            resend_horizon: 0,
            letter: false,
            tampering: true,
            retention: Some(2),
            ..Self::new(design)
        }
    }

    /// Only time counts: a sweep by the wall clock, no letters.
    pub fn by_the_clock(ttl: u8, retry_window: u8, retention: u8, resend_horizon: u8) -> Self {
        Self {
            design: Design::WallClock,
            ttl,
            retry_window,
            retention: Some(retention),
            resend_horizon,
            letter: false,
            tampering: false,
            end: ttl + retry_window + retention + resend_horizon + 2,
        }
    }

    /// Whether a copy may be run now: neither its retention nor, once it began to run, its retry window is over.
    fn may_run(&self, state: &State, copy: usize) -> bool {
        match state.copies.get(copy) {
            Some(Copy::Queued(at, began)) => {
                self.retention.is_none_or(|keeps| state.now <= at + keeps)
                    && began.is_none_or(|began| state.now <= began + self.retry_window)
            }
            _ => false,
        }
    }

    fn may_sweep(&self, state: &State) -> bool {
        let Some((written, expires)) = state.fence else {
            return false;
        };
        if expires > state.now {
            return false;
        }
        // What the broker dropped is not queued any more.
        let queued = (0..3).filter(|copy| self.may_run(state, *copy));
        let oldest = queued
            .filter_map(|copy| match state.copies.get(copy) {
                Some(Copy::Queued(at, _)) => Some(*at),
                _ => None,
            })
            .min();
        let backlog = oldest.is_some_and(|oldest| oldest < expires);
        let pending = match state.letter {
            Letter::None => false,
            Letter::Pending => true,
            // Until nothing of that time is queued.
            Letter::Decided(at) => oldest.is_some_and(|oldest| oldest <= at),
        };
        let young = state.now <= written + self.retry_window;
        match self.design {
            Design::Right => !backlog && !pending && !young,
            Design::WallClock => !young,
            Design::IgnoresLetters => !backlog && !young,
            Design::ForgetsReplays => !backlog && state.letter != Letter::Pending && !young,
            Design::NoWindowGuard => !backlog && !pending,
        }
    }
}

impl Model for Ttl {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            copies: [Copy::Queued(0, None), Copy::Unsent, Copy::Unsent],
            letter: if self.letter {
                Letter::Pending
            } else {
                Letter::None
            },
            fence: None,
            effects: 0,
            swept: false,
            tampering: self.tampering,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.end {
            actions.push(Action::Tick);
        }
        if state.copies[1] == Copy::Unsent && state.now <= self.resend_horizon {
            actions.push(Action::Resend);
        }
        if state.letter == Letter::Pending {
            actions.push(Action::Replay);
        }
        for copy in 0..3_u8 {
            if self.may_run(state, usize::from(copy)) {
                actions.push(Action::Run(copy));
                // Only a run that holds the fence can fail.
                let began = matches!(state.copies[usize::from(copy)], Copy::Queued(_, Some(_)));
                if state.fence.is_none() && !began {
                    actions.push(Action::Fail(copy));
                }
            }
        }
        if self.may_sweep(state) {
            actions.push(Action::Sweep);
        }
        if state.tampering && state.fence.is_some() {
            actions.push(Action::Tamper);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Resend => state.copies[1] = Copy::Queued(state.now, None),
            Action::Replay => {
                state.copies[2] = Copy::Queued(state.now, None);
                state.letter = Letter::Decided(state.now);
            }
            Action::Fail(copy) => {
                let now = state.now;
                if let Some(Copy::Queued(_, began)) = state.copies.get_mut(usize::from(copy)) {
                    *began = Some(now);
                }
            }
            Action::Run(copy) => {
                if state.fence.is_none() {
                    state.effects += 1;
                    state.fence = Some((state.now, state.now + self.ttl));
                }
                *state.copies.get_mut(usize::from(copy))? = Copy::Gone;
            }
            Action::Sweep => {
                state.fence = None;
                state.swept = true;
            }
            Action::Tamper => {
                state.tampering = false;
                if let Some((_, expires)) = &mut state.fence {
                    *expires = state.now;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1 one effect", |_, state: &State| state.effects <= 1),
            Property::always("S10 safe sweep", |model: &Self, state: &State| {
                // Nothing that can still run meets a fence that was swept.
                !(state.swept
                    && state.fence.is_none()
                    && (0..3).any(|copy| model.may_run(state, copy)))
            }),
            Property::sometimes("the fence is swept", |_, state: &State| state.swept),
            Property::sometimes("a duplicate is found", |_, state: &State| {
                state.effects == 1 && state.copies[0] == Copy::Gone && state.copies[1] == Copy::Gone
            }),
            Property::sometimes(
                "a copy waits while its fence is expired",
                |model: &Self, state: &State| {
                    state.fence.is_some_and(|(_, expires)| expires <= state.now)
                        && (0..3).any(|copy| model.may_run(state, copy))
                },
            ),
        ]
    }
}

impl Told for Ttl {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Tick => "the clock",
            Action::Resend => "the producer",
            Action::Replay => "the operator",
            Action::Fail(_) | Action::Run(_) => "a worker",
            Action::Sweep => "the sweep",
            Action::Tamper => "somebody with a database client",
        }
        .to_owned()
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Tick => "goes on by a tick".to_owned(),
            Action::Resend => "sends the job again".to_owned(),
            Action::Replay => "replays the dead letter".to_owned(),
            Action::Fail(copy) => format!("runs {} and fails", NAMES[usize::from(*copy)]),
            Action::Run(copy) => format!("runs {}", NAMES[usize::from(*copy)]),
            Action::Sweep => "removes the fence".to_owned(),
            Action::Tamper => "sets the fence's expiry to now".to_owned(),
        }
    }

    fn show(&self, state: &State) -> String {
        let fence = match state.fence {
            Some((_, expires)) => format!("a fence until {expires}"),
            None => "no fence".to_owned(),
        };
        let queued: Vec<&str> = (NAMES.iter().zip(&state.copies))
            .filter(|(_, copy)| matches!(copy, Copy::Queued(..)))
            .map(|(name, _)| *name)
            .collect();
        let queued = match queued.is_empty() {
            true => "nothing".to_owned(),
            false => queued.join(" and "),
        };
        format!(
            "time {}, {} effects, {fence}, queued: {queued}",
            state.now, state.effects
        )
    }
}

/// The smallest TTL that is safe with a sweep that looks at the clock alone, found by trying all.
pub fn smallest_safe_ttl(retry_window: u8, retention: u8, resend_horizon: u8) -> Option<u8> {
    (0..=retry_window + retention + resend_horizon + 2).find(|ttl| {
        let model = Ttl::by_the_clock(*ttl, retry_window, retention, resend_horizon);
        crate::kit::check(model, 1).broken.is_empty()
    })
}

/// The smallest TTL that is safe with the sweep as it is built, for a broker that keeps messages for ever.
pub fn smallest_safe_ttl_with_backlog(retry_window: u8, resend_horizon: u8) -> Option<u8> {
    (0..=retry_window + resend_horizon + 2).find(|ttl| {
        let model = Ttl {
            ttl: *ttl,
            retry_window,
            resend_horizon,
            letter: false,
            end: ttl + retry_window + 2 * resend_horizon + 4,
            ..Ttl::new(Design::Right)
        };
        crate::kit::check(model, 1).broken.is_empty()
    })
}
