//! Which test stands for which clause: read from the tests' names, never from a hand-kept list.
//!
//! A test's name starts with the clauses that it gives evidence for, in lower case: `a1_a2_twins_under_kills` stands for
//! A1 and A2. What counts is the test's own name, not its module's.

use std::collections::BTreeMap;

use anyhow::Context as _;
use quick_junit::{Report, TestCaseStatus};
use serde::Serialize;

/// The clauses that need evidence: acceptance criteria and behaviours of the specification.
pub const CLAUSES: [(&str, &str); 17] = [
    ("A1", "the same job twice concurrently: exactly one effect"),
    ("A2", "a crash between work and fence leaves neither"),
    (
        "A3",
        "a transient failure retries 5 times with growing intervals, then a dead letter",
    ),
    (
        "A4",
        "a schema-invalid payload goes straight to dead letters",
    ),
    ("A5", "replay with the same job id: no second effect"),
    (
        "A6",
        "TTL cleanup removes expired rows, never one inside its retry window",
    ),
    ("A7", "discarding without a reason is rejected"),
    ("A8", "no successful job writes a row beyond its fence"),
    ("B1", "the fence is written in the work's transaction"),
    ("B2", "a duplicate acks and skips, silently, with a metric"),
    (
        "B3",
        "retry policy: 5 attempts, exponential backoff with jitter, override needs a rationale",
    ),
    (
        "B4",
        "exhausted retries and hard failures are on record and alerted",
    ),
    ("B5", "poison skips retries"),
    ("B6", "replay republishes with the same job id"),
    ("B7", "the TTL exceeds the retry window with margin"),
    (
        "B8",
        "pending_review -> replayed | discarded, discarding needs a reason",
    ),
    ("B9", "successes are metrics, not rows"),
];

/// What was run for one clause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// Tests that stood for it and passed.
    pub passed: usize,
    /// Names of those that did not.
    pub failed: Vec<String>,
}

impl Evidence {
    /// Something stood for it, and all of it passed.
    pub fn holds(&self) -> bool {
        self.passed > 0 && self.failed.is_empty()
    }
}

/// All that a run of the tests says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Per clause, in the order of [`CLAUSES`].
    pub clauses: BTreeMap<String, Evidence>,
    /// All tests that were run.
    pub tests: usize,
    /// Names of all that failed, whatever they stand for.
    pub failed: Vec<String>,
}

impl Findings {
    /// Reads a JUnit report.
    ///
    /// # Errors
    /// When it is no JUnit report.
    pub fn from_junit(xml: &str) -> anyhow::Result<Self> {
        let report = Report::deserialize_from_str(xml)
            .context("the test runner's report is no JUnit report")?;
        let mut findings = Self::default();
        for (clause, _) in CLAUSES {
            findings
                .clauses
                .insert(clause.to_owned(), Evidence::default());
        }
        for case in report
            .test_suites
            .iter()
            .flat_map(|suite| &suite.test_cases)
        {
            let passed = match case.status {
                TestCaseStatus::Success { .. } => true,
                TestCaseStatus::NonSuccess { .. } => false,
                // Not run is no evidence, and no failure.
                TestCaseStatus::Skipped { .. } => continue,
            };
            findings.tests += 1;
            let name = case.name.as_str();
            if !passed {
                findings.failed.push(name.to_owned());
            }
            for clause in clauses_of(name) {
                let Some(evidence) = findings.clauses.get_mut(&clause) else {
                    continue;
                };
                if passed {
                    evidence.passed += 1;
                } else {
                    evidence.failed.push(name.to_owned());
                }
            }
        }
        Ok(findings)
    }

    /// Every clause has evidence, and no test failed.
    pub fn hold(&self) -> bool {
        self.failed.is_empty() && self.clauses.values().all(Evidence::holds)
    }
}

/// The clauses at the start of a test's own name.
fn clauses_of(name: &str) -> Vec<String> {
    let own = name.rsplit("::").next().unwrap_or(name);
    own.split('_')
        .take_while(|part| {
            let mut chars = part.chars();
            matches!(chars.next(), Some('a'..='z'))
                && !chars.as_str().is_empty()
                && chars.all(|c| c.is_ascii_digit())
        })
        .map(str::to_ascii_uppercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cases: &[(&str, bool)]) -> String {
        let cases: String = cases
            .iter()
            .map(|(name, passed)| {
                let inner = if *passed {
                    ""
                } else {
                    r#"<failure type="test failure"/>"#
                };
                format!(r#"<testcase name="{name}" classname="x" time="0.1">{inner}</testcase>"#)
            })
            .collect();
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><testsuites name="n" tests="0" failures="0" errors="0" time="1"><testsuite name="x" tests="0" disabled="0" errors="0" failures="0">{cases}</testsuite></testsuites>"#
        )
    }

    fn complete() -> Vec<(String, bool)> {
        CLAUSES
            .iter()
            .map(|(clause, _)| (format!("m::{}_holds", clause.to_lowercase()), true))
            .collect()
    }

    fn findings(cases: &[(String, bool)]) -> Findings {
        let cases: Vec<(&str, bool)> = cases
            .iter()
            .map(|(name, passed)| (name.as_str(), *passed))
            .collect();
        Findings::from_junit(&report(&cases)).unwrap()
    }

    #[test]
    fn gate_names_are_read_from_the_front() {
        assert_eq!(clauses_of("a1_one_effect::a1_a2_twins"), ["A1", "A2"]);
        assert_eq!(clauses_of("a1_one_effect::helper_a1"), Vec::<String>::new());
        assert_eq!(clauses_of("b12_x"), ["B12"]);
        assert_eq!(clauses_of("a_b1"), Vec::<String>::new());
    }

    #[test]
    fn gate_is_green_only_with_evidence_for_every_clause() {
        assert!(findings(&complete()).hold());
        for (missing, (clause, _)) in CLAUSES.iter().enumerate() {
            let mut cases = complete();
            cases.remove(missing);
            assert!(!findings(&cases).hold(), "{clause} has no evidence");
        }
    }

    #[test]
    fn gate_is_red_with_any_failure() {
        for (failing, (clause, _)) in CLAUSES.iter().enumerate() {
            let mut cases = complete();
            cases[failing].1 = false;
            let findings = findings(&cases);
            assert!(!findings.hold());
            assert_eq!(findings.clauses[*clause].failed.len(), 1);
        }
        let mut cases = complete();
        cases.push(("something_else".to_owned(), false));
        assert!(
            !findings(&cases).hold(),
            "a failure without a clause is a failure"
        );
    }

    #[test]
    fn gate_refuses_what_is_no_report() {
        assert!(Findings::from_junit("").is_err());
        assert!(Findings::from_junit("{}").is_err());
    }
}
