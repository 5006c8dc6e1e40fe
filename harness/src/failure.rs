//! How a run fails, and how failures of the same kind are told apart.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error_text::error_text;

type BoxError = Box<dyn Error + Send + Sync>;

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// It can: retried until the policy is exhausted (B3).
    Transient,
    /// It cannot: a dead letter at once (B4).
    Permanent,
}

/// A handler's failure. Any error converts into a transient one through `?`.
pub struct Failure {
    kind: FailureKind,
    class: ErrorClass,
    source: BoxError,
}

impl Failure {
    /// A failure that may go away.
    pub fn transient(error: impl Into<BoxError>) -> Self {
        Self {
            kind: FailureKind::Transient,
            class: ErrorClass::of("transient"),
            source: error.into(),
        }
    }

    /// A failure that will stay: a hard failure.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self {
            kind: FailureKind::Permanent,
            class: ErrorClass::of("permanent"),
            source: error.into(),
        }
    }

    /// Names the kind of error, for grouping alerts. Keep the set of names small: no ids, no texts.
    #[must_use]
    pub fn class(mut self, class: &str) -> Self {
        self.class = ErrorClass::of(class);
        self
    }

    /// Whether trying again can help.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The kind of error.
    pub fn error_class(&self) -> &ErrorClass {
        &self.class
    }

    /// The error itself.
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        self.source.as_ref()
    }

    /// The error and its causes, as a dead letter keeps them.
    pub fn text(&self) -> String {
        error_text(self.error())
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        // The type's own name without its path: `sqlx::error::Error<X>` is "error".
        let path = std::any::type_name::<E>()
            .split('<')
            .next()
            .unwrap_or_default();
        let class = ErrorClass::of(path);
        Self {
            kind: FailureKind::Transient,
            class,
            source: Box::new(error),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("kind", &self.kind)
            .field("class", &self.class.as_str())
            .field("error", &self.text())
            .finish()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// A kind of error: part of the fingerprint by which alerts are grouped. 1 to 64 characters `[a-z0-9_.:-]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct ErrorClass(String);

impl ErrorClass {
    const MAX_LENGTH: usize = 64;

    /// Folds any text into the alphabet: other characters become `_`, the end is cut, nothing is `unknown`.
    pub fn of(text: &str) -> Self {
        let folded: String = text
            .chars()
            .take(Self::MAX_LENGTH)
            .map(|c| match c.to_ascii_lowercase() {
                c @ ('a'..='z' | '0'..='9' | '_' | '.' | ':' | '-') => c,
                _ => '_',
            })
            .collect();
        Self(if folded.is_empty() {
            "unknown".to_owned()
        } else {
            folded
        })
    }

    /// The class as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ErrorClass {
    fn from(text: String) -> Self {
        Self::of(&text)
    }
}

impl From<ErrorClass> for String {
    fn from(class: ErrorClass) -> Self {
        class.0
    }
}

impl fmt::Display for ErrorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b3_any_error_through_the_question_mark_is_transient_and_named_by_its_type() {
        fn work() -> Result<i64, Failure> {
            Ok("twelve".parse::<i64>()?)
        }
        let failure = work().unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Transient);
        assert_eq!(
            failure.error_class().as_str(),
            "core::num::error::parseinterror"
        );
        assert_eq!(failure.text(), "invalid digit found in string");
    }

    #[test]
    fn b4_a_class_is_folded_into_its_alphabet() {
        assert_eq!(ErrorClass::of("HTTP 503/é").as_str(), "http_503__");
        assert_eq!(ErrorClass::of("").as_str(), "unknown");
        assert_eq!(ErrorClass::of(&"x".repeat(100)).as_str().len(), 64);
    }
}
