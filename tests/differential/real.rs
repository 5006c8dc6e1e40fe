//! PostgreSQL, driven by hand. Its clock is the script's: `clock_timestamp()` is found in another schema first. So times are the
//! same on both sides to the millisecond, and pass when the script says so.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::Duration;

use acceptance::clock::DEADLINE;
use acceptance::db::Db;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use harness::{Clock as _, JobId, PgStore, PgStoreConfig, StoreError, SystemClock};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

use crate::script::{ACTORS, Act, IMPATIENT, State, Step, consumer_name};
use crate::side::{CONTENDED, Claims, Done, Held, REFUSED, ReviewingTx, Side, perform};
use crate::simulated::Ended;

pub struct Pg;

fn class(error: sqlx::Error) -> StoreError {
    let code = error
        .as_database_error()
        .and_then(|it| it.code())
        .map(|it| it.into_owned());
    match code.as_deref() {
        Some("55P03" | "40P01" | "40001") => StoreError::Contention(error.into()),
        Some("57P01") | None => StoreError::Away(error.into()),
        Some(_) => StoreError::Refused(error.into()),
    }
}

async fn pid(connection: &mut PgConnection) -> Option<i32> {
    sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(connection)
        .await
        .ok()
}

impl Side for Pg {
    type Store = PgStore;

    fn effect(
        connection: &mut PgConnection,
        job: JobId,
        consumer: u8,
        _: u32,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            sqlx::query(
                "INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, $2, 'ada', 1)",
            )
            .bind(job.as_uuid())
            .bind(consumer_name(consumer).as_str())
            .execute(connection)
            .await
            .map(|_| ())
            .map_err(class)
        })
    }

    fn failing(connection: &mut PgConnection) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            connection
                .execute("SELECT 1 / 0")
                .await
                .map(|_| ())
                .map_err(class)
        })
    }

    fn working_pid(connection: &mut PgConnection) -> BoxFuture<'_, Option<i32>> {
        Box::pin(pid(connection))
    }

    fn reviewing_pid(tx: &mut ReviewingTx<Self>) -> BoxFuture<'_, Option<i32>> {
        Box::pin(pid(tx.connection()))
    }
}

/// A logical clock, in milliseconds since 2026. A sequence, because it is not part of any transaction.
const CLOCK: &str = "
    CREATE SCHEMA script;
    CREATE SEQUENCE script.clock MINVALUE 0;
    CREATE FUNCTION script.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
        $$ SELECT timestamptz '2026-01-01 00:00:00Z' + last_value * interval '1 ms' FROM script.clock $$;
    ALTER TABLE core.dead_letters ALTER created_at SET DEFAULT script.clock_timestamp();
    ALTER TABLE core.alert_incidents ALTER sent_at SET DEFAULT script.clock_timestamp();
    ALTER TABLE core.processed_jobs SET (autovacuum_enabled = off);
    ALTER TABLE core.dead_letters SET (autovacuum_enabled = off);
    ALTER TABLE core.dead_letter_alerts SET (autovacuum_enabled = off);
    ALTER TABLE core.alert_streams SET (autovacuum_enabled = off);
    ALTER TABLE core.alert_incidents SET (autovacuum_enabled = off);
    ALTER TABLE ledger SET (autovacuum_enabled = off);
    DO $$ BEGIN
        EXECUTE format('ALTER DATABASE %I SET search_path = script, pg_catalog, public', current_database());
        EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database());
    END $$;";

const TABLES: [&str; 6] = [
    "ledger",
    "core.processed_jobs",
    "core.alert_incidents",
    "core.dead_letter_alerts",
    "core.alert_streams",
    "core.dead_letters",
];

