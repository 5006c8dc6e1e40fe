//! What happens in one world: jobs, knobs and faults, all drawn from the seed, or read from a file.

mod check;
mod draw;
mod poison;
mod saved;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::draw::parse_seed;
pub use self::poison::Shape;
pub use self::saved::{Expected, Saved};

/// Everything that decides about one world. Written as JSON, edited by hand, run again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What decides about everything that is not in the plan: latencies, jitter, order.
    pub seed: u64,
    /// Settings of the harness and of the world.
    pub knobs: Knobs,
    /// Jobs that the producer publishes.
    pub jobs: Vec<JobPlan>,
    /// What goes wrong, in the order of time.
    pub faults: Vec<FaultPlan>,
}

/// Settings of the harness, all within what start-up accepts, and of the world around it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Knobs {
    /// Worker processes, 1 to 3.
    pub workers: usize,
    /// The longest that a message takes, if nothing is wrong.
    pub latency_ms: u64,
    pub concurrency: usize,
    pub prefetch: usize,
    /// Jobs that may run in one transaction.
    #[serde(default = "alone")]
    pub batch: usize,
    pub lease_s: u64,
    pub run_deadline_s: u64,
    pub fence_wait_ms: u64,
    /// The retry policy: retries beyond the first run, the first wait, the longest.
    pub retries: u32,
    pub retry_base_s: u64,
    pub retry_cap_s: u64,
    /// The time to live of a fence beyond what start-up demands.
    pub ttl_extra_s: u64,
    pub broker_retention_s: u64,
    pub resend_horizon_s: u64,
    pub margin_s: u64,
    pub sweep_interval_s: u64,
    /// Fences that one transaction of the sweep takes.
    pub sweep_batch: u32,
    /// How long an idle consumer leaves the queue alone.
    pub poll_interval_s: u64,
    /// The longest wait before something that is away is asked again.
    pub outage_backoff_cap_s: u64,
    /// Whether the world goes on until every fence has expired and was swept.
    pub until_swept: bool,
    pub alert_window_s: u64,
    /// When a letter without a decision is alerted once more, and the least time between two such incidents.
    #[serde(default = "an_hour")]
    pub escalate_after_s: u64,
    #[serde(default = "an_hour")]
    pub escalate_window_s: u64,
    /// Of 1,000 statements of handlers, and of 1,000 commits, how many meet contention.
    pub contention_per_mille: u64,
    /// Of 1,000 receives, how many hand out a message that is leased to somebody else.
    pub broker_duplicates_per_mille: u64,
    /// How much the broker's calendar is ahead of the database's; within the margin of the TTL rule.
    pub broker_ahead_s: i64,
    /// Of 1,000 requests, how many the alert service refuses.
    pub alert_refusals_per_mille: u64,
    /// How often operators look at dead letters.
    pub review_interval_s: u64,
    /// What they do with one, in per cent: replay, discard; the rest waits.
    pub replay_percent: u64,
    pub discard_percent: u64,
}

/// For plans that were written when nothing was escalated.
fn an_hour() -> u64 {
    3_600
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
    /// What operators decide about its dead letters, by generation; behind the last they leave them alone. Empty: chance
    /// decides, by `replay_percent` and `discard_percent`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Decision>,
}

/// What operators do with one dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Decision {
    Leave,
    Replay,
    /// Two operators at once.
    ReplayTwice,
    /// Two operators at once who do not agree.
    ReplayAndDiscard,
    Discard,
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
    /// Fails for good the first time that any copy of it runs, and never again.
    FailsHardOnce,
    /// Swallows the error of a statement and returns well, on the first so many runs: its commit is refused.
    SwallowsErrors(u32),
    Poison,
    NoHeaders,
    /// Poison of any other shape.
    PoisonAs(Shape),
}

impl Behaviour {
    /// Whether a message of this generation can never be valid. A replay gives it headers that can be read.
    pub fn is_poison(self, generation: u32) -> bool {
        match self {
            Self::Poison => true,
            Self::NoHeaders => generation == 0,
            Self::PoisonAs(shape) => generation == 0 || !shape.is_of_headers(),
            _ => false,
        }
    }

