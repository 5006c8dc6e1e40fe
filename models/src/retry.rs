//! Attempts: which runs count, when a job gives up, and the dead letter against a late success.
//!
//! One job, one message that is delivered again and again, and a twin that may apply the job behind its back. A run may
//! succeed, fail, fail for good, meet contention, lose its commit, or die with its process.

use stateright::{Model, Property};

use crate::kit::{Told, is_over};

/// How the consumer is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Design {
    /// The fence is asked first; crashed runs count, contention does not; the dead letter looks at the fence.
    Right,
    /// The attempt limit is looked at before the fence.
    LimitBeforeFence,
    /// A dead letter is written without looking at the fence.
    LetterWithoutFence,
    /// The gate does not look for a dead letter of its generation.
    GateIgnoresLetter,
    /// A run whose process died does not count.
    CrashIsFree,
    /// Contention counts as an attempt.
    ContentionCounts,
    /// What can never be valid is retried like everything else.
    PoisonIsRetried,
    /// The wait is the same every time.
    SameWait,
    /// The message is acknowledged, then the dead letter is written.
    AckBeforeLetter,
    /// A commit that nobody answered is a failed run, and the last one is a dead letter on the spot, without a look at the
    /// fence.
    UnknownIsFailure,
}

/// The model: how large, and how built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// How the consumer is built.
    pub design: Design,
    /// Runs that are allowed.
    pub max_runs: u8,
    /// Processes that may die.
    pub crashes: u8,
    /// Runs that may meet contention.
    pub contentions: u8,
    /// Commits that may be lost, or their answers.
    pub losses: u8,
    /// Acknowledgements that may be lost.
    pub lost_acks: u8,
    /// Twins that may apply the job.
    pub twins: u8,
}

/// What the worker does with the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It lies in the queue.
    Queued,
    /// It was delivered.
    Received,
    /// The handler runs, the fence key is held.
    Running,
    /// A dead letter is to be written.
    GivingUp(Reason),
    /// A dead letter is to be written, the message is gone already.
    LateLetter,
    /// The outcome is on record; the ack comes.
    Settled,
    /// The message is gone.
    Gone,
}

/// Why it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It can never be valid.
    Poison,
    /// The handler said so.
    Hard,
    /// No runs are left.
    Exhausted,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    poison: bool,
    phase: Phase,
    /// Deliveries that count, as the broker sees it.
    counted: u8,
    /// Runs that started and counted.
    runs: u8,
    /// Deliveries whose process died before it could run; the broker cannot tell them from runs.
    died: u8,
    /// The last wait, as a power of two of the base.
    wait: Option<u8>,
    fence: bool,
    effects: u8,
    letter: Option<Reason>,
    /// A wait was not longer than the one before.
    wait_shrank: bool,
    /// The poison message was given back for another try.
    poison_retried: bool,
    /// A delivery of a job that was applied was treated as a failure.
    duplicate_failed: bool,
    /// Given up although runs were left.
    gave_up_early: bool,
    crashes: u8,
    contentions: u8,
    losses: u8,
    lost_acks: u8,
    twins: u8,
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The broker hands the message out.
    Deliver,
    /// The worker looks at message, fence and limit, and decides.
    Look,
    /// The run works and its commit is answered.
    Succeed,
    /// The run fails.
    Fail,
    /// The run fails for good.
    FailForGood,
    /// The run meets contention.
    Contend,
    /// The commit happens, its answer is lost.
    CommitAnswerLost,
    /// The commit is lost.
    CommitLost,
    /// The worker writes the dead letter.
    WriteLetter,
    /// The worker acknowledges.
    Ack,
    /// The acknowledgement is lost.
    AckLost,
    /// The worker's process dies.
    Crash,
    /// Another copy of the job is applied by another worker.
    TwinApplies,
}

impl Retry {
    /// Three runs instead of six.
    pub fn new(design: Design) -> Self {
        Self {
            design,
            max_runs: 3,
            crashes: 3,
            contentions: 2,
            losses: 2,
            lost_acks: 2,
            twins: 1,
        }
    }

    /// Back to the queue for the next run, if one is left.
    fn fail(&self, state: &mut State) {
        if state.counted < self.max_runs {
            self.retry(state);
        } else {
            state.phase = Phase::GivingUp(Reason::Exhausted);
        }
    }

    fn retry(&self, state: &mut State) {
        let wait = match self.design {
            Design::SameWait => 0,
            _ => state.counted,
        };
        state.wait_shrank |= state.wait.is_some_and(|before| wait <= before);
        state.wait = Some(wait);
        state.phase = Phase::Queued;
    }

