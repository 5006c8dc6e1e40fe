//! Makes a failing plan small: leaves jobs, faults and hosts out and makes the rest simpler, as long as the same invariant
//! is broken.
//!
//! What is left out changes everything that comes after it, because latencies and jitter are drawn in the order of events.
//! So a smaller plan is tried with several seeds before it is given up.

use crate::plan::{Behaviour, Knobs, Plan};
use crate::world::{self, Options};

/// What shrinking led to.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The smallest plan that was found.
    pub plan: Plan,
    /// The invariant that it breaks, as the one did that it came from.
    pub invariant: &'static str,
    /// Worlds that were run for it.
    pub runs: u64,
}

/// Seeds that a smaller plan is tried with: the fewer jobs, the cheaper a try, and the rarer the luck that it needs.
fn seeds(plan: &Plan) -> u64 {
    match plan.jobs.len() {
        0..=12 => 60,
        _ => 12,
    }
}

struct Shrinker {
    best: Plan,
    invariant: &'static str,
    runs: u64,
    budget: u64,
}

/// Shrinks a plan, with at most `budget` runs. `None` when it breaks no invariant.
///
/// # Errors
/// When the plan cannot be run.
pub fn shrink(plan: &Plan, budget: u64) -> anyhow::Result<Option<Shrunk>> {
    let ran = world::run(plan, Options::default())?;
    let Some(first) = ran.violations.first() else {
        return Ok(None);
    };
    let mut shrinker = Shrinker {
        best: plan.clone(),
        invariant: first.invariant,
        runs: 1,
        budget,
    };
    shrinker.all()?;
    Ok(Some(Shrunk {
        plan: shrinker.best,
        invariant: shrinker.invariant,
        runs: shrinker.runs,
    }))
}

impl Shrinker {
    /// Until nothing helps any more.
    fn all(&mut self) -> anyhow::Result<()> {
        loop {
            let before = self.best.clone();
            self.only_the_proof()?;
            self.list(|plan| &mut plan.faults)?;
            self.list(|plan| &mut plan.jobs)?;
            self.hosts()?;
            self.simpler()?;
            if self.best == before || self.runs >= self.budget {
                return Ok(());
            }
        }
    }

    /// Whether a plan breaks the same invariant, with its own seed or another one. If so, it is the best now.
    fn try_plan(&mut self, candidate: Plan) -> anyhow::Result<bool> {
        if candidate == self.best {
            return Ok(false);
        }
        for n in 0..seeds(&candidate) {
            if self.runs >= self.budget {
                return Ok(false);
            }
            let mut plan = candidate.clone();
            // Small seeds: they are easier to read.
            plan.seed = if n == 0 { candidate.seed } else { n };
            self.runs += 1;
            // A plan that cannot be run is no smaller failure.
            let Ok(ran) = world::run(&plan, Options::default()) else {
                return Ok(false);
            };
            if ran
                .violations
                .iter()
                .any(|it| it.invariant == self.invariant)
            {
                self.best = plan;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The great leap: only the job that the proof is about.
    fn only_the_proof(&mut self) -> anyhow::Result<()> {
        if self.best.jobs.len() < 4 {
            return Ok(());
        }
        let ran = world::run(&self.best, Options::default())?;
        let queue = world::queue()?;
        let named: Vec<_> = ran.violations.iter().filter_map(|it| it.job).collect();
        let mut plan = self.best.clone();
        plan.jobs
            .retain(|job| named.contains(&crate::jobs::id_of(job, &queue)));
        if !plan.jobs.is_empty() {
            self.try_plan(plan)?;
        }
        Ok(())
    }

    /// Leaves items of a list out: halves first, then ever smaller pieces.
    fn list<T: Clone>(&mut self, of: impl Fn(&mut Plan) -> &mut Vec<T>) -> anyhow::Result<()> {
        let mut size = of(&mut self.best).len();
        while size > 0 {
            let mut at = 0;
            while at < of(&mut self.best).len() {
                let mut plan = self.best.clone();
                let list = of(&mut plan);
                let end = (at + size).min(list.len());
                list.drain(at..end);
                if !self.try_plan(plan)? {
                    at += size;
                }
            }
            size /= 2;
        }
        Ok(())
    }

    fn hosts(&mut self) -> anyhow::Result<()> {
        while self.best.knobs.workers > 1 {
            let mut plan = self.best.clone();
            plan.knobs.workers -= 1;
            let gone = format!("worker{}", plan.knobs.workers);
            plan.faults
                .retain(|fault| !fault.kind.hosts().contains(&gone.as_str()));
            if !self.try_plan(plan)? {
                break;
            }
        }
        Ok(())
    }

    /// Every job and every setting as plain as can be.
    fn simpler(&mut self) -> anyhow::Result<()> {
        for n in 0..self.best.jobs.len() {
            self.edit(|plan| plan.jobs[n].behaviour = Behaviour::Succeeds)?;
            self.edit(|plan| plan.jobs[n].work_ms = 0)?;
            self.edit(|plan| plan.jobs[n].decisions.clear())?;
            self.edit(|plan| plan.jobs[n].publish_at_ms = 0)?;
            while !self.best.jobs[n].resend_after_ms.is_empty() {
                let before = self.runs;
                if !self.try_edit(|plan| {
                    plan.jobs[n].resend_after_ms.pop();
                })? || before == self.runs
                {
                    break;
                }
            }
        }
        for n in 0..self.best.faults.len() {
            let lasts = self.best.faults[n].lasts_ms;
            for shorter in [1_000, 10_000, 60_000, 600_000] {
                if shorter < lasts && self.try_edit(|plan| plan.faults[n].lasts_ms = shorter)? {
                    break;
                }
            }
        }
        let plain: [fn(&mut Knobs); 12] = [
            |knobs| knobs.contention_per_mille = 0,
            |knobs| knobs.until_swept = false,
            |knobs| knobs.broker_duplicates_per_mille = 0,
            |knobs| knobs.broker_ahead_s = 0,
            |knobs| knobs.alert_refusals_per_mille = 0,
            |knobs| knobs.discard_percent = 0,
            |knobs| knobs.replay_percent = 0,
            |knobs| knobs.prefetch = 0,
            |knobs| knobs.batch = 1,
            |knobs| (knobs.retries, knobs.retry_base_s, knobs.retry_cap_s) = (5, 30, 3_600),
            |knobs| knobs.sweep_batch = 1_000,
            |knobs| knobs.concurrency = 1,
        ];
        for make_plain in plain {
            self.edit(|plan| make_plain(&mut plan.knobs))?;
        }
        Ok(())
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Plan)) -> anyhow::Result<()> {
        self.try_edit(edit).map(|_| ())
    }

    fn try_edit(&mut self, edit: impl FnOnce(&mut Plan)) -> anyhow::Result<bool> {
        let mut plan = self.best.clone();
        edit(&mut plan);
        self.try_plan(plan)
    }
}
