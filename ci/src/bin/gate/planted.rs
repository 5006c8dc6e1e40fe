//! `cargo gate planted`: hunts planted bugs, and keeps what is found after every bug.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use gate::about::about;
use gate::evidence::Layer;
use gate::planted::{Bug, Noticed, Results, Scratch, bugs, document, hunt};
use gate::report::Judgement;
use gate::steps::Profile;

use crate::{root, target};

/// Which bugs are hunted, and by whom.
pub(crate) struct Chosen {
    /// Empty: all.
    pub(crate) names: Vec<String>,
    /// Empty: all that look for a bug.
    pub(crate) layers: Vec<Layer>,
    /// Part k of n, from 1.
    pub(crate) shard: (u64, u64),
    /// Also where the answer is known.
    pub(crate) again: bool,
}

impl Chosen {
    fn bugs(&self, bugs: &[Bug]) -> anyhow::Result<Vec<Bug>> {
        for name in &self.names {
            anyhow::ensure!(
                bugs.iter().any(|it| it.name == *name),
                "{name}: there is no such bug; see --list"
            );
        }
        let is_in = |it: &&Bug| self.names.is_empty() || self.names.contains(&it.name);
        let (k, n) = self.shard;
        let parts = bugs.iter().filter(is_in).zip((0..n).cycle());
        let mine = parts.filter(|(_, part)| part + 1 == k);
        Ok(mine.map(|(bug, _)| bug.clone()).collect())
    }

    fn layers(&self, bug: &Bug, results: &Results) -> Vec<Layer> {
        let is_in = |it: &Layer| match self.layers.is_empty() {
            true => bug.is_for(*it),
            false => self.layers.contains(it) && *it != Layer::Models,
        };
        let open = |it: &Layer| self.again || results.noticed(bug, *it) == Noticed::NotAsked;
        Layer::ALL
            .into_iter()
            .filter(|it| is_in(it) && open(it))
            .collect()
    }
}

pub(crate) fn run(chosen: &Chosen, list: bool, write: bool) -> anyhow::Result<Judgement> {
    let bugs = bugs()?;
    let wanted = chosen.bugs(&bugs)?;
    if list {
        let text: String = wanted
            .iter()
            .map(|it| format!("{:<34} {:<4} {}\n", it.name, it.clause, it.what))
            .collect();
        std::io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(Judgement::Green);
    }
    let kept = Kept::open()?;
    let mut results = kept.read()?;
    if write {
        kept.write(&bugs, &results)?;
    } else {
        hunted(chosen, &wanted, &bugs, &mut results, &kept)?;
    }
    let wrong = results.wrong(&bugs, false);
    for it in &wrong {
        eprintln!("{it}");
    }
    Ok(if wrong.is_empty() {
        Judgement::Green
    } else {
        Judgement::Red
    })
}

fn hunted(
    chosen: &Chosen,
    wanted: &[Bug],
    bugs: &[Bug],
    results: &mut Results,
    kept: &Kept,
) -> anyhow::Result<()> {
    let root = root()?;
    let commit = about(root, Profile::Deep, None).commit;
    let scratch = Scratch::of(root, &target(root))?;
    for bug in wanted {
        let layers = chosen.layers(bug, results);
        if layers.is_empty() {
            continue;
        }
        let mut entry = results.of(bug).cloned().unwrap_or_default();
        entry.mistake = bug.mistake().digest();
        entry.commit.clone_from(&commit);
        let _made = scratch
            .with(&bug.mistake())
            .with_context(|| bug.name.clone())?;
        for layer in layers {
            let caught = hunt(&scratch, layer).with_context(|| bug.name.clone())?;
            let said = caught.by.as_deref().unwrap_or("nothing noticed");
            let (name, layer_name) = (&bug.name, layer.as_str());
            eprintln!("{name}, {layer_name}: {said} ({:.0} s)", caught.seconds);
            entry.layers.retain(|it| it.layer != layer);
            entry.layers.push(caught);
            results.0.insert(bug.name.clone(), entry.clone());
            kept.write(bugs, results)?;
        }
    }
    Ok(())
}

/// Where results are kept.
struct Kept {
    results: PathBuf,
    document: PathBuf,
}

impl Kept {
    fn open() -> anyhow::Result<Self> {
        let folder = root()?.join("ci/planted");
        Ok(Self {
            results: folder.join("results.json"),
            document: folder.join("matrix.md"),
        })
    }

    fn read(&self) -> anyhow::Result<Results> {
        let file = &self.results;
        let json = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
        Results::read(&json)
    }

    /// What is known of bugs that are no longer there, or are others now, is left out.
    fn write(&self, bugs: &[Bug], results: &Results) -> anyhow::Result<()> {
        let known = |bug: &Bug| Some((bug.name.clone(), results.of(bug)?.clone()));
        let results: Results = Results(bugs.iter().filter_map(known).collect());
        for (file, text) in [
            (
                &self.results,
                serde_json::to_string_pretty(&results)? + "\n",
            ),
            (&self.document, document(bugs, &results)),
        ] {
            std::fs::write(file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}
