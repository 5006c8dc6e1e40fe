//! The embedded queue: pgmq, as plain SQL in the same PostgreSQL.
//!
//! Messages are rows; `read_ct` counts deliveries, `vt` is lease and delay, `enqueued_at` the enqueue time. The message
//! column is JSONB, so the body is kept as base64: `{"headers": {…}, "body": "…"}`. A row that is not of that form ends
//! as a dead letter with its JSON text.
//!
//! Retry and defer change the row in place. pgmq has no function for that: its own way, delete and send again, would give
//! the message a new enqueue time, and the sweep would lose sight of how old it is.
//!
//! A receipt is `last_read_at`, which every read sets anew, and giving the message back clears. So a receipt is good for
//! one answer: one that is repeated, comes late, or comes from a worker whose lease ran out finds no row. (`read_ct` would
//! not do: a deferral takes its delivery back out of it, and the next delivery has the same count.)

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use chrono::{DateTime, Utc};
use pgmq::{PGMQueueExt, PgmqError};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Executor, PgPool, Postgres};

use super::classify::store_error;
use super::meter::age;
use super::review::PgReviewTx;
use super::{PgStore, tx::interval};
use crate::envelope::Envelope;
use crate::envelope::Message;
use crate::names::QueueName;
use crate::ports::meter::{MeterQueue, QueueStock};
use crate::ports::queue::{Delivery, QueueError, QueuePort, Receipt};
use crate::ports::store::StoreError;
use crate::review::ReplayPublisher;

/// What is in the message column.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    headers: BTreeMap<String, String>,
    body: String,
}

/// Queues in PostgreSQL, schema `pgmq`.
#[derive(Clone)]
pub struct PgmqQueue {
    pool: PgPool,
    queues: PGMQueueExt,
}

impl std::fmt::Debug for PgmqQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PgmqQueue")
    }
}

impl PgmqQueue {
    /// Uses `pool`, which must not be the store's own: a consumer answers for its deliveries also while all connections
    /// of the store are working. Two connections are enough for one consumer. Make it with
    /// [`connect_options`](super::connect_options), or a host that vanishes may keep a message locked for hours.
    pub async fn new(pool: PgPool) -> Self {
        let queues = PGMQueueExt::new_with_pool(pool.clone()).await;
        Self { pool, queues }
    }

    /// Installs pgmq as plain SQL (no extension). Safe to run twice, and from several processes at once.
    ///
    /// # Errors
    /// When the database is away or refuses.
    pub async fn install(&self) -> Result<(), QueueError> {
        // The installer takes no lock of its own.
        let mut lock = self.pool.begin().await.map_err(queue_error)?;
        lock.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended('job-harness: install pgmq', 0))",
        )
        .await
        .map_err(queue_error)?;
        self.queues
            .install_sql_from_embedded()
            .await
            .map_err(pgmq_error)?;
        lock.commit().await.map_err(queue_error)
    }

    /// Creates a queue, unless it is there.
    ///
    /// # Errors
    /// When the database is away or refuses.
    pub async fn create(&self, queue: &QueueName) -> Result<(), QueueError> {
        self.queues.create(queue.as_str()).await.map_err(pgmq_error)
    }

    /// Puts a message on the queue inside a transaction of the caller's: it is there if and only if that commits.
    ///
    /// # Errors
    /// When the database is away or refuses.
    pub async fn publish_in<'c, E: Executor<'c, Database = Postgres>>(
        &self,
        executor: E,
        queue: &QueueName,
        envelope: &Envelope,
    ) -> Result<(), QueueError> {
        self.publish_wire(executor, queue, envelope.wire_headers(), &envelope.body)
            .await
    }

    /// Puts any headers and body on the queue, unchecked: what a producer in another language would send. A message
    /// that no consumer can read ends as a dead letter.
    ///
    /// # Errors
    /// When the database is away or refuses, also because a header contains U+0000, which JSONB cannot hold.
    pub async fn publish_wire<'c, E: Executor<'c, Database = Postgres>>(
        &self,
        executor: E,
        queue: &QueueName,
        headers: BTreeMap<String, String>,
        body: &[u8],
    ) -> Result<(), QueueError> {
        let wire = Wire {
            headers,
            body: BASE64.encode(body),
        };
        self.queues
            .send_with_cxn(queue.as_str(), &wire, executor)
            .await
            .map_err(pgmq_error)?;
        Ok(())
    }

    /// Changes the row of one delivery in place. `assignments` may use `$1` (message), `$2` (delivery) and `$3` (delay).
    async fn give_back(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
        assignments: &str,
    ) -> Result<(), QueueError> {
        // A queue's name has no character that would need quoting.
        let statement = format!(
            "UPDATE pgmq.q_{queue} SET {assignments} WHERE msg_id = $1 AND last_read_at = $2"
        );
        let (message, read_at) = row_of(receipt)?;
        let done = sqlx::query(AssertSqlSafe(statement))
            .bind(message)
            .bind(read_at)
            .bind(interval(delay))
            .execute(&self.pool)
            .await
            .map_err(queue_error)?;
        if done.rows_affected() == 1 {
            Ok(())
        } else {
            Err(QueueError::LeaseLost)
        }
    }
}

