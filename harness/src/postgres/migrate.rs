//! The schema, embedded. It keeps its own list of migrations (`core._harness_migrations`), so that the host application's
//! list is not touched.

use sqlx::PgPool;
use sqlx::migrate::Migrator;

use super::session;

static MIGRATOR: Migrator = sqlx::migrate!("./migrations");

/// Why the schema could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Error texts and reasons are UTF-8.
    #[error("the database's encoding is {0}; create it with ENCODING 'UTF8'")]
    Encoding(String),
    /// Away, or a schema that is newer or altered.
    #[error("the schema could not be created or updated: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
    /// Away, or behind a pooler that does not keep our sessions.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

pub(super) async fn run(pool: &PgPool) -> Result<(), MigrateError> {
    let mut connection = pool.acquire().await.map_err(session::explained)?;
    session::check(&mut connection).await?;
    let encoding =
        sqlx::query_scalar!("SELECT current_setting('server_encoding') AS \"encoding!\"")
            .fetch_one(&mut *connection)
            .await?;
    if encoding != "UTF8" {
        return Err(MigrateError::Encoding(encoding));
    }
    sqlx::raw_sql("SET default_transaction_read_only = off")
        .execute(&mut *connection)
        .await?;
    let migrated = MIGRATOR.run_direct(None, &mut *connection, false).await;
    // The setting, and after an error the migration lock, belong to this connection only.
    connection.close_on_drop();
    drop(connection);
    Ok(migrated?)
}
