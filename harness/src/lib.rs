//! Consumer harness for at-least-once job queues: no worker can double-apply an effect, no failure can vanish without
//! a record.
//!
//! Every queue delivers a job more than once sooner or later. This crate stands between the queue and your code:
//!
//! * the **gate** ([`Consumer`]) inserts a fence row in the same transaction as your work, so that the effect and the
//!   fact that it happened commit together or not at all (B1), and skips duplicates (B2);
//! * failures are retried with growing, jittered waits ([`RetryPolicy`], B3) and end as a **dead letter** with the whole
//!   payload (B4); a payload that can never be valid goes there at once (B5);
//! * operators [replay or discard](Review) dead letters (B6, B8), the [`Sweeper`] removes fences that no late copy can
//!   need any more (B7), and the [`AlertPump`] tells people about new dead letters.
//!
//! A handler is a type with one method. It gets the job and the connection of the open transaction, and writes through
//! that connection only:
//!
//! ```
//! use harness::{Failure, Handler, Job, PgStore};
//! use serde::Deserialize;
//! use sqlx::PgConnection;
//!
//! #[derive(Deserialize)]
//! struct AwardPoints { account: uuid::Uuid, points: i64 }
//!
//! struct Awards;
//!
//! impl Handler<PgStore> for Awards {
//!     type Payload = AwardPoints;
//!
//!     async fn handle(&self, job: Job<AwardPoints>, tx: &mut PgConnection) -> Result<(), Failure> {
//!         if job.payload.points <= 0 {
//!             return Err(Failure::permanent("points must be positive"));
//!         }
//!         sqlx::query("INSERT INTO ledger (account, points) VALUES ($1, $2)")
//!             .bind(job.payload.account).bind(job.payload.points)
//!             .execute(tx).await?; // any error through `?` is transient: it is retried
//!         Ok(())
//!     }
//! }
//! # fn main() {}
//! ```
//!
//! The rules that the crate keeps are written down in the repository's `ARCHITECTURE.md`.

mod alert;
mod consumer;
mod dead_letter;
mod decision;
mod disposition;
mod envelope;
mod error_text;
mod event;
mod failure;
mod fence;
mod handler;
mod ids;
#[cfg(feature = "jetstream")]
pub mod jetstream;
mod jsonb;
mod meter;
mod names;
#[cfg(feature = "ops")]
pub mod ops;
mod ports;
#[cfg(feature = "postgres")]
pub mod postgres;
mod retry;
mod review;
mod sweep;
mod sync;
mod telemetry;
mod time;
mod trace;

#[cfg(feature = "better-stack")]
pub use alert::better_stack::{BetterStack, BetterStackConfig, BetterStackConfigError};
pub use alert::pump::{AlertPump, AlertPumpConfig};
pub use consumer::{
    Consumer, ConsumerConfig, ConsumerError, DrainReport, MOST_IN_A_BATCH, Shutdown,
};
pub use dead_letter::{DeadLetter, DeadLetterId, NewDeadLetter, Reason, Recorded, Status};
pub use decision::{DiscardReason, DiscardReasonError, Discarded, Reviewer, ReviewerError};
pub use disposition::{Action, Ending, Rule};
pub use envelope::{Envelope, HeaderError, Malformed, Message, RESERVED_HEADERS};
pub use error_text::{ERROR_TEXT_MAX_BYTES, error_text};
pub use event::{DeferReason, Event, JobRef, Observer, RunResult, Step};
pub use failure::{ErrorClass, Failure, FailureKind};
pub use fence::{FenceKey, FencePolicy, FencePolicyError, FenceVerdict, consumer_of};
pub use handler::{Connection, Handler, Job};
pub use ids::{CorrelationId, IdError, JobId, TenantId};
#[cfg(feature = "jetstream")]
pub use jetstream::{JetStreamConfig, JetStreamQueue, JetStreamSetupError};
pub use jsonb::{JsonbProblem, jsonb_text};
pub use meter::{Meter, MeterConfig};
pub use names::{ConsumerName, NameError, QueueName};
pub use ports::alerter::{AlertError, AlertKind, Alerter, ExternalId, Incident};
pub use ports::clock::{Clock, SystemClock};
pub use ports::entropy::{Entropy, SeededEntropy, SystemEntropy};
pub use ports::env::Env;
pub use ports::meter::{LetterStock, MeterQueue, MeterStore, QueueStock};
pub use ports::queue::{Delivery, QueueError, QueuePort, Receipt};
pub use ports::store::{
    AlertClaim, AlertDue, AlertStore, CommitError, CountStore, PendingStore, ResolveClaim,
    ReviewStore, ReviewTx, Store, StoreError, SweepBatch, SweepStore, WorkTx,
};
#[cfg(feature = "pgmq")]
pub use postgres::pgmq::PgmqQueue;
#[cfg(feature = "postgres")]
pub use postgres::{PgStore, PgStoreConfig, connect_options};
pub use retry::{MAX_RUNS_DEFAULT, RetryPolicy, RetryPolicyError};
pub use review::{
    Decided, Decision, DiscardError, OutsidePublisher, ReplayError, ReplayPublisher, Replayed,
    Review,
};
pub use review::{LetterCount, LetterFilter, LetterOrder, LetterPlace, LetterQuery};
pub use sweep::{SweepReport, SweepTarget, Sweeper, SweeperConfig};
pub use telemetry::{DURATION_BUCKETS, Telemetry, describe_metrics, metrics_table};
pub use trace::{TraceParent, TraceParentError};

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
