//! Scenarios out of bytes, for a fuzzer: a byte a choice, and what is missing is zero, the plainest. A job or a fault is a
//! piece of its own, so that a change to one leaves the others alone.

use super::parts::{BEHAVIOURS, CUT_AT, DECISIONS, standard};
use super::plan;
use crate::plan::{Behaviour, FaultKind, FaultPlan, JobPlan, Knobs, Plan, Shape};

const MOST_JOBS: usize = 6;
const MOST_FAULTS: usize = 4;

/// The bytes of one piece: knobs, a job, or a fault.
const PIECE: usize = 12;

struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn one_of<T: Clone>(&mut self, values: &[T]) -> T {
        values[usize::from(self.next()) % values.len()].clone()
    }

    /// A time below `most` steps of one of these lengths.
    fn time(&mut self, most: u64, lengths: &[u64]) -> u64 {
        let length = self.one_of(lengths);
        u64::from(self.next()) % most * length
    }
}

/// The plan that these bytes stand for. It can be run, whatever they are.
pub fn from_bytes(bytes: &[u8]) -> Plan {
    let mut pieces = bytes.chunks(PIECE);
    let (seed, knobs) = knobs(&mut Bytes(pieces.next().unwrap_or_default().iter()));
    let (mut jobs, mut faults) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut piece = Bytes(piece.iter());
        match piece.next() % 4 {
            0..3 if jobs.len() < MOST_JOBS => jobs.push(job(&mut piece)),
            3 if faults.len() < MOST_FAULTS => faults.push(fault(&mut piece)),
            _ => {}
        }
    }
    plan(seed, knobs, jobs, faults)
}

fn knobs(bytes: &mut Bytes<'_>) -> (u64, Knobs) {
    let knobs = Knobs {
        workers: bytes.one_of(&[1, 2, 3]),
        concurrency: bytes.one_of(&[1, 2, 4]),
        prefetch: bytes.one_of(&[0, 2]),
        batch: bytes.one_of(&[1, 3]),
        lease_s: bytes.one_of(&[30, 5, 60]),
        fence_wait_ms: bytes.one_of(&[20, 1, 500]),
        contention_per_mille: bytes.one_of(&[0, 0, 30]),
        broker_duplicates_per_mille: bytes.one_of(&[0, 0, 20]),
        ..standard()
    };
    (bytes.next().into(), knobs)
}

fn job(bytes: &mut Bytes<'_>) -> JobPlan {
    let publish_at_ms = bytes.time(60, &[50, 10_000]);
    let behaviour = match bytes.next() % 4 {
        0..3 => bytes.one_of(&BEHAVIOURS),
        _ => Behaviour::PoisonAs(bytes.one_of(&Shape::ALL)),
    };
    let copies = bytes.next() % 4;
    let resend_after_ms = (0..copies).map(|_| bytes.time(60, &[1, 100, 40_000]));
    let resend_after_ms = resend_after_ms.collect();
    let decisions = bytes.next() % 3;
    JobPlan {
        id: 0,
        publish_at_ms,
        resend_after_ms,
        behaviour,
        decisions: (0..decisions).map(|_| bytes.one_of(&DECISIONS)).collect(),
        work_ms: bytes.one_of(&[0, 0, 100, 3_000]),
    }
}

fn fault(bytes: &mut Bytes<'_>) -> FaultPlan {
    let at_ms = bytes.time(60, &[50, 10_000]);
    let lasts_ms = 1 + bytes.time(200, &[10, 1_000]);
    let mut worker = || format!("worker{}", bytes.next() % 3);
    let (one, server) = (worker(), ["database", "broker"]);
    let (kind, lasts_ms) = match bytes.next() % 8 {
        0..3 => {
            let (call, answer) = (
                bytes.one_of(&CUT_AT).to_owned(),
                bytes.next().is_multiple_of(2),
            );
            let nth = 1 + u64::from(bytes.next() % 4);
            // It waits for its call.
            (FaultKind::Cut { call, answer, nth }, 600_000)
        }
        3 => (FaultKind::ExpireFences, 0),
        4 => (FaultKind::Kill(one), lasts_ms),
        5 => (FaultKind::Deploy(one), lasts_ms),
        6 => (FaultKind::Kill(bytes.one_of(&server).to_owned()), lasts_ms),
        _ => {
            let other = bytes.one_of(&server).to_owned();
            (FaultKind::Partition(one, other), lasts_ms)
        }
    };
    FaultPlan {
        at_ms,
        lasts_ms,
        kind,
    }
}
