//! Lists of dead letters: a query is put together from the filters that are given, so that the planner sees no others and can
//! use the index of each.

use sqlx::{Postgres, QueryBuilder};

use super::PgStore;
use super::classify::store_error;
use super::dead_letters::{LetterRow, readable};
use crate::dead_letter::{DeadLetter, DeadLetterId, Status};
use crate::ports::store::{CountStore, PendingStore, StoreError};
use crate::review::{LetterCount, LetterFilter, LetterOrder, LetterQuery};

/// Adds a condition for everything that is given.
fn push_filter(query: &mut QueryBuilder<Postgres>, filter: &LetterFilter) {
    query.push(" WHERE true");
    let texts = [
        (
            " AND status = ",
            filter.status.map(|it| it.as_str().to_owned()),
        ),
        (
            " AND queue = ",
            filter.queue.as_ref().map(ToString::to_string),
        ),
        (
            " AND consumer = ",
            filter.consumer.as_ref().map(ToString::to_string),
        ),
        (
            " AND reason = ",
            filter.reason.map(|it| it.as_str().to_owned()),
        ),
        (
            " AND correlation_id = ",
            filter.correlation_id.as_ref().map(ToString::to_string),
        ),
        (" AND fingerprint = ", filter.fingerprint.clone()),
        // LIKE's own signs are text like any other.
        (
            " AND last_error ILIKE ",
            filter.error_contains.as_deref().map(containing),
        ),
    ];
    for (condition, value) in texts {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
    let ids = [
        (" AND tenant_id = ", filter.tenant_id.map(|it| it.as_uuid())),
        (" AND job_id = ", filter.job_id.map(|it| it.as_uuid())),
    ];
    for (condition, value) in ids {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
    let times = [
        (" AND created_at >= ", filter.created_from),
        (" AND created_at < ", filter.created_before),
    ];
    for (condition, value) in times {
        if let Some(value) = value {
            query.push(condition).push_bind(value);
        }
    }
}

fn containing(text: &str) -> String {
    let mut pattern = String::from("%");
    for c in text.chars() {
        if matches!(c, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('%');
    pattern
}

/// The query of a page.
fn page(verb: &str, wanted: &LetterQuery) -> QueryBuilder<Postgres> {
    let mut query = QueryBuilder::new(verb);
    query.push(
        "SELECT id, job_id, consumer, queue, tenant_id, correlation_id, generation, reason, error_class, attempts, last_error, \
         payload::text AS payload, body, headers::text AS headers, status, discard_reason, created_at, reviewed_at, reviewed_by \
         FROM core.dead_letters",
    );
    push_filter(&mut query, &wanted.filter);
    let (behind, order) = match wanted.order {
        LetterOrder::OldestFirst => (
            " AND (created_at, id) > (",
            " ORDER BY created_at, id LIMIT ",
        ),
        LetterOrder::NewestFirst => (
            " AND (created_at, id) < (",
            " ORDER BY created_at DESC, id DESC LIMIT ",
        ),
    };
    if let Some(after) = wanted.after {
        query.push(behind).push_bind(after.created_at);
        query.push(", ").push_bind(after.id.0).push(")");
    }
    query.push(order).push_bind(i64::from(wanted.limit));
    query
}

impl PgStore {
    pub(super) async fn list(&self, wanted: &LetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        let rows: Vec<LetterRow> = page("", wanted)
            .build_query_as()
            .fetch_all(&self.pool)
            .await
            .map_err(store_error)?;
        rows.into_iter().map(readable).collect()
    }

    /// How the database finds a page: its plan, as `EXPLAIN` shows it.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn explain_dead_letters(&self, wanted: &LetterQuery) -> Result<String, StoreError> {
        let lines: Vec<String> = page("EXPLAIN ", wanted)
            .build_query_scalar()
            .fetch_all(&self.pool)
            .await
            .map_err(store_error)?;
        Ok(lines.join("\n"))
    }
}

impl CountStore for PgStore {
    async fn count_dead_letters(
        &self,
        filter: &LetterFilter,
        limit: u32,
    ) -> Result<Vec<LetterCount>, StoreError> {
        let mut query = QueryBuilder::new(
            "SELECT fingerprint, count(*), min(created_at), max(created_at) FROM core.dead_letters",
        );
        push_filter(&mut query, filter);
        query
            .push(" GROUP BY fingerprint ORDER BY count(*) DESC, fingerprint LIMIT ")
            .push_bind(i64::from(limit));
        let rows: Vec<(String, i64, _, _)> = query
            .build_query_as()
            .fetch_all(&self.pool)
            .await
            .map_err(store_error)?;
        let count = |(fingerprint, letters, first_at, last_at)| LetterCount {
            fingerprint,
            letters: i64::unsigned_abs(letters),
            first_at,
            last_at,
        };
        Ok(rows.into_iter().map(count).collect())
    }
}

impl PendingStore for PgStore {
    async fn pending(&self, filter: &LetterFilter) -> Result<Vec<DeadLetterId>, StoreError> {
        let filter = LetterFilter {
            status: Some(Status::PendingReview),
            ..filter.clone()
        };
        // One statement, so one instant. Ids only: there may be a million of them.
        let mut query = QueryBuilder::new("SELECT id FROM core.dead_letters");
        push_filter(&mut query, &filter);
        query.push(" ORDER BY created_at, id");
        let ids: Vec<uuid::Uuid> = query
            .build_query_scalar()
            .fetch_all(&self.pool)
            .await
            .map_err(store_error)?;
        Ok(ids.into_iter().map(DeadLetterId).collect())
    }
}
