//! A8: no successful job writes a row beyond its fence. B2, B9: duplicates and successes are metrics.

use std::collections::BTreeMap;

use acceptance::award::Award;
use acceptance::db::{Db, job_id};
use acceptance::rig::{Running, awards, handler_fn, run_all};
use harness::{Envelope, FenceVerdict, Observer as _, Step, Telemetry};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

/// Every table of the database, with its number of rows.
async fn rows_of_all_tables(db: &Db) -> BTreeMap<String, i64> {
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables \
         WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let mut rows = BTreeMap::new();
    for table in tables {
        let count = db.count(&format!("SELECT count(*) FROM {table}")).await;
        rows.insert(table, count);
    }
    rows
}

#[tokio::test]
async fn a8_after_1000_successes_every_table_has_exactly_the_rows_it_should() {
    let db = Db::fresh().await;
    let before = rows_of_all_tables(&db).await;
    for n in 0..1_000 {
        db.publish_award(&Award::new("ada", n + 1)).await;
    }
    run_all(&db, awards()).await;
    let mut expected = before;
    *expected.get_mut("core.processed_jobs").unwrap() += 1_000;
    *expected.get_mut("public.ledger").unwrap() += 1_000;
    assert_eq!(rows_of_all_tables(&db).await, expected);
    let (jobs, points): (i64, i64) =
        sqlx::query_as("SELECT count(DISTINCT job_id), sum(points)::bigint FROM ledger")
            .fetch_one(&db.pool)
            .await
            .unwrap();
    assert_eq!((jobs, points), (1_000, 500_500));
}

#[tokio::test]
async fn a8_a_job_that_does_nothing_leaves_its_fence_only() {
    let db = Db::fresh().await;
    let before = rows_of_all_tables(&db).await;
    db.publish(&Envelope::new(job_id(), "{}")).await;
    run_all(&db, handler_fn(|_, _| Box::pin(async { Ok(()) }))).await;
    let mut expected = before;
    *expected.get_mut("core.processed_jobs").unwrap() += 1;
    assert_eq!(rows_of_all_tables(&db).await, expected);
}

#[tokio::test]
async fn b2_a_duplicate_is_acked_and_counted_and_nothing_else() {
    let db = Db::fresh().await;
    let twin = Envelope::new(job_id(), Award::new("ada", 1).body());
    db.publish(&twin).await;
    let consumer = Running::start(&db, db.config(), awards()).await;
    db.settled().await;
    let before = rows_of_all_tables(&db).await;
    let steps_before = consumer.seen.events().len();
    db.publish(&twin).await;
    db.settled().await;
    consumer
        .seen
        .wait_for("acked", 2, |step| matches!(step, Step::Acked))
        .await;
    let steps: Vec<Step> = consumer
        .seen
        .events()
        .drain(steps_before..)
        .map(|event| event.step)
        .collect();
    consumer.stop().await;
    assert!(
        matches!(
            steps[..],
            [
                Step::Received { .. },
                Step::Fence {
                    verdict: FenceVerdict::Duplicate,
                    ..
                },
                Step::Acked
            ]
        ),
        "{steps:?}"
    );
    assert_eq!(rows_of_all_tables(&db).await, before);
}

/// A job that succeeded but whose ack was lost until all attempts were used up: a duplicate, and no dead letter is even
/// tried.
#[tokio::test]
async fn b2_a_duplicate_beyond_the_attempt_limit_is_a_duplicate() {
    let db = Db::fresh().await;
    let id = job_id();
    let mut twin = Envelope::new(id, Award::new("ada", 1).body());
    db.publish(&twin).await;
    let consumer = Running::start(&db, db.config(), awards()).await;
    db.settled().await;
    twin.attempts = 6;
    db.publish(&twin).await;
    db.settled().await;
    consumer
        .seen
        .wait_for("acked", 2, |step| matches!(step, Step::Acked))
        .await;
    let steps = consumer.seen.steps_of(id);
    consumer.stop().await;
    let duplicate = |step: &&Step| {
        matches!(
            step,
            Step::Fence {
                verdict: FenceVerdict::Duplicate,
                ..
            }
        )
    };
    assert_eq!(steps.iter().filter(duplicate).count(), 1, "{steps:?}");
    let lettered = steps.iter().any(|step| {
        matches!(
            step,
            Step::DeadLettered { .. } | Step::DeadLetterAlready | Step::DeadLetterApplied
        )
    });
    assert!(
        !lettered,
        "the fence is asked before the attempt limit: {steps:?}"
    );
    assert!(db.letters().await.is_empty());
}

/// The counters that dashboards read, from a real run: what was observed is told to a recorder.
#[tokio::test]
async fn b9_successes_and_duplicates_are_metrics() {
    let db = Db::fresh().await;
    let twin = Envelope::new(job_id(), Award::new("ada", 1).body());
    for _ in 0..3 {
        db.publish(&twin).await;
    }
    db.publish(&Envelope::new(job_id(), "poison")).await;
    let consumer = Running::start(&db, db.config(), awards()).await;
    db.settled().await;
    consumer
        .seen
        .wait_for("acked", 4, |step| matches!(step, Step::Acked))
        .await;
    let events = consumer.seen.events();
    consumer.stop().await;

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        events.iter().for_each(|event| Telemetry.event(event))
    });
    let mut counters = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let (_, key) = key.into_parts();
        for label in key.labels() {
            let known = [
                "messaging_destination_name",
                "messaging_consumer_group_name",
                "error_type",
                "reason",
                "call",
                "rationale",
            ];
            let bounded = known.contains(&label.key());
            assert!(
                bounded,
                "{key} has a label that may be unbounded: {label:?}"
            );
            assert!(label.value().len() < 30, "{label:?}");
        }
        if let DebugValue::Counter(count) = value {
            *counters.entry(key.name().to_owned()).or_insert(0) += count;
        }
    }
    assert_eq!(
        counters["job_harness_jobs_applied_total"], 1,
        "{counters:?}"
    );
    assert_eq!(counters["job_harness_duplicates_skipped_total"], 2);
    assert_eq!(counters["job_harness_dead_letters_total"], 1);
}
