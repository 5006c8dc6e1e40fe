//! The chapter on attempts.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::kit;
use crate::retry;

pub(super) const CHAPTER: Chapter = Chapter {
    name: "retry",
    title: "Attempts, and when a job is given up",
    about: "One job and one message that is delivered again and again; a twin may apply the job behind its back. A run \
            succeeds, fails, fails for good, meets contention, loses its commit, or dies with its process.",
    assumes: &[
        "The broker counts deliveries, and takes one back when it is told that it does not count.",
        "A dead letter is written in a transaction that takes the fence key first.",
        "A twin is applied while the message is queued or being given up; while a run holds the key, it waits.",
    ],
    scopes: &[
        Scope {
            what: "runs",
            size: "3 instead of 6",
            why: "a first, a middle and a last one; the rule does not look at the number",
        },
        Scope {
            what: "crashes",
            size: "3",
            why: "as many as runs: all of them may die",
        },
        Scope {
            what: "contention",
            size: "2",
            why: "once in the first run and once in the last",
        },
        Scope {
            what: "lost commits or answers",
            size: "2",
            why: "also the last run's",
        },
        Scope {
            what: "lost acks",
            size: "2",
            why: "after the last run the count passes the limit",
        },
        Scope {
            what: "twins",
            size: "1",
            why: "a second one would be a duplicate of the first",
        },
    ],
    promises: &[
        Promise {
            property: "S1 one effect",
            says: "There is never more than one effect.",
            clauses: "A1",
            code: "`harness/src/consumer/gate.rs`",
        },
        Promise {
            property: "S3 nothing vanishes",
            says: "The message is gone only when an effect or a dead letter is on record.",
            clauses: "B4",
            code: "`harness/src/consumer/answer.rs`",
        },
        Promise {
            property: "S4 one outcome",
            says: "A job is applied or dead-lettered, never both.",
            clauses: "B4, B6",
            code: "`harness/migrations/0003_gate.sql`",
        },
        Promise {
            property: "S5 bounded runs",
            says: "No more runs count than the policy allows, crashed ones included.",
            clauses: "A3, B3",
            code: "`harness/src/disposition.rs`, `harness/src/retry.rs`",
        },
        Promise {
            property: "S5 no attempt is lost to contention",
            says: "What is exhausted really ran as often as it was allowed to.",
            clauses: "B3",
            code: "`harness/src/disposition.rs`",
        },
        Promise {
            property: "S6 growing waits",
            says: "Each wait is longer than the one before.",
            clauses: "A3, B3",
            code: "`harness/src/retry.rs`",
        },
        Promise {
            property: "S7 poison",
            says: "What can never be valid is not run and not retried.",
            clauses: "A4, B5",
            code: "`harness/src/consumer/gate.rs`",
        },
        Promise {
            property: "S12 quiet duplicates",
            says: "A delivery of a job that is applied is never treated as a failure.",
            clauses: "B2",
            code: "`harness/src/consumer/gate.rs`",
        },
        Promise {
            property: "L1 settles",
            says: "In the end the message is gone, and there is either an effect or a dead letter.",
            clauses: "B4",
            code: "`harness/src/consumer/`",
        },
    ],
    steps: &[
        ("the broker", "hands the message out"),
        (
            "the worker",
            "looks at message, fence and limit; works and commits; fails; fails for good; meets contention; writes the dead letter; acknowledges; dies",
        ),
        (
            "the network",
            "loses the commit or its answer; loses the acknowledgement",
        ),
        ("a twin", "applies the job"),
    ],
    diagram: "stateDiagram-v2\n    [*] --> Queued\n    Queued --> Received: deliver, counted\n    Received --> Settled: fence or letter is there\n    \
              Received --> GivingUp: poison, or no runs left\n    Received --> Running: the key is ours\n    Running --> Settled: commit\n    \
              Running --> Queued: fail, wait longer\n    Running --> Queued: contention, uncounted\n    Running --> Queued: nobody answers the commit\n    \
              Running --> GivingUp: fail for good, or the last run fails\n    GivingUp --> Settled: letter, unless applied\n    Settled --> Gone: ack\n    Gone --> [*]\n",
    wrong: &[
        Wrong {
            name: "limit-before-fence",
            what: "The attempt limit is looked at before the fence.",
            breaks: "S12 quiet duplicates",
        },
        Wrong {
            name: "letter-without-fence",
            what: "A dead letter is written without looking at the fence.",
            breaks: "S4 one outcome",
        },
        Wrong {
            name: "gate-ignores-letter",
            what: "The gate does not look for a dead letter of its generation.",
            breaks: "S4 one outcome",
        },
        Wrong {
            name: "crash-is-free",
            what: "A run whose process died does not count.",
            breaks: "S5 bounded runs",
        },
        Wrong {
            name: "contention-counts",
            what: "Contention counts as an attempt.",
            breaks: "S5 no attempt is lost to contention",
        },
        Wrong {
            name: "poison-is-retried",
            what: "What can never be valid is retried like everything else.",
            breaks: "S7 poison",
        },
        Wrong {
            name: "same-wait",
            what: "The wait is the same every time.",
            breaks: "S6 growing waits",
        },
        Wrong {
            name: "ack-before-letter",
            what: "The message is acknowledged, then the dead letter is written.",
            breaks: "S3 nothing vanishes",
        },
        Wrong {
            name: "unknown-is-failure",
            what: "A commit that nobody answered is a failed run; the last one is a dead letter on the spot.",
            breaks: "S4 one outcome",
        },
    ],
    states: 25_575,
    check: |threads| kit::check(retry::Retry::new(retry::Design::Right), threads),
    shortest: super::of_designs!(
        retry::Retry::new(retry::Design::LimitBeforeFence),
        retry::Retry::new(retry::Design::LetterWithoutFence),
        retry::Retry::new(retry::Design::GateIgnoresLetter),
        retry::Retry::new(retry::Design::CrashIsFree),
        retry::Retry::new(retry::Design::ContentionCounts),
        retry::Retry::new(retry::Design::PoisonIsRetried),
        retry::Retry::new(retry::Design::SameWait),
        retry::Retry::new(retry::Design::AckBeforeLetter),
        retry::Retry::new(retry::Design::UnknownIsFailure),
    ),
    ends: || kit::every_way_ends(&retry::Retry::new(retry::Design::Right)),
    explore: |address| {
        drop(
            retry::Retry::new(retry::Design::Right)
                .checker()
                .serve(address),
        )
    },
};
