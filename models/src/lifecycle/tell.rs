//! The model in words.

use super::protocol::Move;
use super::world::{GHOST, Holder, Kind, Letter, Message, State};
use super::{Action, Lifecycle};
use crate::kit::Told;

fn name(holder: u8) -> String {
    match holder {
        GHOST => "the holder without a lease".to_owned(),
        copy => format!("the holder of copy {}", copy + 1),
    }
}

impl Told for Lifecycle {
    fn actor(&self, action: &Action) -> String {
        match action {
            Action::Deliver(_) => "the broker".to_owned(),
            Action::CommitAnswerLost(_) | Action::AckLost(_) => "the network".to_owned(),
            Action::Step(holder, _) | Action::Crash(holder) => name(*holder),
            Action::LeaseExpires(_) => "time".to_owned(),
            Action::Replay | Action::Discard(_) => "an operator".to_owned(),
            Action::Sweep => "the sweep".to_owned(),
        }
    }

    fn tell(&self, action: &Action) -> String {
        match action {
            Action::Deliver(copy) => format!("hands copy {} out", copy + 1),
            Action::Step(_, made) => move_in_words(*made),
            Action::CommitAnswerLost(holder) => {
                format!(
                    "carries the commit of {}, and loses the answer",
                    name(*holder)
                )
            }
            Action::AckLost(holder) => format!("loses the acknowledgement of {}", name(*holder)),
            Action::Crash(_) => "dies".to_owned(),
            Action::LeaseExpires(copy) => {
                format!(
                    "passes: the lease of copy {} runs out, and its holder goes on",
                    copy + 1
                )
            }
            Action::Replay => "replays the dead letter".to_owned(),
            Action::Discard(generation) => {
                format!("discards the dead letter of generation {generation}")
            }
            Action::Sweep => "takes the expired fence".to_owned(),
        }
    }

    fn show(&self, state: &State) -> String {
        let kind = match state.kind {
            Kind::Job => "a job",
            Kind::Poison => "poison",
            Kind::Foreign | Kind::ForeignCopy => "somebody else's job",
        };
        let mut outcome = Vec::new();
        match state.effects {
            0 => {}
            1 => outcome.push("1 effect".to_owned()),
            n => outcome.push(format!("{n} EFFECTS")),
        }
        for (generation, letter) in (0..).zip(&state.letters) {
            if let Some(Letter { reason, status }) = letter {
                let text =
                    format!("a dead letter of generation {generation} ({reason:?}, {status:?})");
                outcome.push(text.to_lowercase());
            }
        }
        if outcome.is_empty() {
            outcome.push("no outcome".to_owned());
        }
        if state.fence {
            outcome.push("fenced".to_owned());
        }
        if state.swept {
            outcome.push("fence swept".to_owned());
        }
        let mut places = Vec::new();
        for (place, (message, holder)) in state.messages.iter().zip(&state.holders).enumerate() {
            let message = match message {
                Some(Message {
                    count,
                    generation: 0,
                }) => format!("queued, {count} deliveries"),
                Some(Message { count, .. }) => format!("a replay, queued, {count} deliveries"),
                None => "gone".to_owned(),
            };
            let holder = holder.map_or(String::new(), |holder| {
                format!(", held: {:?}", holder.stage)
            });
            places.push(format!("copy {} {message}{holder}", place + 1));
        }
        if let Some(Holder { copy, stage, .. }) = state.holders[usize::from(GHOST)] {
            places.push(format!(
                "somebody without a lease on copy {}: {stage:?}",
                copy + 1
            ));
        }
        format!("{kind}, {}; {}", outcome.join(", "), places.join("; "))
    }
}

fn move_in_words(made: Move) -> String {
    match made {
        Move::Poison => "finds that it can never be valid".to_owned(),
        Move::NotAddressed => "finds that it is for somebody else".to_owned(),
        Move::Busy => "finds a twin running".to_owned(),
        Move::Fence(verdict) => format!("asks the fence: {verdict:?}").to_lowercase(),
        Move::StartRun(run) => format!("starts run {run}"),
        Move::StartBatch => "starts a batch with it".to_owned(),
        Move::LeaveBatch => "gives the batch up, and goes on alone".to_owned(),
        Move::Worked => "worked".to_owned(),
        Move::Failed(ending) => format!("fails: {ending:?}").to_lowercase(),
        Move::Committed => "commits".to_owned(),
        Move::CommitUnknown => "commits, and the commit is lost".to_owned(),
        Move::Letter(reason) => format!("writes a dead letter: {reason:?}").to_lowercase(),
        Move::LetterThere => "finds a dead letter there".to_owned(),
        Move::LetterApplied => "finds the job applied, and writes no dead letter".to_owned(),
        Move::Ack => "acknowledges".to_owned(),
        Move::Retry(_) => "gives it back, counted".to_owned(),
        Move::Defer(_) => "gives it back, uncounted".to_owned(),
        Move::LeaseLost => "finds its lease lost".to_owned(),
    }
}