/// What `Tables::rows` tells of the simulated database.
const ROWS: &str = "
    SELECT format('fence %s %s: processed %s, expires %s', job_id, consumer,
                  script.ms(processed_at), script.ms(expires_at))
        FROM core.processed_jobs
    UNION ALL
    SELECT format('effect %s %s: %s', job_id, consumer, count(*)) FROM ledger GROUP BY job_id, consumer
    UNION ALL
    SELECT format('letter %s: %s %s generation %s %s %s because %s, created %s, reviewed %s by %s', id, job_id, consumer,
                  generation, reason, status, coalesce(discard_reason, '-'), script.ms(created_at),
                  script.ms(reviewed_at), coalesce(reviewed_by, '-'))
        FROM core.dead_letters
    UNION ALL
    SELECT format('owed %s: %s written %s, new %s %s, overdue %s %s', dead_letter_id, fingerprint, script.ms(written_at),
                  coalesce(claim_id::text, '-'), script.yes(covered_at IS NOT NULL),
                  coalesce(escalation_id::text, '-'), script.yes(escalated_at IS NOT NULL))
        FROM core.dead_letter_alerts
    UNION ALL
    SELECT format('stream %s %s: sent %s, next %s, failures %s, claim %s', fingerprint, kind, script.ms(last_sent_at),
                  script.ms(nullif(next_attempt_at, '-infinity')), failures, coalesce(claim_id::text, '-'))
        FROM core.alert_streams
    UNION ALL
    SELECT format('incident %s: %s sent %s', id, fingerprint, script.ms(sent_at))
        FROM core.alert_incidents WHERE resolved_at IS NULL AND external_id IS NOT NULL";

