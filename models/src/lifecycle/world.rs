//! What the world around a delivery is, and which moves it leaves open.

use harness::{DeferReason, Ending, FenceVerdict, Reason};
use serde::{Deserialize, Serialize};

use super::protocol::{Move, Stage};
use super::{Action, Design, Lifecycle};
pub use crate::replay::Status;

/// The holder whose lease ran out.
pub const GHOST: u8 = 2;

/// What kind of message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A job for us.
    Job,
    /// Something that can never be valid.
    Poison,
    /// A replay for another consumer with which we compete.
    Foreign,
    /// Our copy of a replay for another consumer, which has a copy of its own.
    ForeignCopy,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Job, Self::Poison, Self::Foreign, Self::ForeignCopy];
}

/// A message on its queue, leased or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Message {
    /// How often its job was replayed.
    pub generation: u8,
    /// Deliveries that count.
    pub count: u32,
}

/// Somebody who was handed a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The place of the message.
    pub copy: u8,
    /// How often its job was replayed.
    pub generation: u8,
    /// How far it came.
    pub stage: Stage,
    /// Whether the message is still its to answer for.
    pub lease: Lease,
}

/// What became of a holder's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lease {
    /// It answers for it, even if the lease ran out: nobody else was handed it.
    Good,
    /// It was handed to somebody else.
    Lost,
    /// It was removed.
    Gone,
}

/// A dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Letter {
    /// Why.
    pub reason: Reason,
    /// What was decided.
    pub status: Status,
}

/// A state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// What kind of message it is.
    pub kind: Kind,
    /// Messages by place.
    pub messages: [Option<Message>; 2],
    /// Who holds the message of each place, and a ghost.
    pub holders: [Option<Holder>; 3],
    /// Which holder's transaction holds the fence key.
    pub key: Option<u8>,
    /// The job's fence is on record.
    pub fence: bool,
    /// It was, and the sweep took it.
    pub swept: bool,
    /// Effects of handlers that are committed.
    pub effects: u8,
    /// In which generation.
    pub applied_generation: Option<u8>,
    /// Dead letters by generation.
    pub letters: [Option<Letter>; 2],
    /// Runs that count, by place.
    pub runs: [u8; 2],
    /// A message was acknowledged too early.
    pub vanished: bool,
    /// The world did what the protocol does not allow.
    pub refused: bool,
    crashes: u8,
    losses: u8,
    defers: u8,
    leases: u8,
    replays: u8,
    batches: u8,
}

impl State {
    /// A job that was published so many times.
    pub fn new(model: &Lifecycle, kind: Kind, copies: usize) -> Self {
        let message = Message {
            generation: 0,
            count: 0,
        };
        Self {
            kind,
            messages: [Some(message), (copies > 1).then_some(message)],
            holders: [None; 3],
            key: None,
            fence: false,
            swept: false,
            effects: 0,
            applied_generation: None,
            letters: [None; 2],
            runs: [0; 2],
            vanished: false,
            refused: false,
            crashes: model.crashes,
            losses: model.losses,
            defers: model.defers,
            leases: model.leases,
            replays: model.replays,
            batches: model.batches,
        }
    }

    /// No message is queued, nobody holds one.
    pub fn is_quiet(&self) -> bool {
        self.messages == [None; 2] && self.holders == [None; 3]
    }

    /// Transactions that handlers work in, or that wait for their commit.
    pub fn open_transactions(&self) -> usize {
        usize::from(self.key.is_some())
    }

    /// Who holds a message, or held one.
    pub fn holder(&self, at: u8) -> Option<Holder> {
        self.holders.get(usize::from(at)).copied().flatten()
    }

    fn pending(&self, generation: u8) -> bool {
        let letter = self.letters.get(usize::from(generation));
        letter
            .copied()
            .flatten()
            .is_some_and(|letter| letter.status == Status::Pending)
    }

    /// There is a dead letter of this generation, or the one before was discarded.
    fn is_given_up(&self, generation: u8) -> bool {
        let letter = |at: u8| self.letters.get(usize::from(at)).copied().flatten();
        let before = generation.checked_sub(1).and_then(letter);
        letter(generation).is_some() || before.is_some_and(|it| it.status == Status::Discarded)
    }

