//! `sweep`: many seeds, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use harness::{Clock as _, SystemClock};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sim::coverage::Coverage;
use sim::plan::Plan;
use sim::world::{self, Options};

use super::one::Output;
use super::{OK, SAFETY, Size, UNCOVERED, code_of, names, print};

#[derive(clap::Args)]
pub(super) struct Sweep {
    /// How many seeds.
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// As many seeds as there is time for, instead: `60s`, `10m`.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, conflicts_with = "seeds")]
    time: Option<Duration>,
    /// The first seed: a number or a commit hash.
    #[arg(long, value_name = "SEED", value_parser = super::seed, default_value = "0")]
    from: u64,
    /// Part k of n, from 1: `2/4`. The parts together are the whole.
    #[arg(long, value_name = "k/n", value_parser = shard, default_value = "1/1")]
    shard: (u64, u64),
    /// Seeds that run side by side.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    jobs: u64,
    #[command(flatten)]
    size: Size,
    /// Goes on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Prints how often everything happened.
    #[arg(long)]
    coverage: bool,
    /// Fails when a kind of fault, a step, or a pair of them never happened.
    #[arg(long)]
    require_coverage: bool,
    /// Writes a picture and the plan of the first seeds that fail: `seed-N.html` and `seed-N.json`.
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Seeds of which there are pictures; each is a page of a few megabytes.
const PICTURES: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// What is told about a seed that failed.
#[derive(Clone, Serialize)]
struct Failed {
    seed: u64,
    /// Names of the violated invariants.
    invariants: Vec<String>,
    /// The first violations, a line each.
    what: String,
    reproduce: String,
    /// Its picture's file name, if there is one.
    picture: Option<String>,
    #[serde(skip)]
    code: u8,
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err("give a number and a unit: 60s, 10m, 2h".to_owned()),
    };
    let number: u64 = number
        .parse()
        .map_err(|_| "give a number and a unit: 60s, 10m, 2h".to_owned())?;
    Ok(Duration::from_secs(number.saturating_mul(seconds)))
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    text.split_once('/')
        .and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)))
        .filter(|(k, n)| (1..=*n).contains(k))
        .ok_or_else(|| "give the part and the number of parts: 2/4".to_owned())
}

#[derive(Default)]
struct Sums {
    seeds: u64,
    events: usize,
    steps: u64,
    simulated: f64,
    coverage: Coverage,
    /// The invariants that were checked.
    invariants: BTreeSet<&'static str>,
    failed: BTreeMap<u64, Failed>,
}

