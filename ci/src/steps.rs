//! What the gate runs: the steps, in their order, the cheapest first.

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::evidence::Layer;
use crate::results::{Results, fuzz, junit, models, mutants, sweep};

/// How much is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// Before a commit.
    Quick,
    /// On every change.
    Change,
    /// At night.
    Deep,
}

impl Profile {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Change => "change",
            Self::Deep => "deep",
        }
    }
}

/// Seeds that a change is tried with.
pub const SEEDS_OF_A_CHANGE: u64 = 1_000;

/// What the steps must know.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How much.
    pub profile: Profile,
    /// Part k of n, from 1.
    pub shard: (u64, u64),
    /// Where the seeds of the sweep begin.
    pub commit: String,
    /// One layer only.
    pub only: Option<Layer>,
    /// Where the report will be.
    pub out: PathBuf,
    /// Where steps tell what they do; on standard error when left out.
    pub log: Option<PathBuf>,
}

/// Where a step's result is.
#[derive(Clone, Copy)]
pub enum Reads {
    /// Only how it ended.
    ExitCode,
    /// On its standard output.
    Stdout(fn(&str) -> anyhow::Result<Results>),
    /// In a file below the project; which one depends on how much is run.
    File(
        fn(&Settings) -> &'static str,
        fn(&str) -> anyhow::Result<Results>,
    ),
}

