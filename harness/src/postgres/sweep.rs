//! Deleting fences.

use chrono::{DateTime, Utc};

use super::PgStore;
use super::tx::interval;
use crate::ports::store::{StoreError, SweepBatch, SweepStore};

impl SweepStore for PgStore {
    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#)
            .fetch_one(&self.pool)
            .await
            .map_err(super::store_error)
    }

    async fn sweep(&self, batch: &SweepBatch) -> Result<u64, StoreError> {
        let removed = self
            .bookkeeping(async |connection| {
                sqlx::query_scalar!(
                    r#"SELECT core.sweep_fences($1, $2, $3, $4, $5) AS "removed!""#,
                    batch.consumer.as_str(),
                    batch.asked_at,
                    batch.oldest,
                    interval(batch.retry_window),
                    i32::try_from(batch.limit).unwrap_or(i32::MAX),
                )
                .fetch_one(connection)
                .await
            })
            .await?;
        Ok(u64::try_from(removed).unwrap_or(0))
    }
}
