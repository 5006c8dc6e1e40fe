//! B4: the alert pump says that it is alive while it can do its work, and is silent when it cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use acceptance::clock::eventually;
use acceptance::db::Db;
use harness::{AlertPumpConfig, BetterStack, BetterStackConfig, PgStore, PgStoreConfig, Step};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use crate::pumping::{Pump, TOKEN, all_covered, better_stack, created, quick, write_letters};

const SECRET: &str = "h34rtb34t-s3cr3t";

struct Service {
    server: MockServer,
    /// Whether it opens incidents.
    works: Arc<AtomicBool>,
}

impl Service {
    async fn start(heartbeat: ResponseTemplate) -> Self {
        let (server, works) = (MockServer::start().await, Arc::new(AtomicBool::new(true)));
        let opens = Arc::clone(&works);
        Mock::given(method("POST"))
            .and(path("/api/v3/incidents"))
            .respond_with(move |_: &Request| match opens.load(Ordering::SeqCst) {
                true => created(),
                false => ResponseTemplate::new(500),
            })
            .mount(&server)
            .await;
        Mock::given(path(format!("/api/v1/heartbeat/{SECRET}")))
            .respond_with(heartbeat)
            .mount(&server)
            .await;
        Self { server, works }
    }

    fn config(&self) -> BetterStackConfig {
        let mut config = better_stack(&self.server);
        config.heartbeat_url = Some(format!("{}/api/v1/heartbeat/{SECRET}", self.server.uri()));
        config
    }

    async fn heartbeats(&self) -> usize {
        let requests = self.server.received_requests().await.unwrap();
        requests
            .iter()
            .filter(|it| it.url.path().ends_with(SECRET))
            .count()
    }

    async fn beats_after(&self, what: &str, before: usize) {
        eventually(what, async || match self.heartbeats().await {
            n if n >= before + 3 => Ok(()),
            n => Err(format!("{n} heartbeats, {before} before")),
        })
        .await;
    }
}

fn config() -> AlertPumpConfig {
    AlertPumpConfig {
        heartbeat_interval: Duration::from_millis(20),
        ..quick()
    }
}

fn failures(pump: &Pump) -> usize {
    pump.seen
        .count(|step| matches!(step, Step::AlertFailed { .. }))
}

async fn failed(pump: &Pump, times: usize) {
    pump.seen
        .wait_for("the service refuses", times, |step| {
            matches!(step, Step::AlertFailed { .. })
        })
        .await;
}

#[tokio::test]
async fn b4_the_heartbeat_stops_while_the_alert_service_fails() {
    let db = Db::fresh().await;
    let service = Service::start(ResponseTemplate::new(200)).await;
    let pump = Pump::of(db.store(), service.config(), config());
    service
        .beats_after("a heart beats while all is well", 0)
        .await;
    service.works.store(false, Ordering::SeqCst);
    write_letters(&db, 1).await;
    failed(&pump, 1).await;
    let before = service.heartbeats().await;
    // Another pump that never met the failure is silent too.
    let other = Pump::of(db.store(), service.config(), config());
    let refused = failures(&pump) + 5;
    failed_by_either(&pump, &other, refused).await;
    assert_eq!(service.heartbeats().await, before, "silence");
    service.works.store(true, Ordering::SeqCst);
    all_covered(&db, 1).await;
    service.beats_after("it beats again", before).await;
    pump.stop().await;
    other.stop().await;
}

async fn failed_by_either(one: &Pump, other: &Pump, times: usize) {
    eventually("the service refuses again and again", async || {
        match failures(one) + failures(other) {
            n if n >= times => Ok(()),
            n => Err(format!("{n} of {times}")),
        }
    })
    .await;
}

#[tokio::test]
async fn b4_the_heartbeat_is_silent_while_the_store_is_away() {
    let service = Service::start(ResponseTemplate::new(200)).await;
    let store = PgStore::new(
        "postgres://nobody@127.0.0.1:1/nowhere",
        PgStoreConfig {
            acquire_timeout: Duration::from_millis(50),
            ..PgStoreConfig::default()
        },
    )
    .unwrap();
    let pump = Pump::of(store, service.config(), config());
    pump.seen
        .wait_for("the store is asked", 4, |step| {
            matches!(step, Step::StoreFailed { .. })
        })
        .await;
    pump.stop().await;
    assert_eq!(service.heartbeats().await, 0);
}

#[tokio::test]
async fn b4_a_heartbeat_that_fails_is_told_without_its_secret_and_alerts_go_on() {
    let db = Db::fresh().await;
    let echo = format!("you called /api/v1/heartbeat/{SECRET} with {TOKEN}");
    let service = Service::start(ResponseTemplate::new(500).set_body_string(echo)).await;
    let mut nowhere = service.config();
    nowhere.heartbeat_url = Some(format!("http://127.0.0.1:1/{SECRET}"));
    for better_stack in [service.config(), nowhere] {
        let pump = Pump::of(db.store(), better_stack, config());
        pump.seen
            .wait_for("a heartbeat fails", 3, |step| {
                matches!(step, Step::HeartbeatFailed { .. })
            })
            .await;
        let events = format!("{:?}", pump.seen.events());
        for secret in [SECRET, TOKEN] {
            assert!(!events.contains(secret), "{events}");
        }
        write_letters(&db, 1).await;
        let letters = i64::try_from(db.letters().await.len()).unwrap();
        all_covered(&db, letters).await;
        pump.stop().await;
    }
}

#[tokio::test]
async fn b4_the_heartbeats_url_is_not_shown() {
    let mut config = BetterStackConfig::new(TOKEN, "ops@example.com");
    config.heartbeat_url = Some(format!("https://example.com/{SECRET}"));
    let shown = format!("{config:?} {:?}", BetterStack::new(config.clone()).unwrap());
    assert!(!shown.contains(SECRET) && !shown.contains(TOKEN), "{shown}");
    config.heartbeat_url = Some(format!("ftp://example.com/{SECRET}"));
    let error = BetterStack::new(config).unwrap_err();
    assert_eq!(error.to_string(), "heartbeat_url: not an http or https URL");
    assert!(!format!("{error:?}").contains(SECRET));
}
