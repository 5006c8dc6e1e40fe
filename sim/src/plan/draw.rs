//! A plan from a seed.
//!
//! Whole kinds of jobs and faults are switched off at random, so that the others can unfold (swarm testing). Long worlds,
//! with outages of days, look seldom at queues and tables: a week of polling every second is no event worth simulating.

use anyhow::Context as _;
use harness::{Entropy, SeededEntropy};

use super::{Behaviour, FaultKind, FaultPlan, JobPlan, Knobs, Plan};

const MINUTE_S: u64 = 60;
const HOUR_S: u64 = 3_600;
const DAY_S: u64 = 86_400;

/// A seed: a number, or a commit hash, of which the first 16 digits count. What can be read as a number is one.
///
/// # Errors
/// When it is neither.
pub fn parse_seed(text: &str) -> anyhow::Result<u64> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    let digits: String = text.chars().take(16).collect();
    let is_hash = text.len() >= 7 && text.chars().all(|c| c.is_ascii_hexdigit());
    is_hash
        .then(|| u64::from_str_radix(&digits, 16).ok())
        .flatten()
        .with_context(|| {
            format!("{text:?} is no seed: give a number from 0 to {}, or a commit hash of 7 or more digits", u64::MAX)
        })
}

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
    /// Draws everything from a seed.
    pub fn draw(seed: u64, jobs: usize) -> Self {
        let dice = Dice(SeededEntropy::new(seed));
        // Outages of days, or the life of every fence to its end.
        let (outages, until_swept) = (dice.chance(15), dice.chance(10));
        let mut knobs = draw_knobs(&dice, outages, until_swept);
        let jobs = draw_jobs(&dice, jobs, &knobs);
        let faults = draw_faults(&dice, &knobs, &jobs, outages);
        // Last, so that the rest of a seed's world is what it was before there was escalation, and before there were batches.
        (knobs.escalate_after_s, knobs.escalate_window_s) = draw_escalation(&dice, &knobs);
        knobs.batch = dice.one_of(&[1, 1, 2, 5, 20]);
        Self {
            seed,
            knobs,
            jobs,
            faults,
        }
    }
}

fn draw_knobs(dice: &Dice, outages: bool, until_swept: bool) -> Knobs {
    let standard = dice.chance(50);
    let (retries, retry_base_s, retry_cap_s) = if standard {
        (5, 30, HOUR_S)
    } else {
        (
            dice.one_of(&[0, 1, 2, 3, 8]),
            dice.one_of(&[1, 30, 600]),
            dice.one_of(&[600, HOUR_S]),
        )
    };
    let margin_s = dice.one_of(&[HOUR_S, DAY_S]);
    let mut knobs = Knobs {
        workers: dice.between(1, 3) as usize,
        latency_ms: dice.one_of(&[10, 10, 10, 25]),
        concurrency: dice.one_of(&[1, 2, 4, 8]),
        prefetch: dice.one_of(&[0, 0, 0, 2]),
        batch: 1,
        lease_s: dice.one_of(&[5, 30, 60]),
        run_deadline_s: dice.one_of(&[5, 60, 300]),
        fence_wait_ms: dice.one_of(&[1, 20, 500]),
        retries,
        retry_base_s,
        retry_cap_s,
        ttl_extra_s: dice.one_of(&[1, MINUTE_S, DAY_S]),
        broker_retention_s: dice.one_of(&[DAY_S, 4 * DAY_S]),
        resend_horizon_s: dice.one_of(&[HOUR_S, DAY_S]),
        margin_s,
        sweep_interval_s: dice.one_of(&[600, HOUR_S]),
        sweep_batch: dice.one_of(&[1, 7, 1_000]),
        poll_interval_s: dice.one_of(&[45, 120]),
        outage_backoff_cap_s: dice.one_of(&[15, 60]),
        until_swept,
        contention_per_mille: dice.one_of(&[0, 0, 30]),
        escalate_after_s: 0,
        escalate_window_s: 0,
        alert_window_s: dice.one_of(&[60, 300]),
        broker_duplicates_per_mille: dice.one_of(&[0, 0, 20]),
        broker_ahead_s: dice.between(0, margin_s / 2) as i64 - margin_s as i64 / 4,
        alert_refusals_per_mille: dice.one_of(&[0, 300]),
        review_interval_s: dice.one_of(&[5 * MINUTE_S, 15 * MINUTE_S]),
        replay_percent: dice.one_of(&[0, 50, 90]),
        discard_percent: dice.one_of(&[0, 10]),
    };
    if outages || until_swept {
        knobs.poll_interval_s = 3 * HOUR_S;
        knobs.sweep_interval_s = 6 * HOUR_S;
        knobs.sweep_batch = 1_000;
        knobs.outage_backoff_cap_s = HOUR_S;
        knobs.lease_s = HOUR_S;
        knobs.review_interval_s = dice.one_of(&[6 * HOUR_S, 2 * DAY_S, 5 * DAY_S]);
    }
    knobs
}

