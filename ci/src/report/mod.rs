//! What a run of the gate found: kept as one JSON file, merged from parts, shown as text and as a page.

mod html;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::evidence::{Evidence, Failure, Layer};
use crate::matrix::{Matrix, Verdict};
use crate::required::Required;
use crate::results::{Coverage, Results, Timed};
use crate::run::{Outcome, Ran};
use crate::steps::Profile;

/// Tests that are listed as the slowest.
const SLOWEST: usize = 20;

/// What was judged, where, and with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The commit.
    pub commit: String,
    /// There were changes that are in no commit.
    pub changed: bool,
    /// How much was run.
    pub profile: Profile,
    /// One layer only.
    pub only: Option<Layer>,
    /// When it began (RFC 3339).
    pub began: String,
    /// The machine and the tools, by name.
    pub versions: BTreeMap<String, String>,
}

/// All that is known after a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was judged.
    pub about: About,
    /// Parts that are in it, and of how many.
    pub shards: (BTreeSet<u64>, u64),
    /// What was run.
    pub steps: Vec<Ran>,
    /// What the layers said.
    pub evidence: Vec<Evidence>,
    /// What failed, in the order in which it was found.
    pub failures: Vec<Failure>,
    /// The slowest tests, the slowest first.
    pub slowest: Vec<Timed>,
    /// What happened in the simulation.
    #[serde(default)]
    pub coverage: Option<Coverage>,
}

/// What a run comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judgement {
    /// Every clause has the evidence that it needs.
    Green,
    /// Nothing failed, but not all that is needed was run.
    Incomplete,
    /// Something failed, or evidence is missing.
    Red,
}

impl Report {
    /// Without anything yet.
    pub fn new(about: About, shard: (u64, u64)) -> Self {
        Self {
            about,
            shards: (BTreeSet::from([shard.0]), shard.1),
            steps: Vec::new(),
            evidence: Vec::new(),
            failures: Vec::new(),
            slowest: Vec::new(),
            coverage: None,
        }
    }

    /// Adds a step.
    pub fn add(&mut self, ran: Ran, results: Results) {
        self.steps.push(ran);
        self.evidence.extend(results.evidence);
        self.failures.extend(results.failures);
        self.slowest.extend(results.timed);
        self.keep_slowest();
        if results.coverage.is_some() {
            self.coverage = results.coverage;
        }
    }

    fn keep_slowest(&mut self) {
        self.slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        self.slowest.truncate(SLOWEST);
    }

    /// Parts of one run become the whole.
    ///
    /// # Errors
    /// When they are not of one run, one is there twice, or there is none.
    pub fn merge(parts: Vec<Self>) -> anyhow::Result<Self> {
        let mut parts = parts.into_iter();
        let mut whole = parts.next().context("there are no parts")?;
        for part in parts {
            anyhow::ensure!(
                (
                    &part.about.commit,
                    part.about.profile,
                    part.shards.1,
                    part.about.changed
                ) == (
                    &whole.about.commit,
                    whole.about.profile,
                    whole.shards.1,
                    whole.about.changed
                ),
                "parts of different runs: commit, profile and number of parts must be the same"
            );
            let twice: Vec<_> = part.shards.0.intersection(&whole.shards.0).collect();
            anyhow::ensure!(twice.is_empty(), "part {twice:?} is there twice");
            whole.shards.0.extend(part.shards.0);
            whole.about.began = whole.about.began.min(part.about.began);
            for ran in part.steps {
                match whole.steps.iter_mut().find(|it| it.name == ran.name) {
                    Some(it) => {
                        it.outcome = it.outcome.max(ran.outcome);
                        it.seconds += ran.seconds;
                        it.notes.extend(ran.notes);
                    }
                    None => whole.steps.push(ran),
                }
            }
            whole.evidence.extend(part.evidence);
            whole.failures.extend(part.failures);
            whole.slowest.extend(part.slowest);
            match (&mut whole.coverage, part.coverage) {
                (Some(sum), Some(it)) => sum.add(&it)?,
                (none, it) => *none = none.take().or(it),
            }
        }
        whole.keep_slowest();
        Ok(whole)
    }

    /// Reads one from its file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        serde_json::from_str(&text).with_context(|| format!("{} is no report", file.display()))
    }

    /// Layers that were run to their end.
    fn run(&self) -> BTreeSet<Layer> {
        let not = |it: &&Ran| it.outcome == Outcome::NotRun;
        let not_run: BTreeSet<Layer> = self
            .steps
            .iter()
            .filter(not)
            .flat_map(|it| it.layers.clone())
            .collect();
        let all = self.steps.iter().flat_map(|it| it.layers.clone());
        all.filter(|layer| !not_run.contains(layer)).collect()
    }

    /// Clauses by layers.
    pub fn matrix(&self, required: &Required) -> Matrix {
        Matrix::of(&self.evidence, &self.run(), required)
    }

    /// Parts that are missing.
    pub fn missing_parts(&self) -> Vec<u64> {
        (1..=self.shards.1)
            .filter(|k| !self.shards.0.contains(k))
            .collect()
    }

    /// What it comes to. A profile that does not run every layer is never green.
    pub fn judgement(&self, required: &Required) -> Judgement {
        let whole = self.missing_parts().is_empty()
            && self.about.only.is_none()
            && self.about.profile >= Profile::Change;
        match self.matrix(required).all() {
            _ if !self.failures.is_empty() => Judgement::Red,
            Verdict::Red => Judgement::Red,
            Verdict::Missing if whole => Judgement::Red,
            Verdict::Green | Verdict::Empty if whole => Judgement::Green,
            _ => Judgement::Incomplete,
        }
    }

    /// As people read it in a terminal.
    pub fn text(&self, required: &Required) -> String {
        text::render(self, required)
    }

    /// As a page that needs no other file.
    pub fn html(&self, required: &Required) -> String {
        html::render(self, required)
    }

    /// As annotations of GitHub's checks.
    pub fn annotations(&self) -> String {
        // What is special in a message: https://docs.github.com/actions, workflow commands.
        let escaped = |text: &str| {
            text.replace('%', "%25")
                .replace('\r', "%0D")
                .replace('\n', "%0A")
        };
        let all = self.failures.iter();
        all.map(|it| {
            format!(
                "::error title=gate::{}%0Areproduce: {}\n",
                escaped(&it.what),
                escaped(&it.reproduce)
            )
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
