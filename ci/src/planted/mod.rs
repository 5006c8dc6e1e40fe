//! Planted bugs: realistic mistakes, made one at a time in a scratch copy, and the layers that must turn red. Whoever trusts a
//! layer trusts that it would have; here it is seen.

mod document;
mod hunt;
mod odds;
mod results;
mod scratch;

use std::collections::BTreeSet;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use self::document::{document, soon};
pub use self::hunt::{Caught, hunt};
pub use self::odds::Seeds;
pub use self::results::{Hunted, Noticed, Results};
pub use self::scratch::Scratch;
use crate::clauses;
use crate::evidence::Layer;

/// By subject, in this order.
const FILES: [(&str, &str); 2] = [
    (
        "ci/planted/bugs.toml",
        include_str!("../../planted/bugs.toml"),
    ),
    (
        "ci/planted/batches.toml",
        include_str!("../../planted/batches.toml"),
    ),
];

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
    /// Nothing is wrong: nobody may notice.
    #[serde(default)]
    control: bool,
    /// Where it is made.
    file: String,
    /// What is there now, once.
    find: String,
    /// What is there then.
    replace: String,
}

/// One place in the code, and what it is changed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where it is made.
    pub file: String,
    /// What is there now, once.
    pub find: String,
    /// What is there then.
    pub replace: String,
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
    let mut bugs = Vec::new();
    for (name, text) in FILES {
        let list: List = toml::from_str(text).context(name)?;
        bugs.extend(list.bug);
    }
    let mut names = BTreeSet::new();
    for bug in &bugs {
        let name = &bug.name;
        anyhow::ensure!(names.insert(name), "{name} is there twice");
        anyhow::ensure!(
            clauses::exists(&bug.clause),
            "{name}: there is no clause {}",
            bug.clause
        );
        anyhow::ensure!(
            bug.layers.is_empty() == bug.control,
            "{name}: somebody must notice a mistake, and nobody what is none"
        );
        anyhow::ensure!(bug.find != bug.replace, "{name} changes nothing");
    }
    Ok(bugs)
}

impl Bug {
    /// Whether nothing is wrong, so that nobody may notice.
    pub const fn is_control(&self) -> bool {
        self.control
    }

    /// Whether a layer looks for it: those that run the code in which it is made. The models know the design, not the code;
    /// fuzzing is built for minutes, so it looks only where it must notice, or must not.
    pub fn is_for(&self, layer: Layer) -> bool {
        let within = |folders: &[&str]| folders.iter().any(|it| self.file.starts_with(it));
        let database = within(&["harness/migrations/", "harness/src/postgres/"]);
        let consumer = within(&[
            "harness/src/consumer/",
            "harness/src/disposition.rs",
            "harness/src/retry.rs",
        ]);
        match layer {
            _ if self.layers.contains(&layer) || (self.control && layer != Layer::Models) => true,
            Layer::Models | Layer::Fuzz => false,
            // Their stores and queues are others.
            Layer::Simulation => !database,
            Layer::Loom => consumer,
            // They call the ports themselves.
            Layer::Conformance | Layer::Differential => !consumer,
            Layer::Acceptance | Layer::Generated | Layer::Unit => true,
        }
    }

    /// What is changed.
    pub fn mistake(&self) -> Mistake {
        Mistake {
            file: self.file.clone(),
            find: self.find.clone(),
            replace: self.replace.clone(),
        }
    }
}

impl Mistake {
    /// What tells it from any other.
    pub fn digest(&self) -> String {
        let Self {
            file,
            find,
            replace,
        } = self;
        let digest = Sha256::digest(format!("{file}\0{find}\0{replace}"));
        digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// The file with the mistake in it.
    ///
    /// # Errors
    /// When the place is not there, or there twice: the code has changed, and so must the list.
    pub fn made_in(&self, text: &str) -> anyhow::Result<String> {
        let places = text.matches(&self.find).count();
        anyhow::ensure!(
            places == 1,
            "what is to be changed is {places} times in {}; it must be there once:\n{}",
            self.file,
            self.find
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
            let mistake = bug.mistake();
            let text = std::fs::read_to_string(root.join(&mistake.file)).unwrap();
            let changed = mistake.made_in(&text).expect(&bug.name);
            assert_ne!(changed, text, "{}", bug.name);
        }
    }
}