/// Days only where a day costs little.
fn draw_escalation(dice: &Dice, knobs: &Knobs) -> (u64, u64) {
    if knobs.poll_interval_s >= HOUR_S {
        return (3 * DAY_S, 6 * HOUR_S);
    }
    (
        dice.one_of(&[600, 1_800, HOUR_S]),
        dice.one_of(&[600, 1_800]),
    )
}

fn draw_jobs(dice: &Dice, count: usize, knobs: &Knobs) -> Vec<JobPlan> {
    let kinds = [
        Behaviour::FailsRuns(1),
        Behaviour::FailsRuns(3),
        Behaviour::FailsRuns(u32::MAX),
        Behaviour::FailsHard,
        Behaviour::PanicsRuns(1),
        Behaviour::FailsUntilReplayed,
        Behaviour::FailsHardOnce,
        Behaviour::SwallowsErrors(1),
        Behaviour::SwallowsErrors(u32::MAX),
        Behaviour::Poison,
        Behaviour::NoHeaders,
    ];
    let enabled: Vec<Behaviour> = kinds.into_iter().filter(|_| dice.chance(50)).collect();
    let succeed_percent = dice.one_of(&[70, 90, 97]);
    // Long worlds are there for what comes late.
    let long = knobs.poll_interval_s >= HOUR_S;
    let (resends, slow) = (long || dice.chance(60), dice.chance(40));
    // Jobs come in bursts.
    let bursts: Vec<u64> = (0..dice.between(1, 5))
        .map(|_| dice.below(120_000))
        .collect();
    (0..count as u64)
        .map(|id| {
            let publish_at_ms = dice.one_of(&bursts) + dice.below(4) * 50;
            let behaviour = if enabled.is_empty() || dice.chance(succeed_percent) {
                Behaviour::Succeeds
            } else {
                dice.one_of(&enabled)
            };
            // Two copies at once of what fails once: one fails, the other does not.
            let resend_percent = match behaviour {
                Behaviour::FailsHardOnce => 90,
                _ => 20,
            };
            let resend_after_ms = if resends && dice.chance(resend_percent) {
                (0..dice.between(1, 3))
                    .map(|_| match dice.below(4) {
                        0 | 1 => dice.below(50),
                        2 => dice.below(10) * 60_000,
                        // To the end of the horizon only where a day costs little.
                        _ if knobs.poll_interval_s < HOUR_S => dice.below(6) * 600_000,
                        _ => dice.below(knobs.resend_horizon_s / 600) * 600_000,
                    })
                    .collect()
            } else {
                Vec::new()
            };
            let work_ms = match dice.below(20) {
                0 if slow => dice.between(1, knobs.lease_s.min(60) * 3) * 1_000,
                1..4 => dice.between(1, 3_000),
                _ => 0,
            };
            JobPlan {
                id,
                publish_at_ms,
                resend_after_ms,
                behaviour,
                work_ms,
                decisions: Vec::new(),
            }
        })
        .collect()
}

/// Kinds that are switched on and off together.
#[derive(Debug, Clone, Copy)]
enum Kind {
    KillWorker,
    KillServer,
    PowerLoss,
    Pause,
    Deploy,
    Partition,
    Cut,
    Loss,
    Slow,
    ClockJump,
    ExpireFences,
}

const KINDS: [Kind; 11] = [
    Kind::KillWorker,
    Kind::KillServer,
    Kind::PowerLoss,
    Kind::Pause,
    Kind::Deploy,
    Kind::Partition,
    Kind::Cut,
    Kind::Loss,
    Kind::Slow,
    Kind::ClockJump,
    Kind::ExpireFences,
];

/// Calls that a connection is cut at; those that matter most stand here more than once.
const CUT_AT: [&str; 19] = [
    "commit",
    "commit",
    "commit",
    "ack",
    "ack",
    "ack",
    "fence",
    "retry",
    "defer",
    "record_dead_letter",
    "publish",
    "mark_replayed",
    "mark_replayed",
    "mark_replayed",
    "discard",
    "open_incident",
    "alert_delivered",
    "resolve_incident",
    "incident_resolved",
];

