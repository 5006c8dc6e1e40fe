//! Clauses by layers: what was shown, and what is missing.

use std::collections::{BTreeMap, BTreeSet};

use crate::clauses::CLAUSES;
use crate::evidence::{Evidence, Failure, Layer};
use crate::required::Required;

/// One clause in one layer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// How much was run, by unit.
    pub amounts: BTreeMap<String, u64>,
    /// What failed.
    pub failures: Vec<Failure>,
    /// Why this is needed, if it is.
    pub needed: Option<String>,
}

/// What a cell comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Nothing was said, and nothing needs to be.
    Empty,
    /// Something was run, and all of it passed.
    Green,
    /// It is needed, and the layer was not run here.
    NotRun,
    /// It is needed, the layer was run, and said nothing about the clause.
    Missing,
    /// Something failed.
    Red,
}

/// All cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    cells: BTreeMap<(&'static str, Layer), Cell>,
    run: BTreeSet<Layer>,
}

impl Matrix {
    /// From what the layers said. `run` are those that were run here, to their end.
    pub fn of(evidence: &[Evidence], run: &BTreeSet<Layer>, required: &Required) -> Self {
        let mut cells: BTreeMap<(&'static str, Layer), Cell> = BTreeMap::new();
        for (clause, _) in CLAUSES {
            for layer in Layer::ALL {
                let mut cell = Cell {
                    needed: required.reason(clause, layer).map(str::to_owned),
                    ..Cell::default()
                };
                for it in evidence
                    .iter()
                    .filter(|it| it.layer == layer && it.clause == clause)
                {
                    *cell.amounts.entry(it.unit.clone()).or_default() += it.amount;
                    cell.failures.extend(it.failures.iter().cloned());
                }
                cells.insert((clause, layer), cell);
            }
        }
        let run = run.clone();
        Self { cells, run }
    }

    /// One of them.
    pub fn cell(&self, clause: &'static str, layer: Layer) -> (Cell, Verdict) {
        let cell = self
            .cells
            .get(&(clause, layer))
            .cloned()
            .unwrap_or_default();
        let shown = cell.amounts.values().any(|amount| *amount > 0);
        let verdict = if !cell.failures.is_empty() {
            Verdict::Red
        } else if shown {
            Verdict::Green
        } else if cell.needed.is_none() {
            Verdict::Empty
        } else if self.run.contains(&layer) {
            Verdict::Missing
        } else {
            Verdict::NotRun
        };
        (cell, verdict)
    }

    /// What is needed and was not said by a layer that was run, with the reason for the need.
    pub fn missing(&self) -> Vec<(&'static str, Layer, String)> {
        CLAUSES
            .iter()
            .flat_map(|(clause, _)| Layer::ALL.map(|layer| (*clause, layer)))
            .filter_map(|(clause, layer)| match self.cell(clause, layer) {
                (cell, Verdict::Missing) => Some((clause, layer, cell.needed.unwrap_or_default())),
                _ => None,
            })
            .collect()
    }

    /// The worst cell of a clause.
    pub fn clause(&self, clause: &'static str) -> Verdict {
        let all = Layer::ALL.into_iter();
        all.map(|layer| self.cell(clause, layer).1)
            .max()
            .unwrap_or(Verdict::Missing)
    }

    /// The worst of all.
    pub fn all(&self) -> Verdict {
        let all = CLAUSES.into_iter();
        all.map(|(clause, _)| self.clause(clause))
            .max()
            .unwrap_or(Verdict::Missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Vec<Evidence> {
        let required = Required::committed().unwrap();
        let mut all = Vec::new();
        for (clause, _) in CLAUSES {
            for layer in Layer::ALL {
                if required.reason(clause, layer).is_some() {
                    all.push(Evidence {
                        layer,
                        clause: clause.to_owned(),
                        amount: 1,
                        unit: "tests".to_owned(),
                        failures: Vec::new(),
                    });
                }
            }
        }
        all
    }

    fn verdict(evidence: &[Evidence], run: &[Layer]) -> Verdict {
        let required = Required::committed().unwrap();
        Matrix::of(evidence, &run.iter().copied().collect(), &required).all()
    }

    #[test]
    fn gate_every_single_piece_of_evidence_is_needed() {
        let all = everything();
        assert!(all.len() > 50, "{}", all.len());
        assert_eq!(verdict(&all, &Layer::ALL), Verdict::Green);
        for missing in 0..all.len() {
            let mut some = all.clone();
            let gone = some.remove(missing);
            assert_eq!(verdict(&some, &Layer::ALL), Verdict::Missing, "{gone:?}");
            // Without its layer it is not green either, but says why.
            let others: Vec<Layer> = Layer::ALL
                .into_iter()
                .filter(|it| *it != gone.layer)
                .collect();
            assert_eq!(verdict(&some, &others), Verdict::NotRun, "{gone:?}");
        }
    }

    #[test]
    fn gate_any_failure_is_red_also_where_nothing_is_needed() {
        let mut all = everything();
        let failure = Failure::new("x", "y");
        all.push(Evidence {
            layer: Layer::Fuzz,
            clause: "A8".to_owned(),
            amount: 1,
            unit: "inputs".to_owned(),
            failures: vec![failure],
        });
        assert_eq!(verdict(&all, &Layer::ALL), Verdict::Red);
    }

    #[test]
    fn gate_nothing_run_is_not_green() {
        let mut all = everything();
        for it in &mut all {
            it.amount = 0;
        }
        assert_eq!(verdict(&all, &Layer::ALL), Verdict::Missing);
    }
}
