//! The store on PostgreSQL. Only the modules in this folder know sqlx.
//!
//! Every connection of the store's own pool is read-only outside of the transactions that the store opens. A handler
//! that ends its transaction by itself can therefore neither commit a fence (the seal is missing) nor write on without
//! one. Every transaction begins by asking whether that is so: a pooler in between may not keep it.

mod alerts;
mod classify;
mod dead_letters;
mod list;
mod meter;
mod migrate;
#[cfg(feature = "pgmq")]
pub mod pgmq;
mod review;
mod session;
mod sweep;
mod tx;

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgPool, Postgres, pool::PoolConnection};

use self::classify::store_error;
pub use self::migrate::MigrateError;
pub use self::review::PgReviewTx;
pub use self::tx::PgTx;
use crate::dead_letter::{NewDeadLetter, Recorded};
use crate::ports::store::{Store, StoreError};

/// How every connection of ours should be made, the queue's too: the server gives up a client that vanished without a word
/// within half a minute.
///
/// No timeout of PostgreSQL 15 ends a session that waits for the rest of what its client was saying, and such a session keeps
/// what it has locked, a fence key or a message, until TCP gives up: after two hours, if nobody asks for less.
///
/// # Errors
/// When `url` is not a PostgreSQL URL.
pub fn connect_options(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    Ok(PgConnectOptions::from_str(url)?.options([
        ("tcp_keepalives_idle", "10s"),
        ("tcp_keepalives_interval", "5s"),
        ("tcp_keepalives_count", "3"),
        ("tcp_user_timeout", "25s"),
    ]))
}

/// How the store uses its database.
#[derive(Debug, Clone)]
pub struct PgStoreConfig {
    /// Connections of the pool. A consumer needs one per concurrent run, and two for bookkeeping. Default 10.
    pub max_connections: u32,
    /// How long a twin waits for the fence before it is deferred. While it waits it occupies a connection, so this is
    /// short: of every `fence_wait + busy_delay` a twin takes one connection for `fence_wait` at most. Default 20 ms.
    pub fence_wait: Duration,
    /// How long bookkeeping waits for a lock. Default 2 s.
    pub lock_wait: Duration,
    /// How long the server keeps a transaction open in which nothing happens, outside of a run (a run has its deadline). It
    /// holds a fence key or the row of a dead letter for as long, if this host vanishes without a word. Default 60 s.
    pub idle_limit: Duration,
    /// How long to wait for a free connection. Default 5 s.
    pub acquire_timeout: Duration,
}

impl Default for PgStoreConfig {
    fn default() -> Self {
        Self {
            max_connections: 10,
            fence_wait: Duration::from_millis(20),
            lock_wait: Duration::from_secs(2),
            idle_limit: Duration::from_secs(60),
            acquire_timeout: Duration::from_secs(5),
        }
    }
}

/// Fences and dead letters in PostgreSQL, schema `core`.
#[derive(Debug, Clone)]
pub struct PgStore {
    pool: PgPool,
    config: PgStoreConfig,
}

impl PgStore {
    /// Makes a pool of its own for `url`. Connects on first use.
    ///
    /// # Errors
    /// When `url` is not a PostgreSQL URL.
    pub fn new(url: &str, config: PgStoreConfig) -> Result<Self, sqlx::Error> {
        let options = connect_options(url)?
            .application_name("job-harness")
            .options([
                ("default_transaction_read_only", "on"),
                ("default_transaction_isolation", "read committed"),
                // A server that works for a client that is gone would hold the fence for as long.
                ("client_connection_check_interval", "1s"),
            ])
            .options([(
                "idle_in_transaction_session_timeout",
                // 0 would mean "for ever".
                config.idle_limit.as_millis().max(1).to_string(),
            )]);
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections)
            .acquire_timeout(config.acquire_timeout)
            .connect_lazy_with(options);
        Ok(Self { pool, config })
    }

    /// Creates or updates the schema. Safe to run twice, and from several processes at once.
    ///
    /// # Errors
    /// When the database is away, is not UTF-8, or holds a newer or an altered schema.
    pub async fn migrate(&self) -> Result<(), MigrateError> {
        migrate::run(&self.pool).await
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// A connection inside a transaction that may write.
    async fn begin_on(&self) -> Result<Guarded, StoreError> {
        let acquired = self.pool.acquire().await.map_err(session::explained);
        let mut connection = Guarded::new(acquired.map_err(store_error)?);
        session::begin(connection.get())
            .await
            .map_err(store_error)?;
        Ok(connection)
    }

    /// Runs `work` in a transaction of its own and commits it. An error of the COMMIT is [`StoreError::Away`]: whether it
    /// happened is unknown, and all our bookkeeping may be repeated.
    async fn bookkeeping<T>(
        &self,
        work: impl AsyncFnOnce(&mut sqlx::PgConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let mut connection = self.begin_on().await?;
        let outcome = work(connection.get()).await;
        match outcome {
            Ok(value) => {
                connection
                    .get()
                    .execute("COMMIT")
                    .await
                    .map_err(store_error)?;
                connection.keep();
                Ok(value)
            }
            Err(error) => {
                if connection.get().execute("ROLLBACK").await.is_ok() {
                    connection.keep();
                }
                Err(store_error(error))
            }
        }
    }

    fn lock_wait_ms(&self) -> i64 {
        millis(self.config.lock_wait)
    }
}

/// PostgreSQL reads 0 as "wait for ever".
fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis())
        .unwrap_or(i64::from(i32::MAX))
        .clamp(1, i64::from(i32::MAX))
}

impl Store for PgStore {
    type Tx = PgTx;

    async fn begin(&self) -> Result<PgTx, StoreError> {
        Ok(PgTx::new(
            self.begin_on().await?,
            millis(self.config.fence_wait),
        ))
    }

    async fn record_dead_letter(&self, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
        dead_letters::record(self, letter).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        // In a transaction that may write: a standby, or a server that is full, is not back yet.
        self.bookkeeping(async |connection| {
            sqlx::query!("SELECT 1 AS one")
                .fetch_one(connection)
                .await
                .map(|_| ())
        })
        .await
    }

    fn is_contention(error: &(dyn std::error::Error + 'static)) -> bool {
        classify::is_contention(error)
    }
}

/// A connection that is closed when it is dropped, unless somebody knows that it is at rest outside of a transaction.
/// Closing makes the server roll back.
#[derive(Debug)]
struct Guarded {
    connection: Option<PoolConnection<Postgres>>,
    at_rest: bool,
}

impl Guarded {
    fn new(connection: PoolConnection<Postgres>) -> Self {
        Self {
            connection: Some(connection),
            at_rest: false,
        }
    }

    #[allow(clippy::expect_used)]
    fn get(&mut self) -> &mut sqlx::PgConnection {
        self.connection.as_deref_mut().expect("taken only by drop")
    }

    /// The transaction has ended: back to the pool with it.
    fn keep(mut self) {
        self.at_rest = true;
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take()
            && !self.at_rest
        {
            connection.close_on_drop();
        }
    }
}
