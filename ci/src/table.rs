//! The findings as people read them.

use crate::evidence::{CLAUSES, Findings};

/// One line per clause, failures first in what follows.
pub fn render(findings: &Findings) -> String {
    let mut text = format!("{:<4} {:>6} {:>6}  {}\n", "", "passed", "failed", "");
    for (clause, meaning) in CLAUSES {
        let evidence = findings.clauses.get(clause).cloned().unwrap_or_default();
        let verdict = match (evidence.passed, evidence.failed.len()) {
            (0, 0) => "NO EVIDENCE",
            (_, 0) => "ok",
            _ => "FAILED",
        };
        text.push_str(&format!(
            "{clause:<4} {:>6} {:>6}  {verdict:<11}  {meaning}\n",
            evidence.passed,
            evidence.failed.len()
        ));
    }
    for name in &findings.failed {
        text.push_str(&format!("failed: {name}\n"));
    }
    let held = findings
        .clauses
        .values()
        .filter(|evidence| evidence.holds())
        .count();
    text.push_str(&format!(
        "\n{} of {} clauses have evidence; {} tests, {} failed\n",
        held,
        CLAUSES.len(),
        findings.tests,
        findings.failed.len()
    ));
    if let Some(first) = findings.failed.first() {
        text.push_str(&format!("reproduce the first failure: ci/test {first}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_says_what_has_no_evidence() {
        let mut findings = Findings::default();
        findings.failed.push("a1_x".to_owned());
        let text = render(&findings);
        assert!(
            text.contains("A1        0      0  NO EVIDENCE  the same job twice"),
            "{text}"
        );
        assert!(text.contains("0 of 17 clauses have evidence"), "{text}");
        assert!(
            text.ends_with("reproduce the first failure: ci/test a1_x\n"),
            "{text}"
        );
    }
}
