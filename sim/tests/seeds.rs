//! Seeds in every run of the tests: first that a seed decides everything, then that the invariants hold.

#![allow(clippy::unwrap_used, clippy::panic)]

use sim::checkers::check;
use sim::jobs::silence_planned_panics;
use sim::plan::Plan;
use sim::world::run;

const JOBS: usize = 30;

#[test]
fn sim_the_same_seed_is_the_same_world() {
    silence_planned_panics();
    sim::world::check_build().unwrap();
    for seed in 0..8 {
        let plan = Plan::draw(seed, JOBS);
        let (one, two) = (run(&plan).unwrap(), run(&plan).unwrap());
        let (one, two) = (one.history.trace(), two.history.trace());
        assert!(one.lines().count() > 100, "seed {seed}: nothing happened");
        for (n, (a, b)) in one.lines().zip(two.lines()).enumerate() {
            assert_eq!(a, b, "seed {seed}: line {n}");
        }
        assert_eq!(one.len(), two.len());
    }
}

#[test]
fn sim_a_plan_survives_its_file() {
    for seed in 0..50 {
        let plan = Plan::draw(seed, JOBS);
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}

/// A fixed set here; more by hand: `cargo sim sweep`.
#[test]
fn sim_all_invariants_hold() {
    silence_planned_panics();
    for seed in 0..40 {
        let plan = Plan::draw(seed, JOBS);
        let ran = run(&plan).unwrap();
        let violations = check(&plan, &ran);
        assert!(
            violations.is_empty(),
            "seed {seed}: {}\nreproduce: cargo sim run --seed {seed} --jobs {JOBS}",
            violations[0]
        );
    }
}