fn row_of(receipt: &Receipt) -> Result<(i64, DateTime<Utc>), QueueError> {
    let not_ours =
        || QueueError::Refused(format!("{receipt:?} is no receipt of this queue").into());
    let message = receipt.message.parse().map_err(|_| not_ours())?;
    let micros = i64::try_from(receipt.delivery).map_err(|_| not_ours())?;
    let read_at = DateTime::from_timestamp_micros(micros).ok_or_else(not_ours)?;
    Ok((message, read_at))
}

fn queue_error(error: sqlx::Error) -> QueueError {
    match store_error(error) {
        StoreError::Away(error) => QueueError::Away(error),
        // The next call may fare better, which is what "away" means to a caller.
        StoreError::Contention(error) => QueueError::Away(error),
        StoreError::Refused(error) => QueueError::Refused(error),
    }
}

fn pgmq_error(error: PgmqError) -> QueueError {
    match error {
        PgmqError::DatabaseError(error) => queue_error(error),
        other => QueueError::Refused(other.into()),
    }
}

/// pgmq counts leases in whole seconds.
fn lease_seconds(lease: Duration) -> i32 {
    i32::try_from(
        lease
            .as_secs()
            .saturating_add(u64::from(lease.subsec_nanos() > 0)),
    )
    .unwrap_or(i32::MAX)
    .max(1)
}

fn decode(message: Option<&str>) -> Message {
    let text = message.unwrap_or("null");
    let foreign = |problem: String| Message::Foreign {
        bytes: text.as_bytes().to_vec(),
        problem,
    };
    let wire: Wire = match serde_json::from_str(text) {
        Ok(wire) => wire,
        Err(error) => return foreign(format!("the row is no message of the harness: {error}")),
    };
    match BASE64.decode(&wire.body) {
        Ok(body) => Message::Wire {
            headers: wire.headers,
            body,
        },
        Err(error) => foreign(format!("the row's body is not base64: {error}")),
    }
}

/// Message, deliveries, when it was read, when it was enqueued, its text.
type Row = (i64, i32, DateTime<Utc>, DateTime<Utc>, Option<String>);

