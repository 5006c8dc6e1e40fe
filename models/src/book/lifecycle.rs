//! The chapter on the whole of it.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::kit;
use crate::lifecycle::{Design, Lifecycle};

pub(super) const CHAPTER: Chapter = Chapter {
    name: "lifecycle",
    title: "From publication to outcome",
    about: "Up to two copies of a job's message are delivered again and again, and the job may be replayed. What a delivery may \
            do is a protocol of stages and moves; what the world answers (is there a fence, a letter, does a twin hold the key) \
            decides which of it happens. The moves are the events that the harness emits. So histories of simulated and real \
            runs are held against the same protocol (`cargo model conform FILE`), and the other way round, ways through this \
            model that together take every turn of it are driven through the real harness, on the simulated store \
            (`cargo sim drive`) and on PostgreSQL (the acceptance tests): after each step both are in the same state, and what \
            the model does not allow is tried and changes nothing.",
    assumes: &[
        "A twin that finds the key taken is turned away as often as that is allowed, and then waits.",
        "Nobody holds a message for longer than a fence lives: the rule for the TTL is the subject of `ttl`.",
        "An operator's replay is published and recorded at once; what a crash in between does is the subject of `replay`.",
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
            size: "1 each",
            why: "each in any place, and all of them together",
        },
        Scope {
            what: "leases that run out under a living holder",
            size: "1",
            why: "makes a third holder, beside those of the two copies",
        },
        Scope {
            what: "replays",
            size: "1",
            why: "a generation that was given up, and one after it; chains of them are the subject of `replay`",
        },
        Scope {
            what: "batches",
            size: "1",
            why: "the job in one, with any end of it: the other jobs are there only to make it fail; ways with batches are not \
                  driven through the harness, but every batch of a simulated or real run is held against the protocol",
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
            property: "S4 discarded means never applied",
            says: "What an operator gave up is not applied by a late copy.",
            clauses: "B8",
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
            says: "In the end all copies are gone, and there is either an effect or a dead letter that waits or was discarded.",
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
        ("time", "passes: a lease runs out, and its holder goes on"),
        ("an operator", "replays or discards the dead letter"),
        (
            "the sweep",
            "takes the fence, when no copy is queued and no letter waits",
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
        Wrong {
            name: "sweep-ignores-queue",
            what: "The sweep takes a fence while a copy of its job is still queued.",
            breaks: "S1 one effect",
        },
    ],
    states: 5_691_965,
    check: |threads| kit::check(Lifecycle::new(Design::Right), threads),
    shortest: |at, property| {
        let design = *Design::WRONG.get(at)?;
        kit::shortest(&Lifecycle::new(design), property)
    },
    ends: || kit::every_way_ends(&Lifecycle::new(Design::Right)),
    explore: |address| drop(Lifecycle::new(Design::Right).checker().serve(address)),
};
