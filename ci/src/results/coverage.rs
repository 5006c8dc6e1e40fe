//! What happened how often in the simulation.

use serde::{Deserialize, Serialize};

/// Kinds of faults, steps of the gate, and the steps while each kind was in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Steps of the gate: the columns.
    pub gate: Vec<String>,
    /// Kinds of faults: the rows.
    pub faults: Vec<Fault>,
    /// All steps.
    pub steps: Vec<Step>,
}

/// A kind of fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Its name.
    pub kind: String,
    /// How often it was there.
    pub times: u64,
    /// How often each step of the gate was seen while it was.
    pub steps: Vec<u64>,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub step: String,
    /// How often it was seen.
    pub times: u64,
}

impl Coverage {
    /// Adds what happened in another part of the same run.
    ///
    /// # Errors
    /// When it speaks of other faults or steps.
    pub fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        let kinds =
            |it: &Self| -> Vec<String> { it.faults.iter().map(|it| it.kind.clone()).collect() };
        let steps =
            |it: &Self| -> Vec<String> { it.steps.iter().map(|it| it.step.clone()).collect() };
        anyhow::ensure!(
            self.gate == other.gate && kinds(self) == kinds(other) && steps(self) == steps(other),
            "parts that cover different things"
        );
        for (mine, its) in self.faults.iter_mut().zip(&other.faults) {
            mine.times += its.times;
            for (mine, its) in mine.steps.iter_mut().zip(&its.steps) {
                *mine += its;
            }
        }
        for (mine, its) in self.steps.iter_mut().zip(&other.steps) {
            mine.times += its.times;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_coverage_of_parts_adds_up() {
        let json = r#"{"gate": ["applied"], "faults": [{"kind": "kill", "times": 2, "steps": [3]}], "steps": [{"step": "applied", "times": 5}]}"#;
        let one: Coverage = serde_json::from_str(json).unwrap();
        let mut sum = one.clone();
        sum.add(&one).unwrap();
        assert_eq!(
            (
                sum.faults[0].times,
                sum.faults[0].steps[0],
                sum.steps[0].times
            ),
            (4, 6, 10)
        );
        let mut other = one.clone();
        other.faults[0].kind = "pause".to_owned();
        assert!(sum.add(&other).is_err());
    }
}
