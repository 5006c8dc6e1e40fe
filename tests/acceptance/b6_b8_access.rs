//! Who may do what: every call that the API describes, with every way to have no right to it.

use std::time::Duration;

use acceptance::award::{Award, Misbehave};
use acceptance::db::Db;
use acceptance::rig::{awards, run_all};
use acceptance::tokens::{Signer, with};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use harness::ops::{
    Access, Api, ApiLimits, Jwt, JwtAlgorithm, JwtConfig, JwtKeys, Permission, Token, openapi,
    router, token_hash,
};
use harness::{Clock as _, Env, SystemClock};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const ISSUER: &str = "https://login.example";
const AUDIENCE: &str = "job-harness";

/// One call as it is described.
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    /// None for those that everybody may do.
    pub(crate) permission: Option<Permission>,
}

/// All that are described: a new one cannot be forgotten here.
pub(crate) fn calls(id: &str) -> Vec<Call> {
    let description: Value = serde_json::from_str(&openapi()).unwrap();
    let mut calls = Vec::new();
    for (path, item) in description["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let security = operation["security"].as_array().unwrap();
            let permission = match security[0].get("bearer") {
                None => None,
                Some(scopes) => {
                    assert_eq!(scopes.as_array().unwrap().len(), 1, "{path}");
                    Some(Permission::parse(scopes[0].as_str().unwrap()).unwrap())
                }
            };
            calls.push(Call {
                method: method.to_uppercase(),
                path: path.replace("{id}", id),
                permission,
            });
        }
    }
    calls
}