impl QueuePort for PgmqQueue {
    async fn receive(
        &self,
        queue: &QueueName,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Delivery>, QueueError> {
        let max = i32::try_from(max).unwrap_or(i32::MAX);
        // As text: a message that cannot be decoded, or is NULL, must not fail the call after its neighbours were leased.
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT msg_id, read_ct, last_read_at, enqueued_at, message::text FROM pgmq.read($1, $2, $3)",
        )
        .bind(queue.as_str())
        .bind(lease_seconds(lease))
        .bind(max)
        .fetch_all(&self.pool)
        .await
        .map_err(queue_error)?;
        Ok(rows
            .into_iter()
            .map(
                |(msg_id, read_ct, read_at, enqueued_at, message)| Delivery {
                    receipt: Receipt {
                        message: msg_id.to_string(),
                        delivery: u64::try_from(read_at.timestamp_micros()).unwrap_or(0),
                    },
                    queue: queue.clone(),
                    message: decode(message.as_deref()),
                    redeliveries: u32::try_from(read_ct.saturating_sub(1)).unwrap_or(0),
                    enqueued_at,
                },
            )
            .collect())
    }

    async fn ack(&self, queue: &QueueName, receipt: &Receipt) -> Result<(), QueueError> {
        let (message, _) = row_of(receipt)?;
        // Not guarded: the outcome is durable, whoever holds the message now.
        self.queues
            .delete(queue.as_str(), message)
            .await
            .map_err(pgmq_error)?;
        Ok(())
    }

    /// In one statement.
    async fn ack_all(&self, queue: &QueueName, receipts: &[Receipt]) -> Result<(), QueueError> {
        let messages: Vec<i64> = receipts
            .iter()
            .map(|receipt| row_of(receipt).map(|(message, _)| message))
            .collect::<Result<_, _>>()?;
        sqlx::query("SELECT count(*) FROM pgmq.delete($1, $2)")
            .bind(queue.as_str())
            .bind(messages)
            .execute(&self.pool)
            .await
            .map_err(queue_error)?;
        Ok(())
    }

    async fn retry(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let set = "vt = clock_timestamp() + $3, last_read_at = NULL";
        self.give_back(queue, receipt, delay, set).await
    }

    async fn defer(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        delay: Duration,
    ) -> Result<(), QueueError> {
        let set = "vt = clock_timestamp() + $3, last_read_at = NULL, read_ct = read_ct - 1";
        self.give_back(queue, receipt, delay, set).await
    }

    async fn extend(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        lease: Duration,
    ) -> Result<(), QueueError> {
        self.give_back(queue, receipt, lease, "vt = clock_timestamp() + $3")
            .await
    }

    async fn publish(&self, queue: &QueueName, envelope: &Envelope) -> Result<(), QueueError> {
        self.publish_in(&self.pool, queue, envelope).await
    }

    async fn oldest(&self, queue: &QueueName) -> Result<Option<DateTime<Utc>>, QueueError> {
        // Messages keep their place, so the oldest has about the smallest number; but a transaction that took its time
        // may commit a smaller number later, so the minimum is over all of them.
        let statement = format!("SELECT min(enqueued_at) FROM pgmq.q_{queue}");
        sqlx::query_scalar(AssertSqlSafe(statement))
            .fetch_one(&self.pool)
            .await
            .map_err(queue_error)
    }
}

impl MeterQueue for PgmqQueue {
    async fn measure(&self, queue: &QueueName) -> Result<QueueStock, QueueError> {
        let statement = format!(
            "SELECT count(*), coalesce((extract(epoch FROM clock_timestamp() - min(enqueued_at)) * 1000000)::bigint, 0) \
             FROM pgmq.q_{queue}"
        );
        let (messages, oldest): (i64, i64) = sqlx::query_as(AssertSqlSafe(statement))
            .fetch_one(&self.pool)
            .await
            .map_err(queue_error)?;
        Ok(QueueStock {
            messages: messages.unsigned_abs(),
            oldest: age(oldest),
        })
    }
}

/// In the letter's own transaction: published if and only if it is marked.
impl ReplayPublisher<PgStore> for PgmqQueue {
    async fn publish(
        &self,
        tx: &mut PgReviewTx,
        queue: &QueueName,
        envelope: &Envelope,
    ) -> Result<(), QueueError> {
        self.publish_in(tx.connection(), queue, envelope).await
    }
}
