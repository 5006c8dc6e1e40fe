//! `run` and `replay`: one world, in every form.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use sim::history::{self, Header, Stored};
use sim::picture;
use sim::plan::{Expected, Plan, Saved};
use sim::world::{self, Options, Ran};

use super::commit::commit;
use super::{Size, code_of, names, print};

#[derive(clap::ValueEnum, Clone, Copy, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Text,
    Json,
}

/// What to do with what happened.
#[derive(clap::Args, Default)]
pub(super) struct Output {
    /// Prints everything that happened.
    #[arg(long)]
    trace: bool,
    /// With --trace, also every message, draw of randomness and look at a clock.
    #[arg(long, requires = "trace")]
    details: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Writes the plan to a file, to be edited and replayed.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Writes everything that happened to a file, for `check`.
    #[arg(long, value_name = "FILE")]
    save_history: Option<PathBuf>,
    /// Writes a page with a picture of it.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes a trace for Perfetto or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    chrome_trace: Option<PathBuf>,
}

pub(super) fn run(seed: u64, size: Size, output: &Output) -> anyhow::Result<u8> {
    let plan = Plan::draw(seed, size.per_seed);
    let reproduce = format!("cargo sim run --seed {seed} --per-seed {}", size.per_seed);
    output.report(&plan, &reproduce, None)
}

pub(super) fn replay(files: &[PathBuf], output: &Output) -> anyhow::Result<u8> {
    let [file] = files else {
        return replay_all(files);
    };
    if let Some(script) = super::read_script(file)? {
        return super::drive::replay(file, &script);
    }
    let saved = super::read_plan(file)?;
    let reproduce = format!("cargo sim replay {}", file.display());
    output.report(&saved.plan, &reproduce, saved.expected.as_ref())
}

/// A line each; the worst code.
fn replay_all(files: &[PathBuf]) -> anyhow::Result<u8> {
    let mut codes = Vec::new();
    for file in files {
        if let Some(script) = super::read_script(file)? {
            codes.push(super::drive::replay(file, &script)?);
            continue;
        }
        let saved = super::read_plan(file)?;
        let ran = world::run(&saved.plan, Options::default())?;
        let verdict = match ran.violations.first() {
            None => "all invariants hold".to_owned(),
            Some(violation) => format!("VIOLATED {violation}"),
        };
        print(&format!("{}: {verdict}\n", file.display()))?;
        codes.push(code_of(&ran.violations));
    }
    let worst = codes.iter().find(|code| **code == super::SAFETY);
    let other = codes.iter().find(|code| **code != super::OK);
    Ok(*worst.or(other).unwrap_or(&super::OK))
}

impl Output {
    fn report(
        &self,
        plan: &Plan,
        reproduce: &str,
        expected: Option<&Expected>,
    ) -> anyhow::Result<u8> {
        let (ran, digest) = self.write(plan)?;
        let text = match self.format {
            Format::Json => json(plan, &ran, &digest, reproduce)?,
            Format::Text => {
                let mut text = String::new();
                if self.trace {
                    text.push_str(&history::trace(&ran.entries));
                }
                describe(&mut text, plan);
                verdict(&mut text, &ran, &digest, reproduce);
                if let Some(expected) = expected {
                    compare(&mut text, expected, &digest, &names(&ran.violations));
                }
                text
            }
        };
        print(&text)?;
        Ok(code_of(&ran.violations))
    }

    /// A picture and the plan, nothing else.
    pub(super) fn drawn(picture: PathBuf, plan: PathBuf) -> Self {
        Self {
            html: Some(picture),
            save: Some(plan),
            ..Self::default()
        }
    }

    /// Runs it and writes the files that are asked for.
    pub(super) fn write(&self, plan: &Plan) -> anyhow::Result<(Ran, String)> {
        let drawn = self.html.is_some() || self.chrome_trace.is_some();
        let detailed = self.details || drawn;
        let ran = world::run(plan, Options { detailed })?;
        let digest = format!("{:016x}", history::digest(&ran.entries));
        self.write_files(plan, &ran, &digest)?;
        Ok((ran, digest))
    }

