//! The routes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, RawQuery, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tracing::Instrument as _;
use utoipa::ToSchema;
use uuid::Uuid;

use super::access::{Access, Permission};
use super::list::{Page, Parameters, Wanted};
use super::openapi::{self, answers};
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

/// What there is to measure, in Prometheus' text format.
pub type Metrics = Arc<dyn Fn() -> String + Send + Sync>;

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
    /// What `/metrics` answers, without a token: there may be no ids and no texts in it. None where it is served elsewhere.
    pub metrics: Option<Metrics>,
}

pub(super) struct Inner<S, P> {
    api: Api<S, P>,
    review: Review<S, P>,
    at_once: Semaphore,
}

pub(super) type Shared<S, P> = Arc<Inner<S, P>>;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The API: P1..P3, `/healthz` (this process lives), `/readyz` (the database answers), `/metrics`, and `/openapi.json`, which
/// describes all of them.
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
    let description: Arc<str> = openapi::openapi().into();
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready::<S, P>))
        .route("/metrics", get(metrics::<S, P>))
        .route("/openapi.json", get(async || described(description)))
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

#[utoipa::path(get, path = "/healthz", operation_id = "alive", tag = "health", security(()),
    responses((status = 200, description = "This process lives.", body = String, content_type = "text/plain")))]
pub(super) async fn alive() -> &'static str {
    "alive\n"
}

#[utoipa::path(get, path = "/openapi.json", operation_id = "describe", tag = "health", security(()),
    responses((status = 200, description = "This description.", body = Object, content_type = "application/json")))]
pub(super) fn described(text: Arc<str>) -> impl IntoResponse {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, text.to_string())
}

#[utoipa::path(get, path = "/metrics", operation_id = "measure", tag = "health", security(()),
    responses(
        (status = 200, description = "What there is to measure.", body = String, content_type = "text/plain"),
        (status = 404, description = "It is not served here.", body = super::problem::Problem,
            content_type = "application/problem+json")))]
pub(super) async fn metrics<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
) -> Result<impl IntoResponse, Problem> {
    let Some(metrics) = &shared.api.metrics else {
        return Err(Problem::not_found("metrics are not served here"));
    };
    let prometheus = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, prometheus)], metrics()))
}

#[utoipa::path(get, path = "/readyz", operation_id = "ready", tag = "health", security(()),
    responses(
        (status = 200, description = "The database answers.", body = String, content_type = "text/plain"),
        answers::Failed))]
pub(super) async fn ready<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
) -> Result<&'static str, Problem> {
    let ping = shared.api.store.ping();
    match within(&*shared.api.env.clock, shared.api.limits.time, ping).await {
        Ok(Ok(())) => Ok("ready\n"),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(Problem::unavailable("the database does not answer")),
    }
}

/// Lists dead letters (P1).
///
/// All filters that are given must hold. Letters keep their place while they are decided: a list that does not filter by
/// status shows each of them once, page after page.
#[utoipa::path(get, path = "/v1/core/dead-letters", operation_id = "listDeadLetters", tag = "dead letters",
    params(Parameters),
    security(("bearer" = [Permission::Read.as_str()])),
    responses(
        (status = 200, description = "A page.", body = Page, links(
            ("replay" = (operation_id = "replayDeadLetter", parameters(("id" = "$response.body#/items/0/id")))),
            ("discard" = (operation_id = "discardDeadLetter", parameters(("id" = "$response.body#/items/0/id")))))),
        answers::Refused, answers::Invalid, answers::Failed))]
pub(super) async fn list<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
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

/// One textual form, as for all ids.
fn id_of(path: Result<Path<String>, PathRejection>) -> Result<DeadLetterId, Problem> {
    let text = path.ok().filter(|Path(text)| text.len() == 36);
    let id = text.and_then(|Path(text)| Uuid::parse_str(&text).ok());
    let detail = "must be a UUID of the form 01234567-89ab-cdef-0123-456789abcdef";
    id.map(DeadLetterId)
        .ok_or_else(|| Problem::invalid("id", detail))
}

/// What became of a decision.
#[derive(Serialize, ToSchema)]
pub(super) struct Decided {
    #[schema(value_type = Uuid)]
    id: DeadLetterId,
    status: Status,
    /// It was decided the same way before; nothing was done now.
    already: bool,
}

/// Publishes the job again (P2).
///
/// Same id, same bytes, next generation. Repeating it has no further effect.
#[utoipa::path(post, path = "/v1/core/dead-letters/{id}/replay", operation_id = "replayDeadLetter", tag = "dead letters",
    params(("id" = Uuid, Path, description = "The dead letter.")),
    security(("bearer" = [Permission::Replay.as_str()])),
    responses(
        (status = 200, description = "It is replayed.", body = Decided),
        answers::Refused, answers::Unknown, answers::Otherwise, answers::Invalid, answers::Failed))]
pub(super) async fn replay<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<axum::Json<Decided>, Problem> {
    let by = shared.who(&headers, Permission::Replay)?;
    let id = id_of(id)?;
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
    Ok(axum::Json(Decided {
        id,
        status: Status::Replayed,
        already,
    }))
}

/// What a discard must say.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Discard {
    /// Why, in at least one visible character and at most 16 KiB.
    #[schema(example = "the account was closed")]
    reason: String,
}

/// Gives the job up for ever (P3).
///
/// Repeating it has no further effect; the first reason stays.
#[utoipa::path(post, path = "/v1/core/dead-letters/{id}/discard", operation_id = "discardDeadLetter", tag = "dead letters",
    params(("id" = Uuid, Path, description = "The dead letter.")),
    request_body(content = Discard, content_type = "application/json"),
    security(("bearer" = [Permission::Discard.as_str()])),
    responses(
        (status = 200, description = "It is discarded.", body = Decided),
        answers::Refused, answers::Unknown, answers::Otherwise, answers::TooLarge, answers::Invalid, answers::Failed))]
pub(super) async fn discard<S: ReviewStore + Store + CountStore, P: ReplayPublisher<S>>(
    State(shared): State<Shared<S, P>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<axum::Json<Decided>, Problem> {
    let by = shared.who(&headers, Permission::Discard)?;
    let id = id_of(id)?;
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
    Ok(axum::Json(Decided {
        id,
        status: Status::Discarded,
        already,
    }))
}
