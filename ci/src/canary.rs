//! Does every step turn red when what it looks at is broken? A canary for each shows it.

use anyhow::Context as _;
use serde::Deserialize;

use crate::evidence::Layer;
use crate::planted::{Mistake, Scratch, bugs};
use crate::run::{Outcome, run};
use crate::steps::{Reads, STEPS, Settings, Step};

const FILE: &str = include_str!("../canaries.toml");

/// What is broken for a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// Which step.
    pub step: String,
    /// Which of its layers; none if it has none.
    pub layer: Option<Layer>,
    /// What is broken, and what the step must say about it.
    pub broken: Result<(Mistake, String), NoCanary>,
}

/// Why a step has no canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoCanary(pub String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    step: String,
    layer: Option<Layer>,
    says: Option<String>,
    none: Option<String>,
    bug: Option<String>,
    file: Option<String>,
    find: Option<String>,
    replace: Option<String>,
}

impl Entry {
    fn canary(self) -> anyhow::Result<Canary> {
        let mistake = match (self.bug, self.file, self.find, self.replace) {
            (Some(name), None, None, None) => {
                let bug = bugs()?.into_iter().find(|it| it.name == name);
                let bug = bug.with_context(|| format!("there is no planted bug {name}"))?;
                Some(bug.mistake())
            }
            (None, Some(file), Some(find), Some(replace)) => Some(Mistake {
                file,
                find,
                replace,
            }),
            (None, None, None, None) => None,
            _ => anyhow::bail!("give either bug, or file, find and replace"),
        };
        let broken = match (mistake, self.says, self.none) {
            (Some(mistake), Some(says), None) => Ok((mistake, says)),
            (None, None, Some(why)) => Err(NoCanary(why)),
            _ => {
                anyhow::bail!("give either a mistake and what the step says, or why there is none")
            }
        };
        Ok(Canary {
            step: self.step,
            layer: self.layer,
            broken,
        })
    }
}

/// All of them.
///
/// # Errors
/// When the list is wrong; the error names the step.
pub fn canaries() -> anyhow::Result<Vec<Canary>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct List {
        canary: Vec<Entry>,
    }
    let list: List = toml::from_str(FILE).context("ci/canaries.toml")?;
    list.canary
        .into_iter()
        .map(|it| {
            let step = it.step.clone();
            it.canary()
                .with_context(|| format!("{step:?} in ci/canaries.toml"))
        })
        .collect()
}

/// How a step took its canary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sang {
    /// It is red, and says why.
    Yes,
    /// It cannot be run here.
    NotRun,
    /// It is green, or red for another reason.
    No(String),
}

impl Canary {
    /// For people.
    pub fn name(&self) -> String {
        match self.layer {
            Some(layer) => format!("{} ({})", self.step, layer.as_str()),
            None => self.step.clone(),
        }
    }

    fn step(&self) -> anyhow::Result<&'static Step> {
        let step = STEPS.iter().find(|it| it.name == self.step);
        step.with_context(|| format!("the gate has no step {:?}", self.step))
    }

    /// Breaks what the step looks at, and runs it as every change does.
    ///
    /// # Errors
    /// When it cannot be broken or run.
    pub fn sings(&self, mistake: &Mistake, says: &str, scratch: &Scratch) -> anyhow::Result<Sang> {
        let log = scratch.tree.join("target/canary.log");
        let folder = scratch.tree.join("target");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let settings = Settings {
            log: Some(log.clone()),
            ..scratch.settings(self.layer)
        };
        let _made = scratch.with(mistake)?;
        let step = self.step()?;
        let (ran, results) = run(step, &settings, &scratch.tree)?;
        let said = std::fs::read(&log).with_context(|| log.display().to_string())?;
        let failures = results.failures.iter().map(|it| it.what.as_str());
        let heard = failures
            .chain([&*String::from_utf8_lossy(&said)])
            .any(|it| it.contains(says));
        Ok(match ran.outcome {
            Outcome::NotRun => Sang::NotRun,
            Outcome::Passed => Sang::No("it is green".to_owned()),
            // A copy that does not build is red, too.
            Outcome::Failed
                if !matches!(step.reads, Reads::ExitCode)
                    && results.evidence.is_empty()
                    && results.timed.is_empty() =>
            {
                Sang::No(format!("it is red without a result; see {}", log.display()))
            }
            Outcome::Failed if heard => Sang::Yes,
            Outcome::Failed => Sang::No(format!(
                "it is red, but does not say {says:?}; see {}",
                log.display()
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn gate_every_step_and_layer_has_a_canary_or_says_why_not() {
        let canaries = canaries().unwrap();
        let have: BTreeSet<(&str, Option<Layer>)> =
            canaries.iter().map(|it| (&*it.step, it.layer)).collect();
        assert_eq!(have.len(), canaries.len(), "one is there twice");
        let silent: BTreeSet<&str> = canaries
            .iter()
            .filter(|it| it.broken.is_err())
            .map(|it| &*it.step)
            .collect();
        let mut needed = BTreeSet::new();
        for step in STEPS.iter().filter(|it| !silent.contains(it.name)) {
            match step.layers {
                [] => needed.extend([(step.name, None)]),
                layers => needed.extend(layers.iter().map(|it| (step.name, Some(*it)))),
            }
        }
        needed.extend(silent.iter().map(|it| (*it, None)));
        assert_eq!(have, needed);
        let sung: BTreeSet<Layer> = have.iter().filter_map(|it| it.1).collect();
        assert_eq!(sung, Layer::ALL.into_iter().collect());
    }

    #[test]
    fn gate_what_a_canary_breaks_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for canary in canaries().unwrap() {
            if let Ok((mistake, _)) = &canary.broken {
                let text = std::fs::read_to_string(root.join(&mistake.file)).expect(&mistake.file);
                mistake.made_in(&text).expect(&canary.step);
            }
        }
    }
}
