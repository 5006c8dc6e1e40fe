//! What `cargo sim sweep --format json` says.

use anyhow::Context as _;
use serde::Deserialize;

use super::{Coverage, Results, Sums};
use crate::clauses;
use crate::evidence::{Failure, Layer};

/// Where pictures of seeds that failed are, below the report's folder.
pub const PICTURES: &str = "seeds";

/// What a sweep says.
#[derive(Deserialize)]
pub(crate) struct Sweep {
    pub(crate) seeds: u64,
    per_seed: u64,
    pub(crate) from: u64,
    events: u64,
    invariants: Vec<String>,
    pub(crate) failed: Vec<Failed>,
    #[serde(default)]
    coverage: Option<Coverage>,
}

/// A seed that failed.
#[derive(Deserialize)]
pub(crate) struct Failed {
    pub(crate) seed: u64,
    invariants: Vec<String>,
    what: String,
    reproduce: String,
    #[serde(default)]
    picture: Option<String>,
}

impl Failed {
    /// In a line.
    pub(crate) fn told(&self) -> String {
        format!("seed {}: {}", self.seed, self.what)
    }
}

/// Every invariant was checked on every seed.
///
/// # Errors
/// When it is no such result, or no seed was run.
pub fn read(json: &str) -> anyhow::Result<Results> {
    let sweep: Sweep = serde_json::from_str(json).context("the sweep's result cannot be read")?;
    anyhow::ensure!(sweep.seeds > 0, "the sweep ran no seed");
    anyhow::ensure!(!sweep.invariants.is_empty(), "the sweep checked nothing");
    let (mut results, mut sums) = (Results::default(), Sums::default());
    for invariant in &sweep.invariants {
        if let Some(clause) = clauses::of_promise(invariant) {
            sums.add(Layer::Simulation, clause, "seeds", sweep.seeds, None);
        }
    }
    for failed in sweep.failed {
        let mut failure = Failure::new(failed.told(), failed.reproduce);
        failure.picture = failed.picture.map(|it| format!("{PICTURES}/{it}"));
        for clause in failed
            .invariants
            .iter()
            .filter_map(|it| clauses::of_promise(it))
        {
            sums.add(Layer::Simulation, clause, "seeds", 0, Some(failure.clone()));
        }
        results.failures.push(failure);
    }
    results.evidence = sums.evidence();
    results.coverage = sweep.coverage;
    let Sweep {
        seeds,
        per_seed,
        from,
        events,
        ..
    } = sweep;
    results.notes.push(format!(
        "{seeds} seeds of {per_seed} jobs from {from}, {events} events"
    ));
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_a_sweep_speaks_for_every_invariant_that_it_checked() {
        let json = r#"{"seeds": 7, "per_seed": 3, "from": 5, "events": 9, "invariants": ["S1 one effect", "C1 conforms"],
            "failed": [{"seed": 6, "invariants": ["S1 one effect"], "what": "twice", "reproduce": "cargo sim run --seed 6"}]}"#;
        let results = read(json).unwrap();
        assert_eq!(results.evidence.len(), 1);
        let it = &results.evidence[0];
        assert_eq!((&*it.clause, it.amount, it.failures.len()), ("S1", 7, 1));
        assert_eq!(results.failures[0].reproduce, "cargo sim run --seed 6");
    }

    #[test]
    fn gate_a_sweep_without_seeds_or_checks_is_no_evidence() {
        let none = r#"{"seeds": 0, "per_seed": 3, "from": 5, "events": 9, "invariants": ["S1"], "failed": []}"#;
        assert!(read(none).is_err());
        let nothing = r#"{"seeds": 1, "per_seed": 3, "from": 5, "events": 9, "invariants": [], "failed": []}"#;
        assert!(read(nothing).is_err());
        assert!(read("").is_err());
    }
}