    /// A place that no message and no holder is in: where a replay goes.
    pub fn free_place(&self) -> Option<u8> {
        (0..2).find(|place| {
            let at = usize::from(*place);
            self.messages[at].is_none() && self.holders[at].is_none()
        })
    }

    /// Whether the sweep would take the fence, after everything that can expire has.
    pub fn is_sweepable(&self, design: Design) -> bool {
        let queued = self.messages.iter().any(Option::is_some);
        self.fence
            && !self.pending(0)
            && !self.pending(1)
            && (!queued || design == Design::SweepIgnoresQueue)
    }

    /// The message of a place is gone: nobody's lease on it is worth anything.
    fn remove(&mut self, copy: u8) {
        self.messages[usize::from(copy)] = None;
        for holder in self.holders.iter_mut().flatten() {
            if holder.copy == copy {
                holder.lease = Lease::Gone;
            }
        }
    }

    fn apply(&mut self, generation: u8) {
        self.fence = true;
        self.effects += 1;
        self.applied_generation = Some(generation);
        self.key = None;
    }

    /// A run did not count after all. (The place of a ghost may have been cleared for a replay meanwhile.)
    fn uncount(&mut self, place: usize) {
        self.runs[place] = self.runs[place].saturating_sub(1);
    }

    fn release(&mut self, holder: u8) {
        if self.key == Some(holder) {
            self.key = None;
        }
    }
}

impl Lifecycle {
    /// Everything that may happen.
    pub(super) fn every_action(&self, state: &State, actions: &mut Vec<Action>) {
        for copy in 0..2 {
            let at = usize::from(copy);
            match (state.messages[at], state.holders[at]) {
                (Some(_), None) => actions.push(Action::Deliver(copy)),
                (Some(_), Some(_)) if state.leases > 0 && state.holder(GHOST).is_none() => {
                    actions.push(Action::LeaseExpires(copy));
                }
                _ => {}
            }
        }
        for at in 0..3 {
            let Some(holder) = state.holder(at) else {
                continue;
            };
            let moves = self.moves(state, at, holder).into_iter();
            actions.extend(moves.map(|made| Action::Step(at, made)));
            if state.losses > 0 {
                match holder.stage {
                    Stage::Committing(_) if self.design != Design::AckBeforeCommit => {
                        actions.push(Action::CommitAnswerLost(at));
                    }
                    Stage::Batched if state.key == Some(at) => {
                        actions.push(Action::CommitAnswerLost(at));
                    }
                    Stage::ToAck => actions.push(Action::AckLost(at)),
                    _ => {}
                }
            }
            if state.crashes > 0 {
                actions.push(Action::Crash(at));
            }
        }
        if state.pending(0) && state.replays > 0 && state.free_place().is_some() {
            actions.push(Action::Replay);
        }
        for generation in 0..2 {
            if state.pending(generation) && state.key.is_none() {
                actions.push(Action::Discard(generation));
            }
        }
        // A fence outlives every holder: none sleeps for so long.
        if state.is_sweepable(self.design) && state.holders == [None; 3] {
            actions.push(Action::Sweep);
        }
    }

