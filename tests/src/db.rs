//! A database per test, with the schema, pgmq, one queue and a ledger in it.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use embedded_pg::Postgres;
use harness::{
    ConsumerConfig, ConsumerName, DeadLetter, Envelope, JobId, LetterFilter, LetterQuery, PgStore,
    PgStoreConfig, PgmqQueue, QueueName, QueuePort, ReviewStore, SystemEntropy, connect_options,
};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use uuid::Uuid;

use crate::award::{Award, LEDGER};

/// A fresh database. Dropped with this value.
#[derive(Debug)]
pub struct Db {
    server: Postgres,
    name: String,
    url: String,
    /// For looking and for setting things up; may do anything.
    pub pool: PgPool,
}

/// The queue that every test database has.
pub fn queue_name() -> QueueName {
    QueueName::new("points").expect("a valid name")
}

/// The consumer that tests use unless they need several.
pub fn consumer_name() -> ConsumerName {
    ConsumerName::new("awards").expect("a valid name")
}

/// A random id.
pub fn random_id() -> Uuid {
    use harness::Entropy as _;
    let entropy = SystemEntropy::new().expect("the machine has randomness");
    uuid::Builder::from_random_bytes(
        (u128::from(entropy.next_u64()) << 64 | u128::from(entropy.next_u64())).to_be_bytes(),
    )
    .into_uuid()
}

/// A random job id.
pub fn job_id() -> JobId {
    JobId::new(random_id()).expect("neither nil nor max")
}

impl Db {
    /// On the server that all tests share, if there is one.
    pub async fn fresh() -> Self {
        Self::try_fresh()
            .await
            .unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// The same, with an error instead of a panic.
    ///
    /// # Errors
    /// When there is no PostgreSQL, or it cannot be used.
    pub async fn try_fresh() -> anyhow::Result<Self> {
        Self::on(Postgres::obtain().await?).await
    }

    /// On a server of its own, which the test may crash or reconfigure.
    pub async fn own_server() -> Self {
        let server = Postgres::own()
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        Self::on(server)
            .await
            .unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// On a server that the test chose.
    ///
    /// # Errors
    /// When it cannot be used.
    pub async fn on(server: Postgres) -> anyhow::Result<Self> {
        let name = format!("harness_test_{}", random_id().simple());
        let mut admin = PgConnection::connect(server.url())
            .await
            .with_context(|| format!("cannot connect to {}", without_password(server.url())))?;
        let template = template(&mut admin, server.url()).await?;
        admin
            .execute(AssertSqlSafe(format!(
                "CREATE DATABASE {name} TEMPLATE {template}"
            )))
            .await
            .context("cannot create a database")?;
        let options = PgConnectOptions::from_str(server.url())?.database(&name);
        let url = url_of(server.url(), &name);
        let pool = PgPoolOptions::new()
            .max_connections(5)
            .connect_with(options)
            .await?;
        Ok(Self {
            server,
            name,
            url,
            pool,
        })
    }

    /// The same database on another server, which has a copy of it. Answers the server where it was.
    ///
    /// # Errors
    /// When the other one does not let us in.
    pub async fn move_to(&mut self, server: Postgres) -> anyhow::Result<Postgres> {
        let url = url_of(server.url(), &self.name);
        let pool = PgPoolOptions::new()
            .max_connections(5)
            .connect(&url)
            .await?;
        (self.url, self.pool) = (url, pool);
        Ok(std::mem::replace(&mut self.server, server))
    }

    /// The server, for tests that have their own.
    pub fn server(&mut self) -> &mut Postgres {
        &mut self.server
    }

    /// The database's URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Leaves the database where it is. Answers its URL.
    pub fn keep(mut self) -> String {
        self.name.clear();
        self.url.clone()
    }

    /// A store with a pool of its own.
    pub fn store(&self) -> PgStore {
        self.store_with(PgStoreConfig::default())
    }

    /// A store with a pool of its own.
    pub fn store_with(&self, config: PgStoreConfig) -> PgStore {
        PgStore::new(&self.url, config).expect("a valid URL")
    }

    /// A queue with a pool of its own.
    pub async fn queue(&self) -> PgmqQueue {
        queue_at(&self.url).await
    }

    /// Settings for tests: the standard policies, quick polling.
    pub fn config(&self) -> ConsumerConfig {
        let mut config = ConsumerConfig::new(consumer_name(), queue_name());
        config.poll_interval = Duration::from_millis(10);
        config.busy_delay = Duration::from_millis(100);
        config.defer_delay = Duration::from_millis(50);
        config.grace = Duration::from_secs(5);
        config
    }

    /// Publishes one job.
    pub async fn publish(&self, envelope: &Envelope) {
        self.queue()
            .await
            .publish(&queue_name(), envelope)
            .await
            .expect("published");
    }

    /// Publishes one award, under a new id.
    pub async fn publish_award(&self, award: &Award) -> JobId {
        let id = job_id();
        self.publish(&Envelope::new(id, award.body())).await;
        id
    }

    /// Makes every delayed or leased message available now: what a test does instead of waiting.
    pub async fn skip_delays(&self) {
        self.execute(
            "UPDATE pgmq.q_points SET vt = clock_timestamp() WHERE vt > clock_timestamp()",
        )
        .await;
    }

    /// Runs a statement.
    pub async fn execute(&self, statement: &'static str) {
        self.pool.execute(statement).await.expect(statement);
    }

    /// One number.
    pub async fn count(&self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(query.to_owned()))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    /// Effects of one job.
    pub async fn effects(&self, job: JobId) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM ledger WHERE job_id = $1")
            .bind(job.as_uuid())
            .fetch_one(&self.pool)
            .await
            .expect("counts")
    }

    /// Fences of one job.
    pub async fn fences(&self, job: JobId) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM core.processed_jobs WHERE job_id = $1")
            .bind(job.as_uuid())
            .fetch_one(&self.pool)
            .await
            .expect("counts")
    }

