//! What was run, for which clause, by which layer, and how it ended.

use serde::{Deserialize, Serialize};

/// A kind of evidence: a column of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The harness on a real PostgreSQL, real processes killed.
    Acceptance,
    /// The harness in simulated worlds.
    Simulation,
    /// The design, exhaustively.
    Models,
    /// Every implementation of a port, by the same tests.
    Conformance,
    /// The simulated store against PostgreSQL.
    Differential,
    /// The harness's own concurrency, every interleaving.
    Loom,
    /// Scenarios that proptest makes.
    Generated,
    /// Bytes that a fuzzer makes.
    Fuzz,
    /// Single pieces of the harness.
    Unit,
}

impl Layer {
    /// In the order of the columns.
    pub const ALL: [Self; 9] = [
        Self::Acceptance,
        Self::Simulation,
        Self::Models,
        Self::Conformance,
        Self::Differential,
        Self::Loom,
        Self::Generated,
        Self::Fuzz,
        Self::Unit,
    ];

    /// Its name in tables and files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acceptance => "acceptance",
            Self::Simulation => "simulation",
            Self::Models => "models",
            Self::Conformance => "conformance",
            Self::Differential => "differential",
            Self::Loom => "loom",
            Self::Generated => "generated",
            Self::Fuzz => "fuzz",
            Self::Unit => "unit",
        }
    }

    /// What it can show.
    pub const fn proves(self) -> &'static str {
        match self {
            Self::Acceptance => {
                "the criteria, on a real PostgreSQL, with processes killed and connections cut"
            }
            Self::Simulation => {
                "the invariants, over seeds: hosts crash, networks lose and split, clocks jump over days"
            }
            Self::Models => "the design, exhaustively on small scopes; wrong designs are caught",
            Self::Conformance => "that every store and every queue keeps the same promises",
            Self::Differential => "that the simulated store answers and blocks as PostgreSQL does",
            Self::Loom => "the harness's own concurrency, in every interleaving up to a bound",
            Self::Generated => "the invariants, over scenarios that are generated and shrunk",
            Self::Fuzz => "that no bytes from outside can do harm",
            Self::Unit => "single rules, beside the code",
        }
    }

    /// Its tests, as the test runner's filter; none where other tools run it.
    pub const fn tests(self) -> Option<&'static str> {
        Some(match self {
            Self::Acceptance => "binary_id(acceptance::acceptance)|binary_id(acceptance::wire)",
            Self::Conformance => "binary_id(acceptance::conformance)",
            Self::Differential => "binary_id(acceptance::differential)",
            Self::Generated => "binary_id(acceptance::generated)|binary_id(sim::scenarios)",
            Self::Simulation => "package(sim)-binary_id(sim::scenarios)",
            Self::Models => "package(models)",
            Self::Unit => "package(harness)",
            Self::Loom | Self::Fuzz => return None,
        })
    }

    /// Whose tests a test binary holds, by the name that the test runner gives it; the longest match counts.
    pub fn of_binary(id: &str) -> Option<Self> {
        const BINARIES: [(&str, Layer); 9] = [
            ("acceptance::acceptance", Layer::Acceptance),
            ("acceptance::wire", Layer::Acceptance),
            ("acceptance::conformance", Layer::Conformance),
            ("acceptance::differential", Layer::Differential),
            ("acceptance::generated", Layer::Generated),
            ("sim::scenarios", Layer::Generated),
            ("sim", Layer::Simulation),
            ("models", Layer::Models),
            ("harness", Layer::Unit),
        ];
        BINARIES
            .iter()
            .filter(|(name, _)| id == *name || id.starts_with(&format!("{name}::")))
            .max_by_key(|(name, _)| name.len())
            .map(|(_, layer)| *layer)
    }
}

/// What was not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Failure {
    /// What failed.
    pub what: String,
    /// The one line that shows it again.
    pub reproduce: String,
    /// A picture of it, below the report's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<String>,
}

impl Failure {
    /// Without a picture.
    pub fn new(what: impl Into<String>, reproduce: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            reproduce: reproduce.into(),
            picture: None,
        }
    }
}

/// One layer's word about one clause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Who says it.
    pub layer: Layer,
    /// About what.
    pub clause: String,
    /// How much was run, failures included.
    pub amount: u64,
    /// Of what: tests, seeds, states.
    pub unit: String,
    /// What failed.
    pub failures: Vec<Failure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_the_longest_name_says_whose_tests_a_binary_holds() {
        assert_eq!(Layer::of_binary("sim::seeds"), Some(Layer::Simulation));
        assert_eq!(Layer::of_binary("sim::scenarios"), Some(Layer::Generated));
        assert_eq!(
            Layer::of_binary("harness::bin/job-harness"),
            Some(Layer::Unit)
        );
        assert_eq!(Layer::of_binary("acceptance"), None);
        assert_eq!(Layer::of_binary("simulator"), None);
    }
}