impl Call {
    async fn send(&self, api: &Router, authorization: &[String]) -> (StatusCode, String, Value) {
        let mut request = Request::builder().method(&*self.method).uri(&*self.path);
        for value in authorization {
            request = request.header("authorization", value);
        }
        let body = Body::from(r#"{"reason": "known bug"}"#);
        let response = api.clone().oneshot(request.body(body).unwrap()).await;
        let (parts, body) = response.unwrap().into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let challenge = parts.headers.get("www-authenticate");
        let challenge = challenge.map_or("", |it| it.to_str().unwrap()).to_owned();
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if parts.status.is_client_error() {
            assert_eq!(parts.headers["content-type"], "application/problem+json");
            assert_eq!(body["status"], parts.status.as_u16());
        }
        (parts.status, challenge, body)
    }

    /// Refused: with this status, this challenge, and a detail that says `why`.
    async fn refused(&self, api: &Router, authorization: &str, status: u16, why: &str) {
        let sent: Vec<String> = (!authorization.is_empty())
            .then(|| authorization.to_owned())
            .into_iter()
            .collect();
        let (is, challenge, problem) = self.send(api, &sent).await;
        let what = format!("{} {}, {why}: {problem}", self.method, self.path);
        assert_eq!(is.as_u16(), status, "{what}");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{what}");
        let needed = self.permission.unwrap().as_str();
        let due = match (status, why) {
            (403, _) => format!(r#"Bearer error="insufficient_scope", scope="{needed}""#),
            (_, "send Authorization") => "Bearer".to_owned(),
            _ => r#"Bearer error="invalid_token""#.to_owned(),
        };
        assert_eq!(challenge, due, "{what}");
    }
}

fn all_but(permission: Option<Permission>) -> Vec<Permission> {
    let all = Permission::ALL.into_iter();
    all.filter(|it| Some(*it) != permission).collect()
}

fn names(permissions: &[Permission]) -> Vec<&'static str> {
    permissions.iter().map(|it| it.as_str()).collect()
}

fn token(secret: &str, permissions: Vec<Permission>, tenant: bool) -> Token {
    Token {
        name: secret.to_owned(),
        sha256: token_hash(secret),
        permissions,
        tenant,
    }
}

async fn api(db: &Db, jwks: &std::path::Path) -> Router {
    let keys = JwtKeys::JwksFile(jwks.to_owned());
    let jwt = JwtConfig::new(JwtAlgorithm::EdDSA, ISSUER, AUDIENCE, keys);
    let mut tokens = vec![
        token("all", all_but(None), false),
        token("tenant", all_but(None), true),
    ];
    for permission in Permission::ALL {
        let name = permission.as_str();
        tokens.push(token(&format!("only {name}"), vec![permission], false));
        let others = all_but(Some(permission));
        tokens.push(token(&format!("all but {name}"), others, false));
    }
    router(Api {
        store: db.store(),
        publisher: db.queue().await,
        env: Env::system().unwrap(),
        access: Access::new(&tokens, Some(Jwt::new(jwt).unwrap())).unwrap(),
        limits: ApiLimits::default(),
        metrics: None,
    })
}

fn claims(now: i64) -> Value {
    json!({
        "iss": ISSUER,
        "aud": [AUDIENCE, "other"],
        "sub": "ada@example.com",
        "nbf": now - 10,
        "exp": now + 300,
        "permissions": names(&Permission::ALL),
    })
}

/// What is wrong with a signed token, and the token.
fn bad_tokens(now: i64) -> Vec<(&'static str, String)> {
    let good = claims(now);
    let signer = Signer::ed25519(1);
    let changed = |changes: Value| signer.sign("one", &with(&good, changes));
    let header = |header: Value| signer.sign_as(&header, &good);
    let eddsa = json!({"alg": "EdDSA", "kid": "one"});
    let honest = signer.sign("one", &good);
    let (message, _) = honest.rsplit_once('.').unwrap();
    let not_of_ours = "is not that of one signed with EdDSA";
    let hs256 = json!({"alg": "HS256", "kid": "one"});
    vec![
        ("has expired", changed(json!({"exp": now - 31}))),
        ("is not good yet", changed(json!({"nbf": now + 40}))),
        (
            "another issuer",
            changed(json!({"iss": "https://other.example"})),
        ),
        ("another audience", changed(json!({"aud": "other"}))),
        ("another audience", changed(json!({"aud": []}))),
        ("no claim exp", changed(json!({"exp": null}))),
        ("no claim nbf", changed(json!({"nbf": null}))),
        ("no claim iss", changed(json!({"iss": null}))),
        ("no claim aud", changed(json!({"aud": null}))),
        ("no claim sub", changed(json!({"sub": null}))),
        (
            "exp of this token must be a number",
            changed(json!({"exp": "9999999999"})),
        ),
        (
            "nbf of this token must be a number",
            changed(json!({"nbf": true})),
        ),
        (
            "iss of this token must be a string",
            changed(json!({"iss": [ISSUER]})),
        ),
        (
            "aud of this token must be a list of strings",
            changed(json!({"aud": [AUDIENCE, 7]})),
        ),
        (
            "sub of this token must be a string",
            changed(json!({"sub": 7})),
        ),
        ("sub of this token must name", changed(json!({"sub": " "}))),
        (
            "permissions of this token must be",
            changed(json!({"permissions": "core.dead_letters.read"})),
        ),
        (
            "scope of this token must be",
            changed(json!({"scope": ["core.dead_letters.read"]})),
        ),
        // Signed well, but by others or otherwise than is agreed.
        ("kid) that is not known", signer.sign("two", &good)),
        (
            "signature of this token does not hold",
            Signer::ed25519(2).sign("one", &good),
        ),
        (
            "signature of this token does not hold",
            format!("{message}."),
        ),
        ("not signed with EdDSA", Signer::rsa().sign("one", &good)),
        (
            "not signed with EdDSA",
            Signer::secret(&[7; 32]).sign("one", &good),
        ),
        // The public key as a shared secret.
        (
            "not signed with EdDSA",
            Signer::secret(&signer.public()).sign_as(&hs256, &good),
        ),
        (not_of_ours, signer.sign_as(&json!({"alg": "none"}), &good)),
        (
            not_of_ours,
            format!(
                "{}.",
                signer
                    .sign_as(&json!({"alg": "none"}), &good)
                    .rsplit_once('.')
                    .unwrap()
                    .0
            ),
        ),
        (not_of_ours, header(json!({"kid": "one"}))),
        (not_of_ours, header(with(&eddsa, json!({"crit": "exp"})))),
        (
            "asks for extensions",
            header(with(&eddsa, json!({"crit": ["b64"], "b64": true}))),
        ),
        (
            "asks for extensions",
            header(with(&eddsa, json!({"crit": ["exp"]}))),
        ),
        (
            "asks for extensions",
            header(with(&eddsa, json!({"b64": false}))),
        ),
        (
            "typ of this token must be",
            header(with(&eddsa, json!({"typ": "id+jwt"}))),
        ),
        (
            "more than 8192 bytes",
            changed(json!({"more": "x".repeat(8_192)})),
        ),
        (not_of_ours, "a.b.c".to_owned()),
        ("is not known", "nobody's".to_owned()),
        // What has not three parts is no signed token.
        ("is not known", message.to_owned()),
    ]
}

fn jwks() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let set = json!({"keys": [Signer::ed25519(1).jwk("one"), Signer::rsa().jwk("rsa")]});
    std::fs::write(file.path(), set.to_string()).unwrap();
    file
}

