//! The chapter on the life of a fence.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::kit;
use crate::ttl;

pub(super) const CHAPTER: Chapter = Chapter {
    name: "ttl",
    title: "How long a fence must live",
    about: "The sweep against everything that can still bring a copy: a broker that keeps messages, consumers that are \
            away, a producer that sends the job again, a run that is retried, a dead letter whose replay was published and \
            never recorded.",
    assumes: &[
        "All times are one clock's. Clocks that differ are covered by the margin of the start-up rule.",
        "A producer does not send a job again after its resend horizon.",
        "A replay that is decided is delivered before anything that is queued later is the oldest message.",
    ],
    scopes: &[
        Scope {
            what: "ticks",
            size: "14",
            why: "the TTL, the horizon and the window one after the other, with room",
        },
        Scope {
            what: "TTL, window, horizon",
            size: "5, 2, 4 ticks",
            why: "all different, so that no two can be mistaken for each other",
        },
        Scope {
            what: "retention",
            size: "without end",
            why: "the hardest case: consumers may be away for as long as they like",
        },
        Scope {
            what: "copies",
            size: "3",
            why: "the original, one resend, one replay",
        },
    ],
    promises: &[
        Promise {
            property: "S1 one effect",
            says: "There is never more than one effect, also after the fence is gone.",
            clauses: "A6, B7",
            code: "`harness/src/sweep.rs`, `harness/migrations/0003_gate.sql`",
        },
        Promise {
            property: "S10 safe sweep",
            says: "When a fence was swept, no copy is left that could still run.",
            clauses: "A6, B7, Q1",
            code: "`harness/src/sweep.rs`, `harness/src/fence.rs`",
        },
    ],
    steps: &[
        ("the clock", "goes on by a tick"),
        ("the producer", "sends the job again"),
        ("the operator", "replays the dead letter"),
        (
            "a worker",
            "runs a copy, which fails, applies the job, or finds a duplicate",
        ),
        ("the sweep", "removes the fence"),
    ],
    diagram: "stateDiagram-v2\n    [*] --> NoFence\n    NoFence --> Fenced: a copy is applied\n    Fenced --> Fenced: a duplicate is found\n    \
              Fenced --> Expired: the TTL passes\n    Expired --> Expired: a copy is queued, a letter is pending, or it is too young\n    \
              Expired --> Swept: none of that\n    Swept --> [*]\n",
    wrong: &[
        Wrong {
            name: "wall-clock",
            what: "The sweep looks at the clock alone, while consumers are away for longer than any TTL.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "short-ttl",
            what: "The TTL is not longer than retention and resend horizon, and the sweep looks at the clock alone.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "ttl-within-the-window",
            what: "The TTL is shorter than the retry window, and the guard of the window is missing.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "ignores-letters",
            what: "The sweep does not look at dead letters that can still be replayed.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "forgets-replays",
            what: "A letter is forgotten as soon as it is decided, though its replay may be queued.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "no-window-guard",
            what: "Whatever `expires_at` says is believed, also when somebody changed it.",
            breaks: "S10 safe sweep",
        },
    ],
    states: 1_114_631,
    check: |threads| kit::check(ttl::Ttl::new(ttl::Design::Right), threads),
    shortest: super::of_designs!(
        ttl::Ttl {
            letter: false,
            ..ttl::Ttl::new(ttl::Design::WallClock)
        },
        ttl::Ttl::by_the_clock(3, 2, 2, 2),
        ttl::Ttl {
            ttl: 0,
            ..ttl::Ttl::tampered(ttl::Design::NoWindowGuard)
        },
        ttl::Ttl::new(ttl::Design::IgnoresLetters),
        ttl::Ttl::new(ttl::Design::ForgetsReplays),
        ttl::Ttl::tampered(ttl::Design::NoWindowGuard),
    ),
    ends: || kit::every_way_ends(&ttl::Ttl::new(ttl::Design::Right)),
    explore: |address| drop(ttl::Ttl::new(ttl::Design::Right).checker().serve(address)),
};
