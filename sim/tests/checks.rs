//! Every check can fail: for each invariant a history that breaks it, and the check that says so.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::borrow::Cow;
use std::time::Duration;

use harness::{
    AlertKind, ConsumerName, DeadLetterId, Event, FenceVerdict, JobId, JobRef, Reason, Step,
};
use sim::checkers::check;
use sim::history::{Entry, Fact, Said};
use sim::jobs::id_of;
use sim::plan::{Behaviour, JobPlan, Plan};
use uuid::Uuid;

/// Jobs 0 (succeeds), 1 (poison).
fn plan() -> Plan {
    let mut plan = Plan::draw(1, 0);
    (
        plan.knobs.retries,
        plan.knobs.retry_base_s,
        plan.knobs.retry_cap_s,
    ) = (5, 30, 3_600);
    plan.knobs.broker_duplicates_per_mille = 0;
    (plan.knobs.escalate_after_s, plan.knobs.escalate_window_s) = (1_000, 500);
    plan.faults = Vec::new();
    plan.jobs = [Behaviour::Succeeds, Behaviour::Poison]
        .into_iter()
        .zip(0..)
        .map(|(behaviour, id)| JobPlan {
            id,
            publish_at_ms: 0,
            resend_after_ms: Vec::new(),
            behaviour,
            work_ms: 0,
            decisions: Vec::new(),
        })
        .collect();
    plan
}

fn job(n: usize) -> JobId {
    id_of(&plan().jobs[n], &sim::world::queue().unwrap())
}

fn key(n: usize) -> (JobId, ConsumerName) {
    (job(n), sim::world::consumer().unwrap())
}

fn at(seconds: u64, said: Said) -> Entry {
    Entry {
        at: Duration::from_secs(seconds),
        host: Cow::Borrowed("worker0"),
        said,
    }
}

fn fact(fact: Fact) -> Entry {
    at(0, Said::World(fact))
}

fn step(n: usize, step: Step) -> Entry {
    at(
        0,
        Said::Harness(Event {
            consumer: None,
            queue: None,
            job: Some(JobRef {
                id: job(n),
                generation: 0,
                correlation_id: job(n).into(),
                delivery: None,
            }),
            step,
        }),
    )
}

fn published(message: u64, n: usize) -> Entry {
    fact(Fact::Published {
        message,
        job: job(n),
        generation: 0,
    })
}

fn committed(n: usize, effects: u32, fence: bool) -> Entry {
    fact(Fact::Committed {
        key: key(n),
        generation: 0,
        effects,
        fence,
    })
}

fn letter(id: u128, n: usize, generation: u32, reason: Reason) -> Entry {
    fact(Fact::LetterWritten {
        id: DeadLetterId(Uuid::from_u128(id)),
        key: key(n),
        generation,
        reason,
        attempts: 1,
        fingerprint: "kind".to_owned(),
    })
}

fn removed(message: u64, n: usize) -> Entry {
    fact(Fact::Removed {
        message,
        job: job(n),
        generation: 0,
    })
}

fn given_back(delivery: u64, n: usize, delay: u64) -> Entry {
    fact(Fact::GivenBack {
        message: 1,
        job: job(n),
        generation: 0,
        delivery,
        counted: true,
        delay: Duration::from_secs(delay),
    })
}

fn delivered(seconds: u64, delivery: u64) -> Entry {
    at(
        seconds,
        Said::World(Fact::Delivered {
            message: 1,
            job: job(0),
            generation: 0,
            delivery,
            lease: Duration::from_secs(60),
        }),
    )
}

fn ran(n: usize) -> Entry {
    fact(Fact::Ran {
        job: job(n),
        generation: 0,
        run: 1,
    })
}

fn claimed(seconds: u64, claim: u128) -> Entry {
    at(
        seconds,
        Said::World(Fact::AlertClaimed {
            claim: Uuid::from_u128(claim),
            kind: AlertKind::New,
            fingerprint: "kind".to_owned(),
        }),
    )
}

fn overdue(seconds: u64, claim: u128) -> Entry {
    let fact = Fact::AlertClaimed {
        claim: Uuid::from_u128(claim),
        kind: AlertKind::Overdue,
        fingerprint: "kind".to_owned(),
    };
    at(seconds, Said::World(fact))
}

fn escalated(seconds: u64, claim: u128, letters: &[u128]) -> Entry {
    let fact = Fact::LettersCovered {
        claim: Uuid::from_u128(claim),
        kind: AlertKind::Overdue,
        fingerprint: "kind".to_owned(),
        letters: ids(letters),
    };
    at(seconds, Said::World(fact))
}

fn ids(letters: &[u128]) -> Vec<DeadLetterId> {
    let ids = letters.iter();
    ids.map(|id| DeadLetterId(Uuid::from_u128(*id))).collect()
}

