//! Parts of scenarios. What comes first in a choice is what it shrinks to: the plainest.

use std::ops::RangeInclusive;

use proptest::prelude::*;
use proptest::sample::select;

use crate::plan::{Behaviour, Decision, FaultKind, FaultPlan, JobPlan, Knobs, Shape};

const MINUTE_MS: u64 = 60_000;
const DAY_S: i64 = 86_400;

/// How jobs behave that can be read.
pub(super) const BEHAVIOURS: [Behaviour; 10] = [
    Behaviour::Succeeds,
    Behaviour::FailsRuns(1),
    Behaviour::FailsRuns(3),
    Behaviour::FailsRuns(u32::MAX),
    Behaviour::FailsHard,
    Behaviour::FailsUntilReplayed,
    Behaviour::FailsHardOnce,
    Behaviour::PanicsRuns(1),
    Behaviour::SwallowsErrors(1),
    Behaviour::SwallowsErrors(u32::MAX),
];

/// What operators decide.
pub(super) const DECISIONS: [Decision; 5] = [
    Decision::Replay,
    Decision::Leave,
    Decision::Discard,
    Decision::ReplayTwice,
    Decision::ReplayAndDiscard,
];

/// Jobs that can be read.
pub(super) fn behaviour() -> impl Strategy<Value = Behaviour> {
    select(&BEHAVIOURS[..])
}

/// Jobs that cannot.
pub(super) fn poison() -> impl Strategy<Value = Behaviour> {
    let mut all = vec![Behaviour::Poison, Behaviour::NoHeaders];
    all.extend(Shape::ALL.map(Behaviour::PoisonAs));
    select(all)
}

/// When copies come: at once, while the first is retried, and when it is long done.
pub(super) fn copies(many: RangeInclusive<usize>) -> impl Strategy<Value = Vec<u64>> {
    let after = prop_oneof![0..50_u64, 0..5_000_u64, 0..40 * MINUTE_MS];
    proptest::collection::vec(after, many)
}

/// What operators decide, generation by generation.
pub(super) fn decisions(many: RangeInclusive<usize>) -> impl Strategy<Value = Vec<Decision>> {
    let decision = prop_oneof![1 => Just(Decision::Replay), 1 => select(&DECISIONS[..])];
    proptest::collection::vec(decision, many)
}

/// One job; its number comes later.
pub(super) fn job(
    behaviour: impl Strategy<Value = Behaviour>,
    copies: impl Strategy<Value = Vec<u64>>,
    decisions: impl Strategy<Value = Vec<Decision>>,
) -> impl Strategy<Value = JobPlan> {
    let at = prop_oneof![0..2_000_u64, 0..10 * MINUTE_MS];
    let work = prop_oneof![4 => Just(0), 1 => 1..3_000_u64];
    (at, copies, behaviour, work, decisions).prop_map(
        |(publish_at_ms, resend_after_ms, behaviour, work_ms, decisions)| JobPlan {
            id: 0,
            publish_at_ms,
            resend_after_ms,
            behaviour,
            work_ms,
            decisions,
        },
    )
}

/// Calls at whose connection a cut hurts.
pub(super) const CUT_AT: [&str; 8] = [
    "commit",
    "ack",
    "fence",
    "retry",
    "defer",
    "record_dead_letter",
    "publish",
    "mark_replayed",
];

/// One fault; without `all`, only what makes copies: lost calls and answers.
pub(super) fn fault(all: bool) -> impl Strategy<Value = FaultPlan> {
    let worker = || (0..3_u8).prop_map(|n| format!("worker{n}"));
    let cut = (select(&CUT_AT[..]), any::<bool>(), 1..=4_u64).prop_map(|(call, answer, nth)| {
        FaultKind::Cut {
            call: call.to_owned(),
            answer,
            nth,
        }
    });
    let others = prop_oneof![
        Just(FaultKind::ExpireFences),
        worker().prop_map(FaultKind::Kill),
        worker().prop_map(FaultKind::Deploy),
        Just(FaultKind::Kill("database".to_owned())),
        Just(FaultKind::Kill("broker".to_owned())),
        (worker(), select(vec!["database", "broker"]))
            .prop_map(|(one, other)| FaultKind::Partition(one, other.to_owned())),
        (worker(), -20 * DAY_S..20 * DAY_S).prop_map(|(host, by)| FaultKind::ClockJump(host, by)),
    ];
    let kind = match all {
        true => prop_oneof![1 => cut, 2 => others].boxed(),
        false => cut.boxed(),
    };
    let at = prop_oneof![0..3_000_u64, 0..10 * MINUTE_MS];
    let lasts = prop_oneof![1..2_000_u64, 1..5 * MINUTE_MS];
    (at, lasts, kind).prop_map(|(at_ms, lasts_ms, kind)| FaultPlan {
        at_ms,
        lasts_ms: match kind {
            FaultKind::ClockJump(..) | FaultKind::ExpireFences => 0,
            // It waits for its call.
            FaultKind::Cut { .. } => 10 * MINUTE_MS,
            _ => lasts_ms,
        },
        kind,
    })
}

/// The standard policies, in a world where nothing is wrong.
pub(super) fn standard() -> Knobs {
    Knobs {
        workers: 1,
        latency_ms: 10,
        concurrency: 1,
        prefetch: 0,
        batch: 1,
        lease_s: 30,
        run_deadline_s: 60,
        fence_wait_ms: 20,
        retries: 5,
        retry_base_s: 30,
        retry_cap_s: 3_600,
        ttl_extra_s: 60,
        broker_retention_s: 4 * 86_400,
        resend_horizon_s: 86_400,
        margin_s: 86_400,
        sweep_interval_s: 600,
        sweep_batch: 7,
        poll_interval_s: 45,
        outage_backoff_cap_s: 15,
        until_swept: false,
        alert_window_s: 300,
        escalate_after_s: 1_800,
        escalate_window_s: 600,
        contention_per_mille: 0,
        broker_duplicates_per_mille: 0,
        broker_ahead_s: 0,
        alert_refusals_per_mille: 0,
        review_interval_s: 300,
        replay_percent: 0,
        discard_percent: 0,
    }
}

/// With what makes a difference drawn.
pub(super) fn knobs() -> impl Strategy<Value = Knobs> {
    let per_mille = || select(vec![0, 0, 30_u64]);
    (
        1..=3_usize,
        1..=4_usize,
        0..=2_usize,
        select(vec![1, 1, 4_usize]),
        select(vec![30, 5, 60_u64]),
        select(vec![20, 1, 500_u64]),
        per_mille(),
        per_mille(),
    )
        .prop_map(
            |(workers, concurrency, prefetch, batch, lease_s, fence_wait_ms, contention, twice)| {
                Knobs {
                    workers,
                    concurrency,
                    prefetch,
                    batch,
                    lease_s,
                    fence_wait_ms,
                    contention_per_mille: contention,
                    broker_duplicates_per_mille: twice,
                    ..standard()
                }
            },
        )
}
