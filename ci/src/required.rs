//! Which layers must give evidence for which clause: `ci/required.toml`, with a reason each.

use std::collections::BTreeMap;

use anyhow::Context as _;

use crate::clauses::CLAUSES;
use crate::evidence::Layer;

const FILE: &str = include_str!("../required.toml");

/// Layers and reasons, by clause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Required(BTreeMap<String, BTreeMap<Layer, String>>);

impl Required {
    /// The committed table.
    ///
    /// # Errors
    /// When it is wrong; the error says where.
    pub fn committed() -> anyhow::Result<Self> {
        Self::read(FILE).context("ci/required.toml")
    }

    fn read(text: &str) -> anyhow::Result<Self> {
        let table: BTreeMap<String, BTreeMap<Layer, String>> = toml::from_str(text)?;
        for (clause, _) in CLAUSES {
            let layers = table
                .get(clause)
                .with_context(|| format!("{clause} is missing"))?;
            anyhow::ensure!(
                !layers.is_empty(),
                "{clause} needs no layer: nothing could turn it red"
            );
        }
        for (clause, layers) in &table {
            anyhow::ensure!(
                crate::clauses::exists(clause),
                "{clause}: there is no such clause"
            );
            for (layer, reason) in layers {
                let layer = layer.as_str();
                anyhow::ensure!(!reason.trim().is_empty(), "{clause}.{layer}: say why");
            }
        }
        Ok(Self(table))
    }

    /// Why a clause needs a layer, if it does.
    pub fn reason(&self, clause: &str, layer: Layer) -> Option<&str> {
        Some(self.0.get(clause)?.get(&layer)?.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_the_committed_table_names_every_clause_with_reasons() {
        let required = Required::committed().unwrap();
        assert!(required.reason("A1", Layer::Acceptance).is_some());
        assert_eq!(required.reason("A8", Layer::Loom), None);
    }

    #[test]
    fn gate_a_table_that_misses_something_is_refused_by_name() {
        let wrong = |change: (&str, &str), says: &str| {
            assert!(FILE.contains(change.0), "{}", change.0);
            let error = Required::read(&FILE.replacen(change.0, change.1, 1)).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(says), "{says:?} is not in: {error}");
        };
        wrong(("[A8]", "[A9]"), "A8 is missing");
        wrong(
            ("[L1]", "[L2]\nmodels = \"x\"\n[L1]"),
            "L2: there is no such clause",
        );
        wrong(("unit = \"the rule\"", "unit = \" \""), "B7.unit: say why");
        wrong(("unit = \"the rule\"", "magic = \"the rule\""), "magic");
    }
}
