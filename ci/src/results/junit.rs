//! A JUnit report of the test runner.

use anyhow::Context as _;
use quick_junit::{Report, TestCaseStatus};

use super::{Results, Sums, Timed};
use crate::amount::counted;
use crate::clauses;
use crate::evidence::{Failure, Layer};
use crate::steps::Profile;

/// Where the test runner writes it, below the project: wherever cargo's target folder is.
pub const OF_CI: &str = "target/nextest/ci/junit.xml";

/// Which of the test runner's profiles (`.config/nextest.toml`) serves one of ours.
pub const fn profile(ours: Profile) -> &'static str {
    match ours {
        Profile::Quick => "quick",
        Profile::Change => "ci",
        Profile::Deep => "deep",
    }
}

/// Where that one leaves its report.
pub const fn file(ours: Profile) -> &'static str {
    match ours {
        Profile::Quick => "target/nextest/quick/junit.xml",
        Profile::Change => OF_CI,
        Profile::Deep => "target/nextest/deep/junit.xml",
    }
}

/// Reads a report. Tests that were skipped are no evidence, and no failure.
///
/// # Errors
/// When it is no JUnit report, or one without any test.
pub fn read(xml: &str) -> anyhow::Result<Results> {
    read_of(xml, Layer::of_binary)
}

/// Reads the report of tests that all are of one layer, wherever they live.
///
/// # Errors
/// As for [`read`].
pub fn read_loom(xml: &str) -> anyhow::Result<Results> {
    read_of(xml, |_| Some(Layer::Loom))
}

fn read_of(xml: &str, layer_of: impl Fn(&str) -> Option<Layer>) -> anyhow::Result<Results> {
    let report =
        Report::deserialize_from_str(xml).context("the test runner's report is no JUnit report")?;
    let (mut results, mut sums, mut tests) = (Results::default(), Sums::default(), 0_u64);
    for suite in &report.test_suites {
        let layer = layer_of(suite.name.as_str());
        for case in &suite.test_cases {
            let passed = match case.status {
                TestCaseStatus::Success { .. } => true,
                TestCaseStatus::NonSuccess { .. } => false,
                TestCaseStatus::Skipped { .. } => continue,
            };
            tests += 1;
            let name = case.name.as_str();
            let failure = (!passed).then(|| Failure::new(name, format!("ci/test {name}")));
            results.failures.extend(failure.clone());
            results.timed.extend(case.time.map(|time| Timed {
                name: name.to_owned(),
                seconds: time.as_secs_f64(),
            }));
            let Some(layer) = layer else { continue };
            for clause in clauses::of_test(name) {
                if clauses::exists(&clause) {
                    sums.add(layer, clause, "tests", 1, failure.clone());
                }
            }
        }
    }
    anyhow::ensure!(tests > 0, "the test runner's report has no test in it");
    results.evidence = sums.evidence();
    results.notes.push(counted(tests, "tests"));
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cases: &[(&str, &str)]) -> String {
        let cases: String = cases
            .iter()
            .map(|(name, inner)| {
                format!(r#"<testcase name="{name}" classname="x" time="0.5">{inner}</testcase>"#)
            })
            .collect();
        format!(
            r#"<?xml version="1.0" encoding="UTF-8"?><testsuites name="n" tests="0" failures="0" errors="0" time="1"><testsuite name="acceptance::acceptance" tests="0" disabled="0" errors="0" failures="0">{cases}</testsuite></testsuites>"#
        )
    }

    const FAILED: &str = r#"<failure type="test failure"/>"#;

    #[test]
    fn gate_tests_stand_for_the_clauses_of_their_names_whether_they_pass_or_not() {
        let xml = report(&[
            ("m::a1_a2_x", ""),
            ("m::a1_y", FAILED),
            ("m::z", FAILED),
            ("m::a3_skipped", "<skipped/>"),
        ]);
        let results = read(&xml).unwrap();
        let said: Vec<_> = results
            .evidence
            .iter()
            .map(|it| (it.clause.as_str(), it.amount, it.failures.len()))
            .collect();
        assert_eq!(said, [("A1", 2, 1), ("A2", 1, 0)]);
        assert!(
            results
                .evidence
                .iter()
                .all(|it| it.layer == Layer::Acceptance)
        );
        let failed: Vec<_> = results.failures.iter().map(|it| &*it.reproduce).collect();
        assert_eq!(failed, ["ci/test m::a1_y", "ci/test m::z"]);
        assert_eq!(results.timed.len(), 3);
    }

    #[test]
    fn gate_what_is_no_report_or_an_empty_one_is_no_evidence() {
        for xml in ["", "{}", &report(&[]), &report(&[("a1_x", "<skipped/>")])] {
            assert!(read(xml).is_err(), "{xml}");
        }
    }
}