    /// What the world lets a holder do.
    fn moves(&self, state: &State, at: u8, holder: Holder) -> Vec<Move> {
        let others_key = state.key.is_some_and(|key| key != at);
        let may_defer = state.defers > 0;
        // An answer of whoever lost the lease changes nothing. Only an ack is welcome from anybody.
        let is_good = holder.lease == Lease::Good;
        let answer = |answer: Move| match holder.lease {
            Lease::Good => answer,
            Lease::Lost | Lease::Gone => Move::LeaseLost,
        };
        match holder.stage {
            Stage::Received(_) if state.kind == Kind::Poison => vec![Move::Poison],
            Stage::Received(_) if state.kind != Kind::Job && holder.generation == 0 => {
                let waits = state.kind == Kind::Foreign && !may_defer;
                (!waits).then_some(Move::NotAddressed).into_iter().collect()
            }
            Stage::Received(_) | Stage::Alone => {
                let verdict = match () {
                    () if state.fence => Some(Move::Fence(FenceVerdict::Duplicate)),
                    () if others_key => may_defer.then_some(Move::Busy),
                    () if self.design != Design::FenceIgnoresLetter
                        && state.is_given_up(holder.generation) =>
                    {
                        Some(Move::Fence(FenceVerdict::Settled))
                    }
                    () => Some(Move::Fence(FenceVerdict::Acquired)),
                };
                let mut moves: Vec<Move> = verdict.into_iter().collect();
                if !is_good {
                    moves.push(Move::LeaseLost);
                } else if may_defer {
                    moves
                        .extend([DeferReason::StoreAway, DeferReason::Contention].map(Move::Defer));
                    if holder.stage == Stage::Alone {
                        moves.push(Move::Defer(DeferReason::Shutdown));
                    }
                }
                if holder.stage == Stage::Received(0) && state.batches > 0 {
                    moves.push(Move::LeaveBatch);
                }
                moves
            }
            Stage::Fenced(before) if before >= self.max_runs => {
                self.letters(state, at, holder, Reason::Exhausted)
            }
            Stage::Fenced(before) => {
                let mut moves = vec![Move::StartRun(before + 1)];
                if before == 0 && state.batches > 0 {
                    moves.push(Move::StartBatch);
                }
                moves
            }
            Stage::Batched => {
                let mut moves = vec![Move::LeaveBatch];
                // Nobody commits in a transaction that is gone.
                if state.key == Some(at) {
                    moves.push(Move::Committed);
                    if state.losses > 0 {
                        moves.push(Move::CommitUnknown);
                    }
                }
                moves
            }
            Stage::Running(_) => {
                let mut endings = vec![
                    Ending::Transient,
                    Ending::Permanent,
                    Ending::Panic,
                    Ending::Deadline,
                ];
                if may_defer {
                    endings.extend([Ending::Contention, Ending::StoreAway, Ending::Shutdown]);
                }
                let failed = endings.into_iter().map(Move::Failed);
                failed.chain([Move::Worked]).collect()
            }
            Stage::Committing(_) if self.design == Design::AckBeforeCommit => vec![Move::Ack],
            Stage::Committing(run) => {
                let mut moves = vec![Move::Committed];
                if state.losses > 0 {
                    moves.push(Move::CommitUnknown);
                }
                // Refused: a failed run like any other.
                if run < self.max_runs {
                    moves.push(answer(Move::Retry(run)));
                } else {
                    moves.extend(self.letters(state, at, holder, Reason::Exhausted));
                }
                if may_defer && is_good {
                    moves.push(Move::Defer(DeferReason::Contention));
                }
                moves
            }
            Stage::GivingUp(reason) => self.letters(state, at, holder, reason),
            Stage::ToAck => vec![Move::Ack],
            Stage::ToRetry(run) => vec![answer(Move::Retry(run))],
            Stage::ToDefer(DeferReason::NotAddressed) if state.kind == Kind::ForeignCopy => {
                vec![Move::Ack]
            }
            Stage::ToDefer(reason) => vec![answer(Move::Defer(reason))],
            Stage::Over => Vec::new(),
        }
    }

    /// What comes of an attempt to write a dead letter.
    fn letters(&self, state: &State, at: u8, holder: Holder, reason: Reason) -> Vec<Move> {
        let there = state.letters[usize::from(holder.generation)].is_some();
        if state.key.is_some_and(|key| key != at) {
            return Vec::new();
        }
        vec![match () {
            () if state.fence && self.design != Design::LetterWithoutFence => Move::LetterApplied,
            () if there => Move::LetterThere,
            () => Move::Letter(reason),
        }]
    }

