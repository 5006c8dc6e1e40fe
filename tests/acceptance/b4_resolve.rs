//! B4: when nothing of a kind is left to decide, its incidents are closed at the alert service.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use acceptance::db::{Db, random_id};
use acceptance::rig::watched;
use harness::{
    AlertPumpConfig, AlertStore as _, DeadLetterId, DiscardReason, PgmqQueue, Review, Reviewer,
    Step,
};
use serde_json::Value;
use wiremock::matchers::{method, path, path_regex};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::pumping::{
    Pump, TOKEN, age_letters, all_covered, better_stack, created, escalated, quick, rows,
    write_letters,
};

const RESOLVED: &str = "SELECT count(*) FROM core.alert_incidents WHERE resolved_at IS NOT NULL";

/// Opens every incident, and answers request number n (from 0) to close one with `answer(n)`.
async fn service(answer: impl Fn(usize) -> ResponseTemplate + Send + Sync + 'static) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/api/v3/incidents"))
        .respond_with(created())
        .mount(&server)
        .await;
    let count = AtomicUsize::new(0);
    Mock::given(method("POST"))
        .and(path_regex("^/api/v3/incidents/[^/]+/resolve$"))
        .respond_with(move |_: &Request| answer(count.fetch_add(1, Ordering::SeqCst)))
        .mount(&server)
        .await;
    server
}

fn ok() -> ResponseTemplate {
    ResponseTemplate::new(200)
}

async fn closings(service: &MockServer) -> Vec<Request> {
    let requests = service.received_requests().await.unwrap().into_iter();
    requests
        .filter(|it| it.url.path().ends_with("/resolve"))
        .collect()
}

struct Operators(Review<harness::PgStore, PgmqQueue>, Reviewer);

impl Operators {
    async fn of(db: &Db) -> Self {
        let review = Review::new(db.store(), db.queue().await, watched().0);
        Self(review, Reviewer::new("olga").unwrap())
    }

    async fn discard(&self, id: DeadLetterId) {
        let reason = DiscardReason::new("the account is closed").unwrap();
        self.0.discard(id, &reason, &self.1).await.unwrap();
    }

    async fn replay(&self, id: DeadLetterId) {
        self.0.replay(id, &self.1).await.unwrap();
    }
}

/// Two letters, alerted and escalated; both incidents are open.
async fn two_letters(
    service: &MockServer,
    config: &AlertPumpConfig,
) -> (Db, Operators, Vec<DeadLetterId>, Pump) {
    let db = Db::fresh().await;
    write_letters(&db, 2).await;
    let pump = Pump::start(&db, service, config.clone());
    all_covered(&db, 2).await;
    age_letters(&db).await;
    escalated(&db, 2).await;
    let letters = db.letters().await;
    let ids = letters.iter().map(|it| it.letter.id).collect();
    let operators = Operators::of(&db).await;
    (db, operators, ids, pump)
}

fn config() -> AlertPumpConfig {
    AlertPumpConfig {
        escalate_after: Duration::from_secs(3_600),
        ..quick()
    }
}

#[tokio::test]
async fn b4_incidents_are_closed_with_the_last_decision_and_not_before() {
    let service = service(|_| ok()).await;
    let (db, operators, letters, pump) = two_letters(&service, &config()).await;
    operators.replay(letters[0]).await;
    let early = db
        .store()
        .claim_resolve(random_id(), Duration::from_secs(60))
        .await;
    assert_eq!(early.unwrap(), None, "one is pending");
    assert_eq!(closings(&service).await.len(), 0);
    operators.discard(letters[1]).await;
    rows(&db, "both incidents are closed", 2, RESOLVED).await;
    pump.seen
        .wait_for("that is told", 2, |step| {
            matches!(step, Step::Resolved { .. })
        })
        .await;
    pump.stop().await;
    let closings = closings(&service).await;
    assert_eq!(closings.len(), 2, "one is new, one is overdue");
    for request in closings {
        assert_eq!(request.url.path(), "/api/v3/incidents/4711/resolve");
        assert_eq!(request.headers["authorization"], format!("Bearer {TOKEN}"));
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body, serde_json::json!({"resolved_by": "ops@example.com"}));
    }
}