fn draw_faults(dice: &Dice, knobs: &Knobs, jobs: &[JobPlan], outages: bool) -> Vec<FaultPlan> {
    let mut faults = Vec::new();
    let enabled: Vec<Kind> = KINDS.into_iter().filter(|_| dice.chance(35)).collect();
    // Some worlds have no faults at all: what must hold there is more.
    if enabled.is_empty() || dice.chance(15) {
        return faults;
    }
    let first = jobs.iter().map(|job| job.publish_at_ms).min().unwrap_or(0);
    for _ in 0..dice.between(1, 8) {
        // Where something happens, or anywhere.
        let at_ms = match jobs.get(dice.below(jobs.len() as u64) as usize) {
            Some(job) if dice.chance(70) => job.publish_at_ms + dice.below(2_000),
            _ => first + dice.below(600_000),
        };
        let lasts_ms = match dice.below(10) {
            0..5 => dice.between(1, 2_000),
            5..8 => dice.between(1_000, 60_000),
            _ => dice.between(1_000, 600_000),
        };
        let kind = draw_fault(dice, knobs, dice.one_of(&enabled));
        let lasts_ms = match kind {
            FaultKind::ClockJump(..) | FaultKind::ExpireFences => 0,
            // It waits for its call.
            FaultKind::Cut { .. } if knobs.review_interval_s > HOUR_S => 12 * DAY_S * 1_000,
            FaultKind::Cut { .. } => 600_000,
            _ => lasts_ms,
        };
        faults.push(FaultPlan {
            at_ms,
            lasts_ms,
            kind,
        });
    }
    if outages {
        draw_outage(dice, knobs, &mut faults);
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

fn draw_fault(dice: &Dice, knobs: &Knobs, kind: Kind) -> FaultKind {
    let worker = || format!("worker{}", dice.below(knobs.workers as u64));
    let server = || dice.one_of(&["database", "broker", "alerts"]).to_owned();
    let client = || {
        if dice.chance(80) {
            worker()
        } else {
            "clerk".to_owned()
        }
    };
    match kind {
        Kind::KillWorker => FaultKind::Kill(worker()),
        Kind::KillServer => FaultKind::Kill(
            dice.one_of(&["database", "broker", "alerts", "clerk"])
                .to_owned(),
        ),
        Kind::PowerLoss => FaultKind::PowerLoss(if dice.chance(50) { client() } else { server() }),
        Kind::Pause => FaultKind::Pause(if dice.chance(70) { client() } else { server() }),
        Kind::Deploy => FaultKind::Deploy(worker()),
        Kind::Partition => {
            let (client, server) = (client(), server());
            match dice.below(4) {
                0 => FaultKind::PartitionOneWay(client, server),
                1 => FaultKind::PartitionOneWay(server, client),
                _ => FaultKind::Partition(client, server),
            }
        }
        Kind::Cut => FaultKind::Cut {
            call: dice.one_of(&CUT_AT).to_owned(),
            answer: dice.chance(50),
            nth: dice.between(1, 6),
        },
        Kind::Loss => FaultKind::Loss(dice.between(1, 100)),
        Kind::Slow => FaultKind::Slow(dice.between(20, 15_000)),
        Kind::ClockJump => {
            FaultKind::ClockJump(client(), dice.below(40 * DAY_S) as i64 - 20 * DAY_S as i64)
        }
        Kind::ExpireFences => FaultKind::ExpireFences,
    }
}

/// Something is away for days: longer than any fence lives, now and then.
fn draw_outage(dice: &Dice, knobs: &Knobs, faults: &mut Vec<FaultPlan>) {
    let workers = (0..knobs.workers).map(|n| format!("worker{n}"));
    let hosts: Vec<String> = match dice.below(4) {
        0 | 1 => workers.collect(),
        2 => vec!["database".to_owned()],
        _ => vec![dice.one_of(&["broker", "alerts", "clerk"]).to_owned()],
    };
    let (at_ms, silent) = (dice.below(180_000), dice.chance(50));
    let lasts_ms = dice.between(HOUR_S, 10 * DAY_S) * 1_000;
    faults.extend(hosts.into_iter().map(|host| FaultPlan {
        at_ms,
        lasts_ms,
        kind: if silent {
            FaultKind::PowerLoss(host)
        } else {
            FaultKind::Kill(host)
        },
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_number_or_a_commit() -> anyhow::Result<()> {
        assert_eq!(parse_seed("17")?, 17);
        assert_eq!(parse_seed("12f06b3")?, 0x0012_f06b3);
        let hash = "12f06b3a00112233445566778899aabbccddeeff";
        assert_eq!(parse_seed(hash)?, 0x12f0_6b3a_0011_2233);
        for bad in ["", "x", "12f06", "-1", "12f06b3g"] {
            assert!(parse_seed(bad).is_err(), "{bad:?}");
        }
        Ok(())
    }
}
