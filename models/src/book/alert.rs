//! The chapter on alerts.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::alert;
use crate::kit;

pub(super) const CHAPTER: Chapter = Chapter {
    name: "alert",
    title: "Every dead letter is alerted",
    about: "Dead letters of one kind are written at any time. Two pumps claim what has no alert yet, open one incident for \
            all of it, and mark it as covered. Pumps die, the alert service refuses, answers are lost, claims run out.",
    assumes: &[
        "A claim is exclusive until it is given back or its lease is over; the lease is longer than a call may take.",
        "The duty to alert is written in the dead letter's own transaction.",
    ],
    scopes: &[
        Scope {
            what: "letters",
            size: "4",
            why: "before, during and after an incident, and one more",
        },
        Scope {
            what: "pumps",
            size: "2",
            why: "one works, one interferes",
        },
        Scope {
            what: "crashes",
            size: "2",
            why: "both pumps",
        },
        Scope {
            what: "refusals, lost answers",
            size: "2, 2",
            why: "each once for either pump",
        },
    ],
    promises: &[
        Promise {
            property: "S9 alerted: covered means delivered",
            says: "No letter counts as covered before an incident that speaks of it was accepted.",
            clauses: "B4",
            code: "`harness/src/alert/pump.rs`, `harness/migrations/0004_alerts.sql`",
        },
        Promise {
            property: "S9 alerted: one incident at a time",
            says: "No two pumps send the same letters.",
            clauses: "B4",
            code: "`harness/migrations/0004_alerts.sql`",
        },
        Promise {
            property: "S9 alerted: a burst is one incident",
            says: "An incident speaks of all letters of its kind that had none.",
            clauses: "B4",
            code: "`harness/migrations/0004_alerts.sql`",
        },
        Promise {
            property: "L1 settles",
            says: "In the end every letter is covered, and was told of.",
            clauses: "B4",
            code: "`harness/src/alert/pump.rs`",
        },
    ],
    steps: &[
        ("a consumer", "writes a dead letter"),
        (
            "a pump",
            "claims what has no alert; opens an incident; marks its letters; dies",
        ),
        ("the alert service", "refuses"),
        ("the network", "loses an answer"),
        ("the clock", "ends the claim of a pump that is gone"),
    ],
    diagram: "stateDiagram-v2\n    [*] --> Owed: the letter is written\n    Owed --> Claimed: claim\n    Claimed --> Owed: refused, or the pump died\n    \
              Claimed --> Accepted: the incident is open\n    Accepted --> Owed: the pump died, it is sent again\n    Accepted --> Covered: mark\n    Covered --> [*]\n",
    wrong: &[
        Wrong {
            name: "from-memory",
            what: "The process that wrote the letter remembers to alert it.",
            breaks: "L1 settles",
        },
        Wrong {
            name: "mark-before-send",
            what: "Letters are marked as covered, then the incident is sent.",
            breaks: "S9 alerted: covered means delivered",
        },
        Wrong {
            name: "forgets-refusals",
            what: "A refused incident is forgotten.",
            breaks: "S9 alerted: covered means delivered",
        },
        Wrong {
            name: "no-claim",
            what: "Nobody claims: each pump sends what it finds.",
            breaks: "S9 alerted: one incident at a time",
        },
        Wrong {
            name: "marks-too-much",
            what: "Marking covers whatever is there by then.",
            breaks: "S9 alerted: covered means delivered",
        },
        Wrong {
            name: "one-per-letter",
            what: "There is an incident for every letter.",
            breaks: "S9 alerted: a burst is one incident",
        },
    ],
    states: 11_701,
    check: |threads| kit::check(alert::Alert::new(alert::Design::Right), threads),
    shortest: super::of_designs!(
        alert::Alert::new(alert::Design::FromMemory),
        alert::Alert::new(alert::Design::MarkBeforeSend),
        alert::Alert::new(alert::Design::ForgetsRefusals),
        alert::Alert::new(alert::Design::NoClaim),
        alert::Alert::new(alert::Design::MarksTooMuch),
        alert::Alert::new(alert::Design::OnePerLetter),
    ),
    ends: || kit::every_way_ends(&alert::Alert::new(alert::Design::Right)),
    explore: |address| {
        drop(
            alert::Alert::new(alert::Design::Right)
                .checker()
                .serve(address),
        )
    },
};