    /// How a run ends. `first`: no copy of the job ran before.
    pub fn ends(self, run: u32, generation: u32, first: bool) -> RunEnd {
        match self {
            Self::FailsRuns(runs) if run <= runs => RunEnd::FailsTransiently,
            Self::SwallowsErrors(runs) if run <= runs => RunEnd::SwallowsAnError,
            Self::PanicsRuns(runs) if run <= runs => RunEnd::Panics,
            Self::FailsHard => RunEnd::FailsForGood,
            Self::FailsUntilReplayed if generation == 0 => RunEnd::FailsForGood,
            Self::FailsHardOnce if first => RunEnd::FailsForGood,
            _ => RunEnd::Succeeds,
        }
    }
}

/// How one run of a job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum RunEnd {
    Succeeds,
    FailsTransiently,
    FailsForGood,
    SwallowsAnError,
    Panics,
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

/// What goes wrong. The end of a fault may end another one that is still going on at the same place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// The process is killed: its peers see the connections close. It comes back at the end.
    Kill(String),
    /// The power is lost: its peers see nothing. It comes back at the end.
    PowerLoss(String),
    /// The process stands still, its connections stay open. It goes on at the end, as if nothing had been.
    Pause(String),
    /// A worker is told to shut down, and started again at the end.
    Deploy(String),
    /// Nothing passes between two hosts.
    Partition(String, String),
    /// Nothing passes from the first to the second.
    PartitionOneWay(String, String),
    /// The connection of one call is cut: of the so-manieth one of this name, from the beginning of the fault.
    Cut {
        /// `commit`, `ack`, `record_dead_letter`, …
        call: String,
        /// Its answer is lost, and it did what it should; otherwise it is lost before it was made.
        answer: bool,
        /// From 1.
        nth: u64,
    },
    /// Messages between all hosts are lost, so many of 1,000.
    Loss(u64),
    /// Messages between all hosts take up to so many milliseconds.
    Slow(u64),
    /// The calendar of a host jumps by so many seconds.
    ClockJump(String, i64),
    /// Somebody sets `expires_at` of all fences to now whose job no producer sends again.
    ExpireFences,
}

impl FaultKind {
    /// Every [`name`](Self::name), for coverage.
    pub const NAMES: [&'static str; 19] = [
        "kill worker",
        "kill database",
        "kill broker",
        "kill alerts",
        "kill clerk",
        "power loss",
        "pause",
        "deploy",
        "partition",
        "one-way partition",
        "lost commit",
        "lost commit answer",
        "lost ack",
        "lost ack answer",
        "lost call",
        "loss",
        "slow network",
        "clock jump",
        "fences expired by hand",
    ];

    /// The kind's name, for coverage.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill(host) => match host.as_str() {
                "database" => "kill database",
                "broker" => "kill broker",
                "alerts" => "kill alerts",
                "clerk" => "kill clerk",
                _ => "kill worker",
            },
            Self::PowerLoss(_) => "power loss",
            Self::Pause(_) => "pause",
            Self::Deploy(_) => "deploy",
            Self::Partition(..) => "partition",
            Self::PartitionOneWay(..) => "one-way partition",
            Self::Cut { call, answer, .. } => match (call.as_str(), answer) {
                ("commit", false) => "lost commit",
                ("commit", true) => "lost commit answer",
                ("ack", false) => "lost ack",
                ("ack", true) => "lost ack answer",
                _ => "lost call",
            },
            Self::Loss(_) => "loss",
            Self::Slow(_) => "slow network",
            Self::ClockJump(..) => "clock jump",
            Self::ExpireFences => "fences expired by hand",
        }
    }

    /// The hosts that it is about; none: the whole network.
    pub fn hosts(&self) -> Vec<&str> {
        match self {
            Self::Kill(host)
            | Self::PowerLoss(host)
            | Self::Pause(host)
            | Self::Deploy(host)
            | Self::ClockJump(host, _) => vec![host],
            Self::Partition(one, other) | Self::PartitionOneWay(one, other) => vec![one, other],
            Self::ExpireFences => vec!["database"],
            Self::Cut { .. } | Self::Loss(_) | Self::Slow(_) => Vec::new(),
        }
    }
}

impl Plan {
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

/// Plans of before there were batches.
const fn alone() -> usize {
    1
}
