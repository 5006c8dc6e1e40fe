//! The routes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tracing::Instrument as _;
use uuid::Uuid;

use super::access::{Access, Permission};
use super::list::{Page, Wanted};
use super::problem::Problem;
use crate::dead_letter::{DeadLetterId, Status};
use crate::decision::{DiscardReason, Discarded, Reviewer};
use crate::ports::env::Env;
use crate::ports::store::{CountStore, ReviewStore, Store};
use crate::review::{DiscardError, LetterQuery, ReplayError, ReplayPublisher, Replayed, Review};
use crate::time::within;

/// Bounds of what one request, and all together, may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiLimits {
    /// Bytes of a body. Default 64 KiB.
    pub body_bytes: usize,
    /// The longest that a request may take. Default 10 s.
    pub time: Duration,
    /// Requests at once; more are answered 503. Default 32.
    pub at_once: usize,
    /// Kinds of failure that are counted. Default 100.
    pub counts: u32,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            body_bytes: 64 * 1_024,
            time: Duration::from_secs(10),
            at_once: 32,
            counts: 100,
        }
    }
}

/// What the routes work on.
pub struct Api<S, P> {
    /// Where dead letters are.
    pub store: S,
    /// How a replay is published.
    pub publisher: P,
    /// Time, ids, and who is told.
    pub env: Env,
    /// Who may do what.
    pub access: Access,
    /// How much at once.
    pub limits: ApiLimits,
}

struct Inner<S, P> {
    api: Api<S, P>,
    review: Review<S, P>,
    at_once: Semaphore,
}

type Shared<S, P> = Arc<Inner<S, P>>;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The API: P1..P3, `/healthz` (this process lives), `/readyz` (the database answers).
pub fn router<S, P>(api: Api<S, P>) -> Router
where
    S: ReviewStore + Store + CountStore,
    P: ReplayPublisher<S>,
{
    let limit = api.limits.body_bytes;
    let shared = Arc::new(Inner {
        review: Review::new(api.store.clone(), api.publisher.clone(), api.env.clone()),
        at_once: Semaphore::new(api.limits.at_once),
        api,
    });
    let dead_letters = Router::new()
        .route("/v1/core/dead-letters", get(list::<S, P>))
        .route("/v1/core/dead-letters/{id}/replay", post(replay::<S, P>))
        .route("/v1/core/dead-letters/{id}/discard", post(discard::<S, P>))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            limited::<S, P>,
        ));
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready::<S, P>))
        .merge(dead_letters)
        .fallback(async || Problem::not_found("there is nothing at this address"))
        .method_not_allowed_fallback(async || Problem::method_not_allowed())
        .layer(DefaultBodyLimit::max(limit))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared),
            identified::<S, P>,
        ))
        .with_state(shared)
}

/// Every request has an id, ours or theirs; the log and the answer carry it.
async fn identified<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    request: Request,
    next: Next,
) -> Response {
    let theirs = request.headers().get(REQUEST_ID).filter(|id| {
        let bytes = id.as_bytes();
        (1..=128).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    let id = match theirs {
        Some(id) => id.clone(),
        None => HeaderValue::from_str(&shared.api.env.new_id().to_string())
            .unwrap_or(HeaderValue::from_static("none")),
    };
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
    );
    let mut response = next.run(request).instrument(span).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// Not too many at once, and none for too long.
async fn limited<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    request: Request,
    next: Next,
) -> Response {
    let Ok(_place) = shared.at_once.try_acquire() else {
        return Problem::unavailable("too many requests at once; ask again").into_response();
    };
    match within(
        &*shared.api.env.clock,
        shared.api.limits.time,
        next.run(request),
    )
    .await
    {
        Ok(response) => response,
        Err(_) => {
            Problem::unavailable("this took too long; ask again, which is safe").into_response()
        }
    }
}

impl<S, P> Inner<S, P> {
    fn who(&self, headers: &HeaderMap, needed: Permission) -> Result<Reviewer, Problem> {
        let clock = &*self.api.env.clock;
        self.api.access.check(headers, needed, clock)
    }
}

async fn ready<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
) -> Result<&'static str, Problem> {
    let ping = shared.api.store.ping();
    match within(&*shared.api.env.clock, shared.api.limits.time, ping).await {
        Ok(Ok(())) => Ok("ready\n"),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Problem::unavailable("the database does not answer")),
    }
}

async fn list<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<axum::Json<Page>, Problem> {
    shared.who(&headers, Permission::Read)?;
    let wanted = Wanted::parse(&query.unwrap_or_default())?;
    // One more than is shown, to know whether there is another page.
    let query = LetterQuery {
        limit: wanted.query.limit + 1,
        ..wanted.query.clone()
    };
    let letters = shared.api.store.dead_letters(&query).await?;
    let counts = match wanted.counts {
        true => {
            let limit = shared.api.limits.counts;
            Some(
                shared
                    .api
                    .store
                    .count_dead_letters(&query.filter, limit)
                    .await?,
            )
        }
        false => None,
    };
    Ok(axum::Json(Page::of(&wanted, letters, counts)))
}

fn id_of(text: &str) -> Result<DeadLetterId, Problem> {
    let id = Uuid::parse_str(text).map_err(|_| Problem::invalid("id", "must be a UUID"))?;
    Ok(DeadLetterId(id))
}

async fn replay<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<axum::Json<serde_json::Value>, Problem> {
    let by = shared.who(&headers, Permission::Replay)?;
    let id = id_of(&id)?;
    let already = match shared.review.replay(id, &by).await {
        Ok(Replayed::Published { .. }) => false,
        Ok(Replayed::Already) => true,
        Err(error) => {
            let detail = error.to_string();
            return Err(match error {
                ReplayError::NotFound(_) => Problem::not_found(&detail),
                ReplayError::WasDiscarded(_) => Problem::conflict(&detail, Status::Discarded),
                ReplayError::Queue(error) => error.into(),
                ReplayError::Store(error) => error.into(),
            });
        }
    };
    Ok(axum::Json(serde_json::json!({
        "id": id,
        "status": Status::Replayed,
        "already": already,
    })))
}

/// What a discard must say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Discard {
    reason: String,
}

async fn discard<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<axum::Json<serde_json::Value>, Problem> {
    let by = shared.who(&headers, Permission::Discard)?;
    let id = id_of(&id)?;
    let body = body.map_err(|_| Problem::too_large(shared.api.limits.body_bytes))?;
    let wanted: Discard = serde_json::from_slice(&body).map_err(|error| {
        let detail = format!("send {{\"reason\": \"why\"}} as JSON: {error}");
        Problem::invalid("reason", &detail)
    })?;
    let reason = DiscardReason::new(&wanted.reason)
        .map_err(|error| Problem::invalid("reason", &error.to_string()))?;
    let already = match shared.review.discard(id, &reason, &by).await {
        Ok(discarded) => discarded == Discarded::Already,
        Err(error) => {
            let detail = error.to_string();
            return Err(match error {
                DiscardError::NotFound(_) => Problem::not_found(&detail),
                DiscardError::WasReplayed(_) => Problem::conflict(&detail, Status::Replayed),
                DiscardError::WasApplied(_) => Problem::conflict(&detail, Status::PendingReview),
                DiscardError::Store(error) => error.into(),
            });
        }
    };
    Ok(axum::Json(serde_json::json!({
        "id": id,
        "status": Status::Discarded,
        "already": already,
    })))
}
