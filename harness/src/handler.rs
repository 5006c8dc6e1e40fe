//! What a platform developer writes.

use std::future::Future;

use serde::de::DeserializeOwned;

use crate::failure::Failure;
use crate::ids::{CorrelationId, JobId, TenantId};
use crate::ports::store::{Store, WorkTx};
use crate::trace::TraceParent;

/// The connection that a store's handlers work on; for PostgreSQL, `sqlx::PgConnection`.
pub type Connection<S> = <<S as Store>::Tx as WorkTx>::Conn;

/// A job, decoded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job<P> {
    /// What makes it the same job.
    pub id: JobId,
    /// Whose it is.
    pub tenant_id: Option<TenantId>,
    /// The chain of events that it belongs to.
    pub correlation_id: CorrelationId,
    /// How often it was replayed.
    pub generation: u32,
    /// Which run of this generation this is, from 1.
    pub run: u32,
    /// The trace that its producer published it in.
    pub trace: Option<TraceParent>,
    /// What to do.
    pub payload: P,
}

/// Does the work of one job, in the transaction that holds its fence.
///
/// Write through `tx` only, and do not end the transaction: what is written elsewhere is not undone with it, and may be
/// done again. The connection refuses to write outside the transaction, and a handler's own COMMIT fails.
pub trait Handler<S: Store>: Send + Sync + 'static {
    /// A payload that does not deserialize into this is poison: a dead letter at once, and the handler is never called
    /// (B5). Use `#[serde(deny_unknown_fields)]`, newtypes and `TryFrom` to make the type as strict as the schema.
    type Payload: DeserializeOwned + Send;

    /// Does the work. The future is dropped when the deadline passes or the grace period of a shutdown ends; the
    /// transaction is then rolled back.
    ///
    /// # Errors
    /// A [`Failure`] rolls the transaction back. Transient ones are retried (B3), permanent ones become a dead letter.
    fn handle(
        &self,
        job: Job<Self::Payload>,
        tx: &mut Connection<S>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Does the work of several jobs in one transaction, where [`ConsumerConfig::batch`](crate::ConsumerConfig::batch) allows
    /// it: a handler that can write many at once overrides this. The default handles one after the other, which still saves
    /// all round trips for fences, commits and acks but one.
    ///
    /// All jobs are different ones, and each is in its first run. Two batches may run at once: touch rows that both may
    /// want in an order that does not depend on the batch, or they deadlock, and run one by one.
    ///
    /// # Errors
    /// Whatever the failure, nothing of the batch is applied, and each of its jobs is handled alone, at once: the attempt
    /// counts for nobody.
    fn handle_batch(
        &self,
        jobs: Vec<Job<Self::Payload>>,
        tx: &mut Connection<S>,
    ) -> impl Future<Output = Result<(), Failure>> + Send {
        async move {
            for job in jobs {
                self.handle(job, &mut *tx).await?;
            }
            Ok(())
        }
    }
}
