//! Documents that speak of what is not there: commands, options, files.

use std::collections::BTreeSet;

use crate::{File, files, names, none, root};

/// What cargo knows by itself or by a tool that `ci/setup` or the reader installs.
const CARGO: [&str; 8] = [
    "test", "nextest", "deny", "bench", "install", "add", "run", "build",
];

/// Options of others' programs.
const FOREIGN: [&str; 1] = ["--nocapture"];

/// Made while the project is used; in no commit.
const MADE: [&str; 4] = [
    "target/",
    "fuzz/corpus",
    "fuzz/artifacts",
    "tests/proptest-regressions",
];

/// What is written as code: between backticks, and in blocks.
fn code(text: &str) -> Vec<(usize, String)> {
    let mut code = Vec::new();
    let mut block = false;
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            block = !block;
        } else if block {
            code.push((n + 1, line.to_owned()));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            code.extend(spans.map(|span| (n + 1, span.to_owned())));
        }
    }
    code
}

fn is_path_like(word: &str) -> bool {
    word.chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

struct Known {
    names: Vec<String>,
    aliases: BTreeSet<String>,
    /// All programs and scripts.
    programs: String,
}

impl Known {
    fn read() -> Self {
        let config = std::fs::read_to_string(root().join(".cargo/config.toml")).unwrap();
        let config: toml::Table = toml::from_str(&config).unwrap();
        let aliases = config["alias"]
            .as_table()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        let names = names();
        let is_program = |it: &&String| {
            (it.ends_with(".rs") || it.starts_with("ci/")) && !it.starts_with("ci/tests/")
        };
        let programs = names.iter().filter(is_program);
        let programs = programs
            .map(|it| std::fs::read_to_string(root().join(it)).unwrap_or_default())
            .collect();
        Self {
            names,
            aliases,
            programs,
        }
    }

    fn has_file(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        let mut names = self.names.iter();
        MADE.iter()
            .any(|it| path.starts_with(it.trim_end_matches('/')))
            || names.any(|it| it == path || it.starts_with(&folder))
    }

    fn has_option(&self, option: &str) -> bool {
        let field = option.trim_start_matches("--").replace('-', "_");
        FOREIGN.contains(&option)
            || self.programs.contains(option)
            || self.programs.contains(&format!("{field}: "))
            || self
                .programs
                .contains(&format!("long = \"{}\"", option.trim_start_matches("--")))
    }

    fn wrong(&self, code: &str) -> Vec<String> {
        let words: Vec<&str> = code
            .split([' ', '\'', '"', '(', ')', ',', ';', '=', '[', ']', '|'])
            .collect();
        let mut wrong = Vec::new();
        for (n, word) in words.iter().enumerate() {
            let next = words.get(n + 1).copied().unwrap_or_default();
            if *word == "cargo"
                && !next.is_empty()
                && next.chars().all(|c| c.is_ascii_lowercase() || c == '-')
                && !next.starts_with('-')
                && !self.aliases.contains(next)
                && !CARGO.contains(&next)
            {
                wrong.push(format!("there is no command `cargo {next}`"));
            }
            let folder = word.split('/').next().unwrap_or_default();
            let ours =
                ["harness", "sim", "models", "tests", "fuzz", "ci", "docs"].contains(&folder);
            if ours && word.contains('/') && is_path_like(word) && !self.has_file(word) {
                wrong.push(format!("there is no file {word}"));
            }
            if word.len() > 3
                && word.starts_with("--")
                && word
                    .chars()
                    .skip(2)
                    .all(|c| c.is_ascii_lowercase() || c == '-')
                && !self.has_option(word)
            {
                wrong.push(format!("no program has the option {word}"));
            }
        }
        wrong
    }

    fn of(&self, file: &File) -> Vec<String> {
        let mut wrong = Vec::new();
        for (n, code) in code(&file.text) {
            for it in self.wrong(&code) {
                wrong.push(format!("{}:{n}: {it}", file.path));
            }
        }
        wrong
    }
}

#[test]
fn tidy_documents_speak_of_what_is_there() {
    let known = Known::read();
    none(
        files(&[".md"])
            .iter()
            .flat_map(|file| known.of(file))
            .collect(),
    );
}

#[test]
fn tidy_links_lead_somewhere() {
    let mut wrong = Vec::new();
    for file in files(&[".md"]) {
        let folder = root().join(&file.path);
        let folder = folder.parent().unwrap();
        for (n, line) in file.text.lines().enumerate() {
            for link in line
                .split("](")
                .skip(1)
                .filter_map(|it| it.split(')').next())
            {
                let path = link.split('#').next().unwrap_or_default();
                if !path.is_empty() && !path.contains("://") && !folder.join(path).exists() {
                    wrong.push(format!("{}:{}: {path} is not there", file.path, n + 1));
                }
            }
        }
    }
    none(wrong);
}

#[test]
fn tidy_what_is_not_there_is_found() {
    let known = Known::read();
    let wrong = |text: &str| {
        known.of(&File {
            path: "a.md".to_owned(),
            text: text.to_owned(),
        })
    };
    assert_eq!(
        wrong("`cargo gate --quick`, `ci/test --deep`, `docs/gate.md`"),
        Vec::<String>::new()
    );
    assert_eq!(
        wrong("`cargo gaze`"),
        ["a.md:1: there is no command `cargo gaze`"]
    );
    assert_eq!(
        wrong("x\n```\nci/tset\n```"),
        ["a.md:3: there is no file ci/tset"]
    );
    assert_eq!(
        wrong("`cargo gate --kwick`"),
        ["a.md:1: no program has the option --kwick"]
    );
}
