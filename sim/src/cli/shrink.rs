//! `shrink`: from a failing seed to a small plan.

use std::fmt::Write as _;
use std::path::PathBuf;

use sim::history;
use sim::plan::Plan;
use sim::world::{self, Options};

use super::{OK, Size, code_of, one, print};

#[derive(clap::Args)]
pub(super) struct Shrink {
    /// A number or a commit hash.
    #[arg(long, value_parser = super::seed, required_unless_present = "plan", conflicts_with = "plan")]
    seed: Option<u64>,
    /// A plan file instead of a seed.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    #[command(flatten)]
    size: Size,
    /// Worlds to run at most.
    #[arg(long, value_name = "N", default_value_t = 4_000)]
    budget: u64,
    /// Where the small plan goes.
    #[arg(long, short, value_name = "FILE", default_value = "shrunk.json")]
    output: PathBuf,
}

impl Shrink {
    pub(super) fn run(&self) -> anyhow::Result<u8> {
        let plan = match (&self.plan, self.seed) {
            (Some(file), _) => super::read_plan(file)?.plan,
            (None, seed) => Plan::draw(seed.unwrap_or_default(), self.size.per_seed),
        };
        let Some(shrunk) = sim::shrink::shrink(&plan, self.budget)? else {
            print("all invariants hold: there is nothing to shrink\n")?;
            return Ok(OK);
        };
        let ran = world::run(&shrunk.plan, Options::default())?;
        let digest = format!("{:016x}", history::digest(&ran.entries));
        one::saved(&shrunk.plan, &ran, &digest).write(&self.output)?;
        let file = self.output.display();
        let mut text = format!(
            "{}: from {} jobs, {} faults, {} workers to {} jobs, {} faults, {} workers in {} runs\nwritten to {file}\n",
            shrunk.invariant,
            plan.jobs.len(),
            plan.faults.len(),
            plan.knobs.workers,
            shrunk.plan.jobs.len(),
            shrunk.plan.faults.len(),
            shrunk.plan.knobs.workers,
            shrunk.runs,
        );
        one::verdict(
            &mut text,
            &ran,
            &digest,
            &format!("cargo sim replay {file}"),
        );
        let _ = writeln!(
            text,
            "look at it: cargo sim replay {file} --html shrunk.html"
        );
        print(&text)?;
        Ok(code_of(&ran.violations))
    }
}
