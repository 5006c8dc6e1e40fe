//! What happens in one world: jobs, knobs and faults, all drawn from the seed, or read from a file.

use std::time::Duration;

use anyhow::Context as _;
use harness::{Entropy, SeededEntropy};
use serde::{Deserialize, Serialize};

/// Everything that decides about one world. Written as JSON, edited by hand, run again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What decides about everything that is not in the plan: latencies, jitter, order.
    pub seed: u64,
    /// Settings of the harness, all within what start-up accepts.
    pub knobs: Knobs,
    /// Jobs that the producer publishes.
    pub jobs: Vec<JobPlan>,
    /// What goes wrong, in the order of time.
    pub faults: Vec<FaultPlan>,
}

/// Settings of the harness.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Knobs {
    pub workers: usize,
    pub concurrency: usize,
    pub prefetch: usize,
    pub lease_s: u64,
    pub run_deadline_s: u64,
    pub fence_wait_ms: u64,
    /// The time to live of a fence beyond what start-up demands.
    pub ttl_extra_s: u64,
    pub broker_retention_s: u64,
    pub resend_horizon_s: u64,
    pub margin_s: u64,
    pub sweep_interval_s: u64,
    /// How long an idle consumer leaves the queue alone.
    pub poll_interval_s: u64,
    /// Whether the world goes on until every fence has expired and was swept.
    pub until_swept: bool,
    pub alert_window_s: u64,
    /// Of 1,000 receives, how many hand out a message that is leased to somebody else.
    pub broker_duplicates_per_mille: u64,
    /// Of 1,000 requests, how many the alert service refuses.
    pub alert_refusals_per_mille: u64,
    /// What operators do with a dead letter, in per cent: replay, discard; the rest waits.
    pub replay_percent: u64,
    pub discard_percent: u64,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct JobPlan {
    pub id: u64,
    pub publish_at_ms: u64,
    /// When copies of it are published again, after the first.
    pub resend_after_ms: Vec<u64>,
    pub behaviour: Behaviour,
    /// How long a run takes.
    pub work_ms: u64,
}

/// How a job behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Behaviour {
    Succeeds,
    /// Fails on the first so many runs of every generation.
    FailsRuns(u32),
    FailsHard,
    PanicsRuns(u32),
    /// Fails for good in its first generation only: a bug that is fixed before the replay.
    FailsUntilReplayed,
    Poison,
    NoHeaders,
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct FaultPlan {
    pub at_ms: u64,
    pub lasts_ms: u64,
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The process is killed: its peers see the connections close. It comes back at the end.
    Kill(String),
    /// The power is lost: its peers see nothing. It comes back at the end.
    PowerLoss(String),
    /// Nothing passes between two hosts.
    Partition(String, String),
    /// Nothing passes from the first to the second.
    PartitionOneWay(String, String),
    /// Messages between all hosts are lost, so many of 1,000.
    Loss(u64),
    /// Messages between all hosts take up to so many milliseconds.
    Slow(u64),
    /// The calendar of a host jumps by so many seconds.
    ClockJump(String, i64),
}

impl FaultKind {
    /// The kind's name, for coverage.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill(host) if host.starts_with("worker") => "kill worker",
            Self::Kill(host) if host == "database" => "kill database",
            Self::Kill(host) if host == "broker" => "kill broker",
            Self::Kill(_) => "kill other",
            Self::PowerLoss(_) => "power loss",
            Self::Partition(..) => "partition",
            Self::PartitionOneWay(..) => "one-way partition",
            Self::Loss(_) => "loss",
            Self::Slow(_) => "slow network",
            Self::ClockJump(..) => "clock jump",
        }
    }
}

const DAY_S: u64 = 86_400;

struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, limit: u64) -> u64 {
        self.0.next_u64() % limit.max(1)
    }

    fn between(&self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    fn chance(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn one_of<T: Clone>(&self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize].clone()
    }
}

impl Plan {
    /// Draws everything from a seed. Whole kinds of jobs and faults are switched off at random, so that the others can
    /// unfold.
    pub fn draw(seed: u64, jobs: usize) -> Self {
        let dice = Dice(SeededEntropy::new(seed));
        let knobs = Knobs {
            workers: dice.between(1, 3) as usize,
            concurrency: dice.between(1, 6) as usize,
            prefetch: dice.one_of(&[0, 0, 0, 2]),
            lease_s: dice.one_of(&[5, 30, 60]),
            run_deadline_s: dice.one_of(&[5, 60, 300]),
            fence_wait_ms: dice.one_of(&[1, 20, 500]),
            ttl_extra_s: dice.one_of(&[1, 60, DAY_S]),
            broker_retention_s: dice.one_of(&[DAY_S, 4 * DAY_S]),
            resend_horizon_s: dice.one_of(&[3_600, DAY_S]),
            margin_s: dice.one_of(&[3_600, DAY_S]),
            sweep_interval_s: dice.one_of(&[600, 3_600]),
            poll_interval_s: 1,
            until_swept: dice.chance(10),
            alert_window_s: dice.one_of(&[60, 300]),
            broker_duplicates_per_mille: dice.one_of(&[0, 0, 20]),
            alert_refusals_per_mille: dice.one_of(&[0, 300]),
            replay_percent: dice.one_of(&[0, 50, 90]),
            discard_percent: dice.one_of(&[0, 10]),
        };
        let jobs = draw_jobs(&dice, jobs, &knobs);
        let faults = draw_faults(&dice, &knobs);
        let mut plan = Self {
            seed,
            knobs,
            jobs,
            faults,
        };
        // A week of polling every second is no event worth simulating.
        if plan.knobs.until_swept || plan.ends_at() > Duration::from_secs(3_600) {
            plan.knobs.poll_interval_s = 600;
            plan.knobs.sweep_interval_s = 3_600;
        }
        plan
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// When it is no plan; the error names the line.
    pub fn read(path: &std::path::Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| format!("{} is no plan", path.display()))
    }

