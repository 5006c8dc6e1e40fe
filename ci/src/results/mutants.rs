//! What cargo-mutants writes (`ci/mutants`), held against the survivors that are known.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use serde::Deserialize;

use super::Results;
use crate::evidence::Failure;

/// Where it is written, below the project.
pub const FILE: &str = "target/mutants.out/outcomes.json";

const SURVIVORS: &str = include_str!("../../survivors.toml");

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    scenario: Scenario,
    summary: Summary,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant(Mutant),
}

#[derive(Deserialize)]
struct Mutant {
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
enum Summary {
    Success,
    CaughtMutant,
    MissedMutant,
    Unviable,
    Failure,
    Timeout,
}

/// Why survivors may survive, by their names.
fn known(toml: &str) -> anyhow::Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Survivor {
        mutant: String,
        why: String,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct List {
        survivor: Vec<Survivor>,
    }
    let list: List = toml::from_str(toml).context("ci/survivors.toml")?;
    let mut known = BTreeMap::new();
    for it in list.survivor {
        anyhow::ensure!(!it.why.trim().is_empty(), "{}: say why", it.mutant);
        let twice = known.insert(it.mutant.clone(), it.why);
        anyhow::ensure!(twice.is_none(), "{} is there twice", it.mutant);
    }
    Ok(known)
}

/// Lines and columns change with every edit: `a.rs:3:5: replace > with <` is known as `a.rs: replace > with <`.
fn without_place(name: &str) -> String {
    let parts: Vec<&str> = name.splitn(4, ':').collect();
    match parts[..] {
        [file, line, column, what] if is_number(line) && is_number(column) => {
            format!("{file}:{what}")
        }
        _ => name.to_owned(),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit())
}

/// Every change was noticed, or is known to be none.
///
/// # Errors
/// When it is no such result, nothing was changed, or the tests fail without any change.
pub fn read(json: &str) -> anyhow::Result<Results> {
    read_with(json, SURVIVORS)
}

fn read_with(json: &str, survivors: &str) -> anyhow::Result<Results> {
    let outcomes: Outcomes =
        serde_json::from_str(json).context("the mutants' result cannot be read")?;
    let known = known(survivors)?;
    let mut results = Results::default();
    let (mut noticed, mut unviable, mut excused) = (0_u64, 0_u64, 0_u64);
    let mut noticed_names = BTreeSet::new();
    let mut missed_names = BTreeSet::new();
    for it in outcomes.outcomes {
        let name = match it.scenario {
            Scenario::Baseline => {
                anyhow::ensure!(
                    it.summary == Summary::Success,
                    "the tests fail without any change"
                );
                continue;
            }
            Scenario::Mutant(mutant) => mutant.name,
        };
        let short = without_place(&name);
        match it.summary {
            Summary::Unviable => unviable += 1,
            // A test that never ends has noticed, too.
            Summary::CaughtMutant | Summary::Timeout => {
                noticed += 1;
                noticed_names.insert(short);
            }
            Summary::MissedMutant if known.contains_key(&short) => {
                excused += 1;
                missed_names.insert(short);
            }
            Summary::MissedMutant => results.failures.push(Failure::new(
                format!("nobody notices: {name}"),
                format!("ci/mutants -- --re '{}'", quoted(&short)),
            )),
            Summary::Success | Summary::Failure => {
                anyhow::bail!("{name}: neither noticed nor missed")
            }
        }
    }
    anyhow::ensure!(noticed > 0, "nothing was changed");
    for name in noticed_names.difference(&missed_names) {
        if known.contains_key(name) {
            results.failures.push(Failure::new(
                format!("noticed after all, so take it out of ci/survivors.toml: {name}"),
                "ci/mutants",
            ));
        }
    }
    results.notes.push(format!(
        "{noticed} changes noticed, {excused} known to be none, {} missed, {unviable} do not build",
        results.failures.len()
    ));
    Ok(results)
}

/// What follows the file, as a regular expression.
fn quoted(short: &str) -> String {
    let what = short.split_once(": ").map_or(short, |(_, what)| what);
    let escaped = what.chars().flat_map(|c| match c {
        c if c.is_ascii_punctuation() && c != '_' => vec!['\\', c],
        c => vec![c],
    });
    escaped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(mutants: &[(&str, &str)]) -> String {
        let mutants = mutants.iter().map(|(name, summary)| {
            serde_json::json!({"scenario": {"Mutant": {"name": name}}, "summary": summary})
        });
        let baseline = serde_json::json!({"scenario": "Baseline", "summary": "Success"});
        let outcomes: Vec<_> = [baseline].into_iter().chain(mutants).collect();
        serde_json::json!({"outcomes": outcomes}).to_string()
    }

    const KNOWN: &str =
        "[[survivor]]\nmutant = \"a.rs: replace > with >= in f\"\nwhy = \"they are never equal\"\n";

    fn failures(mutants: &[(&str, &str)]) -> Vec<String> {
        let results = read_with(&json(mutants), KNOWN).unwrap();
        results.failures.into_iter().map(|it| it.what).collect()
    }

    #[test]
    fn gate_a_survivor_is_a_failure_unless_it_is_known_why() {
        let caught = ("a.rs:1:2: replace < with >", "CaughtMutant");
        assert_eq!(failures(&[caught]), Vec::<String>::new());
        let known = ("a.rs:7:9: replace > with >= in f", "MissedMutant");
        assert_eq!(failures(&[caught, known]), Vec::<String>::new());
        let unknown = ("a.rs:7:9: replace > with == in f", "MissedMutant");
        assert_eq!(
            failures(&[caught, unknown]),
            ["nobody notices: a.rs:7:9: replace > with == in f"]
        );
        let after_all = ("a.rs:7:9: replace > with >= in f", "Timeout");
        assert_eq!(failures(&[caught, after_all]).len(), 1);
        // The same change in two places: one of them is known.
        assert_eq!(failures(&[after_all, known]), Vec::<String>::new());
    }

    #[test]
    fn gate_a_mutant_is_known_without_its_place() {
        let known = "a.rs: replace A::f -> u8 with 1";
        assert_eq!(without_place("a.rs:3:12: replace A::f -> u8 with 1"), known);
        assert_eq!(without_place(known), known);
    }

    #[test]
    fn gate_mutants_of_which_none_was_noticed_are_no_evidence() {
        assert!(read_with(&json(&[]), KNOWN).is_err());
        assert!(read_with(&json(&[("a.rs:1:2: x", "Unviable")]), KNOWN).is_err());
        let failing = json(&[("a.rs:1:2: x", "CaughtMutant")]).replace("Success", "Failure");
        assert!(read_with(&failing, KNOWN).is_err());
        assert!(read_with("", KNOWN).is_err());
        assert!(known("[[survivor]]\nmutant = \"x\"\nwhy = \" \"\n").is_err());
    }
}
