//! What may happen to one delivery, from its arrival to its answer: the rules that the code is held against.
//!
//! Written down on its own, not taken from the code: a rule that is changed in one of the two shows.

use harness::{DeferReason, Ending, FenceVerdict, Reason};
use serde::{Deserialize, Serialize};

/// Where a delivery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// It came; so many runs were started before.
    Received(u32),
    /// The fence key is held.
    Fenced(u32),
    /// The handler works; which run it is.
    Running(u32),
    /// The handler worked, and the commit is on its way.
    Committing(u32),
    /// It is run in a batch; nothing of it counts for anybody before the commit.
    Batched,
    /// Its batch was given up: it is as if it had just come, but what was received may be given back for a shutdown.
    Alone,
    /// A dead letter is to be written.
    GivingUp(Reason),
    /// Its outcome is on record: it is to be acknowledged.
    ToAck,
    /// It is to be given back, counted.
    ToRetry(u32),
    /// It is to be given back, uncounted.
    ToDefer(DeferReason),
    /// It was answered.
    Over,
}

impl Stage {
    /// Whether what comes next needs the fence key.
    pub fn needs_key(self) -> bool {
        matches!(self, Self::Received(_) | Self::Alone | Self::GivingUp(_))
    }
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// The message can never be valid.
    Poison,
    /// It is a replay for another consumer.
    NotAddressed,
    /// A twin is running.
    Busy,
    /// The fence answered.
    Fence(FenceVerdict),
    /// The handler starts.
    StartRun(u32),
    /// The handler starts with a whole batch: first runs only.
    StartBatch,
    /// The batch was given up, for whatever reason.
    LeaveBatch,
    /// The handler returned well.
    Worked,
    /// The run failed.
    Failed(Ending),
    /// The commit was answered.
    Committed,
    /// The commit was not answered.
    CommitUnknown,
    /// A dead letter was written.
    Letter(Reason),
    /// No dead letter was needed: there is one.
    LetterThere,
    /// No dead letter was needed: the job is applied.
    LetterApplied,
    /// It was acknowledged.
    Ack,
    /// It was given back after this run, counted.
    Retry(u32),
    /// It was given back, uncounted.
    Defer(DeferReason),
    /// It belongs to somebody else by now.
    LeaseLost,
}

/// What the consumer was told at its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Runs that one generation may have.
    pub max_runs: u32,
}

impl Rules {
    /// What follows from a failed run: the table of endings.
    fn after(self, ending: Ending, run: u32) -> Stage {
        match ending {
            Ending::Transient | Ending::Panic | Ending::Deadline | Ending::CommitRefused => {
                self.retry_or_give_up(run)
            }
            Ending::CommitUnknown => Stage::ToRetry(run),
            Ending::Permanent => Stage::GivingUp(Reason::Hard),
            Ending::Vanished => Stage::GivingUp(Reason::Exhausted),
            Ending::Poison => Stage::GivingUp(Reason::Poison),
            Ending::Busy => Stage::ToDefer(DeferReason::Busy),
            Ending::Contention => Stage::ToDefer(DeferReason::Contention),
            Ending::StoreAway => Stage::ToDefer(DeferReason::StoreAway),
            Ending::Shutdown => Stage::ToDefer(DeferReason::Shutdown),
        }
    }

    fn retry_or_give_up(self, run: u32) -> Stage {
        if run < self.max_runs {
            Stage::ToRetry(run)
        } else {
            Stage::GivingUp(Reason::Exhausted)
        }
    }

