//! P1..P3: dead letters over HTTP, on a real PostgreSQL.

use std::time::Duration;

use acceptance::award::{Award, Misbehave};
use acceptance::db::{Db, random_id};
use acceptance::rig::{awards, run_all};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use harness::ops::{Access, AccessError, Api, ApiLimits, Permission, Token, router, token_hash};
use harness::{Env, PgStore, PgStoreConfig, ReviewStore as _};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const LIST: &str = "/v1/core/dead-letters";

fn token(name: &str, permissions: &[Permission], tenant: bool) -> Token {
    Token {
        name: name.to_owned(),
        sha256: token_hash(&format!("secret of {name}")),
        permissions: permissions.to_vec(),
        tenant,
    }
}

const ALL: [Permission; 3] = [Permission::Read, Permission::Replay, Permission::Discard];

fn access() -> Access {
    let tokens = [
        token("ada", &ALL, false),
        token("reader", &ALL[..1], false),
        token("replayer", &ALL[1..2], false),
        token("discarder", &ALL[2..], false),
        token("tenant", &ALL, true),
    ];
    Access::tokens(&tokens).unwrap()
}

async fn api_on(db: &Db, store: PgStore) -> Router {
    router(Api {
        store,
        publisher: db.queue().await,
        env: Env::system().unwrap(),
        access: access(),
        limits: ApiLimits::default(),
        metrics: None,
    })
}

async fn api(db: &Db) -> Router {
    api_on(db, db.store()).await
}

struct Answer {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }

    /// It is a problem document of this status.
    #[track_caller]
    fn problem(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        assert_eq!(self.headers["content-type"], "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status);
        for part in ["type", "title", "detail"] {
            assert!(
                problem[part].as_str().is_some_and(|it| !it.is_empty()),
                "{problem}"
            );
        }
        problem
    }

    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        self.json()
    }
}

async fn send(api: &Router, request: Request<Body>) -> Answer {
    let response = api.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

fn request(method: &str, path: &str, authorization: &str, body: &str) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path);
    if !authorization.is_empty() {
        request = request.header("authorization", authorization);
    }
    request.body(Body::from(body.to_owned())).unwrap()
}

/// With the token that may do everything.
async fn ask(api: &Router, method: &str, path: &str, body: &str) -> Answer {
    send(api, request(method, path, "Bearer secret of ada", body)).await
}

fn decision(id: &Value, what: &str) -> String {
    format!("{LIST}/{}/{what}", id.as_str().unwrap_or("none"))
}

async fn failed_jobs(db: &Db, n: usize) {
    for _ in 0..n {
        let mut award = Award::new("ada", 10);
        award.then = Misbehave::FailHard;
        db.publish_award(&award).await;
    }
    run_all(db, awards()).await;
}

#[tokio::test]
async fn b6_b8_nobody_does_what_they_may_not() {
    let db = Db::fresh().await;
    failed_jobs(&db, 1).await;
    let api = api(&db).await;
    let id = db.letters().await[0].letter.id.to_string();
    let (replay, discard) = (
        format!("{LIST}/{id}/replay"),
        format!("{LIST}/{id}/discard"),
    );
    let endpoints = [
        ("GET", LIST, "reader"),
        ("POST", replay.as_str(), "replayer"),
        ("POST", discard.as_str(), "discarder"),
    ];
    for (method, path, allowed) in endpoints {
        let unknown = [
            "",
            "Bearer",
            "Bearer ",
            "Bearer nobody's",
            "Basic YWRhOmFkYQ==",
            "secret of ada",
        ];
        for authorization in unknown {
            let answer = send(&api, request(method, path, authorization, "{}")).await;
            answer.problem(401);
            let challenge = &answer.headers["www-authenticate"];
            assert!(challenge.to_str().unwrap().starts_with("Bearer"));
        }
        for name in ["reader", "replayer", "discarder", "tenant"] {
            if name != allowed {
                let authorization = format!("Bearer secret of {name}");
                send(&api, request(method, path, &authorization, "{}"))
                    .await
                    .problem(403);
            }
        }
        let nothing = db.letters().await;
        assert_eq!(nothing[0].reviewed_by, None, "nothing was decided");
    }
    // What it is told is looked at only after that: nobody learns anything without a token.
    send(&api, request("GET", &format!("{LIST}?nonsense=1"), "", ""))
        .await
        .problem(401);
    let reason = r#"{"reason": "known bug"}"#;
    send(&api, request("GET", LIST, "bearer secret of reader", ""))
        .await
        .ok();
    send(
        &api,
        request("POST", &discard, "Bearer secret of discarder", reason),
    )
    .await
    .ok();
    assert_eq!(
        db.letters().await[0].reviewed_by.as_deref(),
        Some("discarder")
    );
    for free in ["/healthz", "/readyz"] {
        assert_eq!(
            send(&api, request("GET", free, "", "")).await.status,
            StatusCode::OK
        );
    }
}