    fn look(&self, state: &mut State) {
        let limit_reached = state.counted > self.max_runs;
        if state.poison {
            if self.design == Design::PoisonIsRetried {
                state.poison_retried |= state.counted < self.max_runs;
                self.fail(state);
            } else {
                state.phase = Phase::GivingUp(Reason::Poison);
            }
        } else if self.design == Design::LimitBeforeFence && limit_reached {
            state.duplicate_failed |= state.fence;
            state.phase = Phase::GivingUp(Reason::Exhausted);
        } else if state.fence
            || (state.letter.is_some() && self.design != Design::GateIgnoresLetter)
        {
            state.phase = Phase::Settled;
        } else if limit_reached {
            state.phase = Phase::GivingUp(Reason::Exhausted);
        } else {
            state.runs += 1;
            state.phase = Phase::Running;
        }
    }

    fn unknown(&self, state: &mut State) {
        if self.design == Design::UnknownIsFailure && state.counted >= self.max_runs {
            state.letter = Some(Reason::Exhausted);
            state.phase = Phase::Settled;
        } else {
            // Not given up here: the next delivery asks the fence.
            self.retry(state);
        }
    }

    fn write_letter(&self, state: &mut State, reason: Reason) {
        let looks = self.design != Design::LetterWithoutFence;
        if !(looks && state.fence) && state.letter.is_none() {
            state.gave_up_early |=
                reason == Reason::Exhausted && state.runs + state.died < self.max_runs;
            state.letter = Some(reason);
        }
    }
}

