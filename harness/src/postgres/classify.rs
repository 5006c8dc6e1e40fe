//! What a database error means for us.

use std::error::Error;

use sqlx::postgres::PgDatabaseError;

use crate::ports::store::{CommitError, StoreError};

/// Serialization failure, deadlock, lock not available: the other transaction's doing.
const CONTENTION: [&str; 3] = ["40001", "40P01", "55P03"];

fn is_contention_code(code: &str) -> bool {
    CONTENTION.contains(&code)
}

/// Whether the server is in trouble, rather than our statement: connection (08), resources (53), intervention (57, but
/// not a cancelled statement), system (58), internal (XX), a session that was ended for us (25P03), or one that may not
/// write because it is a standby (25006).
fn is_away_code(code: &str) -> bool {
    let class = code.get(..2).unwrap_or_default();
    matches!(class, "08" | "53" | "58" | "XX")
        || (class == "57" && code != "57014")
        || code == "25P03"
        || code == "25006"
}

/// What a pooler says that does not pass our settings on when we connect.
pub(super) fn refused_start_up(error: &sqlx::Error) -> Option<String> {
    let error = error.as_database_error()?;
    let refused =
        error.code().as_deref() == Some("08P01") && error.message().contains("startup parameter");
    refused.then(|| error.message().to_owned())
}

fn code_of(error: &sqlx::Error) -> Option<String> {
    error
        .as_database_error()
        .and_then(|error| error.code())
        .map(std::borrow::Cow::into_owned)
}

pub(super) fn store_error(error: sqlx::Error) -> StoreError {
    match code_of(&error) {
        Some(code) if is_contention_code(&code) => StoreError::Contention(error.into()),
        Some(code) if is_away_code(&code) => StoreError::Away(error.into()),
        Some(_) => StoreError::Refused(error.into()),
        None => match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => StoreError::Away(error.into()),
            _ => StoreError::Refused(error.into()),
        },
    }
}

/// Only an error that the server reports while it is well proves that a COMMIT did not happen.
pub(super) fn commit_error(error: sqlx::Error) -> CommitError {
    match code_of(&error) {
        Some(code) if is_contention_code(&code) => CommitError::Contention(error.into()),
        // The session was ended while it was idle, before our COMMIT arrived.
        Some(code) if code == "25P03" || !is_away_code(&code) => CommitError::Refused(error.into()),
        _ => CommitError::Unknown(error.into()),
    }
}

/// Looks through the chain of causes, since handlers wrap errors.
pub(super) fn is_contention(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let code = error
            .downcast_ref::<sqlx::Error>()
            .and_then(code_of)
            .or_else(|| {
                error
                    .downcast_ref::<PgDatabaseError>()
                    .map(|error| error.code().to_owned())
            });
        if code.is_some_and(|code| is_contention_code(&code)) {
            return true;
        }
        next = error.source();
    }
    false
}
