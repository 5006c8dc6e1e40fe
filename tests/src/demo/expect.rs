//! What the ledger must hold in the end, computed from the input alone.

use std::collections::{BTreeMap, BTreeSet};

use harness::{Envelope, JobId, Message, QueueName, RetryPolicy};

use super::input::Line;
use crate::award::{Award, Misbehave};

/// How one message may end, if it is the first of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Applied(i64),
    DeadLetter,
}

/// Per job, how it may end. Copies of one job may differ, and then any of them may be the first.
#[derive(Debug)]
pub(super) struct Expectation(BTreeMap<JobId, BTreeSet<Outcome>>);

impl Expectation {
    pub(super) fn of(queue: &QueueName, lines: &[Line]) -> Self {
        let mut jobs: BTreeMap<JobId, BTreeSet<Outcome>> = BTreeMap::new();
        for line in lines {
            let message = Message::Wire {
                headers: line.headers.clone(),
                body: line.body.clone(),
            };
            let (id, outcome) = match Envelope::decode(queue, message) {
                Ok(envelope) => (envelope.job_id, outcome(&envelope.body)),
                Err(malformed) => (malformed.job_id, Outcome::DeadLetter),
            };
            jobs.entry(id).or_default().insert(outcome);
        }
        Self(jobs)
    }

    pub(super) fn jobs(&self) -> usize {
        self.0.len()
    }

    /// The points due, given what the ledger and the dead letters say of jobs that may end in several ways; and the jobs
    /// that ended in no way that they may.
    pub(super) fn compare(
        &self,
        ledger: &BTreeMap<JobId, Vec<i64>>,
        dead: &BTreeSet<JobId>,
    ) -> (i64, Vec<String>) {
        let mut due = 0;
        let mut wrong = Vec::new();
        for (id, possible) in &self.0 {
            let entries = ledger.get(id).map_or(&[][..], Vec::as_slice);
            let found = match (entries, dead.contains(id)) {
                ([points], false) => Some(Outcome::Applied(*points)),
                ([], true) => Some(Outcome::DeadLetter),
                _ => None,
            };
            let found_possible = found.filter(|found| possible.contains(found));
            if found_possible.is_none() {
                wrong.push(format!(
                    "job {id}: {} entries in the ledger {entries:?}, {}; may end as {possible:?}",
                    entries.len(),
                    if dead.contains(id) {
                        "a dead letter"
                    } else {
                        "no dead letter"
                    },
                ));
            }
            if let Some(Outcome::Applied(points)) =
                found_possible.or_else(|| possible.first().copied())
            {
                due += points;
            }
        }
        for id in ledger.keys().chain(dead) {
            if !self.0.contains_key(id) {
                wrong.push(format!("job {id} was never published"));
            }
        }
        (due, wrong)
    }
}

fn outcome(body: &[u8]) -> Outcome {
    let Ok(award) = serde_json::from_slice::<Award>(body) else {
        return Outcome::DeadLetter;
    };
    let runs = RetryPolicy::default().max_runs();
    match award.then {
        Misbehave::FailHard => Outcome::DeadLetter,
        Misbehave::FailRuns(bad) | Misbehave::PanicRuns(bad) | Misbehave::KillRuns(bad)
            if bad >= runs =>
        {
            Outcome::DeadLetter
        }
        _ => Outcome::Applied(award.points),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &JobId, award: &Award) -> Line {
        Line {
            headers: [("job-id".to_owned(), id.to_string())].into(),
            body: award.body(),
        }
    }

    fn id(n: u32) -> JobId {
        JobId::from_key(uuid::Uuid::NAMESPACE_OID, &n.to_string())
    }

    fn expectation() -> Expectation {
        let lines = [
            line(&id(1), &Award::new("ada", 10)),
            line(&id(1), &Award::new("ada", 10)),
            line(&id(2), &Award::new("ada", 5).then(Misbehave::FailHard)),
        ];
        Expectation::of(&QueueName::new("points").unwrap(), &lines)
    }

    #[test]
    fn demo_a_ledger_that_is_right() {
        let (due, wrong) = expectation().compare(&[(id(1), vec![10])].into(), &[id(2)].into());
        assert_eq!((due, wrong), (10, Vec::new()));
    }

    #[test]
    fn demo_a_ledger_that_is_wrong_is_noticed() {
        let right: BTreeMap<JobId, Vec<i64>> = [(id(1), vec![10])].into();
        for (what, ledger, dead) in [
            (
                "a double effect",
                [(id(1), vec![10, 10])].into(),
                [id(2)].into(),
            ),
            ("a lost job", BTreeMap::new(), [id(2)].into()),
            ("other points", [(id(1), vec![11])].into(), [id(2)].into()),
            ("a vanished failure", right.clone(), BTreeSet::new()),
            ("applied and dead", right.clone(), [id(1), id(2)].into()),
            (
                "a failure that was applied",
                [(id(1), vec![10]), (id(2), vec![5])].into(),
                BTreeSet::new(),
            ),
            (
                "a job from nowhere",
                [(id(1), vec![10]), (id(3), vec![1])].into(),
                [id(2)].into(),
            ),
        ] {
            assert_eq!(expectation().compare(&ledger, &dead).1.len(), 1, "{what}");
        }
    }
}