#[test]
fn b6_b8_tokens_that_cannot_be_right_are_named() {
    let good = token("ada", &ALL, false);
    let error = |tokens: &[Token]| Access::tokens(tokens).unwrap_err();
    assert_eq!(error(&[]), AccessError::NoTokens);
    assert_eq!(error(&[good.clone(), good.clone()]), AccessError::Twice(1));
    let no_name = Token {
        name: " ".to_owned(),
        ..good.clone()
    };
    assert_eq!(error(&[no_name]), AccessError::Name(0));
    let no_hash = Token {
        sha256: "secret of ada".to_owned(),
        ..good
    };
    assert_eq!(error(&[no_hash]), AccessError::Hash(0));
}

#[tokio::test]
async fn b6_a_list_has_pages_counts_and_bytes() {
    let db = Db::fresh().await;
    failed_jobs(&db, 7).await;
    let api = api(&db).await;
    let (mut ids, mut path) = (Vec::new(), format!("{LIST}?limit=3&status=pending_review"));
    let start = path.clone();
    for expected in [3, 3, 1] {
        let page = ask(&api, "GET", &path, "").await.ok();
        let items = page["items"].as_array().unwrap();
        assert_eq!(items.len(), expected);
        ids.extend(items.iter().map(|item| item["id"].clone()));
        path = format!(
            "{start}&cursor={}",
            page["next_cursor"].as_str().unwrap_or("none")
        );
    }
    assert!(path.ends_with("cursor=none"), "the last page says so");
    let newest_first: Vec<Value> = db
        .letters()
        .await
        .iter()
        .rev()
        .map(|it| json!(it.letter.id))
        .collect();
    assert_eq!(ids, newest_first);

    let page = ask(
        &api,
        "GET",
        &format!("{LIST}?include=body,counts&limit=1&order=oldest"),
        "",
    )
    .await
    .ok();
    let (item, letter) = (&page["items"][0], &db.letters().await[0]);
    assert_eq!(item["id"], json!(letter.letter.id));
    assert_eq!(
        item["payload"],
        serde_json::from_slice::<Value>(&letter.letter.body).unwrap()
    );
    assert_eq!(item["fingerprint"], letter.letter.fingerprint());
    assert_eq!(
        (&item["attempts"], &item["reason"]),
        (&json!(1), &json!("hard"))
    );
    assert!(
        item["body_base64"]
            .as_str()
            .is_some_and(|it| !it.is_empty())
    );
    let count = &page["counts"][0];
    assert_eq!(
        (&count["letters"], &count["fingerprint"]),
        (&json!(7), &item["fingerprint"])
    );
}

