//! What the layers' own tools say about a run, read from what they write for machines. Whatever cannot be read is an error:
//! a result that nobody understands is no evidence.

mod coverage;
pub mod fuzz;
pub mod junit;
pub mod models;
pub mod mutants;
pub mod sweep;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::coverage::Coverage;
use crate::evidence::{Evidence, Failure, Layer};

/// One test and how long it took, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Its name.
    pub name: String,
    /// Seconds.
    pub seconds: f64,
}

/// What a step's result comes to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Results {
    /// A word per layer and clause.
    pub evidence: Vec<Evidence>,
    /// What failed, whether it stands for a clause or not.
    pub failures: Vec<Failure>,
    /// How long single tests took.
    pub timed: Vec<Timed>,
    /// What else a reader wants to know, such as sizes.
    pub notes: Vec<String>,
    /// What happened in the simulation.
    pub coverage: Option<Coverage>,
}

/// Adds up what is said of a clause.
#[derive(Default)]
struct Sums(BTreeMap<(Layer, String, &'static str), (u64, Vec<Failure>)>);

impl Sums {
    fn add(
        &mut self,
        layer: Layer,
        clause: String,
        unit: &'static str,
        amount: u64,
        failure: Option<Failure>,
    ) {
        let (sum, failures) = self.0.entry((layer, clause, unit)).or_default();
        *sum += amount;
        failures.extend(failure);
    }

    fn evidence(self) -> Vec<Evidence> {
        let all = self.0.into_iter();
        all.map(|((layer, clause, unit), (amount, failures))| Evidence {
            layer,
            clause,
            amount,
            unit: unit.to_owned(),
            failures,
        })
        .collect()
    }
}
