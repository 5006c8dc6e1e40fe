//! The database and the embedded queue in it.

use anyhow::Context as _;
use harness::{PgStore, PgStoreConfig, PgmqQueue, QueueName, connect_options};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::config::{Config, Secrets};
use super::{Common, Wrong};

/// Connections that the queue has for itself.
const QUEUE_CONNECTIONS: u32 = 4;

/// Both, on one URL.
pub(crate) struct Opened {
    pub(crate) store: PgStore,
    pub(crate) queue: PgmqQueue,
    pub(crate) pool: PgPool,
}

/// Connects on first use.
pub(crate) async fn open(config: &Config, secrets: &Secrets) -> anyhow::Result<Opened> {
    let missing = || {
        let text = "DATABASE_URL: is not set; set it to postgres://user:password@host/database, or database.url_file to a file with it";
        Wrong(text.to_owned())
    };
    let url = secrets.database_url.as_ref().ok_or_else(missing)?.expose();
    // The parser's own message may quote the password.
    let wrong = || {
        let text =
            "DATABASE_URL: is no PostgreSQL URL such as postgres://user:password@host/database";
        Wrong(text.to_owned())
    };
    if !["postgres://", "postgresql://"]
        .iter()
        .any(|it| url.starts_with(it))
    {
        return Err(wrong().into());
    }
    let store = PgStore::new(
        url,
        PgStoreConfig {
            max_connections: config.database.max_connections,
            ..PgStoreConfig::default()
        },
    )
    .map_err(|_| wrong())?;
    let pool = PgPoolOptions::new()
        .max_connections(QUEUE_CONNECTIONS)
        .acquire_timeout(PgStoreConfig::default().acquire_timeout)
        .connect_lazy_with(connect_options(url).map_err(|_| wrong())?);
    let queue = PgmqQueue::new(pool.clone()).await;
    Ok(Opened { store, queue, pool })
}

/// The configuration and its database, for commands that need no more than that.
pub(crate) async fn opened(common: &Common) -> anyhow::Result<Opened> {
    let given = common.given(&[])?;
    let mut problems = Vec::new();
    let secrets = Secrets::read(
        &given.config,
        |name| std::env::var(name).ok(),
        &mut problems,
    );
    if !problems.is_empty() {
        return Err(Wrong(problems.join("\n")).into());
    }
    open(&given.config, &secrets).await
}

pub(crate) async fn migrate(common: &Common, mut queues: Vec<QueueName>) -> anyhow::Result<()> {
    for consumer in common.given(&[])?.config.consumers {
        let queue = QueueName::new(&consumer.queue);
        queues.push(queue.map_err(|error| Wrong(format!("consumers: {error}")))?);
    }
    let opened = opened(common).await?;
    let away = "the database that DATABASE_URL names cannot be reached, or cannot be used";
    opened.store.migrate().await.context(away)?;
    opened.queue.install().await.context(away)?;
    for queue in &queues {
        opened.queue.create(queue).await.context(away)?;
    }
    Ok(())
}
