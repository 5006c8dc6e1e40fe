//! Errors as problem documents (RFC 9457).

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::access::Permission;
use crate::dead_letter::Status;
use crate::ports::queue::QueueError;
use crate::ports::store::StoreError;

/// How long to wait before asking again, in seconds.
const RETRY_AFTER: &str = "5";

/// What went wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Which kind of problem; the same for ever.
    #[serde(rename = "type")]
    #[schema(pattern = "^urn:job-harness:problem:[a-z-]+$")]
    kind: String,
    title: &'static str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What to do.
    detail: String,
    /// Which field or parameter is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Where the dead letter is.
    #[serde(skip_serializing_if = "Option::is_none")]
    current_status: Option<Status>,
    /// What to prove, and how (RFC 6750): the header `WWW-Authenticate`.
    #[serde(skip)]
    challenge: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, kind: &str, title: &'static str, detail: &str) -> Self {
        Self {
            kind: format!("urn:job-harness:problem:{kind}"),
            title,
            status: status.as_u16(),
            detail: detail.to_owned(),
            field: None,
            current_status: None,
            challenge: None,
        }
    }

    /// There is no token. RFC 6750, 3.1: no error code for who did not try.
    pub(super) fn unauthorized(detail: &str) -> Self {
        let status = StatusCode::UNAUTHORIZED;
        Self {
            challenge: Some("Bearer".to_owned()),
            ..Self::new(status, "unauthorized", "Who are you?", detail)
        }
    }

    /// There is a token, and it is not good.
    pub(super) fn invalid_token(detail: &str) -> Self {
        Self {
            challenge: Some(r#"Bearer error="invalid_token""#.to_owned()),
            ..Self::unauthorized(detail)
        }
    }

    /// The token is good, but not for this.
    pub(super) fn forbidden(detail: &str, needed: Permission) -> Self {
        let needed = needed.as_str();
        let challenge = format!(r#"Bearer error="insufficient_scope", scope="{needed}""#);
        Self {
            challenge: Some(challenge),
            ..Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
        }
    }

    /// No token would help.
    pub(super) fn not_from_here(detail: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    pub(super) fn not_found(detail: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        let detail = "this address has another method; see the documentation";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "method-not-allowed", "Not this method", detail)
    }

    pub(super) fn invalid(field: &str, detail: &str) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        Self {
            field: Some(field.to_owned()),
            ..Self::new(status, "invalid", "Not valid", detail)
        }
    }

    pub(super) fn conflict(detail: &str, current_status: Status) -> Self {
        Self {
            current_status: Some(current_status),
            ..Self::new(StatusCode::CONFLICT, "decided", "Decided otherwise", detail)
        }
    }

    pub(super) fn too_large(limit: usize) -> Self {
        let detail = format!("at most {limit} bytes are read");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "too-large", "Too large", &detail)
    }

    pub(super) fn unavailable(detail: &str) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, "unavailable", "Not now", detail)
    }

    /// What is inside stays inside; the log has it.
    fn internal() -> Self {
        let detail = "the request failed; the log has the cause under its request id";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self::new(status, "internal", "Failed", detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let text = crate::error_text::error_text(&error);
        match error {
            StoreError::Away(_) => {
                tracing::warn!(error = text, "the database is away");
                Self::unavailable("the database is away; ask again, which is safe")
            }
            StoreError::Contention(_) => Self::unavailable(
                "somebody else is deciding about this one; ask again, which is safe",
            ),
            StoreError::Refused(_) => {
                tracing::error!(error = text, "the database refused");
                Self::internal()
            }
        }
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Self {
        let text = crate::error_text::error_text(&error);
        tracing::warn!(error = text, "the queue is away");
        Self::unavailable("the queue is away and nothing changed; ask again, which is safe")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::json!(self).to_string();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        let json = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, json);
        let challenge = self.challenge.map(HeaderValue::try_from);
        if let Some(Ok(challenge)) = challenge {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
        }
        response
    }
}
