//! Runs steps, and reads what they say.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use embedded_pg::forget_cargo;
use harness::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

use crate::evidence::{Failure, Layer};
use crate::results::Results;
use crate::steps::{BUDGETS, Profile, Reads, Settings, Step};

/// The exit code of a command that cannot be run here; it says why on standard error.
pub const NOT_RUN: i32 = 77;

/// How a step ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it must.
    Passed,
    /// It cannot be run here.
    NotRun,
    /// Otherwise.
    Failed,
}

/// A step that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// Which.
    pub name: String,
    /// Who speaks in its result.
    pub layers: Vec<Layer>,
    /// How it ended.
    pub outcome: Outcome,
    /// How long it took.
    pub seconds: f64,
    /// What was run.
    pub command: String,
    /// What else a reader wants to know.
    pub notes: Vec<String>,
}

/// Runs a step in `root`. Whatever it prints is progress, and goes to standard error.
///
/// # Errors
/// When it cannot be started. That it fails is a result.
pub fn run(step: &Step, settings: &Settings, root: &Path) -> anyhow::Result<(Ran, Results)> {
    let words = (step.command)(settings);
    let (program, arguments) = words.split_first().context("a step without a command")?;
    eprintln!("\n== {}", step.name);
    let mut command = Command::new(program);
    forget_cargo(&mut command);
    command
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null());
    if settings.profile == Profile::Deep {
        let unset = BUDGETS
            .iter()
            .filter(|(name, _)| std::env::var_os(name).is_none());
        command.envs(unset.copied());
    }
    let (stdout, stderr) = voices(settings)?;
    command.stderr(stderr);
    match step.reads {
        Reads::Stdout(_) => command.stdout(Stdio::piped()),
        Reads::ExitCode | Reads::File(..) => command.stdout(stdout),
    };
    if let Reads::File(file, _) = step.reads {
        // An old result must not be taken for this one.
        let file = root.join(file(settings));
        if file.exists() {
            std::fs::remove_file(&file).with_context(|| file.display().to_string())?;
        }
    }
    let clock = SystemClock::new();
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let mut said = String::new();
    if let Some(stdout) = &mut child.stdout {
        stdout
            .read_to_string(&mut said)
            .with_context(|| step.name.to_owned())?;
    }
    let status = child.wait().with_context(|| step.name.to_owned())?;
    let seconds = clock.elapsed().as_secs_f64();
    let ran = |outcome, notes| Ran {
        name: step.name.to_owned(),
        layers: step.layers.to_vec(),
        outcome,
        seconds,
        command: words.join(" "),
        notes,
    };
    if status.code() == Some(NOT_RUN) {
        eprintln!("not run: {}", step.name);
        return Ok((ran(Outcome::NotRun, Vec::new()), Results::default()));
    }
    let read = match step.reads {
        Reads::ExitCode => Ok(Results::default()),
        Reads::Stdout(read) => read(&said),
        Reads::File(file, read) => {
            let file = file(settings);
            std::fs::read_to_string(root.join(file))
                .with_context(|| format!("there is no result at {file}"))
                .and_then(|text| read(&text))
        }
    };
    let mut results = read.unwrap_or_else(|error| Results {
        notes: vec![format!("{error:#}")],
        failures: vec![Failure::new(
            format!("{}: {error:#}", step.name),
            words.join(" "),
        )],
        ..Results::default()
    });
    if !status.success() && results.failures.is_empty() {
        results.failures.push(Failure::new(
            format!("{} ended with {status}", step.name),
            words.join(" "),
        ));
    }
    let outcome = if results.failures.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed
    };
    Ok((ran(outcome, results.notes.clone()), results))
}

/// Where what a step says goes, twice.
fn voices(settings: &Settings) -> anyhow::Result<(Stdio, Stdio)> {
    let Some(file) = &settings.log else {
        return Ok((std::io::stderr().into(), std::io::stderr().into()));
    };
    let log = std::fs::File::create(file).with_context(|| file.display().to_string())?;
    Ok((log.try_clone().context("a log")?.into(), log.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(command: fn(&Settings) -> Vec<String>, reads: Reads) -> (Outcome, Vec<String>) {
        let target = tempfile::tempdir().unwrap();
        let settings = Settings {
            profile: Profile::Change,
            shard: (1, 1),
            commit: String::new(),
            only: None,
            out: target.path().to_owned(),
            log: None,
        };
        std::fs::write(target.path().join("old"), "old").unwrap();
        let step = Step {
            name: "step",
            layers: &[],
            from: Profile::Quick,
            command,
            reads,
            divides: false,
        };
        let (ran, results) = run(&step, &settings, target.path()).unwrap();
        (
            ran.outcome,
            results.failures.into_iter().map(|it| it.what).collect(),
        )
    }

    fn shell(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn reads(text: &str) -> anyhow::Result<Results> {
        anyhow::ensure!(text == "good", "cannot be read: {text}");
        Ok(Results::default())
    }

    #[test]
    fn gate_a_step_passes_only_with_its_exit_code_and_its_result() {
        let passed = (Outcome::Passed, Vec::new());
        assert_eq!(tried(|_| shell("exit 0"), Reads::ExitCode), passed);
        assert_eq!(
            tried(|_| shell("printf good"), Reads::Stdout(reads)),
            passed
        );
        assert_eq!(
            tried(
                |_| shell("printf good > new"),
                Reads::File(|_| "new", reads)
            ),
            passed
        );
        for (command, reads, says) in [
            (
                (|_| shell("exit 3")) as fn(&Settings) -> Vec<String>,
                Reads::ExitCode,
                "3",
            ),
            (|_| shell("printf good; exit 4"), Reads::Stdout(reads), "4"),
            (
                |_| shell("printf bad"),
                Reads::Stdout(reads),
                "cannot be read: bad",
            ),
            (|_| shell("exit 0"), Reads::Stdout(reads), "cannot be read"),
            (
                |_| shell("exit 0"),
                Reads::File(|_| "new", reads),
                "no result at new",
            ),
            (|_| shell("kill -9 $$"), Reads::ExitCode, "9"),
            // Not that of an earlier run.
            (
                |_| shell("exit 0"),
                Reads::File(|_| "old", reads),
                "no result at old",
            ),
        ] {
            let (outcome, failures) = tried(command, reads);
            assert_eq!(outcome, Outcome::Failed, "{failures:?}");
            assert!(failures[0].contains(says), "{failures:?}");
        }
        assert_eq!(
            tried(|_| shell("exit 77"), Reads::ExitCode).0,
            Outcome::NotRun
        );
    }
}