    /// When the last planned thing is over.
    pub fn ends_at(&self) -> Duration {
        let jobs = self.jobs.iter().flat_map(|job| {
            job.resend_after_ms
                .iter()
                .copied()
                .chain([0])
                .map(move |after| job.publish_at_ms + after)
        });
        let faults = self.faults.iter().map(|fault| fault.at_ms + fault.lasts_ms);
        Duration::from_millis(jobs.chain(faults).max().unwrap_or(0))
    }
}

fn draw_jobs(dice: &Dice, count: usize, knobs: &Knobs) -> Vec<JobPlan> {
    let kinds = [
        Behaviour::FailsRuns(1),
        Behaviour::FailsRuns(3),
        Behaviour::FailsRuns(u32::MAX),
        Behaviour::FailsHard,
        Behaviour::PanicsRuns(1),
        Behaviour::FailsUntilReplayed,
        Behaviour::Poison,
        Behaviour::NoHeaders,
    ];
    let enabled: Vec<Behaviour> = kinds.into_iter().filter(|_| dice.chance(60)).collect();
    let (resends, slow) = (dice.chance(60), dice.chance(30));
    (0..count as u64)
        .map(|id| {
            let behaviour = if enabled.is_empty() || dice.chance(60) {
                Behaviour::Succeeds
            } else {
                dice.one_of(&enabled)
            };
            let resend_after_ms = if resends && dice.chance(30) {
                (0..dice.between(1, 3))
                    .map(|_| match dice.below(3) {
                        0 => dice.below(50),
                        1 => dice.below(600_000),
                        _ => dice.below(knobs.resend_horizon_s * 1_000),
                    })
                    .collect()
            } else {
                Vec::new()
            };
            let work_ms = match dice.below(20) {
                0 if slow => dice.between(1, knobs.lease_s * 3) * 1_000,
                1..4 => dice.between(1, 3_000),
                _ => dice.below(20),
            };
            JobPlan {
                id,
                publish_at_ms: dice.below(120_000),
                resend_after_ms,
                behaviour,
                work_ms,
            }
        })
        .collect()
}

fn draw_faults(dice: &Dice, knobs: &Knobs) -> Vec<FaultPlan> {
    let workers: Vec<String> = (0..knobs.workers).map(|n| format!("worker{n}")).collect();
    let servers: Vec<String> = ["database", "broker", "alerts"].map(str::to_owned).to_vec();
    let everyone: Vec<String> = workers
        .iter()
        .chain(&servers)
        .cloned()
        .chain(["clerk".to_owned()])
        .collect();
    let enabled: Vec<u64> = (0..8).filter(|_| dice.chance(40)).collect();
    let mut faults = Vec::new();
    if enabled.is_empty() {
        return faults;
    }
    for _ in 0..dice.between(1, 12) {
        let lasts_ms = match dice.below(10) {
            0..4 => dice.between(1, 2_000),
            4..8 => dice.between(1_000, 300_000),
            8 => dice.between(60_000, DAY_S * 1_000),
            // Not longer: every attempt to connect uses a port up, and there are 64,000.
            _ => dice.between(DAY_S * 1_000, 4 * DAY_S * 1_000),
        };
        let short = lasts_ms.min(600_000);
        let (kind, lasts_ms) = match dice.one_of(&enabled) {
            0 => (FaultKind::Kill(dice.one_of(&workers)), short),
            1 => (FaultKind::Kill(dice.one_of(&servers)), lasts_ms),
            2 => (FaultKind::PowerLoss(dice.one_of(&everyone)), lasts_ms),
            3 => (
                FaultKind::Partition(dice.one_of(&workers), dice.one_of(&servers)),
                lasts_ms,
            ),
            4 => {
                let (worker, server) = (dice.one_of(&workers), dice.one_of(&servers));
                let kind = if dice.chance(50) {
                    FaultKind::PartitionOneWay(worker, server)
                } else {
                    FaultKind::PartitionOneWay(server, worker)
                };
                (kind, lasts_ms)
            }
            5 => (FaultKind::Loss(dice.between(1, 100)), short),
            6 => (FaultKind::Slow(dice.between(20, 15_000)), short),
            _ => (
                FaultKind::ClockJump(
                    dice.one_of(&workers),
                    dice.between(1, 40 * DAY_S) as i64 - 20 * DAY_S as i64,
                ),
                0,
            ),
        };
        faults.push(FaultPlan {
            at_ms: dice.below(180_000),
            lasts_ms,
            kind,
        });
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}