    /// The state after an action; none if the action makes no sense there.
    pub(super) fn after(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(copy) => {
                let place = usize::from(copy);
                let message = state.messages[place].as_mut()?;
                let stage = Stage::Received(message.count);
                message.count += 1;
                let generation = message.generation;
                if let Some(ghost) = &mut state.holders[usize::from(GHOST)]
                    && ghost.copy == copy
                    && ghost.lease == Lease::Good
                {
                    ghost.lease = Lease::Lost;
                }
                state.holders[place] = Some(Holder {
                    copy,
                    generation,
                    stage,
                    lease: Lease::Good,
                });
            }
            Action::LeaseExpires(copy) => {
                state.leases -= 1;
                state.holders[usize::from(GHOST)] = state.holders[usize::from(copy)].take();
                if state.key == Some(copy) {
                    state.key = Some(GHOST);
                }
            }
            Action::Step(at, made) => self.step(&mut state, at, made)?,
            Action::CommitAnswerLost(at) => {
                let holder = state.holders[usize::from(at)].as_mut()?;
                holder.stage = match holder.stage {
                    Stage::Committing(run) => Stage::ToRetry(run),
                    Stage::Batched => Stage::Batched,
                    _ => return None,
                };
                let generation = holder.generation;
                state.losses -= 1;
                state.apply(generation);
            }
            Action::AckLost(_) => state.losses -= 1,
            Action::Crash(at) => {
                state.crashes -= 1;
                state.holders[usize::from(at)] = None;
                state.release(at);
            }
            Action::Replay => {
                let place = usize::from(state.free_place()?);
                state.replays -= 1;
                state.letters[0].as_mut()?.status = Status::Replayed;
                state.runs[place] = 0;
                state.messages[place] = Some(Message {
                    generation: 1,
                    count: 0,
                });
            }
            Action::Discard(generation) => {
                let letter = state.letters[usize::from(generation)].as_mut()?;
                letter.status = Status::Discarded;
            }
            Action::Sweep => {
                state.fence = false;
                state.swept = true;
            }
        }
        Some(state)
    }

    /// A holder's move.
    fn step(&self, state: &mut State, at: u8, made: Move) -> Option<()> {
        let holder = state.holder(at)?;
        let early = self.design == Design::AckBeforeCommit && made == Move::Ack;
        let next = self
            .rules()
            .next(holder.stage, made)
            .or(early.then_some(Stage::Over));
        state.refused |= next.is_none();
        let (copy, generation) = (usize::from(holder.copy), holder.generation);
        match made {
            // With no run left the transaction ends at once; the letter is written in one of its own.
            Move::Fence(FenceVerdict::Acquired) => {
                let exhausted =
                    matches!(holder.stage, Stage::Received(before) if before >= self.max_runs);
                state.key = (!exhausted).then_some(at);
            }
            Move::StartRun(_) => state.runs[copy] += 1,
            Move::StartBatch => state.batches -= 1,
            Move::LeaveBatch => {
                if holder.stage != Stage::Batched {
                    state.batches -= 1;
                }
                state.release(at);
            }
            Move::Failed(ending) => {
                state.release(at);
                if !ending.rule().counts {
                    state.uncount(copy);
                }
            }
            Move::Committed => state.apply(generation),
            Move::CommitUnknown => {
                state.losses -= 1;
                state.release(at);
            }
            Move::Letter(reason) => {
                state.release(at);
                state.letters[usize::from(generation)] = Some(Letter {
                    reason,
                    status: Status::Pending,
                });
            }
            Move::LetterThere | Move::LetterApplied => state.release(at),
            Move::Ack => {
                let on_record = state.fence || state.swept || state.is_given_up(generation);
                state.vanished |= !on_record && state.kind != Kind::ForeignCopy;
                if matches!(holder.stage, Stage::Committing(_)) {
                    state.apply(generation);
                }
                if holder.lease != Lease::Gone {
                    state.remove(holder.copy);
                }
            }
            Move::Retry(_) | Move::LeaseLost => state.release(at),
            Move::Defer(reason) => {
                state.release(at);
                state.defers = state.defers.saturating_sub(1);
                if matches!(holder.stage, Stage::Committing(_)) && reason == DeferReason::Contention
                {
                    state.uncount(copy);
                }
                if let (Some(message), Lease::Good) = (&mut state.messages[copy], holder.lease) {
                    message.count -= 1;
                }
            }
            Move::Poison | Move::NotAddressed | Move::Busy | Move::Worked | Move::Fence(_) => {}
        }
        let next = next.unwrap_or(Stage::Over);
        let place = state.holders.get_mut(usize::from(at))?;
        if next == Stage::Over {
            *place = None;
        } else if let Some(holder) = place {
            holder.stage = next;
        }
        Some(())
    }
}