    fn write_files(&self, plan: &Plan, ran: &Ran, digest: &str) -> anyhow::Result<()> {
        if let Some(file) = &self.save {
            saved(plan, ran, digest).write(file)?;
        }
        if let Some(file) = &self.save_history {
            let header = Header {
                commit: commit(),
                plan: plan.clone(),
                violated: names(&ran.violations),
            };
            let entries = ran.entries.clone();
            Stored { header, entries }.write(file)?;
        }
        if let Some(file) = &self.html {
            let page = picture::page(plan, ran, digest, &commit())?;
            std::fs::write(file, page).with_context(|| file.display().to_string())?;
        }
        if let Some(file) = &self.chrome_trace {
            let trace = picture::chrome_trace(&ran.entries)?;
            std::fs::write(file, trace).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

/// A plan with what came out of it.
pub(super) fn saved(plan: &Plan, ran: &Ran, digest: &str) -> Saved {
    let about = match ran.violations.first() {
        Some(violation) => violation.to_string(),
        None => format!("seed {}", plan.seed),
    };
    Saved {
        about,
        expected: Some(Expected {
            commit: commit(),
            digest: digest.to_owned(),
            violated: names(&ran.violations),
        }),
        plan: plan.clone(),
    }
}

fn describe(text: &mut String, plan: &Plan) {
    let _ = writeln!(text, "seed {}", plan.seed);
    let knobs = serde_json::json!(plan.knobs);
    for (knob, value) in knobs.as_object().into_iter().flatten() {
        let _ = writeln!(text, "  {knob} = {value}");
    }
    let mut behaviours: BTreeMap<String, usize> = BTreeMap::new();
    for job in &plan.jobs {
        let name = format!("{:?}", job.behaviour);
        *behaviours.entry(name).or_default() += 1;
    }
    let resends: usize = plan.jobs.iter().map(|job| job.resend_after_ms.len()).sum();
    let _ = writeln!(
        text,
        "{} jobs, {resends} copies sent again",
        plan.jobs.len()
    );
    for (name, count) in behaviours {
        let _ = writeln!(text, "  {count:>5} {name}");
    }
    let _ = writeln!(text, "{} faults", plan.faults.len());
    for (n, fault) in plan.faults.iter().enumerate() {
        let _ = writeln!(
            text,
            "  {n}: at {:.3} s for {:.3} s: {:?}",
            seconds(fault.at_ms),
            seconds(fault.lasts_ms),
            fault.kind
        );
    }
}

#[allow(clippy::cast_precision_loss)] // for people
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1_000.0
}

pub(super) fn verdict(text: &mut String, ran: &Ran, digest: &str, reproduce: &str) {
    let _ = writeln!(
        text,
        "{} events in {} steps, {:.3} simulated seconds, digest {digest}",
        ran.entries.len(),
        ran.steps,
        ran.simulated.as_secs_f64(),
    );
    for violation in &ran.violations {
        let _ = writeln!(text, "VIOLATED {violation}");
        for n in &violation.proof {
            if let Some(entry) = ran.entries.get(*n) {
                let _ = writeln!(text, "  {n:>6} {}", entry.line());
            }
        }
    }
    if ran.violations.is_empty() {
        let _ = writeln!(text, "all invariants hold");
    } else {
        let _ = writeln!(text, "reproduce: {reproduce}");
    }
}

/// Tells a stale plan from a fixed bug and from the same as ever.
fn compare(text: &mut String, expected: &Expected, digest: &str, violated: &[String]) {
    let list = |names: &[String]| match names {
        [] => "no invariant".to_owned(),
        names => names.join(", "),
    };
    let verdict = match (expected.digest == digest, expected.violated == violated) {
        (true, _) => "the same history as when it was saved".to_owned(),
        (false, true) if violated.is_empty() => {
            "another history than when it was saved, in which all invariants hold as well"
                .to_owned()
        }
        (false, true) => {
            format!(
                "another history than when it was saved, which breaks the same: {}",
                list(violated)
            )
        }
        (false, false) => format!(
            "STALE or fixed: another history than when it was saved; then it broke {}, now {}. A bug that is fixed, or \
             a plan that no longer leads there: shrink a failing seed of today to know",
            list(&expected.violated),
            list(violated)
        ),
    };
    let _ = writeln!(text, "saved with commit {}: {verdict}", expected.commit);
}

fn json(plan: &Plan, ran: &Ran, digest: &str, reproduce: &str) -> anyhow::Result<String> {
    let verdict = match super::code_of(&ran.violations) {
        super::OK => "ok",
        super::LIVENESS => "liveness",
        _ => "safety",
    };
    let value = serde_json::json!({
        "seed": plan.seed,
        "verdict": verdict,
        "violations": ran.violations,
        "digest": digest,
        "events": ran.entries.len(),
        "steps": ran.steps,
        "simulated_s": ran.simulated.as_secs_f64(),
        "reproduce": reproduce,
        "plan": plan,
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}
