//! What `cargo model check --format json` says.

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde::Deserialize;

use super::{Results, Sums};
use crate::clauses;
use crate::evidence::{Failure, Layer};

#[derive(Deserialize)]
struct Model {
    model: String,
    states: u64,
    promises: Vec<Promise>,
    broken: Vec<Broken>,
    never: Vec<String>,
}

#[derive(Deserialize)]
struct Promise {
    property: String,
    /// Clauses of the specification that it serves.
    clauses: String,
}

impl Promise {
    /// The invariant that it is, and the clauses that it serves.
    fn clauses(&self) -> impl Iterator<Item = String> {
        let served = self.clauses.split([',', ' ']).map(str::trim);
        let served = served.filter(|it| clauses::exists(it)).map(str::to_owned);
        clauses::of_promise(&self.property)
            .into_iter()
            .chain(served)
    }
}

#[derive(Deserialize)]
struct Broken {
    promise: String,
}

/// Every promise of a model was checked in every state of it.
///
/// # Errors
/// When it is no such result, or a model has no states or no promises.
pub fn read(json: &str) -> anyhow::Result<Results> {
    let models: Vec<Model> =
        serde_json::from_str(json).context("the models' result cannot be read")?;
    anyhow::ensure!(!models.is_empty(), "no model was checked");
    let (mut results, mut sums) = (Results::default(), Sums::default());
    for model in models {
        let name = &model.model;
        anyhow::ensure!(
            model.states > 1 && !model.promises.is_empty(),
            "the model {name} has nothing to check"
        );
        // Two promises may be about one clause; the states are the same.
        let clauses: BTreeSet<_> = model.promises.iter().flat_map(Promise::clauses).collect();
        for clause in clauses {
            sums.add(Layer::Models, clause, "states", model.states, None);
        }
        let broken = model
            .broken
            .iter()
            .map(|it| (&it.promise, format!("{name}: {} is broken", it.promise)));
        let never = model
            .never
            .iter()
            .map(|it| (it, format!("{name}: {it} never came true")));
        for (promise, what) in broken.chain(never) {
            let failure = Failure::new(what, format!("cargo model check {name}"));
            let of = model.promises.iter().filter(|it| it.property == *promise);
            for clause in of.flat_map(Promise::clauses).collect::<BTreeSet<_>>() {
                sums.add(Layer::Models, clause, "states", 0, Some(failure.clone()));
            }
            results.failures.push(failure);
        }
        results.notes.push(format!(
            "{name}: {} states, {} promises",
            model.states,
            model.promises.len()
        ));
    }
    results.evidence = sums.evidence();
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_a_model_speaks_for_its_promises_and_fails_for_what_never_came_true() {
        let json = r#"[{"model": "fence", "states": 40, "promises": [
            {"property": "S1 one effect", "clauses": "A1, B2"}, {"property": "S2 atomic fence", "clauses": "A2"}],
            "broken": [{"promise": "S2 atomic fence"}], "never": ["a duplicate is found"]}]"#;
        let results = read(json).unwrap();
        let said: Vec<_> = results
            .evidence
            .iter()
            .map(|it| (&*it.clause, it.amount, it.failures.len()))
            .collect();
        assert_eq!(
            said,
            [
                ("A1", 40, 0),
                ("A2", 40, 1),
                ("B2", 40, 0),
                ("S1", 40, 0),
                ("S2", 40, 1)
            ]
        );
        assert_eq!(results.failures.len(), 2);
    }

    #[test]
    fn gate_a_model_without_states_or_promises_is_no_evidence() {
        for json in [
            "[]",
            r#"[{"model": "x", "states": 0, "promises": [{"property": "S1 x", "clauses": ""}], "broken": [], "never": []}]"#,
            r#"[{"model": "x", "states": 9, "promises": [], "broken": [], "never": []}]"#,
            "",
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
