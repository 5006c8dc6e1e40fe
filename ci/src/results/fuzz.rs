//! What `ci/fuzz` writes: a line of JSON for each target.

use anyhow::Context as _;
use serde::Deserialize;

use super::{Results, Sums};
use crate::clauses;
use crate::evidence::{Failure, Layer};

/// Where it is written, below the project.
pub const FILE: &str = "target/fuzz.ndjson";

#[derive(Deserialize)]
struct Target {
    target: String,
    clauses: String,
    inputs: u64,
    found: bool,
}

/// Every input of a target is evidence for the target's clauses.
///
/// # Errors
/// When a line cannot be read, or there is none.
pub fn read(text: &str) -> anyhow::Result<Results> {
    let (mut results, mut sums) = (Results::default(), Sums::default());
    for line in text.lines() {
        let it: Target =
            serde_json::from_str(line).context("a line of the fuzzer's result cannot be read")?;
        let failure = it.found.then(|| {
            Failure::new(
                format!("fuzzing {} found something", it.target),
                format!("ci/fuzz --minutes 1 --target {}", it.target),
            )
        });
        results.failures.extend(failure.clone());
        for clause in it
            .clauses
            .split([',', ' '])
            .filter(|it| clauses::exists(it))
        {
            sums.add(
                Layer::Fuzz,
                clause.to_owned(),
                "inputs",
                it.inputs,
                failure.clone(),
            );
        }
        results
            .notes
            .push(format!("{}: {} inputs", it.target, it.inputs));
    }
    anyhow::ensure!(!results.notes.is_empty(), "no target was fuzzed");
    results.evidence = sums.evidence();
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_every_input_of_a_target_counts_and_what_is_found_is_a_failure() {
        let text = "{\"target\": \"scenario\", \"clauses\": \"S1, L1\", \"inputs\": 7, \"found\": false}\n\
                    {\"target\": \"jwt\", \"clauses\": \"\", \"inputs\": 1, \"found\": true}\n";
        let results = read(text).unwrap();
        let said: Vec<_> = results
            .evidence
            .iter()
            .map(|it| (&*it.clause, it.amount))
            .collect();
        assert_eq!(said, [("L1", 7), ("S1", 7)]);
        assert_eq!(results.failures.len(), 1);
        assert!(read("").is_err() && read("x").is_err());
    }
}
