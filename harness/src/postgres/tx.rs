//! The transaction in which a job's work and its fence commit together.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use sqlx::{AssertSqlSafe, Executor, PgConnection};

use super::classify::{commit_error, store_error};
use super::{Guarded, millis};
use crate::fence::{FenceKey, FenceVerdict, consumer_of};
use crate::ports::store::{CommitError, StoreError, WorkTx};

/// An open transaction. Dropping it closes its connection, and the server rolls back.
#[derive(Debug)]
pub struct PgTx {
    connection: Guarded,
    fence_wait_ms: i64,
    /// The server's number for the transaction that holds the fence.
    xact: Option<String>,
}

impl PgTx {
    pub(super) fn new(connection: Guarded, fence_wait_ms: i64) -> Self {
        Self {
            connection,
            fence_wait_ms,
            xact: None,
        }
    }
}

/// Microseconds only: a day has 24 hours here, whatever the time zone does.
pub(super) fn interval(duration: Duration) -> PgInterval {
    // A thousand years is "for ever", and still adds to a timestamp.
    const LONGEST: i64 = 1_000 * 365 * 24 * 3_600 * 1_000_000;
    let microseconds = i64::try_from(duration.as_micros())
        .unwrap_or(LONGEST)
        .min(LONGEST);
    PgInterval {
        months: 0,
        days: 0,
        microseconds,
    }
}

fn verdict(text: &str) -> Result<FenceVerdict, StoreError> {
    match text {
        "acquired" => Ok(FenceVerdict::Acquired),
        "duplicate" => Ok(FenceVerdict::Duplicate),
        "settled" => Ok(FenceVerdict::Settled),
        other => Err(StoreError::Refused(
            format!("the gate answered {other:?}").into(),
        )),
    }
}

impl WorkTx for PgTx {
    type Conn = PgConnection;

    async fn fence(
        &mut self,
        key: &FenceKey,
        ttl: Duration,
        deadline: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        let row = sqlx::query!(
            r#"SELECT verdict AS "verdict!", xact FROM core.fence($1, $2, $3, $4, $5, $6, $7)"#,
            key.job_id.as_uuid(),
            key.consumer.as_str(),
            i32::try_from(key.generation).unwrap_or(i32::MAX),
            key.tenant_id.map(|tenant| tenant.as_uuid()),
            interval(ttl),
            self.fence_wait_ms,
            millis(deadline),
        )
        .fetch_one(self.connection.get())
        .await
        .map_err(store_error)?;
        let verdict = verdict(&row.verdict)?;
        if verdict == FenceVerdict::Acquired {
            self.xact = row.xact;
        }
        Ok(verdict)
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        ttl: Duration,
        deadline: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        let consumer = consumer_of(keys)?;
        let jobs: Vec<_> = keys.iter().map(|key| key.job_id.as_uuid()).collect();
        let generations: Vec<_> = keys
            .iter()
            .map(|key| i32::try_from(key.generation).unwrap_or(i32::MAX))
            .collect();
        let tenants: Vec<_> = keys
            .iter()
            .map(|key| key.tenant_id.map(|tenant| tenant.as_uuid()))
            .collect();
        let row = sqlx::query!(
            r#"SELECT verdicts AS "verdicts!", xact FROM core.fence_all($1, $2, $3, $4, $5, $6, $7)"#,
            &jobs,
            consumer,
            &generations,
            &tenants as &[Option<uuid::Uuid>],
            interval(ttl),
            self.fence_wait_ms,
            millis(deadline),
        )
        .fetch_one(self.connection.get())
        .await
        .map_err(store_error)?;
        self.xact = row.xact.or(self.xact.take());
        let verdicts: Vec<_> = row
            .verdicts
            .iter()
            .map(|it| verdict(it))
            .collect::<Result<_, _>>()?;
        if verdicts.len() == keys.len() {
            Ok(verdicts)
        } else {
            let answer = format!(
                "core.fence_all answered {} of {}",
                verdicts.len(),
                keys.len()
            );
            Err(StoreError::Refused(answer.into()))
        }
    }

    fn connection(&mut self) -> &mut PgConnection {
        self.connection.get()
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        let xact = self
            .xact
            .as_deref()
            .filter(|xact| xact.bytes().all(|b| b.is_ascii_digit()));
        let Some(xact) = xact else {
            return Err(CommitError::Refused(
                "the transaction holds no fence".into(),
            ));
        };
        // One round trip. In a transaction that an error has aborted, the first statement fails (25P02) instead of the
        // COMMIT silently rolling back; in another transaction, or in none, `seal` refuses.
        let statements = format!("SELECT core.seal('{xact}'); COMMIT");
        match self
            .connection
            .get()
            .execute(sqlx::raw_sql(AssertSqlSafe(statements)))
            .await
        {
            Ok(_) => {
                self.connection.keep();
                Ok(())
            }
            Err(error) => Err(commit_error(error)),
        }
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        self.connection
            .get()
            .execute("ROLLBACK")
            .await
            .map_err(store_error)?;
        self.connection.keep();
        Ok(())
    }
}
