//! The chapter on what operators decide.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::kit;
use crate::replay;

pub(super) const CHAPTER: Chapter = Chapter {
    name: "replay",
    title: "What operators decide",
    about: "A job failed and has a dead letter; a stale copy may still be queued. Two operators replay and discard at once, \
            and lose their connection between publish and mark.",
    assumes: &[
        "A letter is locked from the decision to the mark; the lock dies with the connection.",
        "The queue is not in the letter's transaction: a publish stays when the mark does not happen.",
        "Gate and dead-letter write are atomic here; how they exclude each other is the subject of `retry`.",
    ],
    scopes: &[
        Scope {
            what: "operators",
            size: "2",
            why: "replay against replay, replay against discard",
        },
        Scope {
            what: "decisions",
            size: "5",
            why: "each generation is decided, and two of them twice",
        },
        Scope {
            what: "generations",
            size: "0 to 2",
            why: "a replay of a replay",
        },
        Scope {
            what: "crashes",
            size: "2",
            why: "the same letter is published three times",
        },
        Scope {
            what: "runs that fail again",
            size: "2",
            why: "every generation may fail",
        },
    ],
    promises: &[
        Promise {
            property: "S1 one effect",
            says: "However often it is replayed, there is one effect.",
            clauses: "A5, B6",
            code: "`harness/src/review/`, `harness/src/envelope.rs`",
        },
        Promise {
            property: "S4 one outcome",
            says: "A generation that was applied has no dead letter.",
            clauses: "B4, B6",
            code: "`harness/migrations/0003_gate.sql`",
        },
        Promise {
            property: "S8 append-only",
            says: "A letter is decided once.",
            clauses: "B8, D2",
            code: "`harness/migrations/0002_dead_letters.sql`",
        },
        Promise {
            property: "S3 nothing vanishes: replayed means published",
            says: "No letter is marked as replayed that was not published.",
            clauses: "B6",
            code: "`harness/src/review/mod.rs`",
        },
        Promise {
            property: "S4 discarded means never applied",
            says: "Nobody applies what an operator gave up: no late copy of that generation, and no replay of it that was never recorded.",
            clauses: "B8",
            code: "`harness/migrations/0003_gate.sql`",
        },
        Promise {
            property: "L1 settles",
            says: "What was replayed was applied, or failed again with a letter of its own.",
            clauses: "B6",
            code: "`harness/src/consumer/gate.rs`",
        },
    ],
    steps: &[
        (
            "an operator",
            "takes a letter to replay it; publishes; marks; discards; loses the connection",
        ),
        (
            "a worker",
            "runs a queued message, which is applied, skipped, or fails for good",
        ),
    ],
    diagram: "stateDiagram-v2\n    [*] --> Pending\n    Pending --> Locked: replay\n    Locked --> Published: publish generation + 1\n    \
              Published --> Replayed: mark\n    Published --> Pending: the connection is lost\n    Locked --> Pending: the connection is lost\n    \
              Pending --> Discarded: discard, unless applied\n    Replayed --> [*]\n    Discarded --> [*]\n",
    wrong: &[
        Wrong {
            name: "mark-before-publish",
            what: "The letter is marked, then published.",
            breaks: "S3 nothing vanishes: replayed means published",
        },
        Wrong {
            name: "new-id",
            what: "A replay gets a job id of its own, so that it meets no fence.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "no-generation",
            what: "A replay is published with the generation of its letter.",
            breaks: "L1 settles",
        },
        Wrong {
            name: "gate-ignores-letter",
            what: "The gate does not look for a dead letter of its generation.",
            breaks: "S4 one outcome",
        },
        Wrong {
            name: "gate-ignores-discard",
            what: "The gate does not look whether the generation before was discarded.",
            breaks: "S4 discarded means never applied",
        },
        Wrong {
            name: "no-lock",
            what: "Nobody locks the letter; each operator decides by what was read.",
            breaks: "S8 append-only",
        },
        Wrong {
            name: "discard-ignores-fence",
            what: "A discard does not look at the fence.",
            breaks: "S4 discarded means never applied",
        },
    ],
    states: 2_170,
    check: |threads| kit::check(replay::Replay::new(replay::Design::Right), threads),
    shortest: super::of_designs!(
        replay::Replay::new(replay::Design::MarkBeforePublish),
        replay::Replay::new(replay::Design::NewId),
        replay::Replay::new(replay::Design::NoGeneration),
        replay::Replay::new(replay::Design::GateIgnoresLetter),
        replay::Replay::new(replay::Design::GateIgnoresDiscard),
        replay::Replay::new(replay::Design::NoLock),
        replay::Replay::new(replay::Design::DiscardIgnoresFence),
    ),
    ends: || kit::every_way_ends(&replay::Replay::new(replay::Design::Right)),
    explore: |address| {
        drop(
            replay::Replay::new(replay::Design::Right)
                .checker()
                .serve(address),
        )
    },
};