const FORMATS: &str = "
    CREATE FUNCTION script.ms(at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS
        $$ SELECT coalesce(round(extract(epoch FROM at - timestamptz '2026-01-01 00:00:00Z') * 1000)::text, '-') $$;
    CREATE FUNCTION script.yes(value boolean) RETURNS text LANGUAGE sql IMMUTABLE AS
        $$ SELECT CASE WHEN value THEN 'true' ELSE 'false' END $$;";

/// Clients of this database that wait for a lock.
const BLOCKED: &str = "
    SELECT DISTINCT l.pid FROM pg_locks l
    WHERE NOT l.granted
      AND (SELECT a.datid FROM pg_stat_get_activity(l.pid) a)
          = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Sessions of clients that are in a transaction.
const IN_TRANSACTION: &str = "
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'job-harness' AND state <> 'idle'";

/// Between two looks at the server. Looking without a pause takes from it what it needs to get ready.
const POLL: Duration = Duration::from_millis(1);

/// Scripts after which dead rows are cleared out.
const TRUNCATE_EVERY: u64 = 500;

type Inflight = FuturesUnordered<BoxFuture<'static, Done<Pg>>>;

pub struct Real {
    db: Db,
    stores: Vec<PgStore>,
    claims: Claims,
    /// What clients hold that do not wait.
    free: BTreeMap<usize, Held<Pg>>,
    inflight: Inflight,
    /// Clients that wait, and the number of their connection.
    waiting: BTreeMap<usize, Option<i32>>,
    /// Whose statement was ended in the name of the lock timeout.
    timed_out: BTreeSet<usize>,
    /// Whose connection was ended while it held a transaction.
    lost: BTreeSet<usize>,
    monitor: PgConnection,
    clock: SystemClock,
    scripts: u64,
    /// Errors in full, by client.
    pub details: BTreeMap<usize, String>,
}

impl Real {
    pub async fn new() -> Self {
        let db = Db::fresh().await;
        db.pool.execute(CLOCK).await.unwrap();
        db.pool.execute(FORMATS).await.unwrap();
        let stores = (0..ACTORS)
            .map(|actor| {
                // What is not to time out has time until the script ends.
                let wait = match actor {
                    IMPATIENT => Duration::from_millis(1),
                    _ => Duration::from_secs(3_600),
                };
                db.store_with(PgStoreConfig {
                    max_connections: 1,
                    fence_wait: wait,
                    lock_wait: wait,
                    ..PgStoreConfig::default()
                })
            })
            .collect();
        let monitor = PgConnection::connect(db.url()).await.unwrap();
        let mut real = Self {
            db,
            stores,
            claims: Claims::default(),
            free: BTreeMap::new(),
            inflight: Inflight::new(),
            waiting: BTreeMap::new(),
            timed_out: BTreeSet::new(),
            lost: BTreeSet::new(),
            monitor,
            clock: SystemClock::new(),
            scripts: 0,
            details: BTreeMap::new(),
        };
        real.reset().await;
        real
    }

    /// Makes something in the schema another way.
    pub async fn redefine(&self, statements: &str) {
        let done = self
            .db
            .pool
            .execute(AssertSqlSafe(statements.to_owned()))
            .await;
        done.unwrap_or_else(|error| panic!("{error}\n{statements}"));
    }

    /// Ends everything that a script that was broken off left behind.
    async fn abandon(&mut self) {
        self.inflight.clear();
        self.free.clear();
        self.waiting.clear();
        self.timed_out.clear();
        self.lost.clear();
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'job-harness'";
        let deadline = self.clock.elapsed() + DEADLINE;
        loop {
            let left: i64 = sqlx::query_scalar(end)
                .fetch_one(&mut self.monitor)
                .await
                .unwrap();
            if left == 0 {
                return;
            }
            assert!(
                self.clock.elapsed() < deadline,
                "{left} connections do not end"
            );
            tokio::task::yield_now().await;
        }
    }

    /// For the next script.
    pub async fn reset(&mut self) {
        let at_rest = self.free.values().all(|held| held.state() == State::Idle);
        if !at_rest || !self.waiting.is_empty() {
            self.abandon().await;
        }
        let clear = if self.scripts.is_multiple_of(TRUNCATE_EVERY) {
            format!("TRUNCATE {};", TABLES.join(", "))
        } else {
            TABLES.map(|table| format!("DELETE FROM {table};")).join("")
        };
        self.scripts += 1;
        let clear = format!(
            "BEGIN; SET LOCAL session_replication_role = replica; {clear} COMMIT; SELECT setval('script.clock', 0)"
        );
        self.monitor.execute(AssertSqlSafe(clear)).await.unwrap();
        self.claims = Claims::default();
        self.free = (0..ACTORS).map(|actor| (actor, Held::Nothing)).collect();
        self.details.clear();
    }

    pub async fn set_clock(&mut self, millis: i64) {
        sqlx::query("SELECT setval('script.clock', $1)")
            .bind(millis)
            .execute(&mut self.monitor)
            .await
            .unwrap();
    }

    pub async fn rows(&mut self) -> Vec<String> {
        let mut rows: Vec<String> = sqlx::query_scalar(ROWS)
            .fetch_all(&mut self.monitor)
            .await
            .unwrap();
        rows.sort();
        rows
    }

    /// Does a step that is possible, and waits until everybody has either ended or waits for a lock. `expected` says how many
    /// will end: when that is true, nobody needs to look at locks for them.
    pub async fn step(&mut self, step: &Step, expected: usize) -> Vec<Ended> {
        let actor = step.actor;
        if step.act == Act::LoseConnection {
            self.lose_connection(actor).await;
            return self.settle(expected).await;
        }
        let Some(held) = self.free.remove(&actor) else {
            return Vec::new();
        };
        let (store, claims) = (self.stores[actor].clone(), self.claims.clone());
        self.inflight.push(Box::pin(perform(
            actor,
            store,
            claims,
            held,
            step.act.clone(),
        )));
        self.waiting.insert(actor, None);
        let ended = self.settle(expected).await;
        if !matches!(step.act, Act::Drop) && self.ended_well(&ended) {
            return ended;
        }
        self.closed().await;
        ended
    }

    fn ended_well(&self, ended: &[Ended]) -> bool {
        let unwell = ["away", "refused", "unknown", "contended", "none"];
        !ended.iter().any(|it| unwell.contains(&it.said.as_str()))
    }

    /// Ends the statements of clients in the name of the lock timeout.
    pub async fn time_out(&mut self, actors: &[usize], expected: usize) -> Vec<Ended> {
        let mut all = Vec::new();
        for actor in actors {
            let pid = self.waiting.get(actor).copied().flatten();
            self.timed_out.insert(*actor);
            sqlx::query("SELECT pg_cancel_backend($1)")
                .bind(pid)
                .execute(&mut self.monitor)
                .await
                .unwrap();
        }
        all.extend(self.settle(expected).await);
        self.closed().await;
        all
    }

    async fn lose_connection(&mut self, actor: usize) {
        let pid = match self.free.get(&actor) {
            Some(held) => held.pid(),
            None => self.waiting.get(&actor).copied().flatten(),
        };
        self.lost.insert(actor);
        sqlx::query("SELECT pg_terminate_backend($1)")
            .bind(pid)
            .execute(&mut self.monitor)
            .await
            .unwrap();
        let gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_get_activity($1))";
        let deadline = self.clock.elapsed() + DEADLINE;
        loop {
            let gone: bool = sqlx::query_scalar(gone)
                .bind(pid)
                .fetch_one(&mut self.monitor)
                .await
                .unwrap();
            if gone {
                return;
            }
            assert!(
                self.clock.elapsed() < deadline,
                "connection {pid:?} does not end"
            );
            self.clock.sleep(POLL).await;
        }
    }

    /// Waits until connections that were let go are closed on the server too.
    async fn closed(&mut self) {
        let deadline = self.clock.elapsed() + DEADLINE;
        loop {
            let held = self
                .free
                .iter()
                .filter(|(actor, held)| held.state() != State::Idle && !self.lost.contains(actor));
            let expected = held.count() + self.waiting.len();
            let open: i64 = sqlx::query_scalar(IN_TRANSACTION)
                .fetch_one(&mut self.monitor)
                .await
                .unwrap();
            if usize::try_from(open) == Ok(expected) {
                return;
            }
            assert!(
                self.clock.elapsed() < deadline,
                "{open} in transactions, not {expected}"
            );
            self.clock.sleep(POLL).await;
        }
    }

    fn end(&mut self, done: Done<Pg>, ended: &mut Vec<Ended>) {
        let Done {
            actor,
            held,
            mut said,
            detail,
        } = done;
        if held.state() == State::Idle {
            self.lost.remove(&actor);
        }
        if self.timed_out.remove(&actor) && said == REFUSED {
            CONTENDED.clone_into(&mut said);
        }
        if let Some(detail) = detail {
            self.details.insert(actor, detail);
        }
        self.waiting.remove(&actor);
        self.free.insert(actor, held);
        ended.push(Ended { actor, said });
    }

    async fn settle(&mut self, expected: usize) -> Vec<Ended> {
        let mut ended = Vec::new();
        while ended.len() < expected && !self.inflight.is_empty() {
            // Longer than any answer takes; when nothing comes, the locks tell why.
            let patience = self.clock.sleep(Duration::from_millis(200));
            tokio::select! {
                biased;
                done = self.inflight.next() => {
                    if let Some(done) = done {
                        self.end(done, &mut ended);
                    }
                }
                () = patience => break,
            }
        }
        let deadline = self.clock.elapsed() + DEADLINE;
        while !self.inflight.is_empty() {
            let (blocked, done) = self.look().await;
            if done.is_empty() && blocked.len() == self.waiting.len() {
                self.name(&blocked);
                break;
            }
            for done in done {
                self.end(done, &mut ended);
            }
            assert!(
                self.clock.elapsed() < deadline,
                "{:?} neither end nor wait for a lock; {blocked:?} wait",
                self.waiting
            );
        }
        ended
    }

    /// Who waits for a lock, and what ended while we looked.
    async fn look(&mut self) -> (BTreeSet<i32>, Vec<Done<Pg>>) {
        let mut looking = pin!(sqlx::query_scalar::<_, i32>(BLOCKED).fetch_all(&mut self.monitor));
        let mut done = Vec::new();
        let blocked = loop {
            tokio::select! {
                biased;
                Some(it) = self.inflight.next() => done.push(it),
                blocked = &mut looking => break blocked.unwrap(),
            }
        };
        (blocked.into_iter().collect(), done)
    }

    /// The one that waits and was not known to is who has no number yet.
    fn name(&mut self, blocked: &BTreeSet<i32>) {
        let known: BTreeSet<i32> = self.waiting.values().copied().flatten().collect();
        let mut new = blocked.difference(&known);
        for pid in self.waiting.values_mut().filter(|pid| pid.is_none()) {
            *pid = new.next().copied();
        }
    }
}
