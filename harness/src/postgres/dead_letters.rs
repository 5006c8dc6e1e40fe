//! Writing and reading dead letters.

use chrono::{DateTime, Utc};

use super::PgStore;
use crate::dead_letter::{DeadLetter, DeadLetterId, NewDeadLetter, Recorded};
use crate::failure::ErrorClass;
use crate::ids::{CorrelationId, JobId, TenantId};
use crate::jsonb::{JsonbProblem, wrapper};
use crate::names::{ConsumerName, QueueName};
use crate::ports::store::StoreError;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub(super) async fn record(
    store: &PgStore,
    letter: &NewDeadLetter,
) -> Result<Recorded, StoreError> {
    match try_record(store, letter).await {
        // What we took for representable was not. A failure must not vanish over the column that is for people.
        Err(StoreError::Refused(error)) if is_data_error(error.as_ref()) => {
            let letter = NewDeadLetter {
                payload: wrapper(JsonbProblem::Refused, &letter.body),
                headers: wrapper(JsonbProblem::Refused, letter.headers.as_bytes()),
                ..letter.clone()
            };
            try_record(store, &letter).await
        }
        outcome => outcome,
    }
}

/// Data exception (22) or program limit exceeded (54).
fn is_data_error(error: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    error
        .downcast_ref::<sqlx::Error>()
        .and_then(|error| error.as_database_error()?.code())
        .is_some_and(|code| code.starts_with("22") || code.starts_with("54"))
}

async fn try_record(store: &PgStore, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
    let lock_wait_ms = store.lock_wait_ms();
    let answer = store
        .bookkeeping(async |connection| {
            sqlx::query_scalar!(
                r#"SELECT core.record_dead_letter(
                    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14::text::jsonb, $15) AS "answer!""#,
                letter.id.0,
                letter.job_id.as_uuid(),
                letter.consumer.as_str(),
                letter.queue.as_str(),
                letter.tenant_id.map(|tenant| tenant.as_uuid()),
                letter.correlation_id.as_str(),
                i32::try_from(letter.generation).unwrap_or(i32::MAX),
                letter.reason.as_str(),
                letter.error_class.as_str(),
                i64::from(letter.attempts),
                letter.last_error,
                letter.payload,
                letter.body,
                letter.headers,
                lock_wait_ms,
            )
            .fetch_one(connection)
            .await
        })
        .await?;
    match answer.as_str() {
        "written" => Ok(Recorded::Written),
        "already" => Ok(Recorded::Already),
        "applied" => Ok(Recorded::Applied),
        other => Err(StoreError::Refused(
            format!("core.record_dead_letter answered {other:?}").into(),
        )),
    }
}

/// A row as the database has it.
#[derive(sqlx::FromRow)]
pub(super) struct LetterRow {
    pub(super) id: uuid::Uuid,
    pub(super) job_id: uuid::Uuid,
    pub(super) consumer: String,
    pub(super) queue: String,
    pub(super) tenant_id: Option<uuid::Uuid>,
    pub(super) correlation_id: String,
    pub(super) generation: i32,
    pub(super) reason: String,
    pub(super) error_class: String,
    pub(super) attempts: i64,
    pub(super) last_error: String,
    pub(super) payload: String,
    pub(super) body: Vec<u8>,
    pub(super) headers: String,
    pub(super) status: String,
    pub(super) discard_reason: Option<String>,
    pub(super) created_at: DateTime<Utc>,
    pub(super) reviewed_at: Option<DateTime<Utc>>,
    pub(super) reviewed_by: Option<String>,
}

/// Selects whole rows of `core.dead_letters`; the first argument is everything behind the table's name.
macro_rules! select_letters {
    ($tail:tt $(, $argument:expr)* $(,)?) => {
        sqlx::query_as!(
            $crate::postgres::dead_letters::LetterRow,
            r#"SELECT id, job_id, consumer, queue, tenant_id, correlation_id, generation, reason, error_class, attempts,
                last_error, payload::text AS "payload!", body, headers::text AS "headers!", status, discard_reason,
                created_at, reviewed_at, reviewed_by
            FROM core.dead_letters "# + $tail
            $(, $argument)*
        )
    };
}
pub(super) use select_letters;

impl TryFrom<LetterRow> for DeadLetter {
    type Error = BoxError;

    fn try_from(row: LetterRow) -> Result<Self, BoxError> {
        Ok(Self {
            letter: NewDeadLetter {
                id: DeadLetterId(row.id),
                job_id: JobId::new(row.job_id)?,
                consumer: ConsumerName::new(&row.consumer)?,
                queue: QueueName::new(&row.queue)?,
                tenant_id: row.tenant_id.map(TenantId::new).transpose()?,
                correlation_id: CorrelationId::new(&row.correlation_id)?,
                generation: u32::try_from(row.generation)?,
                reason: row.reason.parse()?,
                error_class: ErrorClass::of(&row.error_class),
                attempts: u32::try_from(row.attempts)?,
                last_error: row.last_error,
                payload: row.payload,
                body: row.body,
                headers: row.headers,
            },
            status: row.status.parse()?,
            discard_reason: row.discard_reason,
            created_at: row.created_at,
            reviewed_at: row.reviewed_at,
            reviewed_by: row.reviewed_by,
        })
    }
}

/// A row that somebody wrote past the harness may be unreadable.
pub(super) fn readable(row: LetterRow) -> Result<DeadLetter, StoreError> {
    let id = row.id;
    DeadLetter::try_from(row).map_err(|error| {
        StoreError::Refused(format!("dead letter {id} cannot be read: {error}").into())
    })
}
