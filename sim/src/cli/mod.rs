//! The command line.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sim::checkers::{self, Violation};
use sim::plan::Plan;
use sim::world::{self, Ran};

/// All invariants hold.
const OK: u8 = 0;
/// A safety invariant is broken (S1..S12).
const SAFETY: u8 = 1;
/// Bad arguments, or a file that cannot be read.
const USAGE: u8 = 2;
/// Something did not settle (L1).
const LIVENESS: u8 = 3;
/// The same seed gave two histories.
const NONDETERMINISM: u8 = 4;
/// The simulation itself broke.
const BROKEN: u8 = 5;

/// Runs the unchanged harness on simulated hosts and breaks everything around it.
#[derive(Parser)]
#[command(
    name = "sim",
    after_help = "Exit codes: 0 all invariants hold, 1 safety (S1..S12), 2 usage, 3 liveness (L1), 4 nondeterminism, 5 the simulation broke."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one seed.
    Run {
        /// A number.
        #[arg(long)]
        seed: u64,
        /// How many jobs.
        #[arg(long, default_value_t = 100)]
        jobs: usize,
        /// Prints everything that happened.
        #[arg(long)]
        trace: bool,
        /// Writes the plan to a file, to be edited and replayed.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
    },
    /// Runs many seeds; stops at the first failure.
    Sweep {
        /// How many.
        #[arg(long, default_value_t = 100)]
        seeds: u64,
        /// The first.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many jobs a seed.
        #[arg(long, default_value_t = 100)]
        jobs: usize,
        /// Goes on after a failure.
        #[arg(long)]
        keep_going: bool,
    },
    /// Runs seeds twice and compares what happened, line by line.
    Meta {
        /// How many seeds.
        #[arg(long, default_value_t = 10)]
        seeds: u64,
        /// The first.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// How many jobs a seed.
        #[arg(long, default_value_t = 30)]
        jobs: usize,
    },
    /// Runs a plan file.
    Replay {
        /// The file.
        file: PathBuf,
        /// Prints everything that happened.
        #[arg(long)]
        trace: bool,
    },
}

pub(crate) fn main() -> ExitCode {
    match run(&Args::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("sim: {error:#}");
            ExitCode::from(if error.root_cause().is::<std::io::Error>() {
                USAGE
            } else {
                BROKEN
            })
        }
    }
}

fn run(command: &Command) -> anyhow::Result<u8> {
    world::check_build()?;
    sim::jobs::silence_planned_panics();
    match command {
        Command::Run {
            seed,
            jobs,
            trace,
            save,
        } => {
            let plan = Plan::draw(*seed, *jobs);
            if let Some(file) = save {
                std::fs::write(file, serde_json::to_string_pretty(&plan)? + "\n")?;
            }
            let ran = world::run(&plan)?;
            report(&plan, &ran, *trace)
        }
        Command::Replay { file, trace } => {
            let plan = Plan::read(file)?;
            let ran = world::run(&plan)?;
            report(&plan, &ran, *trace)
        }
        Command::Meta { seeds, from, jobs } => meta(*from, *seeds, *jobs),
        Command::Sweep {
            seeds,
            from,
            jobs,
            keep_going,
        } => sweep(*from, *seeds, *jobs, *keep_going),
    }
}

fn code_of(violations: &[Violation]) -> u8 {
    match violations {
        [] => OK,
        _ if violations
            .iter()
            .all(|violation| violation.invariant.starts_with('L')) =>
        {
            LIVENESS
        }
        _ => SAFETY,
    }
}

fn report(plan: &Plan, ran: &Ran, trace: bool) -> anyhow::Result<u8> {
    let violations = checkers::check(plan, ran);
    let mut text = String::new();
    let trace_text = ran.history.trace();
    if trace {
        text.push_str(&trace_text);
    }
    writeln!(
        text,
        "seed {}; {} jobs; {:?}",
        plan.seed,
        plan.jobs.len(),
        plan.knobs
    )?;
    for fault in &plan.faults {
        writeln!(
            text,
            "fault at {} ms for {} ms: {:?}",
            fault.at_ms, fault.lasts_ms, fault.kind
        )?;
    }
    writeln!(
        text,
        "{} events, {} steps, {:.0} simulated seconds, digest {:016x}",
        ran.history.len(),
        ran.steps,
        ran.simulated.as_secs_f64(),
        digest(trace_text.as_bytes())
    )?;
    for violation in &violations {
        writeln!(text, "VIOLATED {violation}")?;
        let entries = ran.history.all();
        for n in violation.proof.iter().filter_map(|n| entries.get(*n)) {
            writeln!(
                text,
                "    {:>14.6} {:<8} {:?}",
                n.at.as_secs_f64(),
                n.host,
                n.said
            )?;
        }
    }
    if violations.is_empty() {
        writeln!(text, "all invariants hold")?;
    }
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(code_of(&violations))
}

fn sweep(from: u64, seeds: u64, jobs: usize, keep_going: bool) -> anyhow::Result<u8> {
    let mut worst = OK;
    let (mut failed, mut events, mut steps, mut simulated) = (0, 0, 0, 0.0);
    for seed in from..from.saturating_add(seeds) {
        let plan = Plan::draw(seed, jobs);
        let ran = world::run(&plan)?;
        events += ran.history.len();
        steps += ran.steps;
        simulated += ran.simulated.as_secs_f64();
        let violations = checkers::check(&plan, &ran);
        if violations.is_empty() {
            continue;
        }
        failed += 1;
        if worst != SAFETY {
            worst = code_of(&violations);
        }
        for violation in violations.iter().take(3) {
            eprintln!("seed {seed}: VIOLATED {violation}");
        }
        eprintln!("    reproduce: cargo sim run --seed {seed} --jobs {jobs}");
        if !keep_going {
            break;
        }
    }
    let text = format!(
        "{seeds} seeds from {from}: {failed} failed; {events} events, {steps} steps, {simulated:.0} simulated seconds\n"
    );
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(worst)
}

fn meta(from: u64, seeds: u64, jobs: usize) -> anyhow::Result<u8> {
    for seed in from..from.saturating_add(seeds) {
        let plan = Plan::draw(seed, jobs);
        let (one, two) = (
            world::run(&plan)?.history.trace(),
            world::run(&plan)?.history.trace(),
        );
        if let Some(n) = first_difference(&one, &two) {
            let line = |text: &str| text.lines().nth(n).unwrap_or("(the end)").to_owned();
            eprintln!(
                "seed {seed}: line {n} differs:\n  {}\n  {}",
                line(&one),
                line(&two)
            );
            return Ok(NONDETERMINISM);
        }
    }
    writeln!(
        std::io::stdout().lock(),
        "{seeds} seeds from {from}: the same twice"
    )?;
    Ok(OK)
}

fn first_difference(one: &str, two: &str) -> Option<usize> {
    if one == two {
        return None;
    }
    let same = one
        .lines()
        .zip(two.lines())
        .take_while(|(a, b)| a == b)
        .count();
    Some(same)
}

/// FNV-1a: short, and the same everywhere.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
