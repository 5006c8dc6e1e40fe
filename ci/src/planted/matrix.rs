//! Bugs by layers, as a document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{Bug, Caught, Seeds};
use crate::evidence::Layer;
use crate::steps::SEEDS_OF_A_CHANGE;

/// How the layers took one mistake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hunted {
    /// At which commit.
    pub commit: String,
    /// Those that looked.
    pub layers: Vec<Caught>,
}

/// Bugs that a layer claims and did not find; those that nobody looked for are left out.
pub fn missed(bugs: &[Bug], hunted: &BTreeMap<String, Hunted>) -> Vec<(String, Layer)> {
    let mut missed = Vec::new();
    for bug in bugs {
        let looked = hunted
            .get(&bug.name)
            .map(|it| &it.layers[..])
            .unwrap_or_default();
        for caught in looked {
            if caught.by.is_none() && bug.layers.contains(&caught.layer) {
                missed.push((bug.name.clone(), caught.layer));
            }
        }
    }
    missed
}

/// The matrix in Markdown.
pub fn document(bugs: &[Bug], hunted: &BTreeMap<String, Hunted>) -> String {
    let layers: Vec<Layer> = (Layer::ALL.into_iter())
        .filter(|layer| {
            hunted
                .values()
                .any(|it| it.layers.iter().any(|caught| caught.layer == *layer))
        })
        .collect();
    let done = bugs
        .iter()
        .filter(|bug| hunted.contains_key(&bug.name))
        .count();
    let mut text = format!(
        "# Planted bugs\n\nMade by `cargo gate planted`; do not edit. {done} of {} bugs were planted. A cell says how long a layer \
         took to notice, without building; the simulation says after how many seeds. **Bold** layers claim the bug's clause and must \
         notice; `-` did not, and nothing is there where nobody looked.\n\n| bug | clause | what |",
        bugs.len()
    );
    for layer in &layers {
        let _ = write!(text, " {} |", layer.as_str());
    }
    text.push_str(" only by |\n|---|---|---|");
    text.push_str(&"---|".repeat(layers.len() + 1));
    text.push('\n');
    for bug in bugs {
        let looked = hunted
            .get(&bug.name)
            .map(|it| &it.layers[..])
            .unwrap_or_default();
        let _ = write!(text, "| {} | {} | {} |", bug.name, bug.clause, bug.what);
        for layer in &layers {
            let said = match looked.iter().find(|it| it.layer == *layer) {
                None => String::new(),
                Some(Caught { by: None, .. }) => "-".to_owned(),
                Some(Caught {
                    seeds:
                        Some(Seeds {
                            until: Some(until), ..
                        }),
                    ..
                }) => format!("{until} seeds"),
                Some(Caught { seconds, .. }) => format!("{seconds:.0} s"),
            };
            let mark = if bug.layers.contains(layer) && !said.is_empty() {
                "**"
            } else {
                ""
            };
            let _ = write!(text, " {mark}{said}{mark} |");
        }
        let noticed: Vec<Layer> = looked
            .iter()
            .filter(|it| it.by.is_some())
            .map(|it| it.layer)
            .collect();
        let only = match noticed[..] {
            [one] if looked.len() > 1 => one.as_str(),
            _ => "",
        };
        let _ = writeln!(text, " {only} |");
    }
    text.push_str("\n## Who noticed first\n\n| bug | layer | by |\n|---|---|---|\n");
    for bug in bugs {
        for caught in hunted
            .get(&bug.name)
            .map(|it| &it.layers[..])
            .unwrap_or_default()
        {
            if let Some(by) = &caught.by {
                let by = by.lines().next().unwrap_or_default().replace('|', "\\|");
                let _ = writeln!(text, "| {} | {} | {by} |", bug.name, caught.layer.as_str());
            }
        }
    }
    text.push_str(&misses(bugs, hunted));
    text
}

/// What the seeds of a change may miss.
fn misses(bugs: &[Bug], hunted: &BTreeMap<String, Hunted>) -> String {
    let mut text = format!(
        "\n## What {SEEDS_OF_A_CHANGE} seeds may miss\n\nThe greatest chance that all seeds of a change miss a bug that the simulation \
         can find, from the share p of seeds that noticed it here: (1-p)^{SEEDS_OF_A_CHANGE}, with the lower end of Clopper and \
         Pearson's 95 % interval for p.\n\n| bug | noticed by | missed, at most |\n|---|---|---|\n"
    );
    for bug in bugs {
        let looked = hunted.get(&bug.name).into_iter().flat_map(|it| &it.layers);
        for seeds in looked.filter_map(|it| it.seeds).filter(|it| it.noticed > 0) {
            let missed = seeds.missed_by(SEEDS_OF_A_CHANGE);
            let Seeds { run, noticed, .. } = seeds;
            let _ = writeln!(text, "| {} | {noticed} of {run} | {missed:.0e} |", bug.name);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught(layer: Layer, by: Option<&str>) -> Caught {
        Caught {
            layer,
            by: by.map(str::to_owned),
            seconds: 2.0,
            seeds: (layer == Layer::Simulation).then_some(Seeds {
                run: 200,
                noticed: u64::from(by.is_some()),
                until: by.is_some().then_some(7),
            }),
        }
    }

    #[test]
    fn gate_a_claim_that_was_not_kept_is_told() {
        let bugs = super::super::bugs().unwrap();
        let bug = bugs
            .iter()
            .find(|it| it.layers.contains(&Layer::Simulation))
            .unwrap();
        let hunted = |by| {
            let layers = vec![caught(Layer::Simulation, by), caught(Layer::Loom, None)];
            let commit = "abc".to_owned();
            BTreeMap::from([(bug.name.clone(), Hunted { commit, layers })])
        };
        assert_eq!(missed(&bugs, &hunted(Some("seed 3"))), []);
        assert_eq!(
            missed(&bugs, &hunted(None)),
            [(bug.name.clone(), Layer::Simulation)]
        );
        let text = document(&bugs, &hunted(Some("seed 3: S1 | twice")));
        assert!(text.contains(" **7 seeds** | - | simulation |\n"), "{text}");
        assert!(
            text.contains("| simulation | seed 3: S1 \\| twice |"),
            "{text}"
        );
        assert!(text.contains("| 1 of 200 | 8e-1 |"), "{text}");
    }
}
