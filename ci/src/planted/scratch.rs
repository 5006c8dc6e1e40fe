//! A copy of the project in which mistakes are made, with a build folder of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::Mistake;
use crate::evidence::Layer;
use crate::steps::{Profile, Settings};

/// The copy.
#[derive(Debug)]
pub struct Scratch {
    /// Where it is. It is built in its own `target`.
    pub tree: PathBuf,
}

impl Scratch {
    /// What is committed, copied to `target/planted/tree`. Files that are the same are left alone, so that little is built
    /// again.
    ///
    /// # Errors
    /// When it cannot be copied.
    pub fn of(root: &Path, target: &Path) -> anyhow::Result<Self> {
        let folder = target.join("planted");
        let tree = folder.join("tree");
        let head = git(root, &["rev-parse", "HEAD"])?;
        let detached = ["checkout", "--quiet", "--force", "--detach", &head];
        // What was there already may be on another machine's disk, or half removed: then it is made anew.
        if !tree.exists() || git(&tree, &detached).is_err() {
            let place = tree.to_string_lossy();
            let _ = git(root, &["worktree", "remove", "--force", &place]);
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            git(root, &["worktree", "prune"])?;
            git(
                root,
                &["worktree", "add", "--force", "--detach", &place, &head],
            )?;
        }
        Ok(Self { tree })
    }

    /// How a step is run in it: as every change does. With the layer's own tests only, if there is one.
    pub fn settings(&self, only: Option<Layer>) -> Settings {
        Settings {
            profile: Profile::Change,
            shard: (1, 1),
            commit: "0".to_owned(),
            only,
            out: self.tree.join("target/gate"),
            log: None,
        }
    }

    /// Makes a mistake. It is taken back when the answer is dropped.
    ///
    /// # Errors
    /// When its place is not there.
    pub fn with(&self, mistake: &Mistake) -> anyhow::Result<Made> {
        let file = self.tree.join(&mistake.file);
        let right = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        std::fs::write(&file, mistake.made_in(&right)?)
            .with_context(|| file.display().to_string())?;
        Ok(Made { file, right })
    }
}

/// A mistake that is there as long as this value.
#[derive(Debug)]
pub struct Made {
    file: PathBuf,
    right: String,
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.file, &self.right) {
            eprintln!(
                "gate: {} still has a planted bug in it: {error}",
                self.file.display()
            );
        }
    }
}

/// What it prints.
fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git")
        .args(arguments)
        .current_dir(root)
        .output()
        .context("git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "git {}: {}",
        arguments.join(" "),
        said.trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
