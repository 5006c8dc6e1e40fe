//! What needs evidence: acceptance criteria and behaviours of the specification, and the invariants of the design.

/// Number and meaning, in the order in which they are shown.
pub const CLAUSES: [(&str, &str); 30] = [
    ("A1", "the same job twice concurrently: exactly one effect"),
    ("A2", "a crash between work and fence leaves neither"),
    (
        "A3",
        "a transient failure retries 5 times with growing intervals, then a dead letter",
    ),
    (
        "A4",
        "a schema-invalid payload goes straight to dead letters",
    ),
    ("A5", "replay with the same job id: no second effect"),
    (
        "A6",
        "TTL cleanup removes expired rows, never one inside its retry window",
    ),
    ("A7", "discarding without a reason is rejected"),
    ("A8", "no successful job writes a row beyond its fence"),
    ("B1", "the fence is written in the work's transaction"),
    ("B2", "a duplicate acks and skips, silently, with a metric"),
    (
        "B3",
        "retry policy: 5 attempts, exponential backoff with jitter, override needs a rationale",
    ),
    (
        "B4",
        "exhausted retries and hard failures are on record and alerted",
    ),
    ("B5", "poison skips retries"),
    ("B6", "replay republishes with the same job id"),
    ("B7", "the TTL exceeds the retry window with margin"),
    (
        "B8",
        "pending_review -> replayed | discarded, discarding needs a reason",
    ),
    ("B9", "successes are metrics, not rows"),
    (
        "S1",
        "one effect: effects per (job, consumer) <= 1, for ever",
    ),
    (
        "S2",
        "atomic fence: effect committed <=> its fence committed, crash or not",
    ),
    (
        "S3",
        "nothing vanishes: a message is acked only after its outcome is durable",
    ),
    (
        "S4",
        "one outcome per (job, consumer, generation): applied xor dead-lettered",
    ),
    ("S5", "bounded runs: at most 6 counted runs per generation"),
    ("S6", "growing waits, until the cap; never below 30 s * 2^k"),
    ("S7", "poison: zero handler runs, one dead letter"),
    (
        "S8",
        "append-only: a dead letter changes once at most, a discard has a reason",
    ),
    (
        "S9",
        "alerted: every dead letter is covered, incidents per fingerprint and window are bounded",
    ),
    (
        "S10",
        "safe sweep: no fence removed while a copy of its job can be delivered; expired ones go",
    ),
    (
        "S11",
        "no success rows: a success leaves its fence and its effect, nothing else",
    ),
    (
        "S12",
        "quiet duplicates: acked and counted, no dead letter, no alert, no error log",
    ),
    (
        "L1",
        "settles: after faults heal, every job, fence and alert reaches its end",
    ),
];

/// Whether there is such a clause.
pub fn exists(clause: &str) -> bool {
    CLAUSES.iter().any(|(name, _)| *name == clause)
}

/// The clauses at the start of a test's own name, which is what follows its module: `a1_a2_twins_under_kills` stands for A1
/// and A2.
pub fn of_test(name: &str) -> Vec<String> {
    let own = name.rsplit("::").next().unwrap_or(name);
    own.split('_')
        .take_while(|part| {
            let mut chars = part.chars();
            matches!(chars.next(), Some('a'..='z'))
                && !chars.as_str().is_empty()
                && chars.all(|c| c.is_ascii_digit())
        })
        .map(str::to_ascii_uppercase)
        .collect()
}

/// The clause at the start of a promise or an invariant: `S1 one effect` is S1.
pub fn of_promise(name: &str) -> Option<String> {
    let first = name.split([' ', ':']).next()?;
    exists(first).then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_clauses_are_read_from_the_front_of_a_name() {
        assert_eq!(of_test("a1_one_effect::a1_a2_twins"), ["A1", "A2"]);
        assert_eq!(of_test("a1_one_effect::helper_a1"), Vec::<String>::new());
        assert_eq!(of_test("b12_x"), ["B12"]);
        assert_eq!(of_test("a_b1"), Vec::<String>::new());
        assert_eq!(of_promise("S10 safe sweep").as_deref(), Some("S10"));
        assert_eq!(of_promise("S4: discarded").as_deref(), Some("S4"));
        assert_eq!(of_promise("C1 conforms"), None);
        assert_eq!(of_promise("S99 x"), None);
    }
}
