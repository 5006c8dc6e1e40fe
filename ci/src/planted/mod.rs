//! Planted bugs: realistic mistakes, made one at a time in a scratch copy, and the layers that must turn red. Whoever trusts a
//! layer trusts that it would have; here it is seen.

mod hunt;
mod matrix;
mod odds;
mod scratch;

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

pub use self::hunt::{Caught, hunt};
pub use self::matrix::{Hunted, document, missed};
pub use self::odds::Seeds;
pub use self::scratch::Scratch;
use crate::clauses;
use crate::evidence::Layer;

const FILE: &str = include_str!("../../planted/bugs.toml");

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bug {
    /// Its name.
    pub name: String,
    /// What it breaks.
    pub clause: String,
    /// What is wrong, in words.
    pub what: String,
    /// Who must notice.
    pub layers: BTreeSet<Layer>,
    /// Where it is made.
    pub file: String,
    /// What is there now, once.
    find: String,
    /// What is there then.
    replace: String,
}

/// All of them.
///
/// # Errors
/// When the list is wrong; the error names the bug.
pub fn bugs() -> anyhow::Result<Vec<Bug>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct List {
        bug: Vec<Bug>,
    }
    let list: List = toml::from_str(FILE).context("ci/planted/bugs.toml")?;
    let mut names = BTreeSet::new();
    for bug in &list.bug {
        let name = &bug.name;
        anyhow::ensure!(names.insert(name), "{name} is there twice");
        anyhow::ensure!(
            clauses::exists(&bug.clause),
            "{name}: there is no clause {}",
            bug.clause
        );
        anyhow::ensure!(!bug.layers.is_empty(), "{name}: nobody must notice it");
        anyhow::ensure!(bug.find != bug.replace, "{name} changes nothing");
    }
    Ok(list.bug)
}

impl Bug {
    /// The file with the mistake in it.
    ///
    /// # Errors
    /// When the place is not there, or there twice: the code has changed, and so must the list.
    pub fn made_in(&self, text: &str) -> anyhow::Result<String> {
        let places = text.matches(&self.find).count();
        let Self { name, file, .. } = self;
        anyhow::ensure!(
            places == 1,
            "{name}: its place is {places} times in {file}; it must be there once"
        );
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn gate_every_planted_bug_has_its_place_in_the_code() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let bugs = bugs().unwrap();
        assert!(bugs.len() >= 40, "{}", bugs.len());
        for bug in bugs {
            let text = std::fs::read_to_string(root.join(&bug.file)).unwrap();
            let changed = bug.made_in(&text).unwrap();
            assert_ne!(changed, text, "{}", bug.name);
        }
    }
}
