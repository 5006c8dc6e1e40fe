//! What a reviewer would have to look for in every change, and no other tool does: who may use what, files that are too long
//! or that nobody needs, documents that speak of what is not there.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails the test

mod dead;
mod documents;
mod sizes;
mod uses;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file of the project.
struct File {
    /// Below the project's folder.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// All that is committed or about to be: names of files.
fn names() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "git ls-files");
    let names = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<String> = names.lines().map(str::to_owned).collect();
    names.retain(|it| root().join(it).is_file());
    names.sort();
    names.dedup();
    assert!(names.len() > 300, "only {} files", names.len());
    names
}

/// Those with one of these endings.
fn files(endings: &[&str]) -> Vec<File> {
    let is_in = |name: &String| endings.iter().any(|ending| name.ends_with(ending));
    let files = names().into_iter().filter(is_in).map(|path| File {
        text: std::fs::read_to_string(root().join(&path)).expect(&path),
        path,
    });
    let files: Vec<File> = files.collect();
    assert!(!files.is_empty(), "no files that end with {endings:?}");
    files
}

/// Fails with everything that was found, a line each.
fn none(found: Vec<String>) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}
