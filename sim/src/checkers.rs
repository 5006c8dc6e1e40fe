//! The invariants, each a check of its own over one history and the world that it left.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use harness::{DeadLetterId, Event, FenceVerdict, JobId, Reason, RetryPolicy, Step};

use crate::history::{Entry, Fact, Key, Said};
use crate::plan::Plan;
use crate::world::Ran;

/// A broken invariant, with the events that prove it.
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// The job, if it is about one.
    pub job: Option<JobId>,
    /// What is wrong.
    pub what: String,
    /// Entries of the history, by number.
    pub proof: Vec<usize>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)?;
        if let Some(job) = self.job {
            write!(f, " (job {job})")?;
        }
        Ok(())
    }
}

type Check = fn(&Seen<'_>) -> Vec<Violation>;

/// All of them, by name.
const CHECKS: [(&str, Check); 13] = [
    ("S1 one effect", s1_one_effect),
    ("S2 atomic fence", s2_atomic_fence),
    ("S3 nothing vanishes", s3_nothing_vanishes),
    ("S4 one outcome", s4_one_outcome),
    ("S5 bounded runs", s5_bounded_runs),
    ("S6 growing waits", s6_growing_waits),
    ("S7 poison", s7_poison),
    ("S8 append-only", s8_append_only),
    ("S9 alerted", s9_alerted),
    ("S10 safe sweep", s10_safe_sweep),
    ("S11 no success rows", s11_no_success_rows),
    ("S12 quiet duplicates", s12_quiet_duplicates),
    ("L1 settles", l1_settles),
];

/// What the checks look at.
struct Seen<'a> {
    plan: &'a Plan,
    ran: &'a Ran,
    entries: Vec<Entry>,
}

impl Seen<'_> {
    fn facts(&self) -> impl Iterator<Item = (usize, &Entry, &Fact)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(n, entry)| match &entry.said {
                Said::World(fact) => Some((n, entry, fact)),
                Said::Harness(_) => None,
            })
    }

    fn events(&self) -> impl Iterator<Item = (usize, &Entry, &Event)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(n, entry)| match &entry.said {
                Said::Harness(event) => Some((n, entry, event)),
                Said::World(_) => None,
            })
    }
}

/// Checks one run.
pub fn check(plan: &Plan, ran: &Ran) -> Vec<Violation> {
    let seen = Seen {
        plan,
        ran,
        entries: ran.history.all(),
    };
    CHECKS.iter().flat_map(|(_, check)| check(&seen)).collect()
}

fn s1_one_effect(seen: &Seen<'_>) -> Vec<Violation> {
    let mut commits: BTreeMap<&Key, Vec<usize>> = BTreeMap::new();
    let mut violations = Vec::new();
    for (n, _, fact) in seen.facts() {
        if let Fact::Committed { key, effects, .. } = fact {
            for _ in 0..*effects {
                commits.entry(key).or_default().push(n);
            }
        }
    }
    for (key, proof) in commits {
        if proof.len() > 1 {
            let what = format!("{} effects", proof.len());
            violations.push(Violation {
                invariant: "S1 one effect",
                job: Some(key.0),
                what,
                proof,
            });
        }
    }
    violations
}

