//! What operators do: list, lock, replay, discard.

use sqlx::{Executor, PgConnection};

use super::classify::store_error;
use super::dead_letters::{readable, select_letters};
use super::{Guarded, PgStore};
use crate::dead_letter::{DeadLetter, DeadLetterId};
use crate::decision::{DiscardReason, Discarded, Reviewer};
use crate::ports::store::{ReviewStore, ReviewTx, StoreError};
use crate::review::LetterQuery;

impl ReviewStore for PgStore {
    type Tx = PgReviewTx;

    async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        let row = select_letters!("WHERE id = $1", id.0)
            .fetch_optional(&self.pool)
            .await
            .map_err(store_error)?;
        row.map(readable).transpose()
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        self.list(query).await
    }

    async fn lock_dead_letter(&self, id: DeadLetterId) -> Result<Option<PgReviewTx>, StoreError> {
        PgReviewTx::lock(self, id).await
    }

    async fn discard(
        &self,
        id: DeadLetterId,
        reason: &DiscardReason,
        by: &Reviewer,
    ) -> Result<Discarded, StoreError> {
        let lock_wait_ms = self.lock_wait_ms();
        let answer = self
            .bookkeeping(async |connection| {
                sqlx::query_scalar!(
                    r#"SELECT core.discard_dead_letter($1, $2, $3, $4) AS "answer!""#,
                    id.0,
                    reason.as_str(),
                    by.as_str(),
                    lock_wait_ms,
                )
                .fetch_one(connection)
                .await
            })
            .await?;
        match answer.as_str() {
            // `already` is a discard that was made before this call; the row says `discarded` in both cases.
            "discarded" => Ok(Discarded::Discarded),
            "already" => Ok(Discarded::Already),
            "not_found" => Ok(Discarded::NotFound),
            "replayed" => Ok(Discarded::WasReplayed),
            "applied" => Ok(Discarded::WasApplied),
            other => Err(StoreError::Refused(
                format!("core.discard_dead_letter answered {other:?}").into(),
            )),
        }
    }
}

/// A transaction that holds the row lock of one dead letter. Dropping it rolls back.
#[derive(Debug)]
pub struct PgReviewTx {
    connection: Guarded,
    letter: DeadLetter,
}

impl PgReviewTx {
    pub(super) async fn lock(
        store: &PgStore,
        id: DeadLetterId,
    ) -> Result<Option<Self>, StoreError> {
        let mut connection = store.begin_on().await?;
        sqlx::query!(
            "SELECT set_config('lock_timeout', $1, true) AS set",
            store.lock_wait_ms().to_string()
        )
        .fetch_one(connection.get())
        .await
        .map_err(store_error)?;
        let row = select_letters!("WHERE id = $1 FOR UPDATE", id.0)
            .fetch_optional(connection.get())
            .await
            .map_err(store_error)?;
        match row {
            Some(row) => Ok(Some(Self {
                connection,
                letter: readable(row)?,
            })),
            None => Ok(None),
        }
    }

    /// The transaction's connection, for a queue that lives in the same database.
    pub fn connection(&mut self) -> &mut PgConnection {
        self.connection.get()
    }
}

impl ReviewTx for PgReviewTx {
    fn letter(&self) -> &DeadLetter {
        &self.letter
    }

    async fn mark_replayed(mut self, by: &Reviewer) -> Result<(), StoreError> {
        let marked = sqlx::query!(
            "UPDATE core.dead_letters
             SET status = 'replayed', reviewed_at = clock_timestamp(), reviewed_by = $2
             WHERE id = $1 AND status = 'pending_review'",
            self.letter.letter.id.0,
            by.as_str(),
        )
        .execute(self.connection.get())
        .await
        .map_err(store_error)?;
        if marked.rows_affected() != 1 {
            return Err(StoreError::Refused(
                "the dead letter is no longer pending, although it is locked".into(),
            ));
        }
        self.connection
            .get()
            .execute("COMMIT")
            .await
            .map_err(store_error)?;
        self.connection.keep();
        Ok(())
    }
}
