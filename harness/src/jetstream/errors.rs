//! What the server's and the client's errors mean to a caller.

use async_nats::error::Error;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    ConsumerInfoErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind, RequestErrorKind,
};
use async_nats::jetstream::stream::{DeleteMessageErrorKind, PurgeErrorKind, RawMessageErrorKind};

use crate::ports::queue::QueueError;

/// What kinds of errors tell about the server: an answer that was an error, or none.
pub(super) trait Kind: std::fmt::Debug {
    /// The server's own error, if it answered.
    fn answered(&self) -> Option<&async_nats::jetstream::Error>;
}

macro_rules! kinds {
    ($($kind:ty),*) => { $(
        impl Kind for $kind {
            fn answered(&self) -> Option<&async_nats::jetstream::Error> {
                match self {
                    Self::JetStream(error) => Some(error),
                    _ => None,
                }
            }
        }
    )* };
}
kinds!(
    GetStreamErrorKind,
    ConsumerInfoErrorKind,
    DeleteMessageErrorKind,
    PurgeErrorKind,
    RawMessageErrorKind,
    async_nats::jetstream::context::CreateStreamErrorKind,
    async_nats::jetstream::stream::ConsumerErrorKind
);

impl Kind for RequestErrorKind {
    fn answered(&self) -> Option<&async_nats::jetstream::Error> {
        None
    }
}

/// The error of a call to the server's API. No answer, and an answer that the server cannot do it now, is "away".
pub(super) fn api_error<K>(error: Error<K>) -> QueueError
where
    K: Kind + Clone + std::fmt::Display + PartialEq + Send + Sync + 'static,
    Error<K>: std::error::Error,
{
    let refused = error.kind().answered().is_some_and(|it| !is_away(it));
    match refused {
        true => QueueError::Refused(error.into()),
        false => QueueError::Away(error.into()),
    }
}

/// Whether the server says that it cannot do it now: no leader, not enough servers, JetStream is starting.
fn is_away(error: &async_nats::jetstream::Error) -> bool {
    // It says 503 also of a stream that is full, which does not pass by itself.
    error.code() == 503 && error.error_code() != ErrorCode::STREAM_STORE_FAILED
}

/// The error of a publication. Whether it was stored is unknown unless it is refused.
pub(super) fn publish_error(error: PublishError) -> QueueError {
    match error.kind() {
        // The server's own errors are hidden in `Other`.
        PublishErrorKind::Other => {
            let source = std::error::Error::source(&error);
            let answered = source.and_then(|it| it.downcast_ref::<async_nats::jetstream::Error>());
            match answered {
                Some(answered) if !is_away(answered) => QueueError::Refused(error.into()),
                _ => QueueError::Away(error.into()),
            }
        }
        PublishErrorKind::MaxPayloadExceeded => QueueError::Refused(
            format!("{error}: make `max_payload` of the server larger, or the message smaller")
                .into(),
        ),
        PublishErrorKind::WrongLastSequence => QueueError::LeaseLost,
        PublishErrorKind::WrongLastMessageId => QueueError::Refused(error.into()),
        // Nobody listens on the subject: the stream was deleted, or the server has no JetStream (yet).
        PublishErrorKind::StreamNotFound
        | PublishErrorKind::TimedOut
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending => QueueError::Away(error.into()),
    }
}
