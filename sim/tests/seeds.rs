//! Seeds in every run of the tests: first that a seed decides everything, then that the invariants hold. More of both:
//! `cargo sim meta`, `cargo sim sweep`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;
use std::process::Command;

use sim::checkers::{Violation, check};
use sim::coverage::Coverage;
use sim::history::{Header, Stored, digest, trace};
use sim::jobs::silence_planned_panics;
use sim::plan::{Plan, Saved};
use sim::world::{Options, check_build, run};

const JOBS: usize = 30;

fn detailed() -> Options {
    Options { detailed: true }
}

#[test]
fn sim_the_same_seed_is_the_same_world() {
    silence_planned_panics();
    check_build().unwrap();
    for seed in 0..8 {
        let plan = Plan::draw(seed, JOBS);
        let one = trace(&run(&plan, detailed()).unwrap().entries);
        let two = trace(&run(&plan, detailed()).unwrap().entries);
        assert!(one.lines().count() > 1_000, "seed {seed}: nothing happened");
        for (n, (a, b)) in one.lines().zip(two.lines()).enumerate() {
            assert_eq!(a, b, "seed {seed}: line {n}");
        }
        assert_eq!(one.len(), two.len());
    }
}

#[test]
fn sim_two_processes_agree() {
    let output = Command::new(env!("CARGO_BIN_EXE_sim"))
        .args(["meta", "--seeds", "4", "--per-seed", "30"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn sim_writing_everything_down_changes_nothing() {
    silence_planned_panics();
    for seed in 0..8 {
        let plan = Plan::draw(seed, JOBS);
        let quiet = run(&plan, Options::default()).unwrap();
        let loud = run(&plan, detailed()).unwrap();
        assert!(loud.entries.len() > quiet.entries.len());
        assert_eq!(digest(&quiet.entries), digest(&loud.entries), "seed {seed}");
    }
}

#[test]
fn sim_all_invariants_hold() {
    silence_planned_panics();
    for seed in 0..40 {
        let ran = run(&Plan::draw(seed, JOBS), Options::default()).unwrap();
        let violations = ran.violations;
        assert!(
            violations.is_empty(),
            "seed {seed}: {}\nreproduce: cargo sim run --seed {seed} --per-seed {JOBS}",
            violations[0]
        );
    }
}

/// Every failure that was ever found, kept as the small plan that it shrank to.
#[test]
fn sim_the_corpus_holds() {
    silence_planned_panics();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let saved = Saved::read(&file).unwrap();
        assert!(
            !saved.about.is_empty(),
            "{} says what it was",
            file.display()
        );
        let ran = run(&saved.plan, Options::default()).unwrap();
        assert_eq!(
            ran.violations,
            Vec::<Violation>::new(),
            "{}",
            file.display()
        );
    }
}

#[test]
fn sim_a_stored_history_is_checked_the_same() {
    silence_planned_panics();
    let plan = Plan::draw(3, JOBS);
    let entries = run(&plan, detailed()).unwrap().entries;
    let header = Header {
        commit: "none".to_owned(),
        plan: plan.clone(),
        violated: Vec::new(),
    };
    let stored = Stored { header, entries };
    let file = tempfile::NamedTempFile::new().unwrap();
    stored.write(file.path()).unwrap();
    let read = Stored::read(file.path()).unwrap();
    assert_eq!(read, stored);
    assert_eq!(
        check(&plan, &read.entries).unwrap(),
        Vec::<Violation>::new()
    );

    std::fs::write(file.path(), "{\"seed\": 1}\n").unwrap();
    let error = format!("{:#}", Stored::read(file.path()).unwrap_err());
    assert!(error.contains("line 1: not the header"), "{error}");
}

/// What is counted must be countable: over a hundred seeds nearly everything happens.
#[test]
fn sim_coverage_counts() {
    silence_planned_panics();
    let mut coverage = Coverage::default();
    for seed in 0..60 {
        coverage.add(
            &run(&Plan::draw(seed, JOBS), Options::default())
                .unwrap()
                .entries,
        );
    }
    assert!(coverage.steps["applied"] > 1_000);
    assert!(coverage.faults.len() > 12, "{:?}", coverage.faults);
    assert!(coverage.missing().len() < 100, "{:?}", coverage.missing());
}
