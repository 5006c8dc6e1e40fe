//! The page: a space-time diagram of one run, in one file that needs no other.

use std::collections::BTreeMap;
use std::time::Duration;

use harness::{AlertKind, FenceVerdict, JobId, RunResult, Step};
use serde_json::{Value, json};

use crate::history::{Entry, Fact, Said};
use crate::jobs::id_of;
use crate::plan::{FaultKind, Plan};
use crate::world::{Ran, hosts, queue};

const TEMPLATE: &str = include_str!("page.html");
const PLACE: &str = "/*DATA*/null";

/// Draws a run. Its history should have details, for they are the arrows.
///
/// # Errors
/// When the plan names no queue: never.
pub fn page(plan: &Plan, ran: &Ran, digest: &str, commit: &str) -> anyhow::Result<String> {
    // Details become arrows; everything else keeps its place in a list of its own.
    let mut numbers = BTreeMap::new();
    let mut entries = Vec::new();
    for (n, entry) in ran.entries.iter().enumerate() {
        if let Some(shown) = shown(entry) {
            numbers.insert(n, entries.len());
            entries.push(shown);
        }
    }
    let violations: Vec<Value> = ran
        .violations
        .iter()
        .map(|violation| {
            let proof = violation.proof.iter().filter_map(|n| numbers.get(n));
            json!({
                "invariant": violation.invariant,
                "job": violation.job,
                "what": violation.what,
                "proof": proof.collect::<Vec<_>>(),
            })
        })
        .collect();
    let jumps: Vec<Value> = ran
        .entries
        .iter()
        .filter_map(|entry| match &entry.said {
            // It is written down when it is over.
            Said::World(Fact::Jumped { by }) => {
                Some(json!({"at": seconds(entry.at.saturating_sub(*by)), "by": seconds(*by)}))
            }
            _ => None,
        })
        .collect();
    // What happens to several hosts, or to none, has a lane of its own.
    let mut lanes = vec!["world"];
    lanes.extend(hosts(plan));
    let data = json!({
        "seed": plan.seed,
        "commit": commit,
        "simulated_s": seconds(ran.simulated),
        "digest": digest,
        "hosts": lanes,
        "jobs": jobs(plan)?,
        "entries": entries,
        "messages": messages(&ran.entries),
        "faults": faults(plan, ran),
        "jumps": jumps,
        "violations": violations,
        "plan": plan,
    });
    // A script must not end inside of a string.
    let data = data.to_string().replace('<', "\\u003c");
    Ok(TEMPLATE.replacen(PLACE, &data, 1))
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

fn jobs(plan: &Plan) -> anyhow::Result<Vec<Value>> {
    let queue = queue()?;
    let jobs = plan.jobs.iter();
    Ok(jobs
        .map(|job| {
            let copies = match job.resend_after_ms.len() {
                0 => String::new(),
                n => format!(", sent again {n} times"),
            };
            let text = format!("{:?}{copies}", job.behaviour);
            json!({"id": id_of(job, &queue), "number": job.id, "text": text})
        })
        .collect())
}

fn faults(plan: &Plan, ran: &Ran) -> Vec<Value> {
    plan.faults
        .iter()
        .map(|fault| {
            let at = Duration::from_millis(fault.at_ms);
            let until = Duration::from_millis(fault.at_ms + fault.lasts_ms).min(ran.simulated);
            // A cut waits for its call; what it did is an entry.
            let until = match fault.kind {
                FaultKind::Cut { .. } => at,
                _ => until.max(at),
            };
            json!({
                "at": seconds(at),
                "until": seconds(until),
                "kind": fault.kind.name(),
                "hosts": fault.kind.hosts(),
                "text": format!("{:?}", fault.kind),
            })
        })
        .filter(|fault| fault["at"].as_f64() <= Some(seconds(ran.simulated)))
        .collect()
}

/// Arrows: a frame that went out, and came in or never did.
fn messages(entries: &[Entry]) -> Vec<Value> {
    let mut arrived: BTreeMap<u64, Duration> = BTreeMap::new();
    let mut jobs: BTreeMap<u64, JobId> = BTreeMap::new();
    for entry in entries {
        match &entry.said {
            Said::World(Fact::Arrived { frame }) => {
                arrived.insert(*frame, entry.at);
            }
            Said::World(Fact::Published { message, job, .. }) => {
                jobs.insert(*message, *job);
            }
            _ => {}
        }
    }
    entries
        .iter()
        .filter_map(|entry| match &entry.said {
            Said::World(Fact::Sent {
                frame,
                to,
                call,
                job,
                message,
            }) => {
                let received = arrived.get(frame);
                let job = job.or_else(|| message.and_then(|message| jobs.get(&message).copied()));
                Some(json!({
                    "from": entry.host,
                    "to": to,
                    "sent": seconds(entry.at),
                    "received": received.map(|at| seconds(*at)),
                    "label": call,
                    "job": job,
                    "lost": received.is_none(),
                }))
            }
            _ => None,
        })
        .collect()
}

fn shown(entry: &Entry) -> Option<Value> {
    let (job, kind, text, level) = match &entry.said {
        Said::World(fact) if fact.is_detail() || matches!(fact, Fact::Jumped { .. }) => {
            return None;
        }
        Said::World(fact) => {
            let (kind, text, level) = fact_text(fact);
            (fact.job(), kind, text, level)
        }
        Said::Harness(event) => {
            let (text, level) = step_text(&event.step);
            let kind = format!("{:?}", event.step);
            let kind: String = kind.chars().take_while(char::is_ascii_alphabetic).collect();
            (event.job.as_ref().map(|job| job.id), kind, text, level)
        }
    };
    Some(json!({
        "at": seconds(entry.at),
        "host": entry.host,
        "job": job,
        "kind": kind,
        "text": text,
        "level": level,
    }))
}

fn fact_text(fact: &Fact) -> (String, String, &'static str) {
    let kind: String = format!("{fact:?}")
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .collect();
    let (text, level) = match fact {
        Fact::Published {
            message,
            generation: 0,
            ..
        } => (format!("message {message} published"), "normal"),
        Fact::Published {
            message,
            generation,
            ..
        } => (
            format!("message {message} published, generation {generation}"),
            "normal",
        ),
        Fact::Delivered {
            message, delivery, ..
        } => (
            format!("message {message} handed out, no. {delivery}"),
            "quiet",
        ),
        Fact::Removed { message, .. } => (format!("message {message} removed"), "quiet"),
        Fact::GivenBack {
            message,
            counted,
            delay,
            ..
        } => {
            let counted = if *counted { "counted" } else { "uncounted" };
            (
                format!("message {message} back, {counted}, for {delay:.1?}"),
                "quiet",
            )
        }
        Fact::Extended { message, .. } => (format!("message {message}: lease extended"), "quiet"),
        Fact::Ran { run, .. } => (format!("handler called, run {run}"), "normal"),
        Fact::Committed { effects, fence, .. } => {
            let fence = if *fence { "fence" } else { "NO fence" };
            (format!("committed: {effects} effect, {fence}"), "good")
        }
        Fact::RolledBack { .. } => ("rolled back".to_owned(), "quiet"),
        Fact::LetterWritten {
            reason, attempts, ..
        } => (format!("dead letter: {reason:?} after {attempts}"), "bad"),
        Fact::LetterReplayed { .. } => ("dead letter replayed".to_owned(), "normal"),
        Fact::LetterDiscarded { reason, .. } => {
            (format!("dead letter discarded: {reason:?}"), "normal")
        }
        Fact::FenceSwept { age, .. } => (format!("fence swept, {} s old", age.as_secs()), "normal"),
        Fact::FencesExpired { keys } => (format!("{} fences expired by hand", keys.len()), "bad"),
        Fact::AlertClaimed { kind, .. } => (format!("alert claimed: {}", kind.as_str()), "quiet"),
        Fact::IncidentAccepted { letters, .. } => {
            (format!("incident of {letters} letters"), "normal")
        }
        Fact::LettersCovered {
            kind: AlertKind::New,
            letters,
            ..
        } => (format!("{} letters covered", letters.len()), "quiet"),
        Fact::LettersCovered { letters, .. } => {
            (format!("{} letters escalated", letters.len()), "normal")
        }
        Fact::IncidentClosed { .. } => ("incident closed".to_owned(), "normal"),
        Fact::CallCut {
            call,
            answer: false,
        } => (format!("{call} cut off before it was made"), "bad"),
        Fact::CallCut { call, answer: true } => (format!("the answer to {call} cut off"), "bad"),
        Fact::FaultBegan { kind, .. } => (format!("{} begins", kind.name()), "bad"),
        Fact::FaultEnded { kind, .. } => (format!("{} ends", kind.name()), "quiet"),
        Fact::Healed => ("everything heals".to_owned(), "good"),
        Fact::Settled => ("everything settled".to_owned(), "good"),
        Fact::Unsettled { what } => (format!("not settled: {what}"), "bad"),
        other => (format!("{other:?}"), "quiet"),
    };
    (kind, text, level)
}

fn step_text(step: &Step) -> (String, &'static str) {
    match step {
        Step::Received { runs_before } => (format!("received, {runs_before} runs before"), "quiet"),
        Step::Fence { verdict, .. } => (
            format!("fence: {verdict:?}"),
            match verdict {
                FenceVerdict::Acquired => "quiet",
                _ => "normal",
            },
        ),
        Step::RunStarted { run } => (format!("run {run} starts"), "quiet"),
        Step::RunEnded {
            run,
            result: RunResult::Worked,
            ..
        } => (format!("run {run} worked"), "normal"),
        Step::RunEnded {
            run,
            result: RunResult::Failed { ending, .. },
            ..
        } => (format!("run {run} failed: {ending:?}"), "bad"),
        Step::Committed => ("commit answered".to_owned(), "good"),
        Step::CommitUnknown { .. } => ("commit unknown".to_owned(), "bad"),
        Step::Acked => ("acked".to_owned(), "good"),
        Step::Retried { wait, .. } => (format!("retry in {:.1} s", seconds(*wait)), "normal"),
        Step::Deferred { reason, .. } => (format!("deferred: {}", reason.as_str()), "normal"),
        Step::DeadLettered { reason, .. } => (format!("dead-lettered: {reason:?}"), "bad"),
        Step::Poison { .. } => ("poison".to_owned(), "bad"),
        Step::Busy => ("busy: a twin runs".to_owned(), "normal"),
        Step::LeaseLost => ("lease lost".to_owned(), "bad"),
        Step::StoreFailed { call, .. } => (format!("store failed: {call}"), "bad"),
        Step::QueueFailed { call, .. } => (format!("queue failed: {call}"), "bad"),
        other => {
            let text = format!("{other:?}");
            let text: String = text.chars().take(60).collect();
            (text, "quiet")
        }
    }
}
