//! Ways through the lifecycle model, driven through the real harness step by step.
//!
//! The simulation breaks things at random and looks at what comes out. Here it is the other way round: a way through the
//! model says what happens next, the [`driver`] makes exactly that happen to the real consumer, and the consumer and the
//! store must then be where the model is. Every call of the consumer to one of its ports stops at a [`turnstile`] until the
//! way says how it ends. What a way is driven on is a [`Bench`]: the simulated store and broker ([`simulated`]), or real
//! ones, in a test.

mod clock;
mod driver;
pub mod simulated;
mod turnstile;

use std::future::Future;
use std::path::Path;

use anyhow::Context as _;
use futures_util::future::BoxFuture;
use harness::{
    Connection, JobId, QueueName, QueuePort, Reason, ReviewStore, Status, Store, StoreError,
    SweepStore,
};
pub use models::lifecycle::cover::Script;

pub use self::driver::{Deviation, Driven, drive};

/// What can be seen of one job from outside, when nobody moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Effects that are committed.
    pub effects: u64,
    /// Whether there is a fence.
    pub fence: bool,
    /// Dead letters by generation.
    pub letters: Vec<(u32, Reason, Status)>,
    /// For each place: how often the message in it was delivered; none when it is empty.
    pub queues: [Vec<u32>; 2],
    /// Transactions that are open.
    pub open_transactions: usize,
}

/// What a way is driven on.
pub trait Bench: Sync {
    /// A store.
    type Store: Store + ReviewStore + SweepStore;
    /// A queue.
    type Queue: QueuePort;

    /// The store, as one more process sees it.
    fn store(&self) -> Self::Store;

    /// The queues, as one more process sees them.
    fn queue(&self) -> Self::Queue;

    /// The queue of each place: a copy has a queue of its own, so that it can be handed out alone.
    fn place(&self, copy: u8) -> QueueName;

    /// Time passes until whatever is leased or delayed on a queue is due.
    fn make_due(&self, queue: &QueueName) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// One effect of a job, by its handler.
    fn effect<'a>(
        connection: &'a mut Connection<Self::Store>,
        job: JobId,
        consumer: &'a str,
        generation: u32,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Looks at a job.
    fn observe(
        &self,
        job: JobId,
        consumer: &str,
    ) -> impl Future<Output = anyhow::Result<Observed>> + Send;

    /// Lets everybody else go on for a moment.
    fn moment(&self) -> impl Future<Output = ()> + Send;

    /// Ready when a wait has taken so long that what was waited for will never come.
    fn patience(&self) -> impl Future<Output = ()> + Send;
}

/// Reads a script; none when the file is something else, which it is up to others to read.
///
/// # Errors
/// When it says that it is a script, and is none.
pub fn read(path: &Path) -> anyhow::Result<Option<Script>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let is_script = serde_json::from_str::<serde_json::Value>(&text)
        .is_ok_and(|value| value.get("script").is_some());
    if !is_script {
        return Ok(None);
    }
    let script =
        serde_json::from_str(&text).with_context(|| format!("{} is no script", path.display()))?;
    Ok(Some(script))
}
