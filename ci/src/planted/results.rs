//! What is known of every planted bug: kept in `ci/planted/results.json`, bug by bug, so that a hunt can be stopped and gone
//! on with.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::{Bug, Caught};
use crate::evidence::Layer;

const COMMITTED: &str = include_str!("../../planted/results.json");

/// How the layers took one mistake.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Hunted {
    /// The mistake that it was ([`Mistake::digest`](super::Mistake::digest)). Another one of the same name has not been hunted.
    pub mistake: String,
    /// At which commit.
    pub commit: String,
    /// Those that looked.
    pub layers: Vec<Caught>,
}

impl Hunted {
    /// The commit, as long as people need it.
    pub fn at(&self) -> &str {
        self.commit.get(..8).unwrap_or(&self.commit)
    }
}

/// What a layer made of a bug.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Noticed<'a> {
    /// It did not look.
    NotAsked,
    /// It saw nothing.
    No,
    /// It turned red.
    Yes(&'a Caught),
}

/// All that is known, by the bugs' names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Results(pub BTreeMap<String, Hunted>);

impl Results {
    /// What is committed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn committed() -> anyhow::Result<Self> {
        Self::read(COMMITTED)
    }

    /// Reads them.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read(json: &str) -> anyhow::Result<Self> {
        serde_json::from_str(json).context("ci/planted/results.json")
    }

    /// What is known of this bug as it is today.
    pub fn of(&self, bug: &Bug) -> Option<&Hunted> {
        self.0
            .get(&bug.name)
            .filter(|it| it.mistake == bug.mistake().digest())
    }

    /// What a layer made of it.
    pub fn noticed(&self, bug: &Bug, layer: Layer) -> Noticed<'_> {
        let looked = self.of(bug).into_iter().flat_map(|it| &it.layers);
        match looked.into_iter().find(|it| it.layer == layer) {
            None => Noticed::NotAsked,
            Some(Caught { by: None, .. }) => Noticed::No,
            Some(caught) => Noticed::Yes(caught),
        }
    }

    /// The only one of several layers that noticed.
    pub fn only(&self, bug: &Bug) -> Option<Layer> {
        let looked = &self.of(bug)?.layers;
        let mut noticed = looked.iter().filter(|it| it.by.is_some());
        match (noticed.next(), noticed.next()) {
            (Some(one), None) if looked.len() > 1 => Some(one.layer),
            _ => None,
        }
    }

    /// How many of them were hunted.
    pub fn hunted(&self, bugs: &[Bug]) -> usize {
        bugs.iter().filter(|bug| self.of(bug).is_some()).count()
    }

    /// Layers that looked for any of them.
    pub fn layers(&self, bugs: &[Bug]) -> Vec<Layer> {
        let hunted = bugs.iter().filter_map(|bug| self.of(bug));
        let looked: BTreeSet<Layer> = hunted
            .flat_map(|it| &it.layers)
            .map(|it| it.layer)
            .collect();
        looked.into_iter().collect()
    }

    /// What is wrong: who claims a bug and did not notice it, who noticed something where there is nothing; and with `all`,
    /// who has not looked, and who never noticed anything.
    pub fn wrong(&self, bugs: &[Bug], all: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        for bug in bugs {
            for layer in Layer::ALL.into_iter().filter(|it| bug.is_for(*it)) {
                let (name, layer_name) = (&bug.name, layer.as_str());
                let claimed = bug.layers.contains(&layer);
                match self.noticed(bug, layer) {
                    Noticed::NotAsked if all => {
                        wrong.push(format!("{name}: {layer_name} has not looked for it"));
                    }
                    Noticed::No if claimed => wrong.push(format!(
                        "{name}: NOT NOTICED by {layer_name}, which claims it"
                    )),
                    Noticed::Yes(caught) if bug.is_control() => wrong.push(format!(
                        "{name}: {layer_name} is red without any bug: {}",
                        caught.by.as_deref().unwrap_or_default()
                    )),
                    _ => {}
                }
            }
        }
        for layer in self.layers(bugs).into_iter().filter(|_| all) {
            let noticed = |bug: &Bug| matches!(self.noticed(bug, layer), Noticed::Yes(_));
            if !bugs.iter().any(noticed) {
                wrong.push(format!("{} never noticed anything", layer.as_str()));
            }
        }
        wrong
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::planted::{Seeds, bugs};

    pub(in crate::planted) fn caught(layer: Layer, by: Option<&str>) -> Caught {
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

    /// A bug that the simulation claims.
    pub(in crate::planted) fn claimed() -> Bug {
        let mut bugs = bugs().unwrap().into_iter();
        bugs.find(|it| it.layers.contains(&Layer::Simulation))
            .unwrap()
    }

    pub(in crate::planted) fn hunted(bug: &Bug, layers: Vec<Caught>) -> Results {
        let hunted = Hunted {
            mistake: bug.mistake().digest(),
            commit: "abc".to_owned(),
            layers,
        };
        Results(BTreeMap::from([(bug.name.clone(), hunted)]))
    }

    #[test]
    fn gate_a_claim_that_was_not_kept_is_told() {
        let bug = claimed();
        let results = |by| {
            hunted(
                &bug,
                vec![caught(Layer::Simulation, by), caught(Layer::Loom, None)],
            )
        };
        let bugs = std::slice::from_ref(&bug);
        let (kept, broken) = (results(Some("seed 3")), results(None));
        assert_eq!(kept.wrong(bugs, false), Vec::<String>::new());
        assert_eq!(kept.only(&bug), Some(Layer::Simulation));
        assert_eq!(
            broken.wrong(bugs, false),
            [format!(
                "{}: NOT NOTICED by simulation, which claims it",
                bug.name
            )]
        );
        let all = kept.wrong(bugs, true);
        assert!(
            all.contains(&format!("{}: acceptance has not looked for it", bug.name)),
            "{all:?}"
        );
        assert!(
            all.contains(&"loom never noticed anything".to_owned()),
            "{all:?}"
        );
    }

    #[test]
    fn gate_another_mistake_of_the_same_name_has_not_been_hunted() {
        let mut bug = claimed();
        let results = hunted(&bug, vec![caught(Layer::Simulation, Some("seed 3"))]);
        assert!(results.of(&bug).is_some());
        bug.replace.push(' ');
        assert_eq!(results.of(&bug), None);
        assert_eq!(results.noticed(&bug, Layer::Simulation), Noticed::NotAsked);
    }

    #[test]
    fn gate_what_is_noticed_where_nothing_is_wrong_is_told() {
        let mut bugs = bugs().unwrap();
        bugs.retain(Bug::is_control);
        assert_eq!(bugs.len(), 1, "one control");
        let results = hunted(&bugs[0], vec![caught(Layer::Unit, Some("a flaky test"))]);
        let wrong = results.wrong(&bugs, false);
        assert!(
            wrong[0].contains("unit is red without any bug: a flaky test"),
            "{wrong:?}"
        );
    }
}