impl Sweep {
    pub(super) fn run(&self) -> anyhow::Result<u8> {
        let clock = SystemClock::new();
        let bar = self.progress();
        let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let sums = Mutex::new(Sums::default());
        let worked: anyhow::Result<Vec<()>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.jobs)
                .map(|_| scope.spawn(|| self.work(&clock, &next, &stop, &sums, &bar)))
                .collect();
            workers
                .into_iter()
                .map(|worker| {
                    worker
                        .join()
                        .ok()
                        .context("a thread of the sweep panicked")?
                })
                .collect()
        });
        bar.finish_and_clear();
        worked?;
        let mut sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(folder) = &self.pictures {
            self.draw(folder, &mut sums)?;
        }
        self.report(&sums, clock.elapsed())
    }

    /// The n-th seed of this part, if there is one.
    fn seed(&self, n: u64, elapsed: Duration) -> Option<u64> {
        let (part, parts) = self.shard;
        let offset = n.checked_mul(parts)?.checked_add(part - 1)?;
        let is_in = match self.time {
            Some(time) => elapsed < time,
            None => offset < self.seeds,
        };
        is_in.then(|| self.from.wrapping_add(offset))
    }

    fn work(
        &self,
        clock: &SystemClock,
        next: &AtomicU64,
        stop: &AtomicBool,
        sums: &Mutex<Sums>,
        bar: &ProgressBar,
    ) -> anyhow::Result<()> {
        let mut coverage = Coverage::default();
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = self.seed(n, clock.elapsed()) else {
                break;
            };
            let plan = Plan::draw(seed, self.size.per_seed);
            let ran =
                world::run(&plan, Options::default()).with_context(|| format!("seed {seed}"))?;
            if self.coverage || self.require_coverage {
                coverage.add(&ran.entries);
            }
            bar.inc(1);
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            sums.seeds += 1;
            sums.events += ran.entries.len();
            sums.steps += ran.steps;
            sums.simulated += ran.simulated.as_secs_f64();
            sums.invariants.extend(ran.checked.iter().copied());
            if !ran.violations.is_empty() {
                let first = ran.violations.iter().take(3);
                let lines: Vec<String> = first.map(ToString::to_string).collect();
                let failed = Failed {
                    seed,
                    invariants: names(&ran.violations),
                    what: lines.join("\n"),
                    reproduce: format!(
                        "cargo sim run --seed {seed} --per-seed {}",
                        self.size.per_seed
                    ),
                    picture: None,
                    code: code_of(&ran.violations),
                };
                sums.failed.insert(seed, failed);
                if !self.keep_going {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
        let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.coverage.merge(&coverage);
        Ok(())
    }

    /// The same seed gives the same history: it is run once more, with all details.
    fn draw(&self, folder: &Path, sums: &mut Sums) -> anyhow::Result<()> {
        for failed in sums.failed.values_mut().take(PICTURES) {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            let name = format!("seed-{}.html", failed.seed);
            let plan = folder.join(format!("seed-{}.json", failed.seed));
            let output = Output::drawn(folder.join(&name), plan);
            output.write(&Plan::draw(failed.seed, self.size.per_seed))?;
            failed.picture = Some(name);
        }
        Ok(())
    }

    fn progress(&self) -> ProgressBar {
        let bar = match self.time {
            Some(_) => ProgressBar::new_spinner(),
            None => ProgressBar::new(self.seeds.div_ceil(self.shard.1)),
        };
        let template = match self.time {
            Some(_) => "{spinner} {pos} seeds, {per_sec}, {elapsed}",
            None => "{bar:40} {pos}/{len} seeds, {per_sec}, {eta} left",
        };
        bar.with_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        )
    }

    fn report(&self, sums: &Sums, elapsed: Duration) -> anyhow::Result<u8> {
        for failed in sums.failed.values() {
            let Failed {
                seed,
                what,
                reproduce,
                ..
            } = failed;
            for line in what.lines() {
                eprintln!("seed {seed}: VIOLATED {line}");
            }
            let shrink = reproduce.replace("sim run", "sim shrink");
            eprintln!("    reproduce: {reproduce}\n    shrink:    {shrink}");
        }
        let seconds = elapsed.as_secs_f64().max(0.001);
        #[allow(clippy::cast_precision_loss)] // for people
        let rate = sums.seeds as f64 / seconds;
        let mut text = format!(
            "{} seeds of {} jobs from {}: {} failed\n{} events, {} steps, {:.0} simulated seconds in {seconds:.1} s: \
             {rate:.1} seeds/s, {:.0} times real time\n",
            sums.seeds,
            self.size.per_seed,
            self.from,
            sums.failed.len(),
            sums.events,
            sums.steps,
            sums.simulated,
            sums.simulated / seconds,
        );
        let missing = sums.coverage.missing();
        if self.coverage || self.require_coverage {
            let _ = write!(text, "\n{}", sums.coverage.text());
        }
        if self.require_coverage {
            for what in &missing {
                let _ = writeln!(text, "NEVER HAPPENED {what}");
            }
        }
        match self.format {
            Format::Text => print(&text)?,
            Format::Json => print(&self.json(sums)?)?,
        }
        let codes = || sums.failed.values().map(|failed| failed.code);
        Ok(match codes().find(|code| *code == SAFETY) {
            Some(code) => code,
            None => match codes().next() {
                Some(code) => code,
                None if self.require_coverage && !missing.is_empty() => UNCOVERED,
                None => OK,
            },
        })
    }

    fn json(&self, sums: &Sums) -> anyhow::Result<String> {
        let result = serde_json::json!({
            "seeds": sums.seeds,
            "per_seed": self.size.per_seed,
            "from": self.from,
            "events": sums.events,
            "invariants": sums.invariants,
            "failed": sums.failed.values().collect::<Vec<_>>(),
            "coverage": (self.coverage || self.require_coverage).then(|| sums.coverage.json()),
        });
        Ok(serde_json::to_string_pretty(&result)? + "\n")
    }
}
