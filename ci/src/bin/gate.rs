//! `cargo gate`: runs the tests and says which clause of the specification has which evidence.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use gate::evidence::Findings;
use gate::table;

/// Runs the tests and says which clause of the specification has which evidence.
#[derive(Parser)]
#[command(
    name = "gate",
    after_help = "Exit code: 0 if every clause has evidence and nothing failed, 1 if not, 2 for bad arguments, 3 if the \
                  gate could not run."
)]
struct Args {
    /// Judge this JUnit report instead of running the tests.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gate: {error:#}");
            ExitCode::from(3)
        }
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("ci has no parent folder")?;
    let (report, tests_passed) = match &args.report {
        Some(report) => (report.clone(), true),
        None => run_tests(root)?,
    };
    let xml = std::fs::read_to_string(&report)
        .with_context(|| format!("no report of the tests at {}", report.display()))?;
    let findings = Findings::from_junit(&xml)?;
    match args.format {
        Format::Table => write_out(&table::render(&findings))?,
        Format::Json => write_out(&(serde_json::to_string_pretty(&findings)? + "\n"))?,
    }
    if !tests_passed && findings.failed.is_empty() {
        eprintln!("gate: ci/test failed outside of the tests; its output is above");
    }
    Ok(findings.hold() && tests_passed)
}

/// Everything that `ci/test` runs. Its output is progress, and goes to standard error.
fn run_tests(root: &Path) -> anyhow::Result<(PathBuf, bool)> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let report = target.join("nextest/ci/junit.xml");
    // An old report must not be taken for this run's.
    if report.exists() {
        std::fs::remove_file(&report)
            .with_context(|| format!("cannot remove {}", report.display()))?;
    }
    let status = Command::new(root.join("ci/test"))
        .current_dir(root)
        .stdout(Stdio::from(std::io::stderr()))
        .status()
        .context("cannot run ci/test")?;
    Ok((report, status.success()))
}

fn write_out(text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    std::io::stdout().lock().write_all(text.as_bytes())
}
