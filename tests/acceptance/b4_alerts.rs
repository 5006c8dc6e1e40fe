//! B4: dead letters are alerted, through the Better Stack adapter, at an endpoint that misbehaves.

use std::sync::Arc;
use std::time::Duration;

use acceptance::award::{Award, Misbehave};
use acceptance::clock::eventually;
use acceptance::db::{Db, job_id};
use acceptance::rig::{awards, run_all};
use harness::{
    AlertDue, AlertKind, AlertPumpConfig, AlertStore as _, BetterStack, BetterStackConfig,
    Envelope, Step,
};
use serde_json::Value;
use wiremock::ResponseTemplate;

use crate::pumping::{
    Pump, TOKEN, accepted_bodies, all_covered, created, endpoint, quick, write_letters,
};

#[tokio::test]
async fn b4_a_dead_letter_opens_an_incident_that_says_what_to_know() {
    let db = Db::fresh().await;
    let endpoint = endpoint(|_| created()).await;
    write_letters(&db, 1).await;
    let pump = Pump::start(&db, &endpoint, quick());
    all_covered(&db, 1).await;
    pump.stop().await;
    let requests = endpoint.received_requests().await.unwrap();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        requests[0].headers["authorization"],
        format!("Bearer {TOKEN}")
    );
    let body: Value = serde_json::from_slice(&requests[0].body).unwrap();
    let letter = db.letters().await.remove(0).letter;
    assert_eq!(body["requester_email"], "ops@example.com");
    assert_eq!(body["name"], "1 dead letter in points: as_told (hard)");
    assert_eq!(
        body["metadata"]["fingerprint"],
        "points/awards/hard/as_told"
    );
    let description = body["description"].as_str().unwrap();
    for part in [
        letter.id.to_string(),
        letter.job_id.to_string(),
        letter.last_error,
    ] {
        assert!(
            description.contains(&part),
            "{part:?} is not in {description:?}"
        );
    }
    let external: Option<String> =
        sqlx::query_scalar("SELECT external_id FROM core.alert_incidents")
            .fetch_one(&db.pool)
            .await
            .unwrap();
    assert_eq!(external.as_deref(), Some("4711"));
}