fn replayed(id: u128) -> Entry {
    fact(Fact::LetterReplayed {
        id: DeadLetterId(Uuid::from_u128(id)),
    })
}

fn closing(incident: u128) -> Entry {
    fact(Fact::ResolveClaimed {
        incident: Uuid::from_u128(incident),
        fingerprint: "kind".to_owned(),
    })
}

fn closed(incident: u128) -> Entry {
    fact(Fact::IncidentClosed {
        incident: Uuid::from_u128(incident),
    })
}

fn resolved(incident: u128) -> Entry {
    fact(Fact::IncidentResolved {
        incident: Uuid::from_u128(incident),
    })
}

fn accepted(claim: u128, letters: u64) -> Entry {
    fact(Fact::IncidentAccepted {
        claim: Uuid::from_u128(claim),
        fingerprint: "kind".to_owned(),
        letters,
    })
}

fn covered(claim: u128, letters: &[u128]) -> Entry {
    fact(Fact::LettersCovered {
        claim: Uuid::from_u128(claim),
        kind: AlertKind::New,
        fingerprint: "kind".to_owned(),
        letters: ids(letters),
    })
}

fn swept(age: u64, copies_queued: usize, letters_pending: usize) -> Entry {
    fact(Fact::FenceSwept {
        key: key(0),
        age: Duration::from_secs(age),
        copies_queued,
        letters_pending,
    })
}

/// Names of what is broken.
fn broken(entries: &[Entry]) -> Vec<&'static str> {
    let violations = check(&plan(), entries).unwrap();
    for violation in &violations {
        assert!(
            violation.proof.iter().all(|n| *n < entries.len()),
            "{violation:?}"
        );
    }
    let mut names: Vec<_> = violations.iter().map(|it| it.invariant).collect();
    names.dedup();
    names
}

const NOTHING: [&str; 0] = [];

#[test]
fn a_history_without_a_fault_passes() {
    let history = [
        published(1, 0),
        published(2, 1),
        delivered(0, 1),
        ran(0),
        committed(0, 1, true),
        removed(1, 0),
        letter(1, 1, 0, Reason::Poison),
        removed(2, 1),
        claimed(0, 7),
        accepted(7, 1),
        covered(7, &[1]),
        fact(Fact::Settled),
    ];
    assert_eq!(broken(&history), NOTHING);
    // What did not come yet is not missing yet.
    for end in 0..history.len() {
        assert_eq!(broken(&history[..end]), NOTHING, "the first {end}");
    }
}

#[test]
fn s1_a_second_effect_is_found() {
    assert_eq!(broken(&[committed(0, 2, true)]), ["S1 one effect"]);
    let twice = [committed(0, 1, true), committed(0, 1, true)];
    assert!(broken(&twice).contains(&"S1 one effect"));
    let other = Fact::Published {
        message: 9,
        job: JobId::from_key(Uuid::NAMESPACE_DNS, "another"),
        generation: 1,
    };
    assert_eq!(broken(&[fact(other)]), ["S1 one effect"]);
}

#[test]
fn s2_half_a_commit_is_found() {
    assert_eq!(broken(&[committed(0, 1, false)]), ["S2 atomic fence"]);
    assert_eq!(broken(&[committed(0, 0, true)]), ["S2 atomic fence"]);
}

#[test]
fn s3_an_early_ack_is_found() {
    assert_eq!(
        broken(&[published(1, 0), removed(1, 0)]),
        ["S3 nothing vanishes"]
    );
}

#[test]
fn s4_two_outcomes_are_found() {
    let history = [letter(1, 0, 0, Reason::Hard), committed(0, 1, true)];
    assert!(broken(&history).contains(&"S4 one outcome"));
    let history = [letter(1, 0, 0, Reason::Hard), letter(2, 0, 0, Reason::Hard)];
    assert_eq!(broken(&history), ["S4 one outcome"]);
}

#[test]
fn s5_a_run_too_many_is_found() {
    let six = [
        published(1, 0),
        ran(0),
        ran(0),
        ran(0),
        ran(0),
        ran(0),
        ran(0),
    ];
    assert_eq!(broken(&six), NOTHING);
    let mut seven = six.to_vec();
    seven.push(ran(0));
    assert_eq!(broken(&seven), ["S5 bounded runs"]);
}

#[test]
fn s6_short_shrinking_and_broken_waits_are_found() {
    assert_eq!(
        broken(&[given_back(1, 0, 30), given_back(2, 0, 60)]),
        NOTHING
    );
    assert_eq!(broken(&[given_back(1, 0, 29)]), ["S6 growing waits"]);
    assert_eq!(broken(&[given_back(2, 0, 59)]), ["S6 growing waits"]);
    assert_eq!(broken(&[given_back(1, 0, 46)]), ["S6 growing waits"]);
    assert_eq!(
        broken(&[given_back(1, 0, 30), delivered(29, 2)]),
        ["S6 growing waits"]
    );
    assert_eq!(broken(&[given_back(1, 0, 30), delivered(31, 2)]), NOTHING);
}

