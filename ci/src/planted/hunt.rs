//! Whether a layer notices a mistake, and how soon.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::Context as _;
use harness::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

use super::Scratch;
use crate::evidence::Layer;
use crate::results::junit;
use crate::results::sweep::{Failed, Sweep};

/// Seeds that the simulation has to find it.
const SEEDS: u64 = 200;

/// How a layer took a mistake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Caught {
    /// Who.
    pub layer: Layer,
    /// The test, seed or promise that failed; none if nothing did.
    pub by: Option<String>,
    /// Seconds, without building.
    pub seconds: f64,
    /// Seeds that were run, in the simulation.
    pub seeds: Option<u64>,
}

/// Lets a layer look for the mistake that is in `scratch`. A copy that does not even compile has no bug in it, but a typing
/// mistake: that is an error.
///
/// # Errors
/// When the layer cannot be run.
pub fn hunt(scratch: &Scratch, layer: Layer) -> anyhow::Result<Option<Caught>> {
    match (layer, layer.tests()) {
        (Layer::Simulation, _) => by_seeds(scratch).map(Some),
        (_, Some(filter)) => by_tests(scratch, layer, filter).map(Some),
        _ => Ok(None),
    }
}

fn cargo(scratch: &Scratch, arguments: &[&str]) -> anyhow::Result<Output> {
    Command::new("cargo")
        .args(arguments)
        .current_dir(&scratch.tree)
        .env("CARGO_TARGET_DIR", &scratch.target)
        .stdin(Stdio::null())
        .output()
        .context("cargo")
}

fn built(output: &Output) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    let end: Vec<&str> = said.lines().rev().take(30).collect();
    let end: Vec<&str> = end.into_iter().rev().collect();
    anyhow::ensure!(
        output.status.success(),
        "it does not compile:\n{}",
        end.join("\n")
    );
    Ok(())
}

fn by_seeds(scratch: &Scratch) -> anyhow::Result<Caught> {
    built(&cargo(
        scratch,
        &["build", "--quiet", "--release", "--package", "sim"],
    )?)?;
    let clock = SystemClock::new();
    let seeds = SEEDS.to_string();
    let output = cargo(
        scratch,
        &[
            "sim", "sweep", "--seeds", &seeds, "--jobs", "2", "--format", "json",
        ],
    )?;
    let seconds = clock.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout);
    let (by, seeds) = match serde_json::from_str::<Sweep>(&said) {
        Ok(sweep) => {
            let first = sweep.failed.first();
            (first.map(Failed::told), Some(sweep.seeds))
        }
        // It stopped in the middle: that is noticed, too.
        Err(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            (
                Some(said.lines().last().unwrap_or("it broke").to_owned()),
                None,
            )
        }
    };
    Ok(Caught {
        layer: Layer::Simulation,
        by,
        seconds,
        seeds,
    })
}

fn by_tests(scratch: &Scratch, layer: Layer, filter: &str) -> anyhow::Result<Caught> {
    let tests = [
        "nextest",
        "run",
        "--workspace",
        "--profile",
        "ci",
        "-E",
        filter,
    ];
    built(&cargo(
        scratch,
        &[&tests[..], &["--no-run", "--cargo-quiet"]].concat(),
    )?)?;
    let report = scratch.tree.join(junit::OF_CI);
    if report.exists() {
        std::fs::remove_file(&report).with_context(|| report.display().to_string())?;
    }
    let clock = SystemClock::new();
    let postgres = [
        "run",
        "--quiet",
        "--package",
        "embedded-pg",
        "--bin",
        "with-postgres",
        "--",
        "cargo",
    ];
    let once = ["--max-fail", "1", "--no-tests", "fail"];
    let output = cargo(scratch, &[&postgres[..], &tests[..], &once[..]].concat())?;
    let seconds = clock.elapsed().as_secs_f64();
    let by = match output.status.success() {
        true => None,
        false => Some(first_failure(&report)?),
    };
    Ok(Caught {
        layer,
        by,
        seconds,
        seeds: None,
    })
}

fn first_failure(report: &Path) -> anyhow::Result<String> {
    let xml = std::fs::read_to_string(report).context("the tests ended without a report")?;
    let results = junit::read(&xml)?;
    let first = results.failures.into_iter().next();
    first
        .map(|it| it.what)
        .context("the tests failed, but none of them did")
}
