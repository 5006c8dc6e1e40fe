//! Who may use what: the architecture's invariants, as far as a name gives them away. Calls that are banned everywhere are
//! clippy's business (`clippy.toml`); here is who may be excepted.

use crate::{File, files, none};

/// In files whose path begins with one of `within`, but none of `except`, no line of code has one of `never` in it.
struct Rule {
    why: &'static str,
    within: &'static [&'static str],
    except: &'static [&'static str],
    never: &'static [&'static str],
}

const RULES: [Rule; 8] = [
    Rule {
        why: "the harness meets its store through a port, so that it can run on another one",
        within: &["harness/src/"],
        except: &[
            "harness/src/postgres/",
            "harness/src/bin/job-harness/database.rs",
        ],
        never: &["sqlx::"],
    },
    Rule {
        why: "the harness does not know who tests it",
        within: &["harness/src/"],
        except: &[],
        never: &["turmoil", "stateright", "acceptance::", "sim::", "models::"],
    },
    Rule {
        why: "a model writes the rules down on its own; taken from the code they would agree whatever the code does",
        within: &["models/src/"],
        // This one speaks of what the harness tells, by the names that it has there.
        except: &["models/src/lifecycle/", "models/src/main.rs"],
        never: &["harness::"],
    },
    Rule {
        why: "a model does no input or output",
        within: &["models/src/"],
        // The address of the page that shows a model.
        except: &["models/src/main.rs", "models/src/book/mod.rs"],
        never: &["std::fs", "std::net", "std::env", "tokio::"],
    },
    Rule {
        why: "what threads share in the consumer comes from `sync`, or loom would not see it",
        within: &["harness/src/consumer/"],
        except: &["harness/src/consumer/loom_tests/"],
        never: &[
            "std::sync::Mutex",
            "std::sync::RwLock",
            "std::sync::atomic::Atomic",
            "tokio::sync",
            "tokio::task",
            "tokio::spawn",
            "tokio_util",
        ],
    },
    Rule {
        why: "an ack is the last thing, and given in one place",
        within: &["harness/src/"],
        except: &["harness/src/consumer/answer.rs"],
        never: &["queue.ack(", ".ack(&self.config.queue"],
    },
    Rule {
        why: "a test that is left out says why",
        within: &["harness/", "sim/", "models/", "tests/", "ci/", "fuzz/"],
        except: &["ci/tests/tidy/uses.rs"],
        never: &["#[ignore]"],
    },
    Rule {
        why: "a clock, a sleep or randomness of the machine is for those who are no part of a test's outcome: each is named here",
        within: &["harness/", "sim/", "models/", "tests/", "ci/", "fuzz/"],
        except: MAY_USE_THE_MACHINE,
        never: &["clippy::disallowed_methods", "clippy::disallowed_types"],
    },
];

/// Files in which a banned call is allowed, beside the reason.
const MAY_USE_THE_MACHINE: &[&str] = &[
    // The one clock that is the machine's, and what loom puts in its place.
    "harness/src/ports/clock.rs",
    "harness/src/consumer/loom_tests/mod.rs",
    // Time stamps of files, and how long something took, for people.
    "ci/src/bin/prepare-queries.rs",
    "models/src/main.rs",
    // Steps of loops that wait for another program, where there is no runtime.
    "tests/postgres/",
    "ci/tests/tidy/uses.rs",
];

/// Without comments, which may speak of everything.
fn lines_of_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate();
    lines
        .map(|(n, line)| (n + 1, line.split("//").next().unwrap_or_default()))
        .filter(|(_, line)| !line.trim().is_empty())
}

fn broken(rule: &Rule, file: &File) -> Vec<String> {
    let begins = |with: &[&str]| with.iter().any(|it| file.path.starts_with(it));
    if !begins(rule.within) || begins(rule.except) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (n, line) in lines_of_code(&file.text) {
        for never in rule.never.iter().filter(|it| line.contains(**it)) {
            found.push(format!("{}:{n}: {never}: {}", file.path, rule.why));
        }
    }
    found
}

#[test]
fn tidy_only_those_who_may_use_it() {
    let files = files(&[".rs"]);
    none(
        RULES
            .iter()
            .flat_map(|rule| files.iter().flat_map(|file| broken(rule, file)))
            .collect(),
    );
}

/// An exception that nobody needs any more lets somebody else in.
#[test]
fn tidy_every_exception_is_needed() {
    let files = files(&[".rs"]);
    let mut idle = Vec::new();
    for rule in &RULES {
        for except in rule.except {
            let others: Vec<&str> = rule
                .except
                .iter()
                .copied()
                .filter(|it| it != except)
                .collect();
            let without = Rule {
                except: others.leak(),
                ..*rule
            };
            let excepted = files.iter().filter(|it| it.path.starts_with(except));
            if excepted.flat_map(|file| broken(&without, file)).count() == 0 {
                idle.push(format!("{except} is excepted for nothing: {}", rule.why));
            }
        }
    }
    none(idle);
}

#[test]
fn tidy_what_may_not_be_used_is_found() {
    for rule in &RULES {
        for (within, never) in rule.within.iter().zip(rule.never.iter().cycle()) {
            let file = |text: String| File {
                path: format!("{within}x.rs"),
                text,
            };
            assert_eq!(broken(rule, &file(format!("let x = {never}y;"))).len(), 1);
            assert_eq!(broken(rule, &file(format!("/// {never}"))).len(), 0);
        }
    }
}
