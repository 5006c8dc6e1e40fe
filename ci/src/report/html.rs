//! The report as one page that needs no other file: to be read, kept, and printed.

mod coverage;
mod planted;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Judgement, Report};
use crate::amount::counted;
use crate::clauses::CLAUSES;
use crate::evidence::Layer;
use crate::matrix::{Matrix, Verdict};
use crate::required::Required;
use crate::run::Outcome;

const STYLE: &str = include_str!("page.css");

/// What no layer covers, as the project's own page says it.
const LIMITS: &str = include_str!("../../../docs/limits.md");

pub(super) fn render(report: &Report, required: &Required) -> String {
    let matrix = report.matrix(required);
    let (class, verdict, says) = match report.judgement(required) {
        Judgement::Green => (
            "green",
            "Green",
            "Every clause has the evidence that it needs.",
        ),
        Judgement::Incomplete => (
            "not-run",
            "Incomplete",
            "Nothing failed, but not all that is needed was run.",
        ),
        Judgement::Red => ("red", "Red", "Something failed, or evidence is missing."),
    };
    let commit = report
        .about
        .commit
        .get(..12)
        .unwrap_or(&report.about.commit);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "job-harness " (commit) ": " (verdict) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "job-harness: what is proved, and by what" }
                    p.verdict.(class) { strong { (verdict) } " " (says) }
                    p {
                        "Commit " code { (report.about.commit) }
                        @if report.about.changed { ", with changes that are in no commit" }
                        ". Profile " (report.about.profile.as_str()) ", begun " (report.about.began.get(..16).unwrap_or(&report.about.began)) " UTC."
                        @for part in report.missing_parts() { " Part " (part) " of " (report.shards.1) " is not in it." }
                    }
                    p {
                        "At-least-once job queues deliver a job again when in doubt. The harness must turn that into one effect for each job, and \
                        leave a record of every failure. Each row is a clause of the specification or an invariant of the design; each column is a \
                        kind of evidence. A cell says how much was run for that clause; it is read from the tools' own results."
                    }
                }
                (failures(report, &matrix))
                section { h2 { "Evidence" } (table(&matrix)) (legend()) }
                section { h2 { "Planted bugs" } (planted::section()) }
                @if let Some(coverage) = &report.coverage {
                    section { h2 { "What happened in the simulation" } (coverage::section(coverage)) }
                }
                section { h2 { "The layers" } (layers(report)) }
                section { h2 { "What was run" } (steps(report)) }
                section { h2 { "Slowest tests" } (slowest(report)) }
                section { h2 { "What is not tested" } (limits()) }
                section { h2 { "With what" } (versions(report)) }
            }
        }
    };
    page.into_string()
}

fn failures(report: &Report, matrix: &Matrix) -> Markup {
    let missing = matrix.missing();
    html! {
        @if !report.failures.is_empty() || !missing.is_empty() {
            section {
                h2 { "What is wrong" }
                @for it in &report.failures {
                    div.failure {
                        strong { (it.what) }
                        pre { (it.reproduce) }
                        @if let Some(picture) = &it.picture { p { a href=(picture) { "What happened, as a picture" } } }
                    }
                }
                @for (clause, layer, why) in &missing {
                    div.failure { strong { (clause) " has no evidence from " (layer.as_str()) } p { "Needed: " (why) } }
                }
            }
        }
    }
}

fn table(matrix: &Matrix) -> Markup {
    html! {
        div.wide {
            table.matrix {
                thead {
                    tr {
                        th scope="col" { "Clause" }
                        @for layer in Layer::ALL { th scope="col" title=(layer.proves()) { (layer.as_str()) } }
                    }
                }
                tbody {
                    @for (clause, meaning) in CLAUSES {
                        tr {
                            th scope="row" { strong { (clause) } " " (meaning) }
                            @for layer in Layer::ALL { (cell(matrix, clause, layer)) }
                        }
                    }
                }
            }
        }
    }
}

