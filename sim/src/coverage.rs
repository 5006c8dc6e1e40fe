//! What happened how often: kinds of faults, steps of the gate, and each step while each kind of fault was in effect. A
//! simulation that is said to cover something shows it here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::{DeferReason, FenceVerdict, Reason, RunResult, Step};

use models::lifecycle::conform::Conformance;

use crate::history::{Entry, Fact, Said};
use crate::plan::FaultKind;

/// A fault is in effect from its beginning to its end, and at least this long: what it led to takes time to show.
const LINGERS: Duration = Duration::from_secs(600);

/// Steps of the gate that every kind of fault must meet.
pub const GATE: [&str; 11] = [
    "applied",
    "duplicate",
    "busy",
    "settled",
    "commit unknown",
    "retried",
    "dead letter: exhausted",
    "dead letter: hard",
    "dead letter: poison",
    "deferred",
    "drained",
];

/// Other things that must happen at some time.
pub const OTHER: [&str; 23] = [
    "batch worked",
    "batch failed",
    "left a batch",
    "run panicked",
    "run passed its deadline",
    "run met an outage",
    "run met a shutdown",
    "worker vanished",
    "dead letter not needed: applied",
    "dead letter not needed: on record",
    "deferred: store away",
    "deferred: shutdown",
    "lease lost",
    "paused for the store",
    "call cut before",
    "call cut after",
    "replayed",
    "discarded",
    "fence swept",
    "alert not accepted",
    "escalated",
    "incident resolved",
    "incident not resolved",
];

/// Counts over any number of histories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Faults, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Steps, by name.
    pub steps: BTreeMap<&'static str, u64>,
    /// Edges of the lifecycle model that some delivery went.
    pub edges: BTreeSet<(String, String)>,
    /// Steps of the gate while a fault was in effect.
    pub pairs: BTreeMap<(&'static str, &'static str), u64>,
}

