//! Files that nobody needs: modules that no other names, and files that no other speaks of.

use std::collections::BTreeSet;

use crate::{files, names, none};

/// A file is the root of a program, a library or a test.
fn is_root(path: &str) -> bool {
    let in_own_folder = |folder: &str| {
        path.split_once(folder).is_some_and(|(_, rest)| {
            !rest.contains('/') || rest.split_once('/').is_some_and(|(_, it)| it == "main.rs")
        })
    };
    path.ends_with("/src/lib.rs")
        || path.ends_with("/src/main.rs")
        || path.ends_with("/build.rs")
        || in_own_folder("/src/bin/")
        || in_own_folder("/fuzz_targets/")
        || in_own_folder("/tests/")
        || in_own_folder("/benches/")
        // The tests of a package of its own: a folder for each program.
        || (path.starts_with("tests/") && path.matches('/').count() == 2 && path.ends_with("/main.rs"))
}

/// The files that may name this module, and its name.
fn parents(path: &str) -> (Vec<String>, String) {
    let path = path.strip_suffix("/mod.rs").unwrap_or(path);
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let candidates = ["mod.rs", "lib.rs", "main.rs"]
        .map(|file| format!("{folder}/{file}"))
        .into_iter()
        .chain([format!("{folder}.rs")]);
    (candidates.collect(), name.to_owned())
}

fn names_module(text: &str, name: &str) -> bool {
    let named = format!("mod {name};");
    text.lines().any(|line| line.trim().ends_with(&named))
}

#[test]
fn tidy_every_module_is_named_by_another() {
    let files = files(&[".rs"]);
    let mut dead = Vec::new();
    for file in files.iter().filter(|it| !is_root(&it.path)) {
        let (parents, name) = parents(&file.path);
        let mut parents = files.iter().filter(|it| parents.contains(&it.path));
        if !parents.any(|it| names_module(&it.text, &name)) {
            dead.push(format!("{}: nothing says `mod {name};`", file.path));
        }
    }
    none(dead);
}

/// Files that are read by their folder, or by tools that know their names.
const KNOWN: [&str; 11] = [
    ".",
    "clippy.toml",
    "deny.toml",
    "rust-toolchain.toml",
    "fuzz/seeds/",
    "harness/.sqlx/",
    "harness/sqlx.toml",
    "models/tests/snapshots/",
    "sim/corpus/",
    "tests/generated/regressions/",
    "tests/proptest-regressions/",
];

#[test]
fn tidy_every_other_file_is_spoken_of() {
    let names = names();
    let speakers: Vec<(&String, String)> = names
        .iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(crate::root().join(path)).ok()?;
            Some((path, text))
        })
        .collect();
    let mut dead = Vec::new();
    let mut known = BTreeSet::new();
    for path in names.iter().filter(|it| !it.ends_with(".rs")) {
        let name = path.rsplit('/').next().unwrap_or_default();
        if name == "Cargo.toml" || name == "Cargo.lock" {
            continue;
        }
        if let Some(it) = KNOWN.iter().find(|it| path.starts_with(**it)) {
            known.insert(*it);
            continue;
        }
        let stem = name.split('.').next().unwrap_or(name);
        let spoken = speakers.iter().any(|(speaker, text)| {
            *speaker != path
                && (text.contains(name) || (name.ends_with(".sql") && text.contains(stem)))
        });
        if !spoken {
            dead.push(format!("{path}: no other file speaks of it"));
        }
    }
    for it in &KNOWN {
        if !known.contains(it) {
            dead.push(format!("{it} is excepted for nothing"));
        }
    }
    none(dead);
}

#[test]
fn tidy_a_module_knows_its_parents() {
    assert!(is_root("harness/src/lib.rs") && is_root("tests/wire/main.rs"));
    assert!(is_root("ci/src/bin/gate/main.rs") && !is_root("ci/src/bin/gate/planted.rs"));
    assert!(!is_root("tests/wire/disk.rs") && !is_root("harness/src/ops/mod.rs"));
    let (those, name) = parents("harness/src/ops/mod.rs");
    assert_eq!(name, "ops");
    assert!(
        those.contains(&"harness/src/lib.rs".to_owned()),
        "{those:?}"
    );
    let (those, name) = parents("harness/src/ops/list.rs");
    assert_eq!(name, "list");
    assert!(
        those.contains(&"harness/src/ops/mod.rs".to_owned()),
        "{those:?}"
    );
    assert!(names_module("pub mod ops;\n", "ops") && !names_module("mod opsy;", "ops"));
}
