//! A table of fences, as the harness would have left it.

use acceptance::clock::eventually;
use acceptance::db::Db;
use anyhow::Context as _;
use embedded_pg::Postgres;
use harness::{ConsumerName, PgStore, PgStoreConfig, PgmqQueue};
use sqlx::{PgPool, Row as _};

use crate::Ids;
use crate::measured::Sizes;

/// Names as services have them.
const CONSUMERS: [&str; 6] = [
    "awards",
    "mail_receipts",
    "ledger_exports",
    "search_index",
    "partner_webhooks",
    "fraud_checks",
];

/// Rows per transaction when the table is filled.
const AT_ONCE: u32 = 500_000;

/// The n-th consumer.
pub(crate) fn consumer(n: usize) -> anyhow::Result<ConsumerName> {
    let name = CONSUMERS
        .get(n)
        .with_context(|| format!("--batches: at most {} sizes", CONSUMERS.len()))?;
    Ok(ConsumerName::new(name)?)
}

pub(crate) struct Setting {
    db: Db,
    ids: Ids,
}

impl Setting {
    /// On a server of its own that writes to its disk what it commits. Autovacuum leaves the table alone: when it comes would
    /// decide what is measured.
    pub(crate) async fn new(ids: Ids) -> anyhow::Result<Self> {
        let db = Db::on(Postgres::own_durable()?).await?;
        sqlx::query("ALTER TABLE core.processed_jobs SET (autovacuum_enabled = off)")
            .execute(&db.pool)
            .await?;
        Ok(Self { db, ids })
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    pub(crate) fn store(&self) -> anyhow::Result<PgStore> {
        Ok(PgStore::new(self.db.url(), PgStoreConfig::default())?)
    }

    pub(crate) async fn queue(&self) -> PgmqQueue {
        self.db.queue().await
    }

    /// So many rows more, evenly over two days that ended eight days ago, by consumers in turn; all expired with the standard
    /// TTL of 7 days. Written past the seal, as a restore would.
    pub(crate) async fn fill(&self, rows: u32, consumers: u32) -> anyhow::Result<()> {
        let names: Vec<String> = (0..usize::try_from(consumers)?)
            .map(|n| consumer(n).map(|name| name.to_string()))
            .collect::<anyhow::Result<_>>()?;
        let id = match self.ids {
            Ids::Random => "gen_random_uuid()",
            // The first 48 bits are the time in milliseconds, as in UUIDv7.
            Ids::Ordered => {
                "(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
                  || '7' || substr(replace(gen_random_uuid()::text, '-', ''), 14))::uuid"
            }
        };
        let statement = format!(
            "INSERT INTO core.processed_jobs (job_id, consumer, tenant_id, processed_at, expires_at)
             SELECT {id}, ($1::text[])[n % cardinality($1) + 1], gen_random_uuid(), at, at + interval '7 days'
             FROM (SELECT n, now() - interval '10 days' + n * (interval '2 days' / $2) AS at
                   FROM generate_series($3::bigint, $4::bigint) AS n) AS rows"
        );
        let mut from = 0;
        while from < rows {
            let to = rows.min(from + AT_ONCE);
            eprintln!("filling, {to} of {rows} rows");
            let mut tx = self.pool().begin().await?;
            sqlx::query("SET LOCAL session_replication_role = replica")
                .execute(&mut *tx)
                .await?;
            sqlx::query(sqlx::AssertSqlSafe(statement.clone()))
                .bind(&names)
                .bind(f64::from(rows))
                .bind(i64::from(from))
                .bind(i64::from(to) - 1)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            from = to;
        }
        for statement in ["ANALYZE core.processed_jobs", "CHECKPOINT"] {
            sqlx::query(statement)
                .execute(self.pool())
                .await
                .context(statement)?;
        }
        Ok(())
    }

    pub(crate) async fn sizes(&self) -> anyhow::Result<Sizes> {
        let row = sqlx::query(
            "SELECT pg_relation_size('core.processed_jobs'), pg_relation_size('core.processed_jobs_pkey'),
                    pg_relation_size('core.processed_jobs_expiry')",
        )
        .fetch_one(self.pool())
        .await?;
        Ok(Sizes {
            heap: row.try_get(0)?,
            key: row.try_get(1)?,
            expiry: row.try_get(2)?,
        })
    }

    /// As the server's statistics have them. Sessions tell their counts a little late: waits until at least so many are told.
    pub(crate) async fn dead_rows(&self, least: u32) -> i64 {
        eventually("the statistics tell of the dead rows", async || {
            let dead: Result<i64, _> = sqlx::query_scalar(
                "SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = 'core.processed_jobs'::regclass",
            )
            .fetch_one(self.pool())
            .await;
            match dead {
                Ok(dead) if dead >= i64::from(least) => Ok(dead),
                other => Err(format!("{other:?}, not {least}")),
            }
        })
        .await
    }

    /// With the delays that autovacuum makes by default.
    pub(crate) async fn vacuum_at_the_pace_of_autovacuum(&self) -> anyhow::Result<()> {
        let mut connection = self.pool().acquire().await?;
        for statement in [
            "SET vacuum_cost_delay = '2ms'",
            "SET vacuum_cost_limit = 200",
            "VACUUM core.processed_jobs",
        ] {
            sqlx::query(statement)
                .execute(&mut *connection)
                .await
                .context(statement)?;
        }
        Ok(())
    }
}