    /// All dead letters, oldest first.
    pub async fn letters(&self) -> Vec<DeadLetter> {
        self.store()
            .dead_letters(&LetterQuery::first(LetterFilter::default(), 10_000))
            .await
            .expect("reads")
    }

    /// Messages on the queue, leased and delayed ones included.
    pub async fn queued(&self) -> i64 {
        self.count("SELECT count(*) FROM pgmq.q_points").await
    }

    /// Waits until the queue is empty.
    pub async fn settled(&self) {
        crate::clock::eventually("the queue is empty", async || match self.queued().await {
            0 => Ok(()),
            n => Err(format!("{n} messages")),
        })
        .await;
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let (name, url) = (std::mem::take(&mut self.name), self.server.url().to_owned());
        if name.is_empty() {
            return;
        }
        // In a thread of its own, because a runtime may not be blocked in a drop. A server that is gone took the
        // database with it.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .ok()?;
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&url).await.ok()?;
                admin
                    .execute(AssertSqlSafe(format!(
                        "DROP DATABASE IF EXISTS {name} WITH (FORCE)"
                    )))
                    .await
                    .ok()
            })
        });
        let _ = dropping.join();
    }
}

/// For messages.
fn without_password(url: &str) -> String {
    let Some((before, after)) = url.split_once('@') else {
        return url.to_owned();
    };
    let user_start = before.find("://").map_or(0, |at| at + 3);
    let user_end = before[user_start..]
        .find(':')
        .map_or(before.len(), |at| user_start + at);
    format!("{}@{after}", &before[..user_end])
}

fn url_of(server: &str, database: &str) -> String {
    let (base, query) = server
        .split_once('?')
        .map_or((server, None), |(base, query)| (base, Some(query)));
    let scheme_end = base.find("://").map_or(0, |at| at + 3);
    let authority_end = base[scheme_end..]
        .find('/')
        .map_or(base.len(), |at| scheme_end + at);
    let url = format!("{}/{database}", &base[..authority_end]);
    query.map_or_else(|| url.clone(), |query| format!("{url}?{query}"))
}

/// A queue with a pool of its own, for the database at `url`.
pub async fn queue_at(url: &str) -> PgmqQueue {
    let pool = PgPoolOptions::new()
        .max_connections(5)
        .connect_lazy_with(connect_options(url).expect("a valid URL"));
    PgmqQueue::new(pool).await
}

/// Everything that a database needs, without jobs. Safe to run twice.
pub async fn prepare(url: &str) -> anyhow::Result<()> {
    PgStore::new(url, PgStoreConfig::default())?
        .migrate()
        .await?;
    let queue = queue_at(url).await;
    queue.install().await?;
    queue.create(&queue_name()).await?;
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(LEDGER).await?;
    Ok(())
}

/// The name of a prepared database that new ones are copied from; made once per server. Its name carries a hash of the
/// schema, so that a server that lives longer than a build is never served an old one.
async fn template(admin: &mut PgConnection, server: &str) -> anyhow::Result<String> {
    let schema = concat!(
        include_str!("../../harness/migrations/0001_processed_jobs.sql"),
        include_str!("../../harness/migrations/0002_dead_letters.sql"),
        include_str!("../../harness/migrations/0003_gate.sql"),
        include_str!("../../harness/migrations/0004_alerts.sql"),
        include_str!("../../harness/migrations/0005_review_indexes.sql"),
        include_str!("../../harness/migrations/0006_escalation.sql"),
        include_str!("../../harness/migrations/0007_batches.sql"),
    );
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{schema}{LEDGER}").as_bytes()).simple();
    let name = format!("harness_template_{hash}");
    admin
        .execute("SELECT pg_advisory_lock(hashtextextended('job-harness: test template', 0))")
        .await?;
    let there: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(&name)
            .fetch_one(&mut *admin)
            .await?;
    if !there {
        let making = format!("making_{name}");
        for statement in [
            format!("DROP DATABASE IF EXISTS {making} WITH (FORCE)"),
            format!("CREATE DATABASE {making} TEMPLATE template0 ENCODING 'UTF8'"),
        ] {
            admin.execute(AssertSqlSafe(statement)).await?;
        }
        prepare(&url_of(server, &making))
            .await
            .context("cannot prepare the template database")?;
        // Renamed when complete, so that nobody copies a half of it; pools of `prepare` may take a moment to close.
        let close = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{making}'"
        );
        let rename = format!("ALTER DATABASE {making} RENAME TO {name}");
        crate::clock::eventually("renaming the template database", async || {
            admin.execute(AssertSqlSafe(close.clone())).await?;
            admin.execute(AssertSqlSafe(rename.clone())).await
        })
        .await;
    }
    admin
        .execute("SELECT pg_advisory_unlock(hashtextextended('job-harness: test template', 0))")
        .await?;
    Ok(name)
}