fn s2_atomic_fence(seen: &Seen<'_>) -> Vec<Violation> {
    seen.facts()
        .filter_map(|(n, _, fact)| match fact {
            Fact::Committed {
                key,
                effects,
                fence,
                ..
            } if (*effects > 0) != *fence => {
                let what = format!("committed {effects} effects and fence = {fence}");
                Some(Violation {
                    invariant: "S2 atomic fence",
                    job: Some(key.0),
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect()
}

fn s3_nothing_vanishes(seen: &Seen<'_>) -> Vec<Violation> {
    seen.facts()
        .filter_map(|(n, _, fact)| match fact {
            Fact::Removed {
                job,
                settled: false,
                message,
                ..
            } => {
                let what =
                    format!("message {message} was acknowledged before its outcome was durable");
                Some(Violation {
                    invariant: "S3 nothing vanishes",
                    job: *job,
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect()
}

fn s4_one_outcome(seen: &Seen<'_>) -> Vec<Violation> {
    let mut outcomes: BTreeMap<(&Key, u32), Vec<usize>> = BTreeMap::new();
    for (n, _, fact) in seen.facts() {
        match fact {
            Fact::Committed {
                key, generation, ..
            }
            | Fact::LetterWritten {
                key, generation, ..
            } => {
                outcomes.entry((key, *generation)).or_default().push(n);
            }
            _ => {}
        }
    }
    outcomes
        .into_iter()
        .filter(|(_, proof)| proof.len() > 1)
        .map(|((key, generation), proof)| {
            let what = format!("{} outcomes of generation {generation}", proof.len());
            Violation {
                invariant: "S4 one outcome",
                job: Some(key.0),
                what,
                proof,
            }
        })
        .collect()
}

fn s5_bounded_runs(seen: &Seen<'_>) -> Vec<Violation> {
    let most = RetryPolicy::default().max_runs();
    seen.events()
        .filter_map(|(n, _, event)| match (&event.step, &event.job) {
            (Step::RunStarted { run }, Some(job)) if *run > most => {
                let what = format!("run {run} of generation {} started", job.generation);
                Some(Violation {
                    invariant: "S5 bounded runs",
                    job: Some(job.id),
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect()
}

fn s6_growing_waits(seen: &Seen<'_>) -> Vec<Violation> {
    let policy = RetryPolicy::default();
    seen.events()
        .filter_map(|(n, _, event)| match (&event.step, &event.job) {
            (Step::Retried { run, wait }, Some(job))
                if *wait < policy.shortest_wait(*run) || *wait > policy.longest_wait(*run) =>
            {
                let what = format!("after run {run} it waits {wait:?}");
                Some(Violation {
                    invariant: "S6 growing waits",
                    job: Some(job.id),
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect()
}

/// Per generation: replaying a message without headers gives it some, and then it can run.
fn s7_poison(seen: &Seen<'_>) -> Vec<Violation> {
    let mut poison: BTreeMap<(JobId, u32), Vec<usize>> = BTreeMap::new();
    let mut runs: BTreeMap<(JobId, u32), Vec<usize>> = BTreeMap::new();
    for (n, _, fact) in seen.facts() {
        if let Fact::LetterWritten {
            key,
            generation,
            reason: Reason::Poison,
            ..
        } = fact
        {
            poison.entry((key.0, *generation)).or_default().push(n);
        }
    }
    for (n, _, event) in seen.events() {
        if let (Step::RunStarted { .. }, Some(job)) = (&event.step, &event.job) {
            runs.entry((job.id, job.generation)).or_default().push(n);
        }
    }
    poison
        .into_iter()
        .filter_map(|(generation, mut proof)| {
            let ran = runs.get(&generation)?;
            proof.extend(ran);
            let what = format!("{} runs of a poison message", ran.len());
            Some(Violation {
                invariant: "S7 poison",
                job: Some(generation.0),
                what,
                proof,
            })
        })
        .collect()
}

fn s8_append_only(seen: &Seen<'_>) -> Vec<Violation> {
    let mut decided: BTreeMap<DeadLetterId, Vec<usize>> = BTreeMap::new();
    for (n, _, fact) in seen.facts() {
        match fact {
            Fact::LetterReplayed { id } | Fact::LetterDiscarded { id, .. } => {
                decided.entry(*id).or_default().push(n)
            }
            _ => {}
        }
    }
    decided
        .into_iter()
        .filter(|(_, proof)| proof.len() > 1)
        .map(|(id, proof)| {
            let what = format!("dead letter {id} was decided {} times", proof.len());
            Violation {
                invariant: "S8 append-only",
                job: None,
                what,
                proof,
            }
        })
        .collect()
}

fn s9_alerted(seen: &Seen<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    if seen.ran.unsettled.is_none() {
        let uncovered = seen.ran.database.look(|tables| tables.alerts.uncovered());
        if !uncovered.is_empty() {
            let what = format!("{} dead letters without a delivered alert", uncovered.len());
            violations.push(Violation {
                invariant: "S9 alerted",
                job: None,
                what,
                proof: Vec::new(),
            });
        }
        let accepted: u64 = seen
            .facts()
            .map(|(_, _, fact)| {
                if let Fact::IncidentAccepted { letters, .. } = fact {
                    *letters
                } else {
                    0
                }
            })
            .sum();
        let letters = seen.ran.database.look(|tables| tables.letters.len() as u64);
        if accepted < letters {
            let what = format!("{letters} dead letters, and delivered alerts for {accepted}");
            violations.push(Violation {
                invariant: "S9 alerted",
                job: None,
                what,
                proof: Vec::new(),
            });
        }
    }
    violations
}

fn s10_safe_sweep(seen: &Seen<'_>) -> Vec<Violation> {
    seen.facts()
        .filter_map(|(n, _, fact)| match fact {
            Fact::FenceSwept {
                key,
                copies_queued,
                age,
            } if *copies_queued > 0 => {
                let what = format!(
                    "a fence {age:?} old was swept while {copies_queued} copies were queued"
                );
                Some(Violation {
                    invariant: "S10 safe sweep",
                    job: Some(key.0),
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect()
}

/// A success leaves its fence and its effect: a job that was applied in its first generation has no dead letter.
fn s11_no_success_rows(seen: &Seen<'_>) -> Vec<Violation> {
    let mut applied = BTreeSet::new();
    for (_, _, fact) in seen.facts() {
        if let Fact::Committed {
            key, generation: 0, ..
        } = fact
        {
            applied.insert(key.clone());
        }
    }
    seen.facts()
        .filter_map(|(n, _, fact)| match fact {
            Fact::LetterWritten { key, .. } if applied.contains(key) => {
                let what = "a job that was applied has a dead letter".to_owned();
                Some(Violation {
                    invariant: "S11 no success rows",
                    job: Some(key.0),
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect()
}

fn s12_quiet_duplicates(seen: &Seen<'_>) -> Vec<Violation> {
    // A letter may say that its job was applied only by not being written.
    let mut violations: Vec<Violation> = seen
        .facts()
        .filter_map(|(n, _, fact)| match fact {
            Fact::LetterWritten {
                key, applied: true, ..
            } => {
                let what = "a dead letter was written for a job that was applied".to_owned();
                Some(Violation {
                    invariant: "S12 quiet duplicates",
                    job: Some(key.0),
                    what,
                    proof: vec![n],
                })
            }
            _ => None,
        })
        .collect();
    // Between a duplicate verdict and its ack nothing else happens to that delivery.
    let mut waiting: BTreeMap<(&str, JobId), usize> = BTreeMap::new();
    for (n, entry, event) in seen.events() {
        let Some(job) = &event.job else { continue };
        let place = (entry.host, job.id);
        match &event.step {
            Step::Fence {
                verdict: FenceVerdict::Duplicate,
                ..
            } => {
                waiting.insert(place, n);
            }
            Step::DeadLettered { .. } => {
                if let Some(before) = waiting.get(&place) {
                    let what = "a duplicate was dead-lettered".to_owned();
                    let proof = vec![*before, n];
                    violations.push(Violation {
                        invariant: "S12 quiet duplicates",
                        job: Some(job.id),
                        what,
                        proof,
                    });
                }
            }
            Step::Acked => {
                waiting.remove(&place);
            }
            _ => {}
        }
    }
    violations
}

fn l1_settles(seen: &Seen<'_>) -> Vec<Violation> {
    let Some(unsettled) = &seen.ran.unsettled else {
        return every_job_has_an_outcome(seen);
    };
    vec![Violation {
        invariant: "L1 settles",
        job: None,
        what: unsettled.clone(),
        proof: Vec::new(),
    }]
}

fn every_job_has_an_outcome(seen: &Seen<'_>) -> Vec<Violation> {
    let mut outcomes = BTreeSet::new();
    let mut published = BTreeSet::new();
    for (_, _, fact) in seen.facts() {
        match fact {
            Fact::Committed { key, .. } | Fact::LetterWritten { key, .. } => {
                outcomes.insert(key.0);
            }
            Fact::Published { job: Some(job), .. } => {
                published.insert(*job);
            }
            _ => {}
        }
    }
    let mut violations: Vec<Violation> = published
        .difference(&outcomes)
        .map(|job| {
            let what = "settled without an outcome".to_owned();
            Violation {
                invariant: "L1 settles",
                job: Some(*job),
                what,
                proof: Vec::new(),
            }
        })
        .collect();
    if published.len() < seen.plan.jobs.len() {
        let what = format!(
            "{} of {} jobs were published",
            published.len(),
            seen.plan.jobs.len()
        );
        violations.push(Violation {
            invariant: "L1 settles",
            job: None,
            what,
            proof: Vec::new(),
        });
    }
    violations
}