#[tokio::test]
async fn b6_a_parameter_that_cannot_be_right_is_named() {
    let db = Db::fresh().await;
    let api = api(&db).await;
    let id = random_id();
    let cases = [
        ("status", "gone"),
        ("queue", "No%20Name"),
        ("consumer", ""),
        ("tenant_id", "x"),
        ("tenant_id", "00000000-0000-0000-0000-000000000000"),
        ("reason", "bad"),
        ("job_id", "7"),
        ("correlation_id", "a%20b"),
        ("fingerprint", "%00"),
        ("created_from", "yesterday"),
        ("created_before", "%2B99999-01-01T00:00:00Z"),
        ("error_contains", "a.b"),
        ("order", "up"),
        ("limit", "0"),
        ("limit", "201"),
        ("limit", "-1"),
        ("cursor", "AAAA"),
        ("include", "all"),
        ("page", "2"),
    ];
    for (name, value) in cases {
        let problem = ask(&api, "GET", &format!("{LIST}?{name}={value}"), "")
            .await
            .problem(422);
        assert_eq!(problem["field"], name, "{problem}");
    }
    let twice = ask(&api, "GET", &format!("{LIST}?limit=1&limit=2"), "")
        .await
        .problem(422);
    assert_eq!(twice["field"], "limit");
    for (what, body) in [("replay", ""), ("discard", r#"{"reason": "x"}"#)] {
        // No other form of an id, and no bytes that are no text.
        for bad in ["seven", "%ff", &id.simple().to_string()] {
            let path = format!("{LIST}/{bad}/{what}");
            let problem = ask(&api, "POST", &path, body).await.problem(422);
            assert_eq!(problem["field"], "id", "{bad}");
        }
        ask(&api, "POST", &format!("{LIST}/{id}/{what}"), body)
            .await
            .problem(404);
    }
    let deleted = ask(&api, "DELETE", LIST, "").await;
    deleted.problem(405);
    assert_eq!(deleted.headers["allow"], "GET,HEAD");
    ask(&api, "GET", "/v1/core/other", "").await.problem(404);
}

#[tokio::test]
async fn b6_b8_a_cursor_is_good_for_its_own_list_only() {
    let db = Db::fresh().await;
    failed_jobs(&db, 3).await;
    let api = api(&db).await;
    let page = ask(&api, "GET", &format!("{LIST}?limit=1"), "").await.ok();
    let cursor = page["next_cursor"].as_str().unwrap();
    ask(&api, "GET", &format!("{LIST}?limit=2&cursor={cursor}"), "")
        .await
        .ok();
    for other in ["order=oldest", "reason=hard"] {
        let path = format!("{LIST}?{other}&cursor={cursor}");
        assert_eq!(
            ask(&api, "GET", &path, "").await.problem(422)["field"],
            "cursor"
        );
    }
}

#[tokio::test]
async fn a7_b6_b8_decisions_are_made_once_and_signed() {
    let db = Db::fresh().await;
    failed_jobs(&db, 2).await;
    let api = api(&db).await;
    let list = ask(&api, "GET", LIST, "").await.ok();
    let (one, other) = (&list["items"][0]["id"], &list["items"][1]["id"]);

    let replayed = ask(&api, "POST", &decision(one, "replay"), "").await.ok();
    assert_eq!(
        replayed,
        json!({"id": one, "status": "replayed", "already": false})
    );
    let again = ask(&api, "POST", &decision(one, "replay"), "").await.ok();
    assert_eq!(again["already"], true);
    assert_eq!(db.queued().await, 1, "published once");

    for body in [
        "",
        "{}",
        r#"{"reason": ""}"#,
        r#"{"reason": " \u200b"}"#,
        r#"{"reason": 7}"#,
        r#"{"why": "x"}"#,
        "reason=x",
    ] {
        let problem = ask(&api, "POST", &decision(other, "discard"), body)
            .await
            .problem(422);
        assert_eq!(problem["field"], "reason", "{body}");
    }
    let large = format!(r#"{{"reason": "{}"}}"#, "x".repeat(70_000));
    ask(&api, "POST", &decision(other, "discard"), &large)
        .await
        .problem(413);
    let body = r#"{"reason": "known bug"}"#;
    let discarded = ask(&api, "POST", &decision(other, "discard"), body)
        .await
        .ok();
    assert_eq!(
        discarded,
        json!({"id": other, "status": "discarded", "already": false})
    );
    assert_eq!(
        ask(&api, "POST", &decision(other, "discard"), body)
            .await
            .ok()["already"],
        true
    );

    let conflicts = [(one, "discard", "replayed"), (other, "replay", "discarded")];
    for (id, what, status) in conflicts {
        let problem = ask(&api, "POST", &decision(id, what), body)
            .await
            .problem(409);
        assert_eq!(problem["current_status"], status);
    }
    for letter in db.letters().await {
        assert_eq!(letter.reviewed_by.as_deref(), Some("ada"));
        assert!(letter.reviewed_at.is_some());
    }
}

#[tokio::test]
async fn b6_a_database_that_is_away_is_said_and_nothing_about_it() {
    let db = Db::fresh().await;
    let nowhere = PgStore::new(
        "postgres://somebody:secret@127.0.0.1:1/nothing",
        PgStoreConfig {
            acquire_timeout: Duration::from_millis(100),
            ..PgStoreConfig::default()
        },
    )
    .unwrap();
    let api = api_on(&db, nowhere).await;
    let id = json!(random_id());
    let calls = [
        ("GET", LIST.to_owned(), ""),
        ("GET", "/readyz".to_owned(), ""),
        ("POST", decision(&id, "replay"), ""),
        ("POST", decision(&id, "discard"), r#"{"reason": "x"}"#),
    ];
    for (method, path, body) in calls {
        let answer = ask(&api, method, &path, body).await;
        answer.problem(503);
        assert_eq!(answer.headers["retry-after"], "5");
        for inside in ["127.0.0.1", "somebody", "secret", "sqlx", "nothing at"] {
            assert!(!answer.body.contains(inside), "{}", answer.body);
        }
    }
    assert_eq!(
        ask(&api, "GET", "/healthz", "").await.status,
        StatusCode::OK
    );
}

#[tokio::test]
async fn b6_a_queue_that_is_away_changes_nothing() {
    let db = Db::fresh().await;
    failed_jobs(&db, 1).await;
    let api = api(&db).await;
    let id = json!(db.letters().await[0].letter.id);
    db.execute("ALTER TABLE pgmq.q_points RENAME TO q_away")
        .await;
    let answer = ask(&api, "POST", &decision(&id, "replay"), "").await;
    assert!(
        answer.problem(503)["detail"]
            .as_str()
            .unwrap()
            .contains("nothing changed")
    );
    assert_eq!(
        db.store()
            .dead_letter(db.letters().await[0].letter.id)
            .await
            .unwrap()
            .unwrap()
            .reviewed_by,
        None
    );
    db.execute("ALTER TABLE pgmq.q_away RENAME TO q_points")
        .await;
    ask(&api, "POST", &decision(&id, "replay"), "").await.ok();
}

#[tokio::test]
async fn b6_every_answer_has_a_request_id() {
    let db = Db::fresh().await;
    let api = api(&db).await;
    for path in [LIST, "/healthz", "/nothing"] {
        let mut theirs = request("GET", path, "", "");
        theirs
            .headers_mut()
            .insert("x-request-id", "abc-123".parse().unwrap());
        assert_eq!(send(&api, theirs).await.headers["x-request-id"], "abc-123");
        let mut bad = request("GET", path, "", "");
        bad.headers_mut()
            .insert("x-request-id", "two words".parse().unwrap());
        let ours = send(&api, bad).await.headers["x-request-id"].clone();
        assert_eq!(ours.len(), 36, "{ours:?}");
        let other = send(&api, request("GET", path, "", "")).await.headers["x-request-id"].clone();
        assert_ne!(ours, other);
    }
}