pub(crate) async fn letter(db: &Db) -> String {
    let award = Award::new("ada", 10).then(Misbehave::FailHard);
    db.publish_award(&award).await;
    run_all(db, awards()).await;
    let letters = db.letters().await;
    letters[letters.len() - 1].letter.id.to_string()
}

#[tokio::test]
async fn b6_b8_everything_that_may_not_be_done_is_refused_with_the_reason() {
    let (db, jwks) = (Db::fresh().await, jwks());
    let api = api(&db, jwks.path()).await;
    let id = letter(&db).await;
    let now = SystemClock::new().now().timestamp();
    let bad = bad_tokens(now);
    let calls: Vec<Call> = calls(&id);
    assert!(calls.len() >= 7, "{}", calls.len());
    let mut tried = 0;
    for call in calls.iter().filter(|call| call.permission.is_some()) {
        let needed = call.permission.unwrap().as_str();
        for authorization in [
            "",
            "Bearer",
            "Bearer ",
            "Basic YWRhOmFkYQ==",
            "all",
            "\u{e9}",
        ] {
            call.refused(&api, authorization, 401, "send Authorization")
                .await;
        }
        let (twice, ..) = call
            .send(&api, &["Bearer all".to_owned(), "Bearer all".to_owned()])
            .await;
        assert_eq!(twice, StatusCode::UNAUTHORIZED, "two tokens");
        for (why, token) in &bad {
            call.refused(&api, &format!("Bearer {token}"), 401, why)
                .await;
            tried += 1;
        }
        let others = all_but(call.permission);
        let without = with(&claims(now), json!({"permissions": names(&others)}));
        let signer = Signer::ed25519(1);
        let scope = with(
            &without,
            json!({"permissions": null, "scope": names(&others).join(" ")}),
        );
        let near = with(
            &without,
            json!({"permissions": [format!("{needed}.x")], "scope": needed.to_uppercase()}),
        );
        for (why, token) in [
            (needed, format!("all but {needed}")),
            (needed, signer.sign("one", &without)),
            (needed, signer.sign("one", &scope)),
            (needed, signer.sign("one", &near)),
            ("is a tenant's", "tenant".to_owned()),
            (
                "is a tenant's",
                signer.sign(
                    "one",
                    &with(
                        &claims(now),
                        json!({"tenant_id": "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01"}),
                    ),
                ),
            ),
            (
                "is a tenant's",
                signer.sign("one", &with(&claims(now), json!({"tenant": true}))),
            ),
            (
                "is a tenant's",
                signer.sign("one", &with(&claims(now), json!({"tenant": ""}))),
            ),
        ] {
            call.refused(&api, &format!("Bearer {token}"), 403, why)
                .await;
            tried += 1;
        }
    }
    assert_eq!(tried, 3 * (bad.len() + 8));
    let letters = db.letters().await;
    assert!(
        letters.iter().all(|it| it.reviewed_by.is_none()),
        "nothing was decided"
    );
    assert_eq!(db.queued().await, 0, "nothing was published");
}

