//! B4, Q2: a dead letter that waits for a decision for too long is alerted once more, and once only.

use std::time::Duration;

use acceptance::db::{Db, random_id};
use acceptance::rig::watched;
use harness::{
    AlertClaim, AlertDue, AlertKind, AlertPumpConfig, AlertStore as _, DiscardReason, PgStore,
    Review, Reviewer, Step,
};
use wiremock::ResponseTemplate;

use crate::pumping::{
    Pump, TOKEN, age_letters, all_covered, better_stack, bodies_of, created, endpoint, escalated,
    quick, write_letters,
};

const AFTER: Duration = Duration::from_secs(3_600);

fn escalating() -> AlertPumpConfig {
    AlertPumpConfig {
        escalate_after: AFTER,
        escalate_window: Duration::from_millis(10),
        ..quick()
    }
}

fn overdue(window: Duration) -> AlertDue {
    AlertDue {
        kind: AlertKind::Overdue,
        age: AFTER,
        window,
    }
}

async fn claim(store: &PgStore, due: &AlertDue, lease: Duration) -> Option<AlertClaim> {
    store.claim_alert(random_id(), due, lease).await.unwrap()
}

/// Letters that are alerted.
async fn alerted(letters: usize) -> (Db, wiremock::MockServer) {
    let db = Db::fresh().await;
    let endpoint = endpoint(|_| created()).await;
    write_letters(&db, letters).await;
    let pump = Pump::start(&db, &endpoint, escalating());
    all_covered(&db, i64::try_from(letters).unwrap()).await;
    pump.stop().await;
    assert_eq!(bodies_of(&endpoint, "overdue").await.len(), 0);
    (db, endpoint)
}