#[tokio::test]
async fn b4_a_burst_of_2000_makes_a_handful_of_incidents() {
    let db = Db::fresh().await;
    let endpoint = endpoint(|_| created()).await;
    let mut config = quick();
    config.window = Duration::from_secs(3);
    let pump = Pump::start(&db, &endpoint, config);
    write_letters(&db, 2_000).await;
    all_covered(&db, 2_000).await;
    pump.stop().await;
    let bodies = accepted_bodies(&endpoint).await;
    let said: u64 = bodies
        .iter()
        .map(|it| {
            it["metadata"]["dead_letters"]
                .as_str()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        })
        .sum();
    assert_eq!(said, 2_000, "each incident says how many it stands for");
    // A handful; and what "grouped" means, whatever the machine's speed: never two of one fingerprint in one window.
    assert!(bodies.len() <= 20, "{} incidents", bodies.len());
    let closest: f64 = sqlx::query_scalar(
        "SELECT coalesce(min(extract(epoch FROM gap)), 1000)::float8 FROM \
         (SELECT sent_at - lag(sent_at) OVER (PARTITION BY fingerprint ORDER BY sent_at) AS gap FROM core.alert_incidents) g",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert!(closest >= 3.0, "two incidents {closest} s apart");
}

#[tokio::test]
async fn b4_different_failures_are_different_incidents() {
    let db = Db::fresh().await;
    let endpoint = endpoint(|_| created()).await;
    for body in [
        Award::new("ada", 1).then(Misbehave::FailHard).body(),
        b"not json".to_vec(),
        b"{}".to_vec(),
    ] {
        db.publish(&Envelope::new(job_id(), body)).await;
    }
    run_all(&db, awards()).await;
    let pump = Pump::start(&db, &endpoint, quick());
    all_covered(&db, 3).await;
    pump.stop().await;
    let mut prints: Vec<String> = accepted_bodies(&endpoint)
        .await
        .iter()
        .map(|it| it["metadata"]["fingerprint"].as_str().unwrap().to_owned())
        .collect();
    prints.sort();
    assert_eq!(
        prints,
        [
            "points/awards/hard/as_told",
            "points/awards/poison/poison:json",
            "points/awards/poison/poison:schema"
        ]
    );
}

/// Fails, hangs, is throttled: and in the end every letter is covered.
async fn misbehaving(answer: impl Fn(usize) -> ResponseTemplate + Send + Sync + 'static) {
    let db = Db::fresh().await;
    let endpoint = endpoint(move |n| if n < 3 { answer(n) } else { created() }).await;
    let impatient = AlertPumpConfig {
        timeout: Duration::from_millis(500),
        lease: Duration::from_secs(1),
        ..quick()
    };
    let pump = Pump::start(&db, &endpoint, impatient);
    write_letters(&db, 20).await;
    all_covered(&db, 20).await;
    assert!(
        pump.seen
            .count(|step| matches!(step, Step::AlertFailed { .. }))
            >= 3
    );
    for event in pump.seen.events() {
        assert!(
            !format!("{event:?}").contains(TOKEN),
            "the token never appears: {event:?}"
        );
    }
    pump.stop().await;
}

#[tokio::test]
async fn b4_an_endpoint_that_fails() {
    misbehaving(|_| ResponseTemplate::new(500).set_body_string(format!("you sent {TOKEN}"))).await;
}

#[tokio::test]
async fn b4_an_endpoint_that_throttles() {
    misbehaving(|_| ResponseTemplate::new(429).insert_header("retry-after", "1")).await;
}

#[tokio::test]
async fn b4_an_endpoint_that_hangs() {
    misbehaving(|_| created().set_delay(Duration::from_secs(30))).await;
}

/// Alerting that hangs for ever takes nothing from consumers.
#[tokio::test]
async fn b4_consumers_never_wait_for_alerting() {
    let db = Db::fresh().await;
    let endpoint = endpoint(|_| created().set_delay(Duration::from_secs(600))).await;
    let pump = Pump::start(
        &db,
        &endpoint,
        AlertPumpConfig {
            timeout: Duration::from_secs(500),
            ..quick()
        },
    );
    write_letters(&db, 1).await;
    eventually("the pump hangs in a request", async || {
        match endpoint.received_requests().await.unwrap().len() {
            0 => Err("no request"),
            _ => Ok(()),
        }
    })
    .await;
    for n in 0..50 {
        db.publish_award(&Award::new("ada", n + 1)).await;
        db.publish_award(&Award::new("ben", n + 1).then(Misbehave::FailHard))
            .await;
    }
    run_all(&db, awards()).await;
    assert_eq!(
        (
            db.count("SELECT count(*) FROM ledger").await,
            db.letters().await.len()
        ),
        (50, 51)
    );
    pump.task.abort();
}

/// The pump dies after the incident was accepted and before that was written down: alerted again, never not.
#[tokio::test]
async fn b4_a_crash_between_row_and_alert_loses_nothing() {
    let db = Db::fresh().await;
    let endpoint = endpoint(|_| created()).await;
    write_letters(&db, 5).await;
    // A pump that claimed and vanished.
    let store = db.store();
    let lease = Duration::from_secs(3);
    let due = AlertDue {
        kind: AlertKind::New,
        age: Duration::ZERO,
        window: Duration::ZERO,
    };
    let claim = store
        .claim_alert(acceptance::db::random_id(), &due, lease)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(claim.letters, 5);
    let other = store
        .claim_alert(acceptance::db::random_id(), &due, lease)
        .await
        .unwrap();
    assert_eq!(other, None, "nobody else sends meanwhile");
    let pump = Pump::start(&db, &endpoint, quick());
    all_covered(&db, 5).await;
    pump.stop().await;
    assert_eq!(accepted_bodies(&endpoint).await.len(), 1);
    // The first one comes back to life: its letters are the other incident's by now.
    assert_eq!(store.alert_delivered(&claim, None).await.unwrap(), 0);
}

/// Nobody pumped for a while, as after an outage of the whole alerting host.
#[tokio::test]
async fn b4_letters_that_were_written_while_nobody_pumped_are_alerted_later() {
    let db = Db::fresh().await;
    write_letters(&db, 7).await;
    assert_eq!(
        db.count("SELECT count(*) FROM core.dead_letter_alerts WHERE covered_at IS NULL")
            .await,
        7
    );
    let endpoint = endpoint(|_| created()).await;
    let pumps: Vec<Pump> = (0..3)
        .map(|_| Pump::start(&db, &endpoint, quick()))
        .collect();
    all_covered(&db, 7).await;
    for pump in pumps {
        pump.stop().await;
    }
    assert_eq!(
        accepted_bodies(&endpoint).await.len(),
        1,
        "three pumps, one incident"
    );
}

#[tokio::test]
async fn b4_a_better_stack_configuration_that_cannot_work_is_refused() {
    let good = || BetterStackConfig::new(TOKEN, "ops@example.com");
    assert!(BetterStack::new(good()).is_ok());
    let mut bad_url = good();
    bad_url.base_url = "ftp://example.com".to_owned();
    assert_eq!(
        BetterStack::new(bad_url).unwrap_err().to_string(),
        "base_url: \"ftp://example.com\" is not an http or https URL"
    );
    assert_eq!(
        BetterStack::new(BetterStackConfig::new("", "ops@example.com"))
            .unwrap_err()
            .to_string(),
        "token: empty, or not visible ASCII"
    );
    assert_eq!(
        BetterStack::new(BetterStackConfig::new(TOKEN, "ops"))
            .unwrap_err()
            .to_string(),
        "requester_email: \"ops\" is not an e-mail address"
    );
    assert!(!format!("{:?}", Arc::new(good())).contains(TOKEN));
}

/// The service knows when it wants to be asked again, also when that is later than our longest wait; up to 10 minutes.
#[tokio::test]
async fn b4_a_service_that_asks_for_time_gets_it_within_reason() {
    for (asked, least, most) in [(300, 300, 450), (86_400, 600, 900)] {
        let db = Db::fresh().await;
        let answer = ResponseTemplate::new(429).insert_header("retry-after", asked.to_string());
        let endpoint = endpoint(move |_| answer.clone()).await;
        write_letters(&db, 1).await;
        let pump = Pump::start(&db, &endpoint, quick());
        pump.seen
            .wait_for("the service refuses", 1, |step| {
                matches!(step, Step::AlertFailed { .. })
            })
            .await;
        pump.stop().await;
        // By the database's clock, from when it was written down; the test may be slow to look.
        let wait: f64 = sqlx::query_scalar(
            "SELECT extract(epoch FROM next_attempt_at - clock_timestamp())::float8 FROM core.alert_streams WHERE failures = 1",
        )
        .fetch_one(&db.pool)
        .await
        .unwrap();
        let (least, most) = (f64::from(least) - 60.0, f64::from(most));
        assert!((least..=most).contains(&wait), "asked for {asked}: {wait}");
    }
}
