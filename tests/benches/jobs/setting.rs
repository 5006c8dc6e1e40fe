//! A database with a queue of jobs in it.

use acceptance::award::Award;
use acceptance::db::Db;
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use embedded_pg::Postgres;
use harness::{Envelope, JobId};
use sqlx::PgPool;

/// Who writes to the ledger.
pub(crate) const CONSUMER: &str = "awards";

/// A job's message, as the queue has it.
fn message(job: u32) -> serde_json::Value {
    let id = JobId::from_key(uuid::Uuid::NAMESPACE_OID, &job.to_string());
    let envelope = Envelope::new(id, Award::new(&format!("a{}", job % 1_000), 7).body());
    serde_json::json!({"headers": envelope.wire_headers(), "body": BASE64.encode(&envelope.body)})
}

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
    /// Answers how many different jobs there are.
    pub(crate) async fn fill(&self, messages: u32, duplicates: u32) -> anyhow::Result<u32> {
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
        let mut jobs: Vec<u32> = (0..messages).map(|n| n % originals).collect();
        jobs.sort_unstable();
        let sent: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM (SELECT pgmq.send_batch('points', $1::jsonb[])) AS sent",
        )
        .bind(jobs.into_iter().map(message).collect::<Vec<_>>())
        .fetch_one(pool)
        .await?;
        anyhow::ensure!(sent == i64::from(messages), "{sent} messages");
        for statement in ["VACUUM (ANALYZE) pgmq.q_points", "CHECKPOINT"] {
            sqlx::query(statement)
                .execute(pool)
                .await
                .context(statement)?;
        }
        Ok(originals)
    }

    /// Everything was done, and once: a measurement of something else is none.
    pub(crate) async fn check(&self, effects: u32) -> anyhow::Result<()> {
        let (left, entries): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM pgmq.q_points), (SELECT count(*) FROM ledger)",
        )
        .fetch_one(self.pool())
        .await?;
        anyhow::ensure!(left == 0, "{left} messages are left");
        anyhow::ensure!(
            entries == i64::from(effects),
            "{entries} effects, not {effects}"
        );
        Ok(())
    }
}
