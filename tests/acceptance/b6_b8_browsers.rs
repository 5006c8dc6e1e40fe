//! The API without tokens, and web pages that are open on the same machine: they may neither read nor decide.

use acceptance::db::Db;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use harness::ops::{Access, Api, ApiLimits, router};
use harness::{Env, Reviewer};
use tower::ServiceExt as _;

use crate::b6_b8_access::{calls, letter};

#[tokio::test]
async fn b8_a_web_page_can_do_nothing_where_no_token_is_needed() {
    let db = Db::fresh().await;
    let store = db.store();
    let id = letter(&db).await;
    let api = router(Api {
        store,
        publisher: db.queue().await,
        env: Env::system().unwrap(),
        access: Access::everybody(Reviewer::new("ada").unwrap()),
        limits: ApiLimits::default(),
        metrics: None,
    });
    let send = async |method: &str, path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Body::from(r#"{"reason": "known bug"}"#);
        let answer = api.clone().oneshot(request.body(body).unwrap()).await;
        answer.unwrap().status()
    };

    let pages: [&[(&str, &str)]; 8] = [
        &[
            ("host", "127.0.0.1:8080"),
            ("origin", "https://evil.example"),
        ],
        &[("host", "127.0.0.1:8080"), ("origin", "null")],
        &[("host", "127.0.0.1:8080"), ("origin", "http://127.0.0.1:9")],
        &[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")],
        &[("host", "localhost:8080"), ("sec-fetch-site", "same-site")],
        &[
            ("host", "localhost:8080"),
            ("sec-fetch-site", "same-origin"),
        ],
        &[("host", "evil.example:8080")],
        &[("host", "127.0.0.1.evil.example")],
    ];
    let mut tried = 0;
    for call in calls(&id).iter().filter(|it| it.permission.is_some()) {
        for page in pages {
            let status = send(&call.method, &call.path, page).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{} {page:?}", call.path);
            tried += 1;
        }
    }
    assert_eq!(tried, 3 * pages.len());
    let pending = "SELECT count(*) FROM core.dead_letters WHERE status = 'pending_review'";
    assert_eq!(db.count(pending).await, 1);

    // Programs, and whoever types the address into a browser.
    let list = "/v1/core/dead-letters";
    let typed = [("host", "localhost:8080"), ("sec-fetch-site", "none")];
    assert_eq!(send("GET", list, &typed).await, StatusCode::OK);
    let discard = format!("{list}/{id}/discard");
    let host = [("host", "127.0.0.1:8080")];
    assert_eq!(send("POST", &discard, &host).await, StatusCode::OK);
    assert_eq!(db.count(pending).await, 0);
}
