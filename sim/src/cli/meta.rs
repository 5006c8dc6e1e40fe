//! `meta`: does a seed decide everything? The same seeds in two processes, compared line by line. The log has who drew
//! randomness, read a clock or sent a message, so that the first difference explains itself.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use sim::history::{digest, trace};
use sim::plan::Plan;
use sim::world::{self, Options};

use super::{NONDETERMINISM, OK, Size, print};

/// Lines that are shown before the first difference.
const BEFORE: usize = 5;

#[derive(clap::Args)]
pub(super) struct Meta {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = 50)]
    seeds: u64,
    /// The first seed: a number or a commit hash.
    #[arg(long, value_name = "SEED", value_parser = super::seed, default_value = "0")]
    from: u64,
    #[command(flatten)]
    size: Size,
    /// The second process runs this program: another build of the same commit.
    #[arg(long, value_name = "PROGRAM")]
    other: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(super) struct Log {
    #[arg(long, value_parser = super::seed)]
    from: u64,
    #[arg(long)]
    seeds: u64,
    #[command(flatten)]
    size: Size,
    /// Everything, instead of a digest a line.
    #[arg(long)]
    full: bool,
}

impl Log {
    pub(super) fn run(&self) -> anyhow::Result<u8> {
        for seed in (0..self.seeds).map(|n| self.from.wrapping_add(n)) {
            let plan = Plan::draw(seed, self.size.per_seed);
            let ran = world::run(&plan, Options { detailed: true })?;
            let all = trace(&ran.entries);
            if self.full {
                print(&all)?;
            } else {
                let details = all.bytes().fold(0_u64, |hash, byte| {
                    hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
                });
                let lines = ran.entries.len();
                print(&format!(
                    "{seed} {lines} {:016x} {details:016x}\n",
                    digest(&ran.entries)
                ))?;
            }
        }
        Ok(OK)
    }
}

impl Meta {
    pub(super) fn run(&self) -> anyhow::Result<u8> {
        let mine = std::env::current_exe().context("where this program is")?;
        let other = self.other.clone().unwrap_or_else(|| mine.clone());
        let (one, two) = self.both(&mine, &other, self.from, self.seeds, false)?;
        let mut lines = 0_u64;
        for (a, b) in one.lines().zip(two.lines()) {
            let mut fields = a.split(' ');
            let seed: u64 = fields
                .next()
                .unwrap_or_default()
                .parse()
                .context("a seed")?;
            lines += fields
                .next()
                .and_then(|lines| lines.parse().ok())
                .unwrap_or(0);
            if a != b {
                let (one, two) = self.both(&mine, &other, seed, 1, true)?;
                print(&explain(seed, &one, &two))?;
                return Ok(NONDETERMINISM);
            }
        }
        anyhow::ensure!(
            one.lines().count() as u64 == self.seeds && two.lines().count() as u64 == self.seeds,
            "a process ended before its last seed"
        );
        print(&format!(
            "{} seeds of {} jobs from {}: {lines} lines, the same in both processes\n",
            self.seeds, self.size.per_seed, self.from
        ))?;
        Ok(OK)
    }

    fn both(
        &self,
        one: &PathBuf,
        two: &PathBuf,
        from: u64,
        seeds: u64,
        full: bool,
    ) -> anyhow::Result<(String, String)> {
        let start = |program: &PathBuf| {
            let mut command = Command::new(program);
            command
                .args([
                    "log",
                    "--from",
                    &from.to_string(),
                    "--seeds",
                    &seeds.to_string(),
                ])
                .args(["--per-seed", &self.size.per_seed.to_string()])
                .args(full.then_some("--full"))
                .stdin(Stdio::null())
                .stdout(Stdio::piped());
            command
                .spawn()
                .with_context(|| program.display().to_string())
        };
        // Side by side, and each read by a thread of its own, so that neither waits for a full pipe.
        let (one, two) = (start(one)?, start(two)?);
        let reading = std::thread::spawn(move || two.wait_with_output());
        let one = one.wait_with_output()?;
        let two = reading
            .join()
            .ok()
            .context("the reading thread panicked")??;
        for output in [&one, &two] {
            anyhow::ensure!(
                output.status.success(),
                "a process of the comparison failed: {}",
                output.status
            );
        }
        Ok((
            String::from_utf8(one.stdout)?,
            String::from_utf8(two.stdout)?,
        ))
    }
}

/// Where two logs part, and what led there.
fn explain(seed: u64, one: &str, two: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (one.lines().collect(), two.lines().collect());
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let mut text = format!("seed {seed}: the processes part at line {}\n", same + 1);
    for line in a.iter().take(same).skip(same.saturating_sub(BEFORE)) {
        let _ = writeln!(text, "     {line}");
    }
    let _ = writeln!(text, "  1: {}", a.get(same).unwrap_or(&"(the end)"));
    let _ = writeln!(text, "  2: {}", b.get(same).unwrap_or(&"(the end)"));
    text
}