    /// Where a move leads; `None` when it is not allowed there.
    pub fn next(self, stage: Stage, made: Move) -> Option<Stage> {
        Some(match (stage, made) {
            (Stage::Received(_), Move::Poison) => Stage::GivingUp(Reason::Poison),
            (Stage::Received(_), Move::NotAddressed) => Stage::ToDefer(DeferReason::NotAddressed),
            (Stage::Received(_), Move::Busy) => Stage::ToDefer(DeferReason::Busy),
            (Stage::Received(_), Move::Fence(FenceVerdict::Duplicate | FenceVerdict::Settled)) => {
                Stage::ToAck
            }
            (Stage::Received(before), Move::Fence(FenceVerdict::Acquired)) => Stage::Fenced(before),
            // The store could not be reached, or somebody else was in the way.
            (Stage::Received(_), Move::Defer(DeferReason::StoreAway | DeferReason::Contention)) => {
                Stage::Over
            }
            (Stage::Received(_), Move::LeaseLost) => Stage::Over,

            // The limit is looked at behind the fence.
            (Stage::Fenced(before), Move::StartRun(run))
                if before < self.max_runs && run == before + 1 =>
            {
                Stage::Running(run)
            }
            (Stage::Fenced(before), _) if before >= self.max_runs => {
                return self.next(Stage::GivingUp(Reason::Exhausted), made);
            }

            // Whatever goes wrong in a batch is nobody's failure yet: each goes on alone, in the same delivery.
            (Stage::Fenced(0), Move::StartBatch) if self.max_runs > 0 => Stage::Batched,
            (Stage::Received(0) | Stage::Batched, Move::LeaveBatch) => Stage::Alone,
            (Stage::Batched, Move::Committed) => Stage::ToAck,
            (Stage::Batched, Move::CommitUnknown) => Stage::Batched,
            (Stage::Alone, Move::Defer(DeferReason::Shutdown)) => Stage::Over,
            // Only what is valid and ours was in the batch.
            (Stage::Alone, Move::Poison | Move::NotAddressed | Move::LeaveBatch) => return None,
            (Stage::Alone, _) => return self.next(Stage::Received(0), made),

            (Stage::Running(run), Move::Worked) => Stage::Committing(run),
            (Stage::Running(run), Move::Failed(ending)) => self.after(ending, run),

            (Stage::Committing(_), Move::Committed) => Stage::ToAck,
            (Stage::Committing(run), Move::CommitUnknown) => Stage::ToRetry(run),
            // The commit was refused, or met contention: nobody says so but by what follows.
            (Stage::Committing(_), Move::Defer(DeferReason::Contention) | Move::LeaseLost) => {
                Stage::Over
            }
            (Stage::Committing(run), _) => return self.next(self.retry_or_give_up(run), made),

            (Stage::GivingUp(reason), Move::Letter(written)) if written == reason => Stage::ToAck,
            (Stage::GivingUp(_), Move::LetterThere | Move::LetterApplied) => Stage::ToAck,

            (Stage::ToAck, Move::Ack) => Stage::Over,
            (Stage::ToRetry(run), Move::Retry(told)) if run == told => Stage::Over,
            (Stage::ToDefer(reason), Move::Defer(told)) if reason == told => Stage::Over,
            // Where each consumer has its own copy, a message for another one is acknowledged.
            (Stage::ToDefer(DeferReason::NotAddressed), Move::Ack) => Stage::Over,
            (Stage::ToAck | Stage::ToRetry(_) | Stage::ToDefer(_), Move::LeaseLost) => Stage::Over,
            _ => return None,
        })
    }

    /// Every move that is allowed somewhere.
    pub fn legal(self, stage: Stage) -> Vec<Move> {
        let moves = all_moves(self.max_runs).into_iter();
        moves
            .filter(|made| self.next(stage, *made).is_some())
            .collect()
    }
}

/// Every move there is, for up to so many runs.
fn all_moves(max_runs: u32) -> Vec<Move> {
    let mut moves = vec![
        Move::Poison,
        Move::NotAddressed,
        Move::Busy,
        Move::Fence(FenceVerdict::Acquired),
        Move::Fence(FenceVerdict::Duplicate),
        Move::Fence(FenceVerdict::Settled),
        Move::StartBatch,
        Move::LeaveBatch,
        Move::Worked,
        Move::Committed,
        Move::CommitUnknown,
        Move::Letter(Reason::Exhausted),
        Move::Letter(Reason::Hard),
        Move::Letter(Reason::Poison),
        Move::LetterThere,
        Move::LetterApplied,
        Move::Ack,
        Move::LeaseLost,
    ];
    moves.extend(
        [
            Ending::Transient,
            Ending::Permanent,
            Ending::Panic,
            Ending::Deadline,
            Ending::Contention,
            Ending::StoreAway,
            Ending::Shutdown,
        ]
        .map(Move::Failed),
    );
    moves.extend(
        [
            DeferReason::Busy,
            DeferReason::Contention,
            DeferReason::StoreAway,
            DeferReason::Shutdown,
            DeferReason::NotAddressed,
        ]
        .map(Move::Defer),
    );
    for run in 1..=max_runs {
        moves.extend([Move::StartRun(run), Move::Retry(run)]);
    }
    moves
}

/// A name without its numbers.
fn bare(named: impl std::fmt::Debug) -> String {
    format!("{named:?}")
        .replace(|c: char| c.is_ascii_digit(), "")
        .replace("()", "")
}

impl Stage {
    /// Its name without its numbers, for edges.
    pub fn name(self) -> String {
        bare(self)
    }
}

/// Names of stages and moves without their numbers, for edges.
pub fn edge(stage: Stage, made: Move) -> (String, String) {
    (stage.name(), bare(made))
}

/// Every edge there is.
pub fn edges() -> std::collections::BTreeSet<(String, String)> {
    let rules = Rules { max_runs: 2 };
    let mut stages = vec![Stage::Batched, Stage::Alone, Stage::ToAck, Stage::Over];
    for n in 0..=2 {
        stages.extend([Stage::Received(n), Stage::Fenced(n)]);
    }
    for n in 1..=2 {
        stages.extend([Stage::Running(n), Stage::Committing(n), Stage::ToRetry(n)]);
    }
    stages.extend([Reason::Exhausted, Reason::Hard, Reason::Poison].map(Stage::GivingUp));
    stages.extend(
        [
            DeferReason::Busy,
            DeferReason::Contention,
            DeferReason::StoreAway,
            DeferReason::Shutdown,
            DeferReason::NotAddressed,
        ]
        .map(Stage::ToDefer),
    );
    stages
        .into_iter()
        .flat_map(|stage| {
            rules
                .legal(stage)
                .into_iter()
                .map(move |made| edge(stage, made))
        })
        .collect()
}