impl Coverage {
    /// Adds one history.
    pub fn add(&mut self, entries: &[Entry]) {
        // Kinds in effect, by fault, until when; none: until it ends.
        let mut effective: BTreeMap<usize, (&'static str, Duration, Option<Duration>)> =
            BTreeMap::new();
        let mut model = Conformance::new();
        for entry in entries {
            if let Said::Harness(event) = &entry.said {
                // What is not allowed is a matter of the checks.
                let _ = model.see(&entry.host, event);
            }
            match &entry.said {
                Said::World(Fact::FaultBegan { fault, kind }) => {
                    *self.faults.entry(kind.name()).or_default() += 1;
                    effective.insert(*fault, (kind.name(), entry.at, None));
                }
                Said::World(Fact::FaultEnded { fault, .. }) => {
                    if let Some((_, began, until)) = effective.get_mut(fault) {
                        *until = Some(entry.at.max(*began + LINGERS));
                    }
                }
                _ => {}
            }
            for step in steps(entry) {
                *self.steps.entry(step).or_default() += 1;
                if GATE.contains(&step) {
                    effective
                        .retain(|_, (_, _, until)| until.is_none_or(|until| entry.at <= until));
                    for (kind, _, _) in effective.values() {
                        *self.pairs.entry((*kind, step)).or_default() += 1;
                    }
                }
            }
        }
        self.edges.extend(model.taken().iter().cloned());
    }

    /// Adds the counts of another one.
    pub fn merge(&mut self, other: &Self) {
        self.edges.extend(other.edges.iter().cloned());
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (name, count) in &other.steps {
            *self.steps.entry(name).or_default() += count;
        }
        for (pair, count) in &other.pairs {
            *self.pairs.entry(*pair).or_default() += count;
        }
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        let no_fault = |kind: &&&str| !self.faults.contains_key(**kind);
        missing.extend(
            FaultKind::NAMES
                .iter()
                .filter(no_fault)
                .map(|kind| format!("fault: {kind}")),
        );
        let no_step = |step: &&&str| !self.steps.contains_key(**step);
        missing.extend(
            GATE.iter()
                .filter(no_step)
                .map(|step| format!("gate: {step}")),
        );
        missing.extend(OTHER.iter().filter(no_step).map(|step| (*step).to_owned()));
        for kind in FaultKind::NAMES {
            for step in GATE {
                if !self.pairs.contains_key(&(kind, step)) {
                    missing.push(format!("pair: {kind} x {step}"));
                }
            }
        }
        missing
    }

    /// For programs: kinds of faults with the steps of the gate that were seen while they were in effect.
    pub fn json(&self) -> serde_json::Value {
        let faults: Vec<_> = FaultKind::NAMES
            .iter()
            .map(|kind| {
                let pairs = GATE.map(|step| self.pairs.get(&(*kind, step)).copied().unwrap_or(0));
                serde_json::json!({"kind": kind, "times": count(&self.faults, kind), "steps": pairs})
            })
            .collect();
        let steps: Vec<_> = GATE
            .iter()
            .chain(&OTHER)
            .map(|step| serde_json::json!({"step": step, "times": count(&self.steps, step)}))
            .collect();
        serde_json::json!({"gate": GATE, "faults": faults, "steps": steps})
    }

    /// As tables.
    pub fn text(&self) -> String {
        let mut text = String::new();
        text.push_str("what happened                       times\n");
        for step in GATE.iter().chain(&OTHER) {
            text.push_str(&format!("  {step:<32} {:>8}\n", count(&self.steps, step)));
        }
        text.push_str("\nfaults, and steps of the gate while they were in effect\n");
        text.push_str(&format!("  {:<24} {:>8}", "", "times"));
        for step in GATE {
            let short: String = step
                .replace("dead letter: ", "dead: ")
                .chars()
                .take(13)
                .collect();
            text.push_str(&format!(" {short:>14}"));
        }
        text.push('\n');
        for kind in FaultKind::NAMES {
            text.push_str(&format!("  {kind:<24} {:>8}", count(&self.faults, kind)));
            for step in GATE {
                let pairs = self.pairs.get(&(kind, step)).copied().unwrap_or(0);
                text.push_str(&format!(" {pairs:>14}"));
            }
            text.push('\n');
        }
        text.push_str("\nedges of the lifecycle model that no delivery went\n");
        for edge in Conformance::never_taken(&self.edges) {
            text.push_str(&format!("  {edge}\n"));
        }
        text
    }
}

fn count(counts: &BTreeMap<&'static str, u64>, name: &str) -> u64 {
    counts.get(name).copied().unwrap_or(0)
}

/// The names under which an entry counts.
fn steps(entry: &Entry) -> Vec<&'static str> {
    let event = match &entry.said {
        Said::World(Fact::FenceSwept { .. }) => return vec!["fence swept"],
        Said::World(Fact::CallCut { answer: false, .. }) => return vec!["call cut before"],
        Said::World(Fact::CallCut { answer: true, .. }) => return vec!["call cut after"],
        Said::World(_) => return Vec::new(),
        Said::Harness(event) => event,
    };
    match &event.step {
        Step::Committed => vec!["applied"],
        Step::Fence {
            verdict: FenceVerdict::Duplicate,
            ..
        } => vec!["duplicate"],
        Step::Fence {
            verdict: FenceVerdict::Settled,
            ..
        } => vec!["settled"],
        Step::Busy => vec!["busy"],
        Step::CommitUnknown { .. } => vec!["commit unknown"],
        Step::Retried { .. } => vec!["retried"],
        Step::DeadLettered { reason, class, .. } => {
            let mut names = vec![match reason {
                Reason::Exhausted => "dead letter: exhausted",
                Reason::Hard => "dead letter: hard",
                Reason::Poison => "dead letter: poison",
            }];
            if class.as_str() == "vanished" {
                names.push("worker vanished");
            }
            names
        }
        Step::DeadLetterApplied => vec!["dead letter not needed: applied"],
        Step::DeadLetterAlready => vec!["dead letter not needed: on record"],
        Step::Deferred { reason, .. } => match reason {
            DeferReason::StoreAway => vec!["deferred", "deferred: store away"],
            DeferReason::Shutdown => vec!["deferred", "deferred: shutdown"],
            _ => vec!["deferred"],
        },
        Step::Draining => vec!["drained"],
        Step::RunEnded {
            result: RunResult::Failed { ending, .. },
            ..
        } => match ending {
            harness::Ending::Panic => vec!["run panicked"],
            harness::Ending::Deadline => vec!["run passed its deadline"],
            harness::Ending::StoreAway => vec!["run met an outage"],
            harness::Ending::Shutdown => vec!["run met a shutdown"],
            _ => Vec::new(),
        },
        Step::BatchEnded {
            result: RunResult::Worked,
            ..
        } => vec!["batch worked"],
        Step::BatchEnded { .. } => vec!["batch failed"],
        Step::LeftBatch { .. } => vec!["left a batch"],
        Step::LeaseLost => vec!["lease lost"],
        Step::Paused => vec!["paused for the store"],
        Step::Replayed { .. } => vec!["replayed"],
        Step::Discarded { .. } => vec!["discarded"],
        Step::AlertFailed { .. } => vec!["alert not accepted"],
        Step::Escalated { .. } => vec!["escalated"],
        Step::Resolved { .. } => vec!["incident resolved"],
        Step::ResolveFailed { .. } => vec!["incident not resolved"],
        _ => Vec::new(),
    }
}