#[tokio::test]
async fn b4_an_overdue_letter_is_escalated_once_whoever_pumps() {
    let (db, endpoint) = alerted(7).await;
    age_letters(&db).await;
    let pumps: Vec<Pump> = (0..3)
        .map(|_| Pump::start(&db, &endpoint, escalating()))
        .collect();
    escalated(&db, 7).await;
    // A later one is escalated by itself: the others are not told of again.
    write_letters(&db, 1).await;
    all_covered(&db, 8).await;
    age_letters(&db).await;
    escalated(&db, 8).await;
    let steps: usize = pumps
        .iter()
        .map(|pump| {
            pump.seen
                .count(|step| matches!(step, Step::Escalated { .. }))
        })
        .sum();
    for pump in pumps {
        pump.stop().await;
    }
    let bodies = bodies_of(&endpoint, "overdue").await;
    let said: Vec<_> = bodies
        .iter()
        .map(|it| it["metadata"]["dead_letters"].as_str().unwrap())
        .collect();
    assert_eq!(said, ["7", "1"]);
    assert_eq!(steps, 2);
    let name = bodies[0]["name"].as_str().unwrap();
    assert_eq!(
        name,
        "7 dead letters still wait for review in points: as_told (hard)"
    );
    let first: chrono::DateTime<chrono::Utc> = sqlx::query_scalar(
        "SELECT min(written_at) + interval '2 hours' FROM core.dead_letter_alerts",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    let since = format!("wait for review since {}", first.to_rfc3339());
    for field in ["summary", "description"] {
        let text = bodies[0][field].as_str().unwrap();
        assert!(text.contains(&since), "{field}: {text:?} has no {since:?}");
    }
}

#[tokio::test]
async fn b4_a_letter_that_was_decided_is_not_escalated() {
    let (db, endpoint) = alerted(3).await;
    let letters = db.letters().await;
    let review = Review::new(db.store(), db.queue().await, watched().0);
    let by = Reviewer::new("olga").unwrap();
    review.replay(letters[0].letter.id, &by).await.unwrap();
    let reason = DiscardReason::new("the account is closed").unwrap();
    let discarded = review.discard(letters[1].letter.id, &reason, &by).await;
    discarded.unwrap();
    age_letters(&db).await;
    let pump = Pump::start(&db, &endpoint, escalating());
    escalated(&db, 1).await;
    pump.stop().await;
    let bodies = bodies_of(&endpoint, "overdue").await;
    assert_eq!(bodies.len(), 1);
    assert_eq!(bodies[0]["metadata"]["dead_letters"], "1");
    assert_eq!(
        bodies[0]["metadata"]["sample"],
        letters[2].letter.id.to_string()
    );
    assert_eq!(
        claim(&db.store(), &overdue(Duration::ZERO), AFTER).await,
        None
    );
}

#[tokio::test]
async fn b4_escalations_are_grouped_by_their_own_window() {
    let (db, _endpoint) = alerted(2).await;
    let (store, lease) = (db.store(), Duration::from_secs(60));
    assert_eq!(
        claim(&store, &overdue(Duration::ZERO), lease).await,
        None,
        "not overdue yet"
    );
    age_letters(&db).await;
    let first = claim(&store, &overdue(AFTER), lease).await.unwrap();
    assert_eq!((first.letters, first.kind), (2, AlertKind::Overdue));
    assert_eq!(store.alert_delivered(&first, None).await.unwrap(), 2);
    write_letters(&db, 1).await;
    db.execute("UPDATE core.dead_letter_alerts SET covered_at = now() WHERE covered_at IS NULL")
        .await;
    age_letters(&db).await;
    assert_eq!(
        claim(&store, &overdue(AFTER), lease).await,
        None,
        "within the window"
    );
    let next = claim(&store, &overdue(Duration::ZERO), lease)
        .await
        .unwrap();
    assert_eq!(next.letters, 1);
}

/// "Once more" needs a first time.
#[tokio::test]
async fn b4_a_letter_is_alerted_before_it_is_escalated() {
    let db = Db::fresh().await;
    write_letters(&db, 1).await;
    age_letters(&db).await;
    let (store, lease) = (db.store(), Duration::from_secs(60));
    assert_eq!(claim(&store, &overdue(Duration::ZERO), lease).await, None);
    let new = AlertDue {
        kind: AlertKind::New,
        age: Duration::ZERO,
        window: Duration::ZERO,
    };
    let first = claim(&store, &new, lease).await.unwrap();
    store.alert_delivered(&first, None).await.unwrap();
    let second = claim(&store, &overdue(Duration::ZERO), lease).await;
    assert_eq!(second.unwrap().letters, 1);
}

/// The pump dies after the escalation was accepted and before that was written down: sent again, never not.
#[tokio::test]
async fn b4_a_crash_in_an_escalation_sends_it_again() {
    let (db, endpoint) = alerted(4).await;
    age_letters(&db).await;
    let store = db.store();
    let lease = Duration::from_secs(3);
    let lost = claim(&store, &overdue(Duration::ZERO), lease)
        .await
        .unwrap();
    assert_eq!(lost.letters, 4);
    assert_eq!(claim(&store, &overdue(Duration::ZERO), lease).await, None);
    let pump = Pump::start(&db, &endpoint, escalating());
    escalated(&db, 4).await;
    pump.stop().await;
    assert_eq!(bodies_of(&endpoint, "overdue").await.len(), 1);
    // Back to life: nothing is escalated twice, and what is open at the service is known, so that it will be closed.
    let external = harness::ExternalId("lost".to_owned());
    let covered = store.alert_delivered(&lost, Some(&external)).await;
    assert_eq!(covered.unwrap(), 0);
    let open =
        "SELECT count(*) FROM core.alert_incidents WHERE external_id = 'lost' AND kind = 'overdue'";
    assert_eq!(db.count(open).await, 1);
}

/// Whoever comes late must not cut the turn of the next one short.
#[tokio::test]
async fn b4_a_claim_that_was_taken_over_changes_nothing() {
    let (db, _endpoint) = alerted(1).await;
    age_letters(&db).await;
    let (store, due) = (db.store(), overdue(Duration::ZERO));
    let late = claim(&store, &due, Duration::ZERO).await.unwrap();
    let next = claim(&store, &due, AFTER).await.unwrap();
    let failed = store.alert_failed(&late, Duration::ZERO, "late").await;
    failed.unwrap();
    assert_eq!(claim(&store, &due, AFTER).await, None);
    assert_eq!(store.alert_delivered(&late, None).await.unwrap(), 0);
    assert_eq!(claim(&store, &due, AFTER).await, None);
    assert_eq!(store.alert_delivered(&next, None).await.unwrap(), 1);
}

#[tokio::test]
async fn b4_an_escalation_that_is_refused_is_sent_again_by_its_own_policy() {
    let db = Db::fresh().await;
    let endpoint = endpoint(|n| match n {
        1..4 => ResponseTemplate::new(503).set_body_string(format!("you sent {TOKEN}")),
        _ => created(),
    })
    .await;
    write_letters(&db, 2).await;
    let mut service = better_stack(&endpoint);
    service.policy_id = Some("daily".to_owned());
    service.escalation_policy_id = Some("loud".to_owned());
    let pump = Pump::of(db.store(), service, escalating());
    all_covered(&db, 2).await;
    age_letters(&db).await;
    escalated(&db, 2).await;
    assert!(
        pump.seen
            .count(|step| matches!(step, Step::AlertFailed { .. }))
            >= 3
    );
    for event in pump.seen.events() {
        assert!(!format!("{event:?}").contains(TOKEN), "{event:?}");
    }
    pump.stop().await;
    for (kind, policy) in [("new", "daily"), ("overdue", "loud")] {
        let bodies = bodies_of(&endpoint, kind).await;
        assert!(!bodies.is_empty());
        assert!(bodies.iter().all(|it| it["policy_id"] == policy), "{kind}");
    }
}

/// Rows and entries of indexes that the alert tables gave to this connection so far. The server forgets them
/// when it has collected them, between two transactions.
async fn counted(connection: &mut sqlx::PgConnection) -> i64 {
    sqlx::query_scalar(
        "SELECT coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0)::bigint FROM pg_class \
         WHERE relname ~ '^(dead_letter|alert_incidents)' AND relkind IN ('r', 'i')",
    )
    .fetch_one(connection)
    .await
    .unwrap()
}

/// With many letters, looking for something to do reads a few rows, not all of them.
#[tokio::test]
async fn b4_looking_for_work_is_cheap_with_many_letters() {
    let (db, _endpoint) = alerted(1).await;
    // Pending and alerted, one of twenty fingerprints each; written lately.
    db.execute(
        "INSERT INTO core.dead_letters (id, job_id, consumer, queue, correlation_id, generation, reason, error_class, \
         attempts, last_error, payload, body, headers) \
         SELECT gen_random_uuid(), gen_random_uuid(), 'awards', 'points', 'c', 0, 'hard', 'class' || n % 20, 1, 'e', '{}', '', '{}' \
         FROM generate_series(1, 50000) n",
    )
    .await;
    db.execute("UPDATE core.dead_letter_alerts SET covered_at = now()")
        .await;
    db.execute(
        "INSERT INTO core.alert_incidents (id, kind, fingerprint, letters, external_id) \
         SELECT gen_random_uuid(), 'new', 'points/awards/hard/class' || n % 20, 1, 'x' FROM generate_series(1, 5000) n",
    )
    .await;
    // As if the service had refused something of everything, so that nothing is passed over.
    db.execute("UPDATE core.alert_streams SET failures = 1")
        .await;
    db.execute("VACUUM ANALYZE").await;
    let calls = [
        "SELECT count(*) FROM core.claim_alert(gen_random_uuid(), 'new', '0', '0', '1h')",
        "SELECT count(*) FROM core.claim_alert(gen_random_uuid(), 'overdue', '1h', '0', '1h')",
        "SELECT count(*) FROM core.claim_resolve(gen_random_uuid(), '1h')",
        "SELECT core.alerts_failing('1h')::int::bigint",
    ];
    // Also with the plans that the server keeps for a connection that asks again and again.
    let mut connection = db.pool.acquire().await.unwrap();
    for call in calls {
        for round in 0..10 {
            let mut tx = sqlx::Connection::begin(&mut *connection).await.unwrap();
            let before = counted(&mut tx).await;
            let found: i64 = sqlx::query_scalar(call).fetch_one(&mut *tx).await.unwrap();
            let read = counted(&mut tx).await - before;
            tx.rollback().await.unwrap();
            assert_eq!(found, 0, "{call}");
            assert!(read < 200, "round {round}: {call} read {read} rows");
        }
    }
    // What is due is found, and no other row is touched.
    db.execute(
        "UPDATE core.dead_letter_alerts SET written_at = now() - interval '2 hours' WHERE dead_letter_id IN \
         (SELECT dead_letter_id FROM core.dead_letter_alerts WHERE fingerprint LIKE '%class7' LIMIT 3)",
    )
    .await;
    let mut tx = sqlx::Connection::begin(&mut *connection).await.unwrap();
    let before = counted(&mut tx).await;
    let letters: i64 = sqlx::query_scalar(
        "SELECT letters FROM core.claim_alert(gen_random_uuid(), 'overdue', '1h', '0', '1h')",
    )
    .fetch_one(&mut *tx)
    .await
    .unwrap();
    let read = counted(&mut tx).await - before;
    assert_eq!(letters, 3);
    assert!(read < 200, "{read} rows read");
    tx.rollback().await.unwrap();
}
