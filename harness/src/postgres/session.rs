//! Is this connection a session of ours, with the settings that we asked for when we connected? A pooler in between may have
//! dropped them, or may hand the same session to others between two transactions. Then nothing would stop a handler that ended
//! its transaction from writing on without a fence.

use sqlx::{PgConnection, Row as _};

use super::classify::refused_start_up;

/// What is asked, after `$before`.
macro_rules! ask {
    ($before:literal) => {
        concat!(
            $before,
            "SELECT current_setting('default_transaction_read_only'), current_setting('idle_in_transaction_session_timeout')"
        )
    };
}

/// Opens a transaction that may write, and asks in the same round trip.
const BEGIN: &str = ask!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; ");

/// Only asks.
const ASK: &str = ask!("");

/// Why a connection is of no use to us.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// It works, but is not set up as we asked.
    #[error(
        "the connection does not have the settings that the store asked for when it connected \
         (default_transaction_read_only is {read_only}, idle_in_transaction_session_timeout is {idle}): {WAY_OUT}"
    )]
    NotOurs {
        /// Must be `on`.
        read_only: String,
        /// Must not be 0.
        idle: String,
    },
    /// What we ask for is refused.
    #[error("the settings that the store asks for when it connects are refused ({0}): {WAY_OUT}")]
    Refused(String),
}

const WAY_OUT: &str = "a pooler in between, such as PgBouncer, drops them or shares sessions (pool_mode=transaction). Connect to \
                       PostgreSQL itself, or through a pooler that passes start-up parameters on and keeps a session for each client";

/// A transaction, if the session is ours.
pub(super) async fn begin(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    asked(BEGIN, connection).await
}

/// Whether the session is ours.
pub(super) async fn check(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    asked(ASK, connection).await
}

async fn asked(statements: &'static str, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // All of it: an answer that is left unread would be taken for the next one's.
    let rows = sqlx::raw_sql(statements).fetch_all(connection).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let (read_only, idle): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    if read_only == "on" && idle != "0" {
        return Ok(());
    }
    Err(sqlx::Error::Configuration(
        SessionError::NotOurs { read_only, idle }.into(),
    ))
}

/// An error of connecting, in words that help.
pub(super) fn explained(error: sqlx::Error) -> sqlx::Error {
    match refused_start_up(&error) {
        Some(text) => sqlx::Error::Configuration(SessionError::Refused(text).into()),
        None => error,
    }
}
