//! The report in a terminal. What failed comes last, for that is where one looks first.

use std::fmt::Write as _;

use super::{Judgement, Report};
use crate::amount::short;
use crate::clauses::CLAUSES;
use crate::evidence::Layer;
use crate::matrix::Verdict;
use crate::required::Required;
use crate::run::Outcome;

pub(super) fn render(report: &Report, required: &Required) -> String {
    let mut text = String::new();
    let matrix = report.matrix(required);
    let _ = write!(text, "{:<4}", "");
    for layer in Layer::ALL {
        let _ = write!(text, " {:>12}", layer.as_str());
    }
    text.push('\n');
    for (clause, meaning) in CLAUSES {
        let _ = write!(text, "{clause:<4}");
        for layer in Layer::ALL {
            let (cell, verdict) = matrix.cell(clause, layer);
            let said = match verdict {
                Verdict::Empty => "·".to_owned(),
                Verdict::NotRun => "not run".to_owned(),
                Verdict::Missing => "MISSING".to_owned(),
                Verdict::Red => "FAILED".to_owned(),
                Verdict::Green => {
                    let amounts = cell.amounts.iter().filter(|(_, amount)| **amount > 0);
                    let parts: Vec<String> = amounts
                        .map(|(unit, amount)| format!("{}{}", short(*amount), &unit[..1]))
                        .collect();
                    parts.join("+")
                }
            };
            let _ = write!(text, " {said:>12}");
        }
        let _ = writeln!(text, "  {meaning}");
    }
    text.push_str("t tests, s seeds or states, i inputs; · nothing said, and nothing needed\n\n");
    for it in &report.steps {
        let outcome = match it.outcome {
            Outcome::Passed => "passed",
            Outcome::NotRun => "NOT RUN",
            Outcome::Failed => "FAILED",
        };
        let notes = it.notes.join("; ");
        let _ = writeln!(
            text,
            "{outcome:<8} {:>7.1} s  {}  {notes}",
            it.seconds, it.name
        );
    }
    let missing: Vec<String> = report.missing_parts().iter().map(u64::to_string).collect();
    if !missing.is_empty() {
        let _ = writeln!(
            text,
            "\nparts that are not in it: {} of {}",
            missing.join(", "),
            report.shards.1
        );
    }
    let verdict = match report.judgement(required) {
        Judgement::Green => "GREEN: every clause has the evidence that it needs",
        Judgement::Incomplete => "INCOMPLETE: nothing failed, but not all that is needed was run",
        Judgement::Red => "RED",
    };
    let seconds: f64 = report.steps.iter().map(|it| it.seconds).sum();
    let _ = writeln!(
        text,
        "\n{verdict} ({} in {seconds:.0} s)",
        report.about.profile.as_str()
    );
    for it in &report.failures {
        let _ = writeln!(text, "failed: {}", it.what);
    }
    for (clause, layer, why) in matrix.missing() {
        let _ = writeln!(
            text,
            "missing: {clause} has no evidence from {} ({why})",
            layer.as_str()
        );
    }
    if let Some(first) = report.failures.first() {
        let _ = writeln!(text, "reproduce the first failure: {}", first.reproduce);
    }
    text
}
