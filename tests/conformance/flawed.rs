//! The suites under implementations with mistakes: each mistake turns the case red that is named for it, and there is no
//! case that no mistake turns red.

use std::collections::{BTreeMap, BTreeSet};

use acceptance::conformance::queue_flaws::{self, QueueFlaw};
use acceptance::conformance::store_flaws::{self, StoreFlaw};
use acceptance::conformance::{queue, store};

use crate::real::Real;
use crate::simulated::{EXEMPT, in_a_world};

/// Cases by mistake; says which mistakes were not found where they should have been, and which cases found none.
fn judge<F: std::fmt::Debug + Ord + Copy>(
    flaws: &[(F, &str)],
    cases: &[&'static str],
    red: &BTreeMap<F, BTreeSet<&'static str>>,
) {
    let mut wrong = Vec::new();
    for (flaw, case) in flaws {
        let found = &red[flaw];
        if !found.contains(case) {
            wrong.push(format!("{flaw:?} is not found by {case}, but by {found:?}"));
        }
    }
    let ever: BTreeSet<_> = red.values().flatten().copied().collect();
    for case in cases {
        if !ever.contains(case) {
            wrong.push(format!("no mistake turns {case} red"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_mistake_of_a_queue_is_found_and_every_case_finds_one() {
    let mut red = BTreeMap::new();
    for (flaw, _) in QueueFlaw::ALL {
        let found = in_a_world(move |bench| async move {
            queue::run_all(&queue_flaws::FlawedBench::new(bench, flaw)).await
        });
        red.insert(flaw, found.into_iter().map(|(case, _)| case).collect());
    }
    judge(&QueueFlaw::ALL, queue::CASES, &red);
}

#[test]
fn every_mistake_of_a_store_is_found_and_every_case_finds_one() {
    let mut red = BTreeMap::new();
    for (flaw, _) in StoreFlaw::ALL {
        let found = in_a_world(move |bench| async move {
            store::run_all(&store_flaws::FlawedBench::new(bench, flaw)).await
        });
        let found = found.into_iter().map(|(case, _)| case);
        red.insert(flaw, found.filter(|case| !EXEMPT.contains(case)).collect());
    }
    let cases: Vec<_> = store::CASES
        .iter()
        .copied()
        .filter(|case| !EXEMPT.contains(case))
        .collect();
    judge(&StoreFlaw::ALL, &cases, &red);
}

/// On the real thing, too: what needs no server of its own.
#[tokio::test]
async fn mistakes_are_found_on_pgmq() {
    let real = Real::shared().await;
    for (flaw, case) in QueueFlaw::ALL {
        if case.contains("server") || case.contains("away") {
            continue;
        }
        let bench = queue_flaws::FlawedBench::new(real.clone(), flaw);
        let ended = queue::run(case, &bench).await;
        assert!(ended.is_err(), "{flaw:?} is not found by {case}");
    }
}

#[tokio::test]
async fn mistakes_are_found_on_postgres() {
    let real = Real::shared().await;
    for (flaw, case) in StoreFlaw::ALL {
        if case.contains("server") || case.contains("away") {
            continue;
        }
        let bench = store_flaws::FlawedBench::new(real.clone(), flaw);
        let ended = store::run(case, &bench).await;
        assert!(ended.is_err(), "{flaw:?} is not found by {case}");
    }
}

/// The case that only the real store is held to.
#[tokio::test]
async fn what_the_simulation_is_exempt_from_finds_a_mistake_on_postgres() {
    for case in EXEMPT {
        let flaw = StoreFlaw::RefusedIsCommitted;
        let bench = store_flaws::FlawedBench::new(Real::shared().await, flaw);
        let ended = store::run(case, &bench).await;
        assert!(ended.is_err(), "{flaw:?} is not found by {case}");
    }
}
