//! Jobs of the simulation, and the handler that does what their payload says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use harness::{
    Clock as _, ConsumerName, Envelope, Failure, Handler, Job, JobId, Message, QueueName,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{SimConnection, SimStore};
use crate::history::{Fact, Log};
use crate::plan::{Behaviour, JobPlan, RunEnd};
use crate::timeline::SimClock;

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
    /// The job's number in the plan.
    pub job: u64,
    /// What its runs do.
    pub behaviour: Behaviour,
    /// How long they take.
    pub work_ms: u64,
}

/// The id of a planned job, as the consumer will know it.
pub fn id_of(job: &JobPlan, queue: &QueueName) -> JobId {
    match Envelope::decode(queue, message(job)) {
        Ok(envelope) => envelope.job_id,
        Err(malformed) => malformed.job_id,
    }
}

/// The message of a planned job.
pub fn message(job: &JobPlan) -> Message {
    let body = body(job);
    if job.behaviour == Behaviour::NoHeaders {
        return Message::Wire {
            headers: BTreeMap::new(),
            body,
        };
    }
    let id = JobId::from_key(Uuid::NAMESPACE_OID, &job.id.to_string());
    let mut headers = Envelope::new(id, Vec::new()).wire_headers();
    if let Behaviour::PoisonAs(shape) = job.behaviour {
        shape.headers(&mut headers);
    }
    Message::Wire { headers, body }
}

fn body(job: &JobPlan) -> Vec<u8> {
    let task = Task {
        job: job.id,
        behaviour: job.behaviour,
        work_ms: job.work_ms,
    };
    let good = serde_json::json!(task).to_string();
    match job.behaviour {
        Behaviour::Poison => format!("job {} is no JSON", job.id).into_bytes(),
        Behaviour::PoisonAs(shape) => shape.body(job.id, good),
        _ => good.into_bytes(),
    }
}

/// Writes one effect, works for a while, and ends as planned.
pub struct SimHandler {
    clock: SimClock,
    consumer: ConsumerName,
    ran: Ran,
    log: Log,
}

/// Jobs that ran before, on any host. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Ran(Arc<Mutex<BTreeSet<JobId>>>);

impl Ran {
    /// Whether this is the first run of a job.
    fn is_first(&self, job: JobId) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(job)
    }
}

impl SimHandler {
    /// A handler on one host.
    pub fn new(clock: SimClock, consumer: ConsumerName, ran: Ran, log: Log) -> Self {
        Self {
            clock,
            consumer,
            ran,
            log,
        }
    }
}

impl Handler<SimStore> for SimHandler {
    type Payload = Task;

    #[allow(clippy::panic)]
    async fn handle(&self, job: Job<Task>, tx: &mut SimConnection) -> Result<(), Failure> {
        self.log.fact(Fact::Ran {
            job: job.id,
            generation: job.generation,
            run: job.run,
        });
        let is_first = self.ran.is_first(job.id);
        tx.work((job.id, self.consumer.clone()), job.generation)
            .await?;
        self.clock
            .sleep(Duration::from_millis(job.payload.work_ms))
            .await;
        let task = &job.payload;
        match task.behaviour.ends(job.run, job.generation, is_first) {
            RunEnd::Succeeds => Ok(()),
            RunEnd::FailsTransiently => Err(Failure::transient("fails as planned")),
            RunEnd::FailsForGood => Err(Failure::permanent("fails for good as planned")),
            RunEnd::SwallowsAnError => {
                let _ = tx.fail().await;
                Ok(())
            }
            RunEnd::Panics => panic!("{PLANNED_PANIC}"),
        }
    }
}
