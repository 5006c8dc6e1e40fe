//! The command line.

mod check;
mod commit;
mod drive;
mod meta;
mod one;
mod shrink;
mod sweep;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sim::checkers::Violation;

/// All invariants hold.
const OK: u8 = 0;
/// A safety invariant is broken (S1..S12, H1, C1).
const SAFETY: u8 = 1;
/// Bad arguments, or a file that cannot be read.
const USAGE: u8 = 2;
/// Something did not settle (L1).
const LIVENESS: u8 = 3;
/// The same seed gave two histories.
const NONDETERMINISM: u8 = 4;
/// The simulation itself broke.
const BROKEN: u8 = 5;
/// Something that was to be covered never happened.
const UNCOVERED: u8 = 6;

/// Runs the unchanged harness on simulated hosts and breaks everything around it. One number, the seed, decides all.
#[derive(Parser)]
#[command(
    name = "sim",
    after_help = "A seed is a number or a commit hash (7 or more hexadecimal digits; what can be read as a number is one).\n\n\
                  Exit codes: 0 all invariants hold, 1 safety (S1..S12, H1, C1), 2 usage, 3 liveness (L1), 4 nondeterminism, \
                  5 the simulation broke, 6 not everything was covered."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one seed.
    Run {
        /// A number or a commit hash.
        #[arg(long, value_parser = seed)]
        seed: u64,
        #[command(flatten)]
        size: Size,
        #[command(flatten)]
        output: one::Output,
    },
    /// Runs many seeds; stops at the first failure.
    Sweep(sweep::Sweep),
    /// Makes the plan of a failing seed, or of a plan file, small: leaves jobs, faults and hosts out as long as the same
    /// invariant is broken.
    Shrink(shrink::Shrink),
    /// Drives the harness through the lifecycle model, everywhere and step by step, and tries what the model does not allow.
    Drive(drive::Drive),
    /// Runs plan files (all of `sim/corpus`, for one), and scripts: ways through the lifecycle model that `drive` or
    /// `cargo model wrong --scripts` wrote.
    Replay {
        /// The files. With more than one, a line each.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: one::Output,
    },
    /// Runs seeds in two processes and compares everything, line by line: what happened, who drew randomness, read a clock
    /// or sent a message.
    Meta(meta::Meta),
    /// Checks a stored history with today's checks, and says which verdicts changed.
    Check {
        /// A file written by `--save-history`.
        file: PathBuf,
    },
    /// Prints everything about one seed; for `meta`.
    #[command(hide = true)]
    Log(meta::Log),
}

/// How large a world is.
#[derive(clap::Args, Clone, Copy)]
struct Size {
    /// Jobs per seed.
    #[arg(long, value_name = "N", default_value_t = 100)]
    per_seed: usize,
}

fn seed(text: &str) -> Result<u64, String> {
    sim::plan::parse_seed(text).map_err(|error| error.to_string())
}

pub(crate) fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("sim: {error:#}");
            let usage = error.chain().any(|cause| {
                cause.is::<std::io::Error>()
                    || cause.is::<serde_json::Error>()
                    || cause.is::<BadFile>()
            });
            ExitCode::from(if usage { USAGE } else { BROKEN })
        }
    }
}

/// What a file says cannot be done.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BadFile(String);

/// A plan file; whatever is wrong with it is a matter of usage.
fn read_plan(file: &std::path::Path) -> anyhow::Result<sim::plan::Saved> {
    sim::plan::Saved::read(file).map_err(|error| BadFile(format!("{error:#}")).into())
}

/// A file that may be a script.
fn read_script(file: &std::path::Path) -> anyhow::Result<Option<sim::script::Script>> {
    sim::script::read(file).map_err(|error| BadFile(format!("{error:#}")).into())
}

fn run(command: Command) -> anyhow::Result<u8> {
    sim::world::check_build()?;
    sim::jobs::silence_planned_panics();
    match command {
        Command::Run { seed, size, output } => one::run(seed, size, &output),
        Command::Replay { files, output } => one::replay(&files, &output),
        Command::Sweep(sweep) => sweep.run(),
        Command::Drive(drive) => drive.run(),
        Command::Shrink(shrink) => shrink.run(),
        Command::Meta(meta) => meta.run(),
        Command::Check { file } => check::run(&file),
        Command::Log(log) => log.run(),
    }
}

fn code_of(violations: &[Violation]) -> u8 {
    match violations {
        [] => OK,
        _ if violations.iter().all(Violation::is_liveness) => LIVENESS,
        _ => SAFETY,
    }
}

/// Names of violated invariants, each once.
fn names(violations: &[Violation]) -> Vec<String> {
    let mut names: Vec<String> = violations
        .iter()
        .map(|it| it.invariant.to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
