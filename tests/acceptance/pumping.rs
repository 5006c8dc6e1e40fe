//! Alert pumps, and the endpoints that they meet.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use acceptance::award::{Award, Misbehave};
use acceptance::clock::eventually;
use acceptance::db::{Db, job_id};
use acceptance::rig::{awards, run_all, watched};
use acceptance::watch::Recorder;
use futures_util::StreamExt as _;
use harness::{
    AlertPump, AlertPumpConfig, BetterStack, BetterStackConfig, DeadLetterId, NewDeadLetter,
    PgStore, Shutdown, Store as _,
};
use serde_json::Value;
use tokio::task::JoinHandle;
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

pub(crate) const TOKEN: &str = "s3cr3t-t0ken";

pub(crate) struct Pump {
    shutdown: Shutdown,
    pub(crate) task: JoinHandle<()>,
    pub(crate) seen: Recorder,
}

impl Pump {
    pub(crate) fn start(db: &Db, endpoint: &MockServer, config: AlertPumpConfig) -> Self {
        Self::of(db.store(), better_stack(endpoint), config)
    }

    pub(crate) fn of(store: PgStore, service: BetterStackConfig, config: AlertPumpConfig) -> Self {
        let alerter = BetterStack::new(service).unwrap();
        let (env, seen) = watched();
        let pump = AlertPump::new(config, store, alerter, env);
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        Self {
            shutdown,
            task: tokio::spawn(async move { pump.run(stop).await }),
            seen,
        }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap();
    }
}

/// The service that `endpoint` plays.
pub(crate) fn better_stack(endpoint: &MockServer) -> BetterStackConfig {
    let mut config = BetterStackConfig::new(TOKEN, "ops@example.com");
    config.base_url = endpoint.uri();
    config
}

/// Quick, for tests. Only who wants to see time-outs makes the time-out short: a busy machine answers late.
pub(crate) fn quick() -> AlertPumpConfig {
    AlertPumpConfig {
        window: Duration::from_millis(500),
        timeout: Duration::from_secs(10),
        lease: Duration::from_secs(20),
        retry_first: Duration::from_millis(10),
        retry_cap: Duration::from_millis(100),
        poll_interval: Duration::from_millis(10),
        ..AlertPumpConfig::default()
    }
}

pub(crate) fn created() -> ResponseTemplate {
    ResponseTemplate::new(201)
        .set_body_json(serde_json::json!({"data": {"id": "4711", "type": "incident"}}))
}

/// An endpoint that answers request number n (from 0) with `answer(n)`.
pub(crate) async fn endpoint(
    answer: impl Fn(usize) -> ResponseTemplate + Send + Sync + 'static,
) -> MockServer {
    let server = MockServer::start().await;
    let count = AtomicUsize::new(0);
    Mock::given(method("POST"))
        .and(path("/api/v3/incidents"))
        .respond_with(move |_: &Request| answer(count.fetch_add(1, Ordering::SeqCst)))
        .mount(&server)
        .await;
    server
}

pub(crate) async fn write_letters(db: &Db, count: usize) {
    // One real one, as a pattern for the others.
    db.publish_award(&Award::new("ada", 10).then(Misbehave::FailHard))
        .await;
    run_all(db, awards()).await;
    let pattern = db.letters().await.pop().unwrap().letter;
    let store = db.store();
    let write = |letter: NewDeadLetter| {
        let store = store.clone();
        async move { store.record_dead_letter(&letter).await.unwrap() }
    };
    // Several at once, as several workers would.
    let letters = (1..count).map(|_| NewDeadLetter {
        id: DeadLetterId(acceptance::db::random_id()),
        job_id: job_id(),
        ..pattern.clone()
    });
    futures_util::stream::iter(letters.map(write))
        .buffer_unordered(8)
        .collect::<Vec<_>>()
        .await;
}

pub(crate) async fn all_covered(db: &Db, letters: i64) {
    eventually("every dead letter is covered by a delivered alert", async || {
        let covered = db
            .count(
                "SELECT count(*) FROM core.dead_letters d JOIN core.dead_letter_alerts a ON a.dead_letter_id = d.id \
                 JOIN core.alert_incidents i ON i.id = a.claim_id WHERE a.covered_at IS NOT NULL",
            )
            .await;
        if covered == letters { Ok(()) } else { Err(format!("{covered} of {letters}")) }
    })
    .await;
}

pub(crate) async fn accepted_bodies(endpoint: &MockServer) -> Vec<Value> {
    let requests = endpoint.received_requests().await.unwrap();
    requests
        .iter()
        .map(|request| serde_json::from_slice(&request.body).unwrap())
        .collect()
}

/// Bodies of incidents of one kind.
pub(crate) async fn bodies_of(endpoint: &MockServer, kind: &str) -> Vec<Value> {
    let bodies = accepted_bodies(endpoint).await.into_iter();
    bodies.filter(|it| it["metadata"]["kind"] == kind).collect()
}

/// Makes every letter so old as if it had been written two hours ago.
pub(crate) async fn age_letters(db: &Db) {
    db.execute("UPDATE core.dead_letter_alerts SET written_at = written_at - interval '2 hours'")
        .await;
}

/// Waits until so many rows are there.
pub(crate) async fn rows(db: &Db, what: &str, expected: i64, query: &str) {
    eventually(what, async || match db.count(query).await {
        found if found == expected => Ok(()),
        found => Err(format!("{found} of {expected}")),
    })
    .await;
}

pub(crate) async fn escalated(db: &Db, letters: i64) {
    let query = "SELECT count(*) FROM core.dead_letter_alerts WHERE escalated_at IS NOT NULL";
    rows(db, "overdue letters are escalated", letters, query).await;
}
