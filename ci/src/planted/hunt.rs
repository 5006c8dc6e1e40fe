//! Whether a layer notices a mistake, and how soon.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::Context as _;
use embedded_pg::forget_cargo;
use harness::{Clock as _, SystemClock};
use serde::{Deserialize, Serialize};

use super::{Scratch, Seeds};
use crate::evidence::Layer;
use crate::results::junit;
use crate::results::sweep::{Failed, Sweep};
use crate::run::{Outcome, run};
use crate::steps::{Reads, STEPS};

/// Seeds that the simulation has to find it.
const SEEDS: u64 = 200;

/// A layer that has not ended after so many seconds is stuck, and that is noticed, too.
const STUCK: &str = "1200";

/// What `timeout` ends with then.
const WAS_STUCK: i32 = 124;

/// How a layer took a mistake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Caught {
    /// Who.
    pub layer: Layer,
    /// The test, seed or promise that failed; none if nothing did.
    pub by: Option<String>,
    /// Seconds, without building.
    pub seconds: f64,
    /// What became of the seeds, in the simulation.
    pub seeds: Option<Seeds>,
}

/// Lets a layer look for the mistake that is in `scratch`. A copy that does not even compile has no bug in it, but a typing
/// mistake: that is an error.
///
/// # Errors
/// When the layer cannot be run.
pub fn hunt(scratch: &Scratch, layer: Layer) -> anyhow::Result<Caught> {
    match (layer, layer.tests()) {
        (Layer::Simulation, _) => by_seeds(scratch),
        (_, Some(filter)) => by_tests(scratch, layer, filter),
        (_, None) => by_step(scratch, layer),
    }
}

/// As the gate runs it. It builds in a way of its own, so building is in its time.
fn by_step(scratch: &Scratch, layer: Layer) -> anyhow::Result<Caught> {
    let settings = scratch.settings(Some(layer));
    let (step, file) = STEPS
        .iter()
        .find_map(|step| match step.reads {
            Reads::File(file, _) if step.layers == [layer] => Some((step, file(&settings))),
            _ => None,
        })
        .context("no step of the gate is this layer's alone")?;
    let (ran, results) = run(step, &settings, &scratch.tree)?;
    anyhow::ensure!(
        ran.outcome != Outcome::NotRun,
        "{} cannot be run here",
        step.name
    );
    anyhow::ensure!(
        scratch.tree.join(file).exists(),
        "{} left no result: does it compile?",
        step.name
    );
    let first = results.failures.into_iter().next();
    Ok(Caught {
        layer,
        by: first.map(|it| it.what),
        seconds: ran.seconds,
        seeds: None,
    })
}

fn cargo(scratch: &Scratch, arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new("timeout");
    forget_cargo(&mut command);
    command
        .args([STUCK, "cargo"])
        .args(arguments)
        .current_dir(&scratch.tree)
        .env_remove("CARGO_TARGET_DIR")
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
            "sim",
            "sweep",
            "--seeds",
            &seeds,
            "--jobs",
            "2",
            "--keep-going",
            "--format",
            "json",
        ],
    )?;
    let seconds = clock.elapsed().as_secs_f64();
    let said = String::from_utf8_lossy(&output.stdout);
    let (by, seeds) = match serde_json::from_str::<Sweep>(&said) {
        Ok(sweep) => {
            let first = sweep.failed.iter().min_by_key(|it| it.seed);
            let seeds = Seeds {
                run: sweep.seeds,
                noticed: sweep.failed.len() as u64,
                until: first.map(|it| it.seed - sweep.from + 1),
            };
            (first.map(Failed::told), Some(seeds))
        }
        Err(_) => (Some(broke(&output)), None),
    };
    Ok(Caught {
        layer: Layer::Simulation,
        by,
        seconds,
        seeds,
    })
}

/// It stopped in the middle, or never: that is noticed, too.
fn broke(output: &Output) -> String {
    if output.status.code() == Some(WAS_STUCK) {
        return format!("it had not ended after {STUCK} s");
    }
    let said = String::from_utf8_lossy(&output.stderr);
    said.lines().last().unwrap_or("it broke").to_owned()
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
        false if output.status.code() == Some(WAS_STUCK) => Some(broke(&output)),
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
