//! Is what the harness did a way through the model? Every event of a history is a move of the protocol, in the order in
//! which the events came; one that is not allowed is a failure that says what would have been.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use harness::{Event, FenceVerdict, JobId, Reason, Receipt, RunResult, Step};

use super::protocol::{Move, Rules, Stage, edge, edges};

/// An event that the model does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What happened.
    pub event: String,
    /// Where the model was.
    pub state: String,
    /// What would have been allowed.
    pub legal: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is not allowed when {}; allowed: {}",
            self.event,
            self.state,
            if self.legal.is_empty() {
                "nothing".to_owned()
            } else {
                self.legal.join(", ")
            }
        )
    }
}

#[derive(Debug)]
struct Open {
    host: String,
    stage: Stage,
    /// Runs before this delivery, and the one that it started.
    runs_before: u32,
    run: Option<u32>,
    /// It came after its job was seen to be applied, or its generation to be dead-lettered.
    too_late: Option<&'static str>,
}

impl Open {
    /// Runs that its dead letter must speak of.
    fn attempts(&self, made: Move) -> u32 {
        match (made, self.run) {
            // Never run: one delivery, one look.
            (Move::Letter(Reason::Poison), _) => 1,
            (_, Some(run)) => run,
            // All of them were started before.
            (_, None) => self.runs_before,
        }
    }
}

/// Follows a history.
#[derive(Debug, Default)]
pub struct Conformance {
    rules: BTreeMap<String, Rules>,
    open: BTreeMap<Receipt, Open>,
    applied: BTreeSet<JobId>,
    lettered: BTreeSet<(JobId, u32)>,
    taken: BTreeSet<(String, String)>,
    events: u64,
}

impl Conformance {
    /// At the beginning of a history.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next event, from one host.
    ///
    /// # Errors
    /// When the model does not allow it.
    pub fn see(&mut self, host: &str, event: &Event) -> Result<(), Refusal> {
        self.events += 1;
        match &event.step {
            Step::Started { retry } => {
                let max_runs = retry.max_runs();
                self.rules.insert(host.to_owned(), Rules { max_runs });
                return Ok(());
            }
            // A fence that is gone proves nothing any more, and nobody says which it was.
            Step::Swept { .. } => self.applied.clear(),
            _ => {}
        }
        let Some((job, receipt)) = event
            .job
            .as_ref()
            .and_then(|job| Some((job, job.delivery.as_ref()?)))
        else {
            return Ok(());
        };
        if let Step::Received { runs_before } = event.step {
            let too_late = if self.applied.contains(&job.id) {
                Some("its job was applied before it came")
            } else if self.lettered.contains(&(job.id, job.generation)) {
                Some("its generation was dead-lettered before it came")
            } else {
                None
            };
            let open = Open {
                host: host.to_owned(),
                stage: Stage::Received(runs_before),
                runs_before,
                run: None,
                too_late,
            };
            if let Some(before) = self.open.insert(receipt.clone(), open) {
                return Err(Refusal {
                    event: format!("a second arrival of {receipt:?}"),
                    state: format!("it is {:?}", before.stage),
                    legal: Vec::new(),
                });
            }
            return Ok(());
        }
        let made = move_of(&event.step);
        let (Some(made), Some(open)) = (made, self.open.get_mut(receipt)) else {
            return Err(Refusal {
                event: format!("{:?} of {receipt:?}", event.step),
                state: "that delivery never arrived, or was answered".to_owned(),
                legal: Vec::new(),
            });
        };
        let rules = self.rules.get(&open.host).copied().unwrap_or(Rules {
            max_runs: harness::MAX_RUNS_DEFAULT,
        });
        let next = rules.next(open.stage, made);
        let late = open
            .too_late
            .filter(|_| made == Move::Fence(FenceVerdict::Acquired));
        let (Some(next), None) = (next, late) else {
            let legal = rules
                .legal(open.stage)
                .iter()
                .map(|it| format!("{it:?}"))
                .collect();
            return Err(Refusal {
                event: format!("{made:?} of job {} ({receipt:?})", job.id),
                state: match late {
                    Some(late) => late.to_owned(),
                    None => format!("it is {:?}", open.stage),
                },
                legal,
            });
        };
        if let Step::DeadLettered { attempts, .. } = event.step {
            let due = open.attempts(made);
            if attempts != due {
                return Err(Refusal {
                    event: format!(
                        "a dead letter of job {} that says {attempts} attempts",
                        job.id
                    ),
                    state: format!("it is {:?}, {} runs before", open.stage, open.runs_before),
                    legal: vec![format!("{due} attempts")],
                });
            }
        }
        if let Move::StartRun(run) = made {
            open.run = Some(run);
        }
        self.taken.insert(edge(open.stage, made));
        open.stage = next;
        match made {
            Move::Committed => {
                self.applied.insert(job.id);
            }
            Move::Letter(_) => {
                self.lettered.insert((job.id, job.generation));
            }
            _ => {}
        }
        if next == Stage::Over {
            self.open.remove(receipt);
        }
        Ok(())
    }

    /// The process of a host ended: what it held is nobody's.
    pub fn ended(&mut self, host: &str) {
        self.open.retain(|_, open| open.host != host);
    }

    /// Deliveries that were never answered.
    pub fn unanswered(&self) -> Vec<String> {
        let open = self.open.iter();
        open.map(|(receipt, open)| format!("{receipt:?} on {} is {:?}", open.host, open.stage))
            .collect()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Edges of the model that were gone.
    pub fn taken(&self) -> &BTreeSet<(String, String)> {
        &self.taken
    }

    /// Edges of the model that no event went.
    pub fn never_taken(taken: &BTreeSet<(String, String)>) -> Vec<String> {
        let never = edges().into_iter().filter(|edge| !taken.contains(edge));
        never
            .map(|(stage, made)| format!("{stage} - {made}"))
            .collect()
    }
}

/// The move that a step of the harness is, if it is one.
pub fn move_of(step: &Step) -> Option<Move> {
    Some(match step {
        Step::Poison { .. } => Move::Poison,
        Step::NotAddressed => Move::NotAddressed,
        Step::Busy => Move::Busy,
        Step::Fence { verdict, .. } => Move::Fence(*verdict),
        Step::RunStarted { run } => Move::StartRun(*run),
        Step::BatchStarted { .. } => Move::StartBatch,
        Step::LeftBatch { .. } => Move::LeaveBatch,
        Step::RunEnded { result, .. } => match result {
            RunResult::Worked => Move::Worked,
            RunResult::Failed { ending, .. } => Move::Failed(*ending),
        },
        Step::Committed => Move::Committed,
        Step::CommitUnknown { .. } => Move::CommitUnknown,
        Step::DeadLettered { reason, .. } => Move::Letter(*reason),
        Step::DeadLetterAlready => Move::LetterThere,
        Step::DeadLetterApplied => Move::LetterApplied,
        Step::Acked => Move::Ack,
        Step::Retried { run, .. } => Move::Retry(*run),
        Step::Deferred { reason, .. } => Move::Defer(*reason),
        Step::LeaseLost => Move::LeaseLost,
        _ => return None,
    })
}