fn cell(matrix: &Matrix, clause: &'static str, layer: Layer) -> Markup {
    let (cell, verdict) = matrix.cell(clause, layer);
    let class = match verdict {
        Verdict::Empty => "empty",
        Verdict::Green => "green",
        Verdict::NotRun => "not-run",
        Verdict::Missing | Verdict::Red => "red",
    };
    let needed = cell.needed.as_ref().map(|why| format!("needed: {why}"));
    html! {
        td class=(class) title=[needed] {
            @match verdict {
                Verdict::Empty => {},
                Verdict::NotRun => "not run",
                Verdict::Missing => "missing",
                Verdict::Red => "failed",
                Verdict::Green => {
                    @for (unit, amount) in cell.amounts.iter().filter(|(_, amount)| **amount > 0) {
                        div { (counted(*amount, unit)) }
                    }
                },
            }
            @if cell.needed.is_some() { span.needed { "needed" } }
        }
    }
}

fn legend() -> Markup {
    html! {
        p.legend {
            span.green { "shown" } " " span.red { "failed, or needed and missing" } " "
            span.not-run { "needed, and not run here" } " " span.empty { "nothing said, and nothing needed" }
        }
        p {
            "Tests count by the clauses in their names, seeds by the invariants that were checked on each, states by the promises that were \
            checked in each. " em { "Needed" } " is what the gate is not green without; the reasons are in "
            code { "ci/required.toml" } "."
        }
        p {
            "How strong each kind is: a model says something about every state of a small world, and about nothing larger; seeds are samples of \
            large worlds with everything that goes wrong in them, and the planted bugs below say how likely they are to miss something; tests \
            on PostgreSQL are single cases, but of the real thing; loom tries every order of few steps. One kind alone can be wrong about the \
            world in its own way; the clauses that matter most have several."
        }
    }
}

fn layers(report: &Report) -> Markup {
    let run = report.run();
    html! {
        dl {
            @for layer in Layer::ALL {
                dt { (layer.as_str()) @if !run.contains(&layer) { " " span.not-run { "not run" } } }
                dd { "shows " (layer.proves()) }
            }
        }
    }
}

fn steps(report: &Report) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { th { "Step" } th { "Outcome" } th { "Seconds" } th { "Result" } th { "Command" } } }
                tbody {
                    @for it in &report.steps {
                        @let (class, outcome) = match it.outcome {
                            Outcome::Passed => ("green", "passed"),
                            Outcome::NotRun => ("not-run", "not run"),
                            Outcome::Failed => ("red", "failed"),
                        };
                        tr {
                            td { (it.name) }
                            td class=(class) { (outcome) }
                            td.number { (format!("{:.1}", it.seconds)) }
                            td { @for note in &it.notes { div { (note) } } }
                            td { code { (it.command) } }
                        }
                    }
                }
            }
        }
    }
}

fn slowest(report: &Report) -> Markup {
    html! {
        div.wide {
            table {
                thead { tr { th { "Seconds" } th { "Test" } } }
                tbody {
                    @for it in &report.slowest {
                        tr { td.number { (format!("{:.1}", it.seconds)) } td { code { (it.name) } } }
                    }
                }
            }
        }
    }
}

/// The list of the page, an item each; the rest of Markdown in it is bold type, code and links.
fn limits() -> Markup {
    let body = LIMITS.split_once("\n\n").map_or(LIMITS, |(_, body)| body);
    let items = body
        .split("\n* ")
        .map(|item| item.trim_start_matches("* ").replace('\n', " "));
    html! {
        ul { @for item in items { li { (inline(&item)) } } }
        p { "From " code { "docs/limits.md" } "." }
    }
}

fn inline(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split("**").enumerate() {
            @if n % 2 == 1 { strong { (code(part)) } } @else { (code(part)) }
        }
    }
}

fn code(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn versions(report: &Report) -> Markup {
    html! {
        dl { @for (name, version) in &report.about.versions { dt { (name) } dd { (version) } } }
    }
}
