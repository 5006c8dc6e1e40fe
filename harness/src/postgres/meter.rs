//! Measuring: bounded reads on the indexes that are there.

use std::time::Duration;

use super::PgStore;
use super::classify::store_error;
use crate::names::{ConsumerName, QueueName};
use crate::ports::meter::{LetterStock, MeterStore};
use crate::ports::store::StoreError;

/// Ages are asked for in microseconds; clocks that differ make none negative.
pub(super) fn age(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

impl MeterStore for PgStore {
    async fn pending_letters(&self) -> Result<Vec<LetterStock>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT queue AS "queue!", consumer AS "consumer!", count(*) AS "letters!",
                (extract(epoch FROM clock_timestamp() - min(created_at)) * 1000000)::bigint AS "age!"
            FROM (SELECT queue, consumer, created_at FROM core.dead_letters WHERE status = 'pending_review'
                  ORDER BY created_at, id LIMIT $1) oldest
            GROUP BY queue, consumer ORDER BY queue, consumer"#,
            i64::from(LetterStock::AT_MOST),
        )
        .fetch_all(&self.pool)
        .await
        .map_err(store_error)?;
        let stock = rows.into_iter().filter_map(|row| {
            // A letter that somebody wrote past the harness may have a name that is none; it has no label either.
            Some(LetterStock {
                queue: QueueName::new(&row.queue).ok()?,
                consumer: ConsumerName::new(&row.consumer).ok()?,
                letters: row.letters.unsigned_abs(),
                oldest: age(row.age),
            })
        });
        Ok(stock.collect())
    }

    async fn owed_alerts(&self) -> Result<u64, StoreError> {
        let owed = sqlx::query_scalar!(
            r#"SELECT count(*) AS "owed!"
            FROM (SELECT FROM core.dead_letter_alerts WHERE covered_at IS NULL LIMIT $1) uncovered"#,
            i64::from(LetterStock::AT_MOST),
        )
        .fetch_one(&self.pool)
        .await
        .map_err(store_error)?;
        Ok(owed.unsigned_abs())
    }

    async fn oldest_due_fence(&self, consumer: &ConsumerName) -> Result<Duration, StoreError> {
        let overdue = sqlx::query_scalar!(
            r#"SELECT coalesce((extract(epoch FROM clock_timestamp() - min(expires_at)) * 1000000)::bigint, 0) AS "age!"
            FROM core.processed_jobs WHERE consumer = $1"#,
            consumer.as_str(),
        )
        .fetch_one(&self.pool)
        .await
        .map_err(store_error)?;
        Ok(age(overdue))
    }
}