/// One command.
#[derive(Clone, Copy)]
pub struct Step {
    /// Its name, for people.
    pub name: &'static str,
    /// Who speaks in its result.
    pub layers: &'static [Layer],
    /// The least profile that it belongs to.
    pub from: Profile,
    /// Program and arguments.
    pub command: fn(&Settings) -> Vec<String>,
    /// Where its result is.
    pub reads: Reads,
    /// It can run a part of itself (`Settings::shard`); what cannot is run whole, by one of the shards.
    pub divides: bool,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// All steps.
pub const STEPS: &[Step] = &[
    Step {
        name: "format",
        layers: &[],
        from: Profile::Quick,
        command: |_| words("cargo fmt --all --check"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "lints",
        layers: &[],
        from: Profile::Quick,
        command: |_| words("cargo clippy --quiet --workspace --all-targets -- --deny warnings"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "licences, duplicate and banned dependencies",
        layers: &[],
        from: Profile::Change,
        command: |_| words("cargo deny --log-level error check bans licenses sources"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "queries against PostgreSQL",
        layers: &[],
        from: Profile::Change,
        command: |_| words("cargo prepare-queries --check"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "alert rules",
        layers: &[],
        from: Profile::Change,
        command: |_| words("ci/promtool"),
        reads: Reads::ExitCode,
        divides: false,
    },
    // Without determinism no seed means anything.
    Step {
        name: "simulation: a seed decides everything",
        layers: &[Layer::Simulation],
        from: Profile::Change,
        command: |_| words("cargo sim meta --seeds 10 --per-seed 50"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "simulation: every turn of the lifecycle model, driven through the harness",
        layers: &[Layer::Simulation],
        from: Profile::Quick,
        command: |_| words("cargo sim drive"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "simulation: every failure that was ever found",
        layers: &[Layer::Simulation],
        from: Profile::Quick,
        command: |_| {
            ["sh", "-c", "cargo sim replay sim/corpus/*.json"]
                .map(str::to_owned)
                .to_vec()
        },
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "simulation: seeds from this commit on",
        layers: &[Layer::Simulation],
        from: Profile::Quick,
        command: |it| {
            let seeds = match it.profile {
                Profile::Quick => 100,
                Profile::Change => SEEDS_OF_A_CHANGE,
                Profile::Deep => 50_000,
            };
            let ((k, n), commit) = (it.shard, &it.commit);
            let coverage = if it.profile == Profile::Deep {
                "--require-coverage"
            } else {
                "--coverage"
            };
            let mut words = words(&format!(
                "cargo sim sweep --seeds {seeds} --jobs 2 --from {commit} --shard {k}/{n} --format json {coverage} --pictures"
            ));
            words.push(it.out.join(sweep::PICTURES).display().to_string());
            words
        },
        reads: Reads::Stdout(sweep::read),
        divides: true,
    },
    Step {
        name: "models: every state",
        layers: &[Layer::Models],
        from: Profile::Change,
        command: |_| words("cargo model check --format json"),
        reads: Reads::Stdout(models::read),
        divides: false,
    },
    Step {
        name: "tests",
        layers: &[
            Layer::Acceptance,
            Layer::Simulation,
            Layer::Models,
            Layer::Conformance,
            Layer::Differential,
            Layer::Generated,
            Layer::Unit,
        ],
        from: Profile::Quick,
        command: |it| {
            let (k, n) = it.shard;
            let profile = junit::profile(it.profile);
            let mut words = words(&format!(
                "cargo run --quiet --package embedded-pg --bin with-postgres -- \
                 cargo nextest run --workspace --profile {profile} --partition hash:{k}/{n}"
            ));
            if let Some(filter) = it.only.and_then(Layer::tests) {
                words.extend(["-E".to_owned(), filter.to_owned()]);
            }
            words
        },
        reads: Reads::File(|it| junit::file(it.profile), junit::read),
        divides: true,
    },
    Step {
        name: "loom: the consumer's own concurrency",
        layers: &[Layer::Loom],
        from: Profile::Change,
        command: |it| {
            words(if it.profile == Profile::Deep {
                "ci/loom --deep"
            } else {
                "ci/loom"
            })
        },
        reads: Reads::File(|_| "target/nextest/loom/junit.xml", junit::read_loom),
        divides: false,
    },
    Step {
        name: "a full disk",
        layers: &[],
        from: Profile::Change,
        command: |_| words("ci/full-disk"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "fuzzing",
        layers: &[Layer::Fuzz],
        from: Profile::Change,
        command: |it| {
            words(if it.profile == Profile::Deep {
                "ci/fuzz --minutes 10"
            } else {
                "ci/fuzz --smoke"
            })
        },
        reads: Reads::File(|_| fuzz::FILE, fuzz::read),
        divides: false,
    },
    Step {
        name: "HTTP API against its description",
        layers: &[],
        from: Profile::Change,
        command: |_| words("ci/schemathesis"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "examples in the documentation",
        layers: &[],
        from: Profile::Change,
        command: |_| words("cargo test --quiet --package harness --doc"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "simulation: a seed decides everything, at length",
        layers: &[],
        from: Profile::Deep,
        command: |_| words("cargo sim meta --seeds 500 --per-seed 200"),
        reads: Reads::ExitCode,
        divides: false,
    },
    Step {
        name: "every small change of the core",
        layers: &[],
        from: Profile::Deep,
        command: |it| {
            let (k, n) = it.shard;
            words(&format!("ci/mutants --shard {k}/{n}"))
        },
        reads: Reads::File(|_| mutants::FILE, mutants::read),
        divides: true,
    },
    Step {
        name: "PostgreSQL in Docker, of every version that matters",
        layers: &[],
        from: Profile::Deep,
        command: |_| words("ci/test --docker"),
        reads: Reads::ExitCode,
        divides: false,
    },
];

/// What tests take their budgets from at night; what is set already is left alone.
pub const BUDGETS: [(&str, &str); 3] = [
    ("PROPTEST_CASES", "2000"),
    ("DIFFERENTIAL_SCRIPTS", "100000"),
    ("WIRE_SEEDS", "200"),
];

/// The steps of a run: those of its profile, its part, and its layer.
pub fn chosen(settings: &Settings) -> Vec<Step> {
    let (k, n) = settings.shard;
    let mut whole = 0;
    let of_profile = STEPS.iter().filter(|step| step.from <= settings.profile);
    let mut chosen = Vec::new();
    for step in of_profile.filter(|step| {
        settings
            .only
            .is_none_or(|layer| step.layers.contains(&layer))
    }) {
        if step.divides {
            chosen.push(*step);
        } else {
            if whole % n == k - 1 {
                chosen.push(*step);
            }
            whole += 1;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(profile: Profile, shard: (u64, u64)) -> Settings {
        Settings {
            profile,
            shard,
            commit: "0".to_owned(),
            only: None,
            out: PathBuf::from("target/gate"),
            log: None,
        }
    }

    #[test]
    fn gate_the_parts_together_are_the_whole() {
        let whole = chosen(&settings(Profile::Deep, (1, 1)));
        assert_eq!(whole.len(), STEPS.len());
        let mut parts: Vec<&str> = (1..=3)
            .flat_map(|k| chosen(&settings(Profile::Deep, (k, 3))))
            .map(|step| step.name)
            .collect();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), STEPS.len());
    }

    // Each profile's tests have their own time limits, and their own report.
    #[test]
    fn gate_the_report_that_is_read_is_the_one_that_is_written() {
        for profile in Profile::value_variants() {
            let it = settings(*profile, (1, 1));
            let step = chosen(&it)
                .into_iter()
                .find(|step| step.name == "tests")
                .unwrap();
            let Reads::File(file, _) = step.reads else {
                panic!("tests leave a file");
            };
            let words = (step.command)(&it);
            let at = words.iter().position(|word| word == "--profile").unwrap();
            assert_eq!(
                file(&it),
                format!("target/nextest/{}/junit.xml", words[at + 1])
            );
        }
    }

    #[test]
    fn gate_a_larger_profile_leaves_nothing_out() {
        let names = |profile| -> Vec<&str> {
            chosen(&settings(profile, (1, 1)))
                .iter()
                .map(|step| step.name)
                .collect()
        };
        let (quick, change, deep) = (
            names(Profile::Quick),
            names(Profile::Change),
            names(Profile::Deep),
        );
        assert!(quick.iter().all(|name| change.contains(name)) && quick.len() < change.len());
        assert!(change.iter().all(|name| deep.contains(name)));
    }
}
