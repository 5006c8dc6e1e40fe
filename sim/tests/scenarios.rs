//! Generated scenarios in the simulation: duplicates, poison and replays alone, and everything together. Each is a small
//! plan; a failure is shrunk and printed as a plan file, to be kept in `sim/corpus`.
//!
//! `PROPTEST_CASES` sets how many there are of each kind.

#![allow(clippy::unwrap_used, clippy::panic)]

use proptest::prelude::*;
use proptest::strategy::{BoxedStrategy, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use sim::history::{Entry, Fact, Said};
use sim::jobs::silence_planned_panics;
use sim::plan::{Behaviour, Plan, Saved};
use sim::scenario::{duplicates, from_bytes, mixed, poisoned, replays};
use sim::world::{Options, run};

fn config(cases: u32) -> Config {
    let standard = Config::default();
    Config {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => standard.cases,
            None => cases,
        },
        // What is found is kept as a plan in `sim/corpus`: a seed of proptest's is good only for today's strategies.
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..standard
    }
}

fn saved(plan: &Plan) -> String {
    let saved = Saved {
        about: "say what it was".to_owned(),
        expected: None,
        plan: plan.clone(),
    };
    saved.text().unwrap()
}

/// All checks over scenarios of one kind.
fn holds(scenarios: BoxedStrategy<Plan>, cases: u32) {
    silence_planned_panics();
    let mut runner = TestRunner::new(config(cases));
    let outcome = runner.run(&scenarios, |plan| {
        let ran = run(&plan, Options::default())
            .map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        match ran.violations.first() {
            None => Ok(()),
            Some(violation) => Err(TestCaseError::fail(violation.to_string())),
        }
    });
    if let Err(TestError::Fail(why, plan)) = &outcome {
        panic!(
            "{why}\nsave this as a file and look at it with `cargo sim replay FILE`:\n{}",
            saved(plan)
        );
    }
    outcome.unwrap();
}

#[test]
fn s1_s12_duplicates() {
    holds(duplicates(), 50);
}

#[test]
fn s7_poison() {
    holds(poisoned(), 50);
}

#[test]
fn s4_replays() {
    holds(replays(), 50);
}

#[test]
fn s1_l1_mixed() {
    holds(mixed(), 80);
}

/// A run that is always the same, so that what it finds is.
fn fixed() -> TestRunner {
    TestRunner::new_with_rng(
        config(300),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    )
}

/// Whatever proptest tries while it shrinks can be run.
#[test]
fn sim_scenarios_shrink_to_plans_that_can_be_run() {
    let mut runner = fixed();
    for scenarios in [duplicates(), poisoned(), replays(), mixed()] {
        for n in 0..200_u32 {
            let mut tree = scenarios.new_tree(&mut runner).unwrap();
            tree.current().check().unwrap();
            for step in 0..200_u32 {
                let moved = match (n + step) % 3 {
                    0 => tree.complicate(),
                    _ => tree.simplify(),
                };
                tree.current().check().unwrap();
                if !moved && (n + step) % 3 != 0 {
                    break;
                }
            }
        }
    }
}

#[test]
fn sim_any_bytes_are_a_plan_that_can_be_run() {
    from_bytes(&[]).check().unwrap();
    proptest!(config(300), |(bytes in proptest::collection::vec(any::<u8>(), 0..400))| {
        from_bytes(&bytes).check().unwrap();
    });
}

/// Claims that are wrong: each must be refuted, and by the smallest scenario that can.
fn refuted(scenarios: BoxedStrategy<Plan>, claim: impl Fn(&Entry) -> bool) -> Plan {
    silence_planned_panics();
    let outcome = fixed().run(&scenarios, |plan| {
        let ran = run(&plan, Options::default()).unwrap();
        let holds = ran.entries.iter().all(&claim);
        holds
            .then_some(())
            .ok_or_else(|| TestCaseError::fail("refuted"))
    });
    match outcome {
        Err(TestError::Fail(_, plan)) => plan,
        other => panic!("never refuted: {other:?}"),
    }
}

#[test]
fn sim_scenarios_find_what_there_is_and_shrink_it() {
    let duplicate = |entry: &Entry| match &entry.said {
        Said::Harness(event) => !matches!(
            event.step,
            harness::Step::Fence {
                verdict: harness::FenceVerdict::Duplicate,
                ..
            }
        ),
        Said::World(_) => true,
    };
    let plan = refuted(duplicates(), duplicate);
    assert_eq!(
        (plan.jobs.len(), plan.jobs[0].resend_after_ms.len()),
        (1, 1),
        "{plan:?}"
    );
    assert!(plan.faults.is_empty(), "{plan:?}");

    let replayed = |entry: &Entry| !matches!(&entry.said, Said::World(Fact::LetterReplayed { .. }));
    let plan = refuted(replays(), replayed);
    assert_eq!(plan.jobs.len(), 1, "{plan:?}");
    assert!(plan.faults.is_empty(), "{plan:?}");

    let poison = |entry: &Entry| {
        !matches!(
            &entry.said,
            Said::World(Fact::LetterWritten {
                reason: harness::Reason::Poison,
                ..
            })
        )
    };
    let plan = refuted(poisoned(), poison);
    assert_eq!(
        (plan.jobs.len(), plan.jobs[0].behaviour),
        (1, Behaviour::Poison),
        "{plan:?}"
    );
    assert!(
        plan.faults.is_empty() && plan.jobs[0].decisions.is_empty(),
        "{plan:?}"
    );
}
