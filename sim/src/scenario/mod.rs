//! Scenarios that proptest draws and shrinks: the other way than [`Plan::draw`] to come to a [`Plan`].
//!
//! A seed's plan is a large world of everything, which can only be shrunk by leaving things out and hoping. A scenario is
//! small and of one kind, each part of it is drawn by itself, and what proptest shrinks it to is a plan that can be run. It
//! keeps to what can also be done to a real database: `tests/generated` plays the same plans on PostgreSQL.

mod bytes;
mod parts;

use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;

pub use self::bytes::from_bytes;
use self::parts::{behaviour, copies, decisions, fault, job, knobs, poison};
use crate::plan::{Behaviour, FaultKind, FaultPlan, JobPlan, Knobs, Plan};

/// Copies of jobs, at once and late, sometimes of jobs that fail.
pub fn duplicates() -> BoxedStrategy<Plan> {
    let mostly = prop_oneof![4 => Just(Behaviour::Succeeds), 1 => behaviour()];
    let jobs = job(mostly, copies(1..=4), Just(Vec::new()));
    plans(jobs.boxed(), 0..=2, false)
}

/// Messages that can never be valid, in all shapes, among good ones, and what operators do about them.
pub fn poisoned() -> BoxedStrategy<Plan> {
    let mostly = prop_oneof![4 => poison(), 1 => Just(Behaviour::Succeeds)];
    let jobs = job(mostly, copies(0..=2), decisions(0..=2));
    plans(jobs.boxed(), 0..=1, false)
}

/// Jobs that fail, and are replayed and discarded, sometimes twice or both at once, while late copies come.
pub fn replays() -> BoxedStrategy<Plan> {
    let failing = prop_oneof![
        3 => Just(Behaviour::FailsUntilReplayed),
        2 => Just(Behaviour::FailsHardOnce),
        1 => Just(Behaviour::FailsHard),
        1 => Just(Behaviour::FailsRuns(u32::MAX)),
        1 => poison(),
    ];
    let jobs = job(failing, copies(0..=2), decisions(1..=3));
    plans(jobs.boxed(), 0..=2, false)
}

/// Everything, with up to four faults.
pub fn mixed() -> BoxedStrategy<Plan> {
    let any = prop_oneof![3 => behaviour(), 1 => poison()];
    let jobs = job(any, copies(0..=3), decisions(0..=3));
    plans(jobs.boxed(), 0..=4, true)
}

fn plans(
    job: BoxedStrategy<JobPlan>,
    faults: std::ops::RangeInclusive<usize>,
    all: bool,
) -> BoxedStrategy<Plan> {
    let jobs = proptest::collection::vec(job, 1..=6);
    let faults = proptest::collection::vec(fault(all), faults);
    // In the order in which they are shrunk: first what makes a plan long.
    (faults, jobs, knobs(), any::<u16>())
        .prop_map(|(faults, jobs, knobs, seed)| plan(seed.into(), knobs, jobs, faults))
        .boxed()
}

/// What parts do not know of each other: numbers of jobs, the order of faults, and that a faulty worker is there.
fn plan(seed: u64, mut knobs: Knobs, mut jobs: Vec<JobPlan>, mut faults: Vec<FaultPlan>) -> Plan {
    for (id, job) in (0..).zip(&mut jobs) {
        job.id = id;
    }
    let named = |worker: &String| {
        let mut hosts = faults.iter().flat_map(|fault| fault.kind.hosts());
        hosts.any(|host| host == worker)
    };
    let needed = (0..3).rev().find(|n| named(&format!("worker{n}")));
    knobs.workers = knobs.workers.max(needed.map_or(1, |n| n + 1));
    faults.sort_by_key(|fault| fault.at_ms);
    Plan {
        seed,
        knobs,
        jobs,
        faults,
    }
}

/// Whether something is planned that may make a run end otherwise than its job wants: a crash, an outage, a lost answer.
pub fn is_disturbed(plan: &Plan) -> bool {
    let harmless = |kind: &FaultKind| matches!(kind, FaultKind::ExpireFences);
    !plan.faults.iter().all(|fault| harmless(&fault.kind))
}
