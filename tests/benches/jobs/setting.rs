//! A database with a queue of jobs in it.

use acceptance::db::Db;
use anyhow::Context as _;
use embedded_pg::Postgres;
use sqlx::PgPool;

/// Who writes to the ledger.
pub(crate) const CONSUMER: &str = "awards";

/// A job's message as the queue has it; `$1` numbers the job. The payload is that of the tests: 39 bytes of JSON.
const MESSAGE: &str = r#"jsonb_build_object(
    'headers', jsonb_build_object('x-job-id', md5('job ' || n)::uuid::text, 'x-correlation-id', 'bench'),
    'body', encode(convert_to('{"account":"a' || n % 1000 || '","points":7}', 'UTF8'), 'base64'))"#;

pub(crate) struct Setting {
    db: Db,
}

impl Setting {
    /// On a server of its own that writes to its disk what it commits.
    pub(crate) async fn new() -> anyhow::Result<Self> {
        let server = Postgres::own_durable()?;
        Ok(Self {
            db: Db::on(server).await?,
        })
    }

    pub(crate) fn url(&self) -> &str {
        self.db.url()
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    /// The same beginning for every measurement: so many messages, of which so many percent are copies; no fence, no effect.
    pub(crate) async fn fill(&self, messages: u32, duplicates: u32) -> anyhow::Result<()> {
        let pool = self.pool();
        for statement in [
            "TRUNCATE pgmq.q_points RESTART IDENTITY",
            "TRUNCATE pgmq.a_points",
            "TRUNCATE core.processed_jobs",
            "TRUNCATE ledger RESTART IDENTITY",
        ] {
            sqlx::query(statement)
                .execute(pool)
                .await
                .context(statement)?;
        }
        let originals = messages - messages * duplicates / 100;
        // A copy comes right behind its original, or as near as there are more copies than originals.
        let fill = format!(
            "SELECT count(pgmq.send('points', {MESSAGE})) \
             FROM (SELECT i % $2 AS n FROM generate_series(0, $1 - 1) AS i ORDER BY i % $2, i) AS jobs"
        );
        let sent: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(fill))
            .bind(i32::try_from(messages)?)
            .bind(i32::try_from(originals)?)
            .fetch_one(pool)
            .await?;
        anyhow::ensure!(sent == i64::from(messages), "{sent} messages");
        for statement in ["VACUUM (ANALYZE) pgmq.q_points", "CHECKPOINT"] {
            sqlx::query(statement)
                .execute(pool)
                .await
                .context(statement)?;
        }
        Ok(())
    }

    /// Everything was done, and once: a measurement of something else is none.
    pub(crate) async fn check(&self, effects: Option<u32>) -> anyhow::Result<()> {
        let (left, entries): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM pgmq.q_points), (SELECT count(*) FROM ledger)",
        )
        .fetch_one(self.pool())
        .await?;
        anyhow::ensure!(left == 0, "{left} messages are left");
        if let Some(effects) = effects {
            anyhow::ensure!(
                entries == i64::from(effects),
                "{entries} effects, not {effects}"
            );
        }
        Ok(())
    }

    /// Different jobs among the messages.
    pub(crate) async fn jobs(&self) -> anyhow::Result<u32> {
        let jobs: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT message->'headers'->>'x-job-id') FROM pgmq.q_points",
        )
        .fetch_one(self.pool())
        .await?;
        Ok(u32::try_from(jobs)?)
    }
}