impl Model for Retry {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let state = |poison| State {
            poison,
            phase: Phase::Queued,
            counted: 0,
            runs: 0,
            died: 0,
            wait: None,
            fence: false,
            effects: 0,
            letter: None,
            wait_shrank: false,
            poison_retried: false,
            duplicate_failed: false,
            gave_up_early: false,
            crashes: self.crashes,
            contentions: self.contentions,
            losses: self.losses,
            lost_acks: self.lost_acks,
            twins: self.twins,
        };
        vec![state(false), state(true)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A twin that was delivered meets the same fence; while our run holds the key, it waits.
        let twin_may = state.twins > 0 && !state.poison && !state.fence;
        let gate_lets = state.letter.is_none() || self.design == Design::GateIgnoresLetter;
        if twin_may && gate_lets && state.phase != Phase::Running {
            actions.push(Action::TwinApplies);
        }
        match state.phase {
            Phase::Queued => actions.push(Action::Deliver),
            Phase::Received => actions.push(Action::Look),
            Phase::Running => {
                actions.extend([Action::Succeed, Action::Fail, Action::FailForGood]);
                if state.contentions > 0 {
                    actions.push(Action::Contend);
                }
                if state.losses > 0 {
                    actions.extend([Action::CommitAnswerLost, Action::CommitLost]);
                }
            }
            Phase::GivingUp(_) if self.design == Design::AckBeforeLetter => {
                actions.push(Action::Ack);
            }
            Phase::GivingUp(_) | Phase::LateLetter => actions.push(Action::WriteLetter),
            Phase::Settled => {
                actions.push(Action::Ack);
                if state.lost_acks > 0 {
                    actions.push(Action::AckLost);
                }
            }
            Phase::Gone => {}
        }
        if state.crashes > 0 && !matches!(state.phase, Phase::Queued | Phase::Gone) {
            actions.push(Action::Crash);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver => {
                state.counted += 1;
                state.phase = Phase::Received;
            }
            Action::Look => self.look(&mut state),
            Action::Succeed => {
                state.effects += 1;
                state.fence = true;
                state.phase = Phase::Settled;
            }
            Action::Fail => self.fail(&mut state),
            Action::FailForGood => state.phase = Phase::GivingUp(Reason::Hard),
            Action::Contend => {
                state.contentions -= 1;
                if self.design == Design::ContentionCounts {
                    // It did not really run.
                    state.runs -= 1;
                    self.fail(&mut state);
                } else {
                    state.runs -= 1;
                    state.counted -= 1;
                    state.phase = Phase::Queued;
                }
            }
            Action::CommitAnswerLost => {
                state.losses -= 1;
                state.effects += 1;
                state.fence = true;
                self.unknown(&mut state);
            }
            Action::CommitLost => {
                state.losses -= 1;
                self.unknown(&mut state);
            }
            Action::WriteLetter => {
                let reason = match state.phase {
                    Phase::GivingUp(reason) => reason,
                    _ => Reason::Exhausted,
                };
                self.write_letter(&mut state, reason);
                state.phase = match state.phase {
                    Phase::LateLetter => Phase::Gone,
                    _ => Phase::Settled,
                };
            }
            Action::Ack => {
                state.phase = match state.phase {
                    Phase::GivingUp(_) => Phase::LateLetter,
                    _ => Phase::Gone,
                };
            }
            Action::AckLost => {
                state.lost_acks -= 1;
                state.phase = Phase::Queued;
            }
            Action::Crash => {
                state.crashes -= 1;
                if state.phase == Phase::Received {
                    state.died += 1;
                }
                if self.design == Design::CrashIsFree {
                    state.counted -= 1;
                }
                state.phase = match state.phase {
                    // Nobody knows of it any more.
                    Phase::LateLetter => Phase::Gone,
                    _ => Phase::Queued,
                };
            }
            Action::TwinApplies => {
                state.twins -= 1;
                state.fence = true;
                state.effects += 1;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("S1 one effect", |_, state: &State| state.effects <= 1),
            Property::always("S3 nothing vanishes", |_, state: &State| {
                !matches!(state.phase, Phase::Gone | Phase::LateLetter)
                    || state.fence
                    || state.letter.is_some()
            }),
            Property::always("S4 one outcome", |_, state: &State| {
                state.effects == 0 || state.letter.is_none()
            }),
            Property::always("S5 bounded runs", |model: &Self, state: &State| {
                state.runs <= model.max_runs
            }),
            Property::always("S5 no attempt is lost to contention", |_, state: &State| {
                !state.gave_up_early
            }),
            Property::always("S6 growing waits", |_, state: &State| !state.wait_shrank),
            Property::always("S7 poison", |_, state: &State| {
                !state.poison || (state.runs == 0 && !state.poison_retried)
            }),
            Property::always("S12 quiet duplicates", |_, state: &State| {
                !state.duplicate_failed
            }),
            Property::always("L1 settles", |model: &Self, state: &State| {
                !is_over(model, state)
                    || (state.phase == Phase::Gone && (state.fence != state.letter.is_some()))
            }),
            Property::sometimes("the job is applied", |_, state: &State| state.effects == 1),
            Property::sometimes("it is exhausted", |_, state: &State| {
                state.letter == Some(Reason::Exhausted)
            }),
            Property::sometimes("it fails for good", |_, state: &State| {
                state.letter == Some(Reason::Hard)
            }),
            Property::sometimes("it is poison", |_, state: &State| {
                state.letter == Some(Reason::Poison)
            }),
            Property::sometimes(
                "a letter is not needed because a twin was faster",
                |_, state: &State| matches!(state.phase, Phase::GivingUp(_)) && state.fence,
            ),
            Property::sometimes(
                "all runs are used and one of them counted a crash",
                |model: &Self, state: &State| {
                    state.runs == model.max_runs && state.crashes < model.crashes
                },
            ),
        ]
    }
}

impl Told for Retry {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Deliver => "the broker",
            Action::CommitAnswerLost | Action::CommitLost | Action::AckLost => "the network",
            Action::TwinApplies => "a twin",
            _ => "the worker",
        }
        .to_owned()
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Deliver => "hands the message out",
            Action::Look => "looks at the message, the fence and the limit",
            Action::Succeed => "works and commits",
            Action::Fail => "fails",
            Action::FailForGood => "fails for good",
            Action::Contend => "meets contention",
            Action::CommitAnswerLost => "carries the commit and loses its answer",
            Action::CommitLost => "loses the commit",
            Action::WriteLetter => "writes the dead letter, if it is needed",
            Action::Ack => "acknowledges the message",
            Action::AckLost => "loses the acknowledgement",
            Action::Crash => "dies",
            Action::TwinApplies => "applies the job",
        }
        .to_owned()
    }

    fn show(&self, state: &State) -> String {
        let kind = if state.poison { "poison" } else { "a job" };
        let outcome = match (state.effects, state.letter) {
            (0, None) => "no outcome".to_owned(),
            (n, None) => format!("{n} effect"),
            (0, Some(reason)) => format!("a dead letter ({reason:?})"),
            (n, Some(reason)) => format!("{n} effect AND a dead letter ({reason:?})"),
        };
        let message = match state.phase {
            Phase::Queued => "is queued",
            Phase::Received => "was delivered",
            Phase::Running => "is being worked on",
            Phase::GivingUp(_) => "is given up",
            Phase::LateLetter => "is gone, its letter is not written",
            Phase::Settled => "is settled",
            Phase::Gone => "is gone",
        };
        format!(
            "{kind}, {outcome}; the message {message}; {} deliveries and {} runs counted",
            state.counted, state.runs
        )
    }
}
