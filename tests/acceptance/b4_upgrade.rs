//! B4: a database with letters and incidents in it gets the bookkeeping of escalation and closing, and nothing is lost.

use std::time::Duration;

use acceptance::db::Db;
use harness::{AlertPumpConfig, DeadLetterId, DiscardReason, Review, Reviewer};
use sqlx::Executor as _;
use uuid::Uuid;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer};

use crate::pumping::{Pump, bodies_of, created, escalated, quick, rows};

/// The schema before escalation, as a database has it that was made with it.
const BEFORE: [&str; 5] = [
    include_str!("../../harness/migrations/0001_processed_jobs.sql"),
    include_str!("../../harness/migrations/0002_dead_letters.sql"),
    include_str!("../../harness/migrations/0003_gate.sql"),
    include_str!("../../harness/migrations/0004_alerts.sql"),
    include_str!("../../harness/migrations/0005_review_indexes.sql"),
];

/// `alerted` has two letters in one open incident, one of them decided; `owed` has one that nobody was told of; of `refused`
/// the service would not hear.
const LETTERS: &str = "
    INSERT INTO core.dead_letters (id, job_id, consumer, queue, correlation_id, generation, reason, error_class, attempts,
        last_error, payload, body, headers, status)
    SELECT lpad(n::text, 32, '0')::uuid, gen_random_uuid(), 'awards', 'points', 'order-1', 0, 'hard',
        (ARRAY['alerted', 'alerted', 'owed', 'refused'])[n], 1, 'no such account', '{}', '{}', '{}', 'pending_review'
    FROM generate_series(1, 4) n;
    UPDATE core.alert_streams SET next_attempt_at = 'infinity' WHERE fingerprint !~ 'alerted';
    SELECT core.claim_alert('00000000-0000-4000-8000-000000000001', '0', '1 min');
    SELECT core.alert_delivered('00000000-0000-4000-8000-000000000001', fingerprint, '4711')
        FROM core.alert_streams WHERE fingerprint ~ 'alerted';
    UPDATE core.alert_streams SET next_attempt_at = '-infinity' WHERE fingerprint !~ 'alerted';
    SELECT core.alert_failed(fingerprint, '0', 'HTTP 500') FROM core.alert_streams WHERE fingerprint ~ 'refused';
    UPDATE core.dead_letters SET status = 'discarded', discard_reason = 'closed', reviewed_at = clock_timestamp(), reviewed_by = 'ada'
        WHERE id = lpad('1', 32, '0')::uuid";

async fn before_escalation() -> Db {
    let db = Db::fresh().await;
    db.execute("CREATE TABLE made AS SELECT * FROM core._harness_migrations WHERE version <= 5")
        .await;
    db.execute("DROP SCHEMA core CASCADE; CREATE SCHEMA core")
        .await;
    db.execute("ALTER TABLE made RENAME TO _harness_migrations; ALTER TABLE _harness_migrations SET SCHEMA core; \
         ALTER TABLE core._harness_migrations ADD PRIMARY KEY (version)")
        .await;
    for migration in BEFORE {
        db.pool.execute(migration).await.unwrap();
    }
    db.execute(LETTERS).await;
    db
}

#[tokio::test]
async fn b4_letters_and_incidents_from_before_are_alerted_escalated_and_closed() {
    let db = before_escalation().await;
    db.store().migrate().await.unwrap();
    let copied = "SELECT count(*) FROM core.dead_letter_alerts a JOIN core.dead_letters d ON d.id = a.dead_letter_id \
                  WHERE a.written_at = d.created_at AND a.decided_at IS NOT DISTINCT FROM d.reviewed_at";
    assert_eq!(db.count(copied).await, 4);

    let service = MockServer::start().await;
    Mock::given(method("POST"))
        .respond_with(created())
        .mount(&service)
        .await;
    let config = AlertPumpConfig {
        escalate_after: Duration::from_secs(3_600),
        ..quick()
    };
    let pump = Pump::start(&db, &service, config);
    let covered = "SELECT count(*) FROM core.dead_letter_alerts WHERE covered_at IS NOT NULL";
    rows(&db, "every letter is alerted", 4, covered).await;
    db.execute("UPDATE core.dead_letter_alerts SET written_at = written_at - interval '2 hours'")
        .await;
    // All that are pending: the decided one is not.
    escalated(&db, 3).await;
    let review = Review::new(
        db.store(),
        db.queue().await,
        harness::Env::system().unwrap(),
    );
    let (why, by) = (
        DiscardReason::new("closed").unwrap(),
        Reviewer::new("ada").unwrap(),
    );
    review
        .discard(DeadLetterId(Uuid::from_u128(2)), &why, &by)
        .await
        .unwrap();
    // The incident from before, and the one that said that its letter is overdue.
    let closed = "SELECT count(*) FROM core.alert_incidents WHERE resolved_at IS NOT NULL AND fingerprint ~ 'alerted'";
    rows(&db, "its incidents are closed", 2, closed).await;
    pump.stop().await;
    assert_eq!(
        bodies_of(&service, "new").await.len(),
        2,
        "one each for what was owed"
    );
    assert_eq!(
        bodies_of(&service, "overdue").await.len(),
        3,
        "one each of three kinds"
    );
}
