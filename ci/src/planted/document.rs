//! Bugs by layers, as a document.

use std::fmt::Write as _;

use super::{Bug, Caught, Hunted, Noticed, Results, Seeds};
use crate::evidence::Layer;
use crate::steps::SEEDS_OF_A_CHANGE;

/// How soon a layer noticed.
pub fn soon(caught: &Caught) -> String {
    match caught.seeds {
        Some(Seeds {
            until: Some(until), ..
        }) => format!("{until} seeds"),
        _ => format!("{:.0} s", caught.seconds),
    }
}

/// The matrix in Markdown.
pub fn document(bugs: &[Bug], results: &Results) -> String {
    let layers = results.layers(bugs);
    let done = results.hunted(bugs);
    let mut text = format!(
        "# Planted bugs\n\nMade by `cargo gate planted`; do not edit. {done} of {} bugs were planted. A cell says how long a layer \
         took to notice, without building; the simulation says after how many seeds. **Bold** layers claim the bug's clause and must \
         notice; `-` did not, and nothing is there where nobody looked.\n\n| bug | clause | what |",
        bugs.len()
    );
    for layer in &layers {
        let _ = write!(text, " {} |", layer.as_str());
    }
    text.push_str(" only by | at |\n|---|---|---|");
    text.push_str(&"---|".repeat(layers.len() + 2));
    text.push('\n');
    for bug in bugs {
        let _ = write!(text, "| {} | {} | {} |", bug.name, bug.clause, bug.what);
        for layer in &layers {
            let said = match results.noticed(bug, *layer) {
                Noticed::NotAsked => String::new(),
                Noticed::No => "-".to_owned(),
                Noticed::Yes(caught) => soon(caught),
            };
            let mark = if bug.layers.contains(layer) && !said.is_empty() {
                "**"
            } else {
                ""
            };
            let _ = write!(text, " {mark}{said}{mark} |");
        }
        let only = results.only(bug).map_or("", Layer::as_str);
        let commit = results.of(bug).map_or("", Hunted::at);
        let _ = writeln!(text, " {only} | {commit} |");
    }
    text.push_str("\n## Who noticed first\n\n| bug | layer | by |\n|---|---|---|\n");
    for bug in bugs {
        let looked = results.of(bug).into_iter().flat_map(|it| &it.layers);
        for caught in looked {
            if let Some(by) = &caught.by {
                let by = by.lines().next().unwrap_or_default().replace('|', "\\|");
                let _ = writeln!(text, "| {} | {} | {by} |", bug.name, caught.layer.as_str());
            }
        }
    }
    text.push_str(&misses(bugs, results));
    text
}

/// What the seeds of a change may miss.
fn misses(bugs: &[Bug], results: &Results) -> String {
    let mut text = format!(
        "\n## What {SEEDS_OF_A_CHANGE} seeds may miss\n\nThe greatest chance that all seeds of a change miss a bug that the simulation \
         can find, from the share p of seeds that noticed it here: (1-p)^{SEEDS_OF_A_CHANGE}, with the lower end of Clopper and \
         Pearson's 95 % interval for p.\n\n| bug | noticed by | missed, at most |\n|---|---|---|\n"
    );
    let mut until = Vec::new();
    for bug in bugs {
        let looked = results.of(bug).into_iter().flat_map(|it| &it.layers);
        for seeds in looked.filter_map(|it| it.seeds).filter(|it| it.noticed > 0) {
            until.extend(seeds.until);
            let missed = seeds.missed_by(SEEDS_OF_A_CHANGE);
            let Seeds { run, noticed, .. } = seeds;
            let _ = writeln!(text, "| {} | {noticed} of {run} | {missed:.0e} |", bug.name);
        }
    }
    until.sort_unstable();
    if let Some(median) = until.get(until.len() / 2) {
        let _ = writeln!(
            text,
            "\nOf {} bugs that the simulation noticed, half were noticed within {median} seeds.",
            until.len()
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{caught, claimed, hunted};
    use super::*;

    #[test]
    fn gate_the_document_says_how_soon_and_by_whom() {
        let bug = claimed();
        let layers = vec![
            caught(Layer::Simulation, Some("seed 3: S1 | twice")),
            caught(Layer::Loom, None),
        ];
        let results = hunted(&bug, layers);
        let text = document(&[bug], &results);
        assert!(
            text.contains(" **7 seeds** | - | simulation | abc |\n"),
            "{text}"
        );
        assert!(
            text.contains("| simulation | seed 3: S1 \\| twice |"),
            "{text}"
        );
        assert!(text.contains("| 1 of 200 | 8e-1 |"), "{text}");
        assert!(
            text.ends_with("half were noticed within 7 seeds.\n"),
            "{text}"
        );
    }

    #[test]
    fn gate_the_committed_document_is_made_of_the_committed_results() {
        let (bugs, results) = (super::super::bugs().unwrap(), Results::committed().unwrap());
        let committed = include_str!("../../planted/matrix.md");
        assert!(
            document(&bugs, &results) == committed,
            "ci/planted/matrix.md is not what `cargo gate planted --write` makes of bugs.toml and results.json"
        );
    }
}