/// What another kind of failure waits for is no reason to keep this one open.
#[tokio::test]
async fn b4_only_letters_of_the_same_kind_keep_an_incident_open() {
    let service = service(|_| ok()).await;
    let (db, operators, letters, pump) = two_letters(&service, &config()).await;
    db.publish(&harness::Envelope::new(
        acceptance::db::job_id(),
        b"not json".to_vec(),
    ))
    .await;
    acceptance::rig::run_all(&db, acceptance::rig::awards()).await;
    all_covered(&db, 3).await;
    for id in letters {
        operators.discard(id).await;
    }
    rows(&db, "two incidents are closed", 2, RESOLVED).await;
    pump.stop().await;
    let open = "SELECT count(*) FROM core.alert_incidents WHERE resolved_at IS NULL AND fingerprint LIKE '%/poison/%'";
    assert_eq!(db.count(open).await, 1);
}

#[tokio::test]
async fn b4_several_pumps_close_an_incident_once() {
    let service = service(|_| ok()).await;
    let (db, operators, letters, pump) = two_letters(&service, &config()).await;
    pump.stop().await;
    for id in letters {
        operators.discard(id).await;
    }
    let pumps: Vec<Pump> = (0..3)
        .map(|_| Pump::start(&db, &service, config()))
        .collect();
    rows(&db, "both incidents are closed", 2, RESOLVED).await;
    for pump in pumps {
        pump.stop().await;
    }
    assert_eq!(closings(&service).await.len(), 2);
}

/// Closed by hand, or gone: what we want.
#[tokio::test]
async fn b4_an_incident_that_is_gone_counts_as_closed() {
    let service = service(|n| ResponseTemplate::new([404, 409][n % 2])).await;
    let (db, operators, letters, pump) = two_letters(&service, &config()).await;
    for id in letters {
        operators.discard(id).await;
    }
    rows(&db, "both incidents are closed", 2, RESOLVED).await;
    assert_eq!(
        pump.seen
            .count(|step| matches!(step, Step::ResolveFailed { .. })),
        0
    );
    pump.stop().await;
    assert_eq!(closings(&service).await.len(), 2);
}

#[tokio::test]
async fn b4_closing_is_tried_again_until_the_service_does_it() {
    const HEARTBEAT: &str = "https://uptime.example.com/api/v1/heartbeat/h34rtb34t-s3cr3t";
    let service = service(|n| match n {
        0 => ResponseTemplate::new(500).set_body_string(format!("{TOKEN} {HEARTBEAT}")),
        1 => ResponseTemplate::new(429).insert_header("retry-after", "1"),
        2 => ok().set_delay(Duration::from_secs(30)),
        // The secret ends behind what is quoted.
        3 => ResponseTemplate::new(502).set_body_string("x".repeat(195) + TOKEN),
        _ => ok(),
    })
    .await;
    let (db, operators, letters, pump) = two_letters(&service, &config()).await;
    pump.stop().await;
    for id in letters {
        operators.discard(id).await;
    }
    let impatient = AlertPumpConfig {
        timeout: Duration::from_millis(500),
        lease: Duration::from_secs(1),
        // No heartbeat: this one is only to be kept secret.
        heartbeat_interval: Duration::from_secs(86_400),
        ..config()
    };
    let mut better_stack = better_stack(&service);
    better_stack.heartbeat_url = Some(HEARTBEAT.to_owned());
    better_stack.timeout = Duration::from_millis(500);
    let pump = Pump::of(db.store(), better_stack, impatient);
    rows(&db, "both incidents are closed", 2, RESOLVED).await;
    assert!(
        pump.seen
            .count(|step| matches!(step, Step::ResolveFailed { .. }))
            >= 4
    );
    let events = format!("{:?}", pump.seen.events());
    for secret in [&TOKEN[..5], "h34rtb34t"] {
        assert!(!events.contains(secret), "{secret} in {events}");
    }
    pump.stop().await;
}

#[tokio::test]
async fn b4_an_incident_without_a_name_at_the_service_is_left_alone() {
    let db = Db::fresh().await;
    let endpoint = crate::pumping::endpoint(|_| {
        ResponseTemplate::new(201).set_body_json(serde_json::json!({"data": {"id": "a\u{0}b"}}))
    })
    .await;
    write_letters(&db, 1).await;
    let pump = Pump::start(&db, &endpoint, quick());
    all_covered(&db, 1).await;
    Operators::of(&db)
        .await
        .discard(db.letters().await[0].letter.id)
        .await;
    let claim = db
        .store()
        .claim_resolve(random_id(), Duration::from_secs(60))
        .await;
    assert_eq!(claim.unwrap(), None);
    pump.stop().await;
}