#[test]
fn s7_poison_that_runs_or_is_retried_is_found() {
    assert!(broken(&[published(1, 1), ran(1)]).contains(&"S7 poison"));
    assert_eq!(broken(&[given_back(1, 1, 30)]), ["S7 poison"]);
    assert_eq!(broken(&[letter(1, 1, 0, Reason::Exhausted)]), ["S7 poison"]);
    assert_eq!(broken(&[letter(1, 0, 0, Reason::Poison)]), ["S7 poison"]);
}

#[test]
fn s8_a_second_decision_and_an_empty_reason_are_found() {
    let id = DeadLetterId(Uuid::from_u128(1));
    let discard = |reason: &str| {
        fact(Fact::LetterDiscarded {
            id,
            reason: reason.to_owned(),
        })
    };
    assert_eq!(broken(&[discard("why")]), NOTHING);
    assert_eq!(broken(&[discard(" \u{200b}")]), ["S8 append-only"]);
    let twice = [fact(Fact::LetterReplayed { id }), discard("why")];
    assert_eq!(broken(&twice), ["S8 append-only"]);
}

#[test]
fn s9_a_letter_without_an_alert_and_alerts_without_end_are_found() {
    let letter = || letter(1, 1, 0, Reason::Poison);
    let without = [
        published(1, 0),
        committed(0, 1, true),
        letter(),
        fact(Fact::Settled),
    ];
    assert_eq!(broken(&without), ["S9 alerted"]);
    assert_eq!(
        broken(&[letter(), claimed(0, 7), covered(7, &[1])]),
        ["S9 alerted"]
    );
    assert_eq!(broken(&[accepted(7, 1)]), ["S9 alerted"], "from memory");
    assert_eq!(
        broken(&[letter(), claimed(0, 7), accepted(7, 2)]),
        ["S9 alerted"]
    );
    let again = [
        letter(),
        claimed(0, 7),
        accepted(7, 1),
        covered(7, &[1]),
        claimed(1, 8),
    ];
    assert_eq!(broken(&again), ["S9 alerted"]);
    let twice = [letter(), claimed(0, 7), accepted(7, 1), accepted(7, 1)];
    assert_eq!(broken(&twice), ["S9 alerted"]);
}

/// Two letters, both alerted.
fn alerted() -> Vec<Entry> {
    vec![
        letter(1, 1, 0, Reason::Poison),
        letter(2, 1, 1, Reason::Poison),
        claimed(0, 7),
        accepted(7, 2),
        covered(7, &[1, 2]),
    ]
}

fn after_alerts(more: impl IntoIterator<Item = Entry>) -> Vec<&'static str> {
    let mut history = alerted();
    history.extend(more);
    broken(&history)
}

#[test]
fn s9_an_escalation_that_is_right_passes() {
    let both = [
        overdue(1_000, 8),
        accepted(8, 2),
        escalated(1_000, 8, &[1, 2]),
    ];
    assert_eq!(after_alerts(both), NOTHING);
    let one = [
        replayed(1),
        overdue(1_000, 8),
        accepted(8, 1),
        escalated(1_000, 8, &[2]),
    ];
    assert_eq!(after_alerts(one), NOTHING);
    // Decided while the incident was under way: it was told, and that is on record.
    let meanwhile = [
        overdue(1_000, 8),
        replayed(1),
        accepted(8, 2),
        escalated(1_000, 8, &[1, 2]),
    ];
    assert_eq!(after_alerts(meanwhile), NOTHING);
}

#[test]
fn s9_an_escalation_too_early_too_late_or_twice_is_found() {
    let early = [overdue(999, 8), accepted(8, 0), escalated(999, 8, &[1])];
    assert_eq!(after_alerts(early), ["S9 alerted"]);
    let decided = [
        replayed(1),
        overdue(1_000, 8),
        accepted(8, 1),
        escalated(1_000, 8, &[1]),
    ];
    assert_eq!(after_alerts(decided), ["S9 alerted"]);
    let unsent = [overdue(1_000, 8), escalated(1_000, 8, &[1, 2])];
    assert_eq!(after_alerts(unsent), ["S9 alerted"]);
    // Two claims at once: the second was made when nothing was on record.
    let twice = [
        overdue(1_000, 8),
        overdue(1_001, 9),
        accepted(8, 2),
        accepted(9, 2),
        escalated(1_001, 8, &[1, 2]),
        escalated(1_001, 9, &[1]),
    ];
    assert_eq!(after_alerts(twice), ["S9 alerted"]);
    let without_pause = [
        replayed(2),
        overdue(1_000, 8),
        accepted(8, 1),
        escalated(1_000, 8, &[1]),
        overdue(1_499, 9),
    ];
    assert_eq!(after_alerts(without_pause), ["S9 alerted"]);
}

