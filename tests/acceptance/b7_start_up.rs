//! B7, B3 and D1: what is refused at start-up, and a schema that is safe to make twice.

use std::time::Duration;

use acceptance::db::Db;
use acceptance::rig::{awards, watched};
use harness::{Consumer, ConsumerConfig, PgStore, PgStoreConfig};
use sqlx::Executor as _;

async fn refused(db: &Db, change: impl FnOnce(&mut ConsumerConfig)) -> String {
    let mut config = db.config();
    change(&mut config);
    let handler = awards();
    match Consumer::new(config, db.store(), db.queue().await, handler, watched().0) {
        Ok(_) => panic!("the configuration was accepted"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn b7_a_ttl_that_does_not_exceed_the_retry_window_is_refused_by_name() {
    let db = Db::fresh().await;
    let error = refused(&db, |config| config.fence.ttl = Duration::from_secs(86_400)).await;
    for part in [
        "fence.ttl",
        "retry window 1755s",
        "broker retention 345600s",
        "resend horizon 86400s",
        "margin 86400s",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[tokio::test]
async fn b3_settings_that_cannot_work_are_refused_by_name() {
    let db = Db::fresh().await;
    assert_eq!(
        refused(&db, |config| config.concurrency = 0).await,
        "concurrency: must be at least 1"
    );
    assert_eq!(
        refused(&db, |config| config.batch = 0).await,
        "batch: 0 is no number of jobs for one transaction, must be from 1 to 10000"
    );
    let error = refused(&db, |config| config.lease = Duration::from_millis(10)).await;
    assert!(error.starts_with("lease: 10ms is too short"), "{error}");
    let error = refused(&db, |config| config.run_deadline = Duration::ZERO).await;
    assert!(
        error.starts_with("run_deadline: 0ns is too short"),
        "{error}"
    );
}

#[tokio::test]
async fn d1_the_schema_can_be_made_twice_and_by_many_at_once() {
    let db = Db::fresh().await;
    db.execute("DROP SCHEMA core CASCADE").await;
    db.execute("DROP SCHEMA pgmq CASCADE").await;
    let makers: Vec<_> = (0..4)
        .map(|_| {
            let url = db.url().to_owned();
            tokio::spawn(async move { acceptance::db::prepare(&url).await })
        })
        .collect();
    for maker in makers {
        maker.await.unwrap().unwrap();
    }
    acceptance::db::prepare(db.url()).await.unwrap();
    let applied = db
        .count("SELECT count(*) FROM core._harness_migrations WHERE success")
        .await;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../harness/migrations");
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(applied, files as i64, "each migration once");
    let hosts = db
        .count("SELECT count(*) FROM pg_tables WHERE tablename = '_sqlx_migrations'")
        .await;
    assert_eq!(
        hosts, 0,
        "the host application's own list of migrations is left alone"
    );
}

#[tokio::test]
async fn d1_a_schema_that_was_altered_is_refused() {
    let db = Db::fresh().await;
    db.execute("UPDATE core._harness_migrations SET checksum = '\\x00' WHERE version = 3")
        .await;
    let error = db.store().migrate().await.unwrap_err().to_string();
    assert!(
        error.contains("migration 3 was previously applied but has been modified"),
        "{error}"
    );
}

#[tokio::test]
async fn d1_a_database_that_is_not_utf8_is_refused() {
    let db = Db::fresh().await;
    let name = format!("harness_test_{}", acceptance::db::random_id().simple());
    let create = format!(
        "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    );
    db.pool.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
    let url = db.url().rsplit_once('/').unwrap().0.to_owned() + "/" + &name;
    let store = PgStore::new(&url, PgStoreConfig::default()).unwrap();
    let error = store.migrate().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the database's encoding is LATIN1; create it with ENCODING 'UTF8'"
    );
    store.close().await;
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    db.pool.execute(sqlx::AssertSqlSafe(drop)).await.unwrap();
}

/// Nothing but the harness commits a fence, not even by accident.
#[tokio::test]
async fn b1_a_fence_is_committed_by_the_harness_only() {
    let db = Db::fresh().await;
    let insert = "INSERT INTO core.processed_jobs (job_id, consumer, processed_at, expires_at) \
                  VALUES (gen_random_uuid(), 'awards', now(), now() + interval '7 days')";
    let error = db.pool.execute(insert).await.unwrap_err().to_string();
    assert!(
        error.contains("a fence is committed by the harness only"),
        "{error}"
    );
}

/// An override is visible where people look: in the metrics, with its rationale.
#[tokio::test]
async fn b3_an_overridden_policy_is_visible_with_its_rationale() {
    use harness::{Observer as _, RetryPolicy, Shutdown, Step, Telemetry};
    let db = Db::fresh().await;
    let mut config = db.config();
    let second = Duration::from_secs(1);
    config.retry =
        RetryPolicy::overriding(second, second, 2, "the provider bans us after 3 calls").unwrap();
    let (env, seen) = watched();
    let handler = awards();
    let consumer = Consumer::new(config, db.store(), db.queue().await, handler, env).unwrap();
    let shutdown = Shutdown::new();
    shutdown.begin();
    consumer.run(shutdown).await;
    let started = seen
        .events()
        .into_iter()
        .find(|event| matches!(event.step, Step::Started { .. }))
        .unwrap();
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || Telemetry.event(&started));
    let shown = format!("{:?}", snapshotter.snapshot().into_vec());
    for part in [
        "job_harness_retry_policy_runs",
        "the provider bans us after 3 calls",
        "Gauge(3.0)",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
}
