//! Wrong databases: each is PostgreSQL with one mistake in the schema's functions, and is found by a kept script or by chance. A comparison that finds none of these compares nothing.

use crate::compare::run;
use crate::generate::{Theme, script};
use crate::kept::kept;
use crate::random::in_lane;
use crate::real::Real;
use crate::simulated::knobs;

const GATE: &str = include_str!("../../harness/migrations/0003_gate.sql");
const ALERTS: &str = include_str!("../../harness/migrations/0006_escalation.sql");

const BATCHES: &str = include_str!("../../harness/migrations/0007_batches.sql");

struct Mistake {
    name: &'static str,
    /// Which scripts to look for it with.
    theme: Theme,
    source: &'static str,
    function: &'static str,
    /// What is replaced by what.
    edits: &'static [(&'static str, &'static str)],
}

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "conflict clause: a twin takes the fence over",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.fence",
        edits: &[(
            "DO NOTHING",
            "DO UPDATE SET processed_at = excluded.processed_at",
        )],
    },
    Mistake {
        name: "guard: a generation with a dead letter is run again",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.fence",
        edits: &[("(generation = p_generation OR", "(false OR")],
    },
    Mistake {
        name: "guard: a replay of a discarded letter is run",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.fence",
        edits: &[("status = 'discarded'", "false")],
    },
    Mistake {
        name: "order: the fence looks for dead letters before its wait",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.fence",
        edits: &[
            (
                "session_lock_timeout text",
                "settled boolean := EXISTS (SELECT FROM core.dead_letters
                    WHERE consumer = p_consumer AND job_id = p_job_id
                      AND (generation = p_generation OR (generation = p_generation - 1 AND status = 'discarded')));
                 session_lock_timeout text",
            ),
            ("IF FOUND THEN", "IF settled THEN"),
        ],
    },
    Mistake {
        name: "lock: a dead letter is written without the fence key",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.record_dead_letter",
        edits: &[(
            "NOT core.hold_fence_key(p_job_id, p_consumer, p_wait_ms)",
            "EXISTS (SELECT FROM core.processed_jobs WHERE job_id = p_job_id AND consumer = p_consumer)",
        )],
    },
    Mistake {
        name: "answer: a dead letter that was there is said to be new",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.record_dead_letter",
        edits: &[("ELSE 'already'", "ELSE 'written'")],
    },
    Mistake {
        name: "fence key: it stays when the dead letter is written",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.hold_fence_key",
        edits: &[(
            "DELETE FROM core.processed_jobs WHERE job_id = p_job_id AND consumer = p_consumer;",
            "",
        )],
    },
    Mistake {
        name: "lock: a discard does not take the fence key",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.discard_dead_letter",
        edits: &[(
            "NOT core.hold_fence_key(letter.job_id, letter.consumer, p_wait_ms)",
            "false",
        )],
    },
    Mistake {
        name: "guard: a discard does not look again after its wait",
        theme: Theme::Meeting,
        source: GATE,
        function: "core.discard_dead_letter",
        edits: &[(
            "WHERE id = p_id AND status = 'pending_review'",
            "WHERE id = p_id",
        )],
    },
    Mistake {
        name: "order: the sweep begins with the youngest",
        theme: Theme::Sweeping,
        source: GATE,
        function: "core.sweep_fences",
        edits: &[("ORDER BY expires_at", "ORDER BY expires_at DESC")],
    },
    Mistake {
        name: "guard: the sweep takes fences of pending letters",
        theme: Theme::Sweeping,
        source: GATE,
        function: "core.sweep_fences",
        edits: &[("letter.status = 'pending_review'", "false")],
    },
    Mistake {
        name: "guard: the sweep does not ask for the oldest message",
        theme: Theme::Sweeping,
        source: GATE,
        function: "core.sweep_fences",
        edits: &[(
            "expires_at <= least(p_asked_at, p_horizon)",
            "expires_at <= p_asked_at",
        )],
    },
    Mistake {
        name: "guard: a pump that comes late ends somebody else's turn",
        theme: Theme::Alerting,
        source: ALERTS,
        function: "core.end_alert_turn",
        edits: &[(
            "CASE WHEN claim_id = p_claim_id THEN '-infinity' ELSE next_attempt_at END",
            "'-infinity'",
        )],
    },
    Mistake {
        name: "guard: an incident is closed while a letter is pending",
        theme: Theme::Alerting,
        source: ALERTS,
        function: "core.alert_is_owed",
        edits: &[(
            "AND decided_at IS NULL);\n    END CASE",
            "AND false);\n    END CASE",
        )],
    },
];