#[test]
fn s9_a_letter_that_waits_for_ever_is_found() {
    let end = |seconds| {
        let job = [published(1, 0), committed(0, 1, true)];
        job.into_iter()
            .chain([at(seconds, Said::World(Fact::Settled))])
    };
    assert_eq!(after_alerts(end(1_500)), NOTHING);
    assert_eq!(after_alerts(end(1_501)), ["S9 alerted"]);
    let decided = [replayed(1), replayed(2)];
    assert_eq!(after_alerts(decided.into_iter().chain(end(9_999))), NOTHING);
}

#[test]
fn s9_an_incident_that_is_closed_too_early_is_found() {
    let right = [replayed(1), replayed(2), closing(7), closed(7), resolved(7)];
    assert_eq!(after_alerts(right.clone()), NOTHING);
    assert_eq!(
        after_alerts(right[1..].to_vec()),
        ["S9 alerted"],
        "one is pending"
    );
    let unclaimed = [replayed(1), replayed(2), closed(7)];
    assert_eq!(after_alerts(unclaimed), ["S9 alerted"]);
    let unknown = [replayed(1), replayed(2), closing(8), closed(8)];
    assert_eq!(after_alerts(unknown), ["S9 alerted"]);
    let still_open = [replayed(1), replayed(2), closing(7), resolved(7)];
    assert_eq!(after_alerts(still_open), ["S9 alerted"]);
}

#[test]
fn s10_a_fence_that_goes_too_early_is_found() {
    assert_eq!(broken(&[swept(1_000_000, 0, 0)]), NOTHING);
    assert_eq!(broken(&[swept(1_000_000, 1, 0)]), ["S10 safe sweep"]);
    assert_eq!(broken(&[swept(1_000_000, 0, 1)]), ["S10 safe sweep"]);
    assert_eq!(broken(&[swept(60, 0, 0)]), ["S10 safe sweep"]);
}

#[test]
fn s11_a_letter_of_a_success_is_found() {
    let history = [committed(0, 1, true), letter(1, 0, 1, Reason::Hard)];
    assert!(broken(&history).contains(&"S11 no success rows"));
}

#[test]
fn s12_a_loud_duplicate_is_found() {
    let history = [committed(0, 1, true), letter(1, 0, 1, Reason::Hard)];
    assert!(broken(&history).contains(&"S12 quiet duplicates"));
    let verdict = FenceVerdict::Duplicate;
    let waited = Duration::ZERO;
    let run = [
        step(0, Step::Fence { verdict, waited }),
        step(0, Step::RunStarted { run: 1 }),
    ];
    assert_eq!(broken(&run), ["S12 quiet duplicates"]);
    let received = || step(0, Step::Received { runs_before: 6 });
    let taken = [
        committed(0, 1, true),
        received(),
        step(0, Step::DeadLetterApplied),
    ];
    assert_eq!(broken(&taken), ["S12 quiet duplicates"]);
    let race = [
        received(),
        committed(0, 1, true),
        step(0, Step::DeadLetterApplied),
    ];
    assert_eq!(broken(&race), NOTHING);
}

#[test]
fn h1_a_lease_that_runs_out_is_found() {
    let extended = Fact::Extended {
        message: 1,
        lease: Duration::from_secs(60),
    };
    let extended = at(50, Said::World(extended));
    let kept = [delivered(0, 1), extended, delivered(109, 2)];
    assert_eq!(broken(&kept), NOTHING);
    assert_eq!(
        broken(&[delivered(0, 1), delivered(61, 2)]),
        ["H1 leases are kept"]
    );
}

#[test]
fn l1_what_never_settles_is_found() {
    let poison = [
        letter(1, 1, 0, Reason::Poison),
        claimed(0, 7),
        accepted(7, 1),
        covered(7, &[1]),
    ];
    let mut history = poison.to_vec();
    history.extend([published(1, 0), fact(Fact::Settled)]);
    assert_eq!(broken(&history), ["L1 settles"]);
    let what = "1 messages are on the queue".to_owned();
    assert_eq!(broken(&[fact(Fact::Unsettled { what })]), ["L1 settles"]);
    // A job that its producer gave up before it was published needs no outcome.
    let mut history = poison.to_vec();
    history.extend([fact(Fact::GaveUp { job: job(0) }), fact(Fact::Settled)]);
    assert_eq!(broken(&history), NOTHING);
}