#[tokio::test]
async fn b6_b8_exactly_the_described_permission_lets_in() {
    let (db, jwks) = (Db::fresh().await, jwks());
    let api = api(&db, jwks.path()).await;
    let now = SystemClock::new().now().timestamp();
    let signer = Signer::ed25519(1);
    let mut seen = Vec::new();
    for at in 0..calls("").len() {
        let Some(permission) = calls("")[at].permission else {
            let call = &calls("")[at];
            let (status, ..) = call.send(&api, &[]).await;
            // Without a recorder there are no metrics; everybody is told that, too.
            let due = if call.path == "/metrics" { 404 } else { 200 };
            assert_eq!(status.as_u16(), due, "{}", call.path);
            continue;
        };
        seen.push(permission);
        let name = permission.as_str();
        let only = with(
            &claims(now),
            json!({"permissions": [name, "other.service"]}),
        );
        let scope = json!({"permissions": null, "scope": format!("openid {name}")});
        let no_tenant = json!({"tenant": false, "tenant_id": Value::Null});
        let none_of_it = {
            let mut claims = with(&only, no_tenant);
            claims["tenant_id"] = Value::Null;
            claims
        };
        let late = json!({"exp": now - 20, "nbf": now + 20, "aud": AUDIENCE});
        let typ = json!({"alg": "EdDSA", "typ": "application/at+jwt"});
        for (who, token) in [
            (format!("only {name}"), format!("only {name}")),
            ("ada@example.com".to_owned(), signer.sign("one", &only)),
            (
                "ada@example.com".to_owned(),
                signer.sign("one", &with(&only, scope)),
            ),
            (
                "ada@example.com".to_owned(),
                signer.sign("one", &none_of_it),
            ),
            (
                "ada@example.com".to_owned(),
                signer.sign("one", &with(&only, late)),
            ),
            // The RSA key is none for EdDSA: one key is left, and needs no name.
            ("ada@example.com".to_owned(), signer.sign_as(&typ, &only)),
        ] {
            let id = letter(&db).await;
            let call = &calls(&id)[at];
            let (status, _, answer) = call.send(&api, &[format!("bearer {token}")]).await;
            assert_eq!(status, StatusCode::OK, "{} {answer}", call.path);
            let it = db
                .letters()
                .await
                .into_iter()
                .find(|it| it.letter.id.to_string() == id);
            let by = it.unwrap().reviewed_by;
            match permission {
                Permission::Read => assert_eq!(by, None),
                _ => assert_eq!(by, Some(who)),
            }
            db.execute("DELETE FROM pgmq.q_points").await;
        }
    }
    seen.sort();
    assert_eq!(seen, Permission::ALL);
}

#[tokio::test]
async fn b6_metrics_are_served_without_a_token_where_there_are_some() {
    let db = Db::fresh().await;
    let api = router(Api {
        store: db.store(),
        publisher: db.queue().await,
        env: Env::system().unwrap(),
        access: Access::tokens(&[token("all", all_but(None), false)]).unwrap(),
        limits: ApiLimits {
            time: Duration::from_secs(10),
            ..ApiLimits::default()
        },
        metrics: Some(std::sync::Arc::new(|| "jobs_total 7\n".to_owned())),
    });
    let request = Request::get("/metrics").body(Body::empty()).unwrap();
    let response = api.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        response.headers()["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let body = axum::body::to_bytes(response.into_body(), 100)
        .await
        .unwrap();
    assert_eq!(&*body, b"jobs_total 7\n");
}