/// The function as the migration makes it, made again.
fn definition(source: &str, function: &str) -> String {
    let begin = format!("CREATE FUNCTION {function}(");
    let from = source
        .find(&begin)
        .unwrap_or_else(|| panic!("{function} is not there"));
    let text = &source[from..];
    let end = text
        .match_indices("$$;")
        .next()
        .map(|(at, end)| at + end.len());
    text[..end.unwrap()].replacen("CREATE", "CREATE OR REPLACE", 1)
}

fn broken(mistake: &Mistake) -> String {
    let mut text = definition(mistake.source, mistake.function);
    for (from, to) in mistake.edits {
        assert_eq!(text.matches(from).count(), 1, "{}: {from}", mistake.name);
        text = text.replacen(from, to, 1);
    }
    text
}

const MISTAKES_IN_BATCHES: &[Mistake] = &[
    Mistake {
        name: "order: a batch takes its keys as they come",
        theme: Theme::Meeting,
        source: BATCHES,
        function: "core.fence_all",
        edits: &[("ORDER BY job.id\n", "\n")],
    },
    Mistake {
        name: "guard: a batch runs a replay of a discarded letter",
        theme: Theme::Meeting,
        source: BATCHES,
        function: "core.fence_all",
        edits: &[("status = 'discarded'", "false")],
    },
    Mistake {
        name: "fence: a batch leaves the fence of what is settled",
        theme: Theme::Meeting,
        source: BATCHES,
        function: "core.fence_all",
        edits: &[
            (
                "DELETE FROM core.processed_jobs AS fence\n        USING",
                "SELECT fence.job_id FROM core.processed_jobs AS fence,",
            ),
            ("RETURNING fence.job_id)", ")"),
        ],
    },
    Mistake {
        name: "conflict clause: a batch takes fences over",
        theme: Theme::Meeting,
        source: BATCHES,
        function: "core.fence_all",
        edits: &[(
            "DO NOTHING",
            "DO UPDATE SET processed_at = excluded.processed_at",
        )],
    },
];

/// What shows it: one of the kept scripts, or one by chance. The same script shows nothing when the mistake is gone.
async fn find(real: &mut Real, mistake: &Mistake, most: usize) -> String {
    let knobs = knobs();
    let by_chance = mistake.theme.seeds().take(most).map(|seed| {
        let script = script(&knobs, seed);
        (format!("by chance, seed {seed}"), script)
    });
    let kept = kept().into_iter().map(|it| (it.shows, it.script));
    real.redefine(&broken(mistake)).await;
    for (name, script) in kept.chain(by_chance) {
        let Err(difference) = run(real, &knobs, &script).await else {
            continue;
        };
        real.redefine(&definition(mistake.source, mistake.function))
            .await;
        if let Err(difference) = run(real, &knobs, &script).await {
            panic!(
                "without the mistake ({}) it differs:\n{difference}",
                mistake.name
            );
        }
        return format!("{name}\n{}", difference.last());
    }
    panic!("not found in {most} scripts: {}", mistake.name);
}

fn find_all(mistakes: &[Mistake]) {
    in_lane(async {
        let mut real = Real::new().await;
        for mistake in mistakes {
            let shown = find(&mut real, mistake, 500).await;
            println!("{}\n    shown by: {shown}", mistake.name);
        }
    });
}

#[test]
fn s1_s4_mistakes_in_the_gate_are_found() {
    find_all(&MISTAKES[..7]);
}

#[test]
fn s8_s9_s10_mistakes_in_review_sweep_and_alerts_are_found() {
    find_all(&MISTAKES[7..]);
}

#[test]
fn s1_s4_mistakes_in_batches_are_found() {
    find_all(MISTAKES_IN_BATCHES);
}
