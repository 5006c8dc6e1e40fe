//! The chapter on the fence.

use stateright::Model as _;

use super::{Chapter, Promise, Scope, Wrong};
use crate::fence;
use crate::kit;

pub(super) const CHAPTER: Chapter = Chapter {
    name: "fence",
    title: "One effect, whatever happens",
    about: "One job, several copies of its message, several workers. A worker takes a copy, opens a transaction, takes \
            the fence key, works, commits effect and fence together, and acknowledges last. In between processes die, \
            answers are lost, leases end while their holders go on.",
    assumes: &[
        "A transaction is durable as a whole or not at all, and dies with its process.",
        "A key that one transaction has inserted blocks others until it ends.",
        "The broker keeps a message until it is acknowledged, and may hand it out again at any time.",
    ],
    scopes: &[
        Scope {
            what: "workers",
            size: "3",
            why: "one holds the key, one waits for it, one comes late; a fourth could only do what one of them does",
        },
        Scope {
            what: "copies of the message",
            size: "2",
            why: "the same copy can also be held twice, when its lease ends",
        },
        Scope {
            what: "crashes",
            size: "2",
            why: "one in the middle of a run, one of its successor",
        },
        Scope {
            what: "lost commits, acks or answers",
            size: "2",
            why: "a lost commit answer and then a lost ack are the longest chain that matters",
        },
        Scope {
            what: "leases that end too early",
            size: "1",
            why: "makes three holders of two copies",
        },
        Scope {
            what: "twins turned away",
            size: "2",
            why: "as often as there are other workers",
        },
        Scope {
            what: "failed runs",
            size: "1",
            why: "the key is given up and taken again",
        },
    ],
    promises: &[
        Promise {
            property: "S1 one effect",
            says: "There is never more than one effect.",
            clauses: "A1, B1, B2",
            code: "`harness/src/consumer/gate.rs`, `harness/migrations/0003_gate.sql`",
        },
        Promise {
            property: "S2 atomic fence",
            says: "At every instant there is an effect if and only if there is its fence.",
            clauses: "A2, B1",
            code: "`harness/src/postgres/tx.rs`, `harness/migrations/0001_processed_jobs.sql`",
        },
        Promise {
            property: "S3 nothing vanishes",
            says: "No copy is gone before there is an effect.",
            clauses: "B4",
            code: "`harness/src/consumer/answer.rs`",
        },
        Promise {
            property: "L1 settles",
            says: "When nothing can happen any more, all copies are gone and there is an effect.",
            clauses: "B1, B2",
            code: "`harness/src/consumer/`",
        },
    ],
    steps: &[
        (
            "the broker",
            "hands a copy to a worker; finds that a lease is over",
        ),
        (
            "a worker",
            "opens a transaction; asks the fence; gives up waiting for a twin; works or fails; commits; gives its copy back; acknowledges; dies",
        ),
        (
            "the network",
            "loses a commit, or only its answer; loses an acknowledgement",
        ),
    ],
    diagram: "stateDiagram-v2\n    [*] --> Queued\n    Queued --> Received: deliver\n    Received --> Open: begin\n    \
              Open --> Duplicate: fence, it is there\n    Open --> Fenced: fence, the key is ours\n    Open --> Queued: a twin holds the key\n    \
              Fenced --> Worked: work\n    Fenced --> Queued: fail\n    Worked --> Committed: commit\n    Worked --> Unknown: nobody answers\n    \
              Unknown --> Queued: give back\n    Committed --> Gone: ack\n    Duplicate --> Gone: ack\n    Gone --> [*]\n",
    wrong: &[
        Wrong {
            name: "fence-before-work",
            what: "The fence is committed by itself, before the work.",
            breaks: "S2 atomic fence",
        },
        Wrong {
            name: "fence-after-work",
            what: "The fence is committed by itself, after the work.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "look-then-insert",
            what: "Whether there is a fence is looked up, and it is inserted later; nobody waits for anybody.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "no-fence",
            what: "There is no fence: the broker is trusted.",
            breaks: "S1 one effect",
        },
        Wrong {
            name: "ack-before-commit",
            what: "The message is acknowledged when the work is done, and then the transaction is committed.",
            breaks: "S3 nothing vanishes",
        },
        Wrong {
            name: "unknown-is-success",
            what: "A commit that nobody answered is taken for a success.",
            breaks: "S3 nothing vanishes",
        },
        Wrong {
            name: "busy-is-duplicate",
            what: "Whoever finds a twin running takes the job for done.",
            breaks: "S3 nothing vanishes",
        },
    ],
    states: 129_305,
    check: |threads| kit::check(fence::Fence::new(fence::Design::Right), threads),
    shortest: super::of_designs!(
        fence::Fence::new(fence::Design::FenceBeforeWork),
        fence::Fence::new(fence::Design::FenceAfterWork),
        fence::Fence::new(fence::Design::LookThenInsert),
        fence::Fence::new(fence::Design::NoFence),
        fence::Fence::new(fence::Design::AckBeforeCommit),
        fence::Fence::new(fence::Design::UnknownIsSuccess),
        fence::Fence::new(fence::Design::BusyIsDuplicate),
    ),
    ends: || kit::every_way_ends(&fence::Fence::new(fence::Design::Right)),
    explore: |address| {
        drop(
            fence::Fence::new(fence::Design::Right)
                .checker()
                .serve(address),
        )
    },
};
