//! The chapter on the whole of it.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::kit;
use crate::lifecycle;

pub(super) const CHAPTER: Chapter = Chapter {
    name: "lifecycle",
    title: "From publication to outcome",
    about: "Two copies of a job's message are delivered again and again. What a delivery may do is a protocol of stages and \
            moves; what the world answers (is there a fence, a letter, does a twin hold the key) decides which of it happens. \
            The moves are the events that the harness emits, so histories of simulated and real runs are held against the \
            same protocol: `cargo model conform FILE`.",
    assumes: &[
        "A twin that finds the key taken is turned away as often as that is allowed, and then waits.",
        "How fence, letters and operators exclude each other in detail is the subject of the other models.",
    ],
    scopes: &[
        Scope {
            what: "copies",
            size: "2",
            why: "each can be the twin of the other",
        },
        Scope {
            what: "runs per copy",
            size: "2 instead of 6",
            why: "a first and a last one",
        },
        Scope {
            what: "crashes, losses, deferrals",
            size: "2 each",
            why: "one for either copy, or two in a row for one",
        },
    ],
    promises: &[
        Promise {
            property: "S1 one effect",
            says: "There is never more than one effect.",
            clauses: "A1, B1, B2",
            code: "`harness/src/consumer/gate.rs`",
        },
        Promise {
            property: "S3 nothing vanishes",
            says: "A copy is acknowledged only when an effect or a dead letter is on record.",
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
            says: "No copy has more runs that count than the policy allows.",
            clauses: "A3, B3",
            code: "`harness/src/disposition.rs`",
        },
        Promise {
            property: "S7 poison",
            says: "What can never be valid is not run.",
            clauses: "A4, B5",
            code: "`harness/src/consumer/gate.rs`",
        },
        Promise {
            property: "the protocol allows it",
            says: "Whatever the world does is a move that the protocol allows: the two agree.",
            clauses: "B1..B5",
            code: "`harness/src/event.rs`",
        },
        Promise {
            property: "L1 settles",
            says: "In the end both copies are gone, and there is either an effect or a dead letter.",
            clauses: "B4",
            code: "`harness/src/consumer/`",
        },
    ],
    steps: &[
        ("the broker", "hands a copy out"),
        (
            "whoever holds a copy",
            "finds it poison; finds a twin; asks the fence; runs; works or fails; commits; writes a dead letter; acknowledges; gives it back, counted or not; dies",
        ),
        (
            "the network",
            "loses a commit, its answer, an acknowledgement",
        ),
    ],
    diagram: "stateDiagram-v2\n    [*] --> Received\n    Received --> ToAck: duplicate, settled\n    Received --> Fenced: acquired\n    \
              Received --> GivingUp: poison\n    Received --> ToDefer: busy, store away, not addressed\n    Fenced --> Running: runs are left\n    \
              Fenced --> GivingUp: none is left\n    Running --> Committing: worked\n    Running --> ToRetry: failed, runs are left\n    \
              Running --> GivingUp: failed for good, or the last run\n    Running --> ToDefer: contention, outage, shutdown\n    \
              Committing --> ToAck: committed\n    Committing --> ToRetry: unknown, or refused\n    GivingUp --> ToAck: letter, unless applied\n    \
              ToAck --> [*]: ack\n    ToRetry --> [*]: retry\n    ToDefer --> [*]: defer\n",
    wrong: &[
        Wrong {
            name: "letter-without-fence",
            what: "The dead letter does not look at the fence.",
            breaks: "S4 one outcome",
        },
        Wrong {
            name: "fence-ignores-letter",
            what: "The fence does not look for dead letters.",
            breaks: "S4 one outcome",
        },
        Wrong {
            name: "ack-before-commit",
            what: "A delivery is acknowledged as soon as its handler worked.",
            breaks: "S3 nothing vanishes",
        },
    ],
    states: 87_746,
    check: |threads| kit::check(lifecycle::Lifecycle::new(lifecycle::Design::Right), threads),
    shortest: super::of_designs!(
        lifecycle::Lifecycle::new(lifecycle::Design::LetterWithoutFence),
        lifecycle::Lifecycle::new(lifecycle::Design::FenceIgnoresLetter),
        lifecycle::Lifecycle::new(lifecycle::Design::AckBeforeCommit),
    ),
    ends: || kit::every_way_ends(&lifecycle::Lifecycle::new(lifecycle::Design::Right)),
    explore: |address| {
        drop(
            lifecycle::Lifecycle::new(lifecycle::Design::Right)
                .checker()
                .serve(address),
        )
    },
};
