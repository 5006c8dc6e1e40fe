//! `serve` as a process: it answers, sweeps, alerts, measures, and stops when it is told to.

use std::io::Write as _;
use std::process::Child;

use acceptance::clock::eventually;
use acceptance::db::{Db, job_id, random_id};
use acceptance::tokens::Signer;
use harness::{CorrelationId, DeadLetterId, ErrorClass, NewDeadLetter, Reason, Store as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::program;

const TOKEN: &str = "a secret of the alert service";
const HEARTBEAT: &str = "/api/v1/heartbeat/a-secret-of-the-heartbeat";

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ours, and maybe gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    async fn get(&self, target: &str) -> String {
        self.get_with("", target).await
    }

    /// `headers` end with a line break each.
    async fn get_with(&self, headers: &str, target: &str) -> String {
        let asked = async {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
            let request = format!(
                "GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
        };
        asked.await.unwrap_or_else(|error| error.to_string())
    }

    async fn shows(&self, target: &str, text: &str) {
        eventually(&format!("{target} shows {text:?}"), async || {
            let answer = self.get(target).await;
            if answer.contains(text) {
                Ok(())
            } else {
                Err(answer)
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b4_serve_answers_sweeps_alerts_and_measures_until_it_is_told_to_stop() {
    let db = Db::fresh().await;
    let alerts = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path("/api/v3/incidents"))
        .respond_with(ResponseTemplate::new(201).set_body_string("{\"data\":{\"id\":\"1\"}}"))
        .mount(&alerts)
        .await;
    Mock::given(method("POST"))
        .and(path(HEARTBEAT))
        .respond_with(ResponseTemplate::new(200))
        .mount(&alerts)
        .await;
    let job = job_id();
    let letter = NewDeadLetter {
        id: DeadLetterId(random_id()),
        job_id: job,
        consumer: acceptance::db::consumer_name(),
        queue: acceptance::db::queue_name(),
        tenant_id: None,
        correlation_id: CorrelationId::from(job),
        generation: 0,
        reason: Reason::Hard,
        error_class: ErrorClass::of("one"),
        attempts: 1,
        last_error: "no such account".to_owned(),
        payload: "{}".to_owned(),
        body: b"{}".to_vec(),
        headers: "{}".to_owned(),
    };
    db.store().record_dead_letter(&letter).await.unwrap();
    db.execute(
        "SET LOCAL session_replication_role = replica; INSERT INTO core.processed_jobs (job_id, consumer, processed_at, expires_at) \
         SELECT gen_random_uuid(), 'awards', clock_timestamp() - interval '8 days', clock_timestamp() - interval '1 day'",
    )
    .await;

    let mut config = tempfile::NamedTempFile::new().unwrap();
    let port = free_port();
    let text = format!(
        "listen = '127.0.0.1:{port}'\n[sweep]\ninterval = '100ms'\n[metrics]\ninterval = '100ms'\n\
         [alerts]\nrequester_email = 'ops@example.com'\nbase_url = '{}'\nheartbeat_interval = '50ms'\n\
         [[consumers]]\nname = 'awards'\nqueue = 'points'\n",
        alerts.uri()
    );
    config.write_all(text.as_bytes()).unwrap();
    let config = config.path().to_str().unwrap();
    let mut command = program(
        &["serve", "--config", config, "--no-tokens", "ada"],
        Some(db.url()),
    );
    command
        .env("BETTER_STACK_TOKEN", TOKEN.replace(' ', "-"))
        .env(
            "BETTER_STACK_HEARTBEAT_URL",
            format!("{}{HEARTBEAT}", alerts.uri()),
        );
    let server = Server {
        child: command.spawn().unwrap(),
        port,
    };

    server.shows("/readyz", "ready").await;
    server
        .shows("/v1/core/dead-letters", &letter.id.to_string())
        .await;
    server
        .shows(
            "/metrics",
            "job_harness_fences_swept_total{messaging_consumer_group_name=\"awards\"} 1",
        )
        .await;
    server
        .shows("/metrics", "job_harness_alerts_delivered_total 1")
        .await;
    let pending = "job_harness_dead_letters_pending{messaging_destination_name=\"points\",messaging_consumer_group_name=\"awards\"} 1";
    server.shows("/metrics", pending).await;
    server
        .shows(
            "/metrics",
            "job_harness_queue_messages{messaging_destination_name=\"points\"} 0",
        )
        .await;
    server.shows("/metrics", "job_harness_alerts_owed 0").await;
    assert_eq!(
        db.count("SELECT count(*) FROM core.processed_jobs").await,
        0
    );
    let called = async |at: &str| {
        let requests = alerts.received_requests().await.unwrap();
        requests.iter().filter(|it| it.url.path() == at).count()
    };
    assert_eq!(called("/api/v3/incidents").await, 1);
    eventually("the heartbeat goes on", async || {
        let beats = called(HEARTBEAT).await;
        if beats >= 2 { Ok(()) } else { Err(beats) }
    })
    .await;

    let mut server = server;
    let pid = server.child.id().to_string();
    std::process::Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .unwrap();
    let child = std::sync::Mutex::new(&mut server.child);
    let ended = eventually("it stops when it is told to", async || {
        let ended = child.lock().unwrap().try_wait().unwrap();
        ended.ok_or("it is still there")
    })
    .await;
    assert_eq!(ended.code(), Some(0));
    let mut log = String::new();
    std::io::Read::read_to_string(server.child.stderr.as_mut().unwrap(), &mut log).unwrap();
    assert!(
        log.contains("alerted") && !log.contains(&TOKEN.replace(' ', "-")),
        "{log}"
    );
    assert!(!log.contains("secret-of-the-heartbeat"), "{log}");
}

#[tokio::test]
async fn b8_serve_takes_signed_tokens_as_it_is_told() {
    let db = Db::fresh().await;
    let signer = Signer::ed25519(1);
    let keys = tempfile::NamedTempFile::new().unwrap();
    let set = serde_json::json!({"keys": [signer.jwk("one")]});
    std::fs::write(keys.path(), set.to_string()).unwrap();
    let port = free_port();
    let mut command = program(&["serve"], Some(db.url()));
    command
        .env("JOB_HARNESS_LISTEN", format!("127.0.0.1:{port}"))
        .env("JOB_HARNESS_ACCESS_JWT_ALGORITHM", "EdDSA")
        .env("JOB_HARNESS_ACCESS_JWT_ISSUER", "https://login.example")
        .env("JOB_HARNESS_ACCESS_JWT_AUDIENCE", "job-harness")
        .env("JOB_HARNESS_ACCESS_JWT_JWKS_FILE", keys.path());
    let server = Server {
        child: command.spawn().unwrap(),
        port,
    };
    server.shows("/readyz", "ready").await;
    let now = harness::Clock::now(&harness::SystemClock::new()).timestamp();
    let claims = serde_json::json!({
        "iss": "https://login.example", "aud": "job-harness", "sub": "ada",
        "nbf": now - 60, "exp": now + 600, "scope": "core.dead_letters.read",
    });
    let list = async |headers: &str| server.get_with(headers, "/v1/core/dead-letters").await;
    let with = async |token: String| list(&format!("authorization: Bearer {token}\r\n")).await;
    let answer = with(signer.sign("one", &claims)).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let answer = with(Signer::ed25519(2).sign("one", &claims)).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let answer = list("").await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}
