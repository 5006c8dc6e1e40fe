//! The handler of the simulation: does what the job's payload says.

use std::time::Duration;

use harness::{Failure, Handler, Job};
use serde::{Deserialize, Serialize};

use crate::database::{SimConnection, SimStore};
use crate::plan::{Behaviour, JobPlan};
use crate::timeline::Timeline;

/// What a job says that was told to panic.
pub const PLANNED_PANIC: &str = "panics as planned";

/// Keeps planned panics, of which there are thousands, off the terminal; all others are told as before.
pub fn silence_planned_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PLANNED_PANIC) {
            others(panic);
        }
    }));
}

/// A payload.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    job: u64,
    behaviour: Behaviour,
    work_ms: u64,
}

/// The bytes of a planned job.
pub fn body(job: &JobPlan) -> Vec<u8> {
    let task = Task {
        job: job.id,
        behaviour: job.behaviour,
        work_ms: job.work_ms,
    };
    match job.behaviour {
        Behaviour::Poison => format!("job {} is no JSON", job.id).into_bytes(),
        _ => serde_json::json!(task).to_string().into_bytes(),
    }
}

/// Writes one effect, works for a while, and ends as planned.
pub struct SimHandler {
    timeline: Timeline,
}

impl SimHandler {
    /// A handler in a world.
    pub fn new(timeline: Timeline) -> Self {
        Self { timeline }
    }
}

impl Handler<SimStore> for SimHandler {
    type Payload = Task;

    #[allow(clippy::panic)]
    async fn handle(&self, job: Job<Task>, tx: &mut SimConnection) -> Result<(), Failure> {
        tx.work().await?;
        self.timeline
            .sleep(Duration::from_millis(job.payload.work_ms))
            .await;
        match job.payload.behaviour {
            Behaviour::FailsRuns(runs) if job.run <= runs => {
                Err(Failure::transient("fails as planned"))
            }
            Behaviour::FailsHard => Err(Failure::permanent("fails for good as planned")),
            Behaviour::PanicsRuns(runs) if job.run <= runs => panic!("{PLANNED_PANIC}"),
            Behaviour::FailsUntilReplayed if job.generation == 0 => {
                Err(Failure::permanent("a bug that is fixed later"))
            }
            _ => Ok(()),
        }
    }
}
