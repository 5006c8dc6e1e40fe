//! Answers for a delivery.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{DeleteMessageErrorKind, RawMessageErrorKind, Stream};

use super::errors::{api_error, publish_error};
use super::state::State;
use super::{JetStreamQueue, Opened};
use crate::names::QueueName;
use crate::ports::queue::{QueueError, Receipt};

/// The message that a receipt is for.
pub(super) fn message_of(receipt: &Receipt) -> Result<u64, QueueError> {
    receipt
        .message
        .parse()
        .map_err(|_| QueueError::Refused(format!("{receipt:?} is no receipt of this queue").into()))
}

/// Removes a message and its record. The message first: a record without a message is removed when it comes up, but a
/// message without a record would be new to nobody.
pub(super) async fn ack(at: &Opened, receipt: &Receipt) -> Result<(), QueueError> {
    let message = message_of(receipt)?;
    delete(&at.messages, message).await?;
    // Its record is the one that the delivery is called after, unless that was replaced since.
    if !delete(&at.states, receipt.delivery).await? {
        forget(at, message).await?;
    }
    Ok(())
}

/// Removes the record of a message, whichever it is by now.
///
/// By its sequence: a server that is asked to purge a subject (2.9) also forgets what else its consumers are waiting for.
pub(super) async fn forget(at: &Opened, message: u64) -> Result<(), QueueError> {
    while let Some((sequence, _)) = last(at, message).await? {
        delete(&at.states, sequence).await?;
    }
    Ok(())
}

/// Whether there was something to remove.
async fn delete(stream: &Stream<()>, sequence: u64) -> Result<bool, QueueError> {
    match stream.delete_message(sequence).await {
        Ok(_) => Ok(true),
        Err(error) if is_gone(error.kind()) => Ok(false),
        Err(error) => Err(api_error(error)),
    }
}

fn is_gone(kind: DeleteMessageErrorKind) -> bool {
    let DeleteMessageErrorKind::JetStream(error) = kind else {
        return false;
    };
    let code = error.error_code();
    // How the server says that there is nothing at that sequence, by version and by where it was looked for.
    code == ErrorCode::NO_MESSAGE_FOUND
        || code == ErrorCode::SEQUENCE_NOT_FOUND
        || code == ErrorCode::STREAM_MESSAGE_DELETE_FAILED
}

impl JetStreamQueue {
    /// Replaces the record of a delivery that still holds its message.
    pub(super) async fn answer(
        &self,
        queue: &QueueName,
        receipt: &Receipt,
        next: impl FnOnce(State) -> State + Send,
    ) -> Result<(), QueueError> {
        let message = message_of(receipt)?;
        self.connected()?;
        let at = self.open(queue).await?;
        let Some((sequence, Some(state))) = last(&at, message).await? else {
            return Err(QueueError::LeaseLost);
        };
        if state.holder(sequence) != Some(receipt.delivery) {
            return Err(QueueError::LeaseLost);
        }
        self.replace(&at, message, sequence, next(state)).await?;
        Ok(())
    }

    /// Puts a record in the place of the one at `expected` (0: of none), and answers its sequence;
    /// [`QueueError::LeaseLost`] when that is not the last one any more.
    pub(super) async fn replace(
        &self,
        at: &Opened,
        message: u64,
        expected: u64,
        state: State,
    ) -> Result<u64, QueueError> {
        let record = PublishMessage::build()
            .payload(state.encode().into())
            .expected_last_subject_sequence(expected);
        let stored = self
            .context
            .send_publish(at.names.state_of(message), record)
            .await
            .map_err(publish_error)?;
        Ok(stored.await.map_err(publish_error)?.sequence)
    }
}

/// The sequence of a message's record, and what it says.
async fn last(at: &Opened, message: u64) -> Result<Option<(u64, Option<State>)>, QueueError> {
    let record = record_of(at, message).await?;
    Ok(record.map(|it| (it.sequence, State::decode(&it.payload))))
}

/// The record of a message, as it is stored.
pub(super) async fn record_of(
    at: &Opened,
    message: u64,
) -> Result<Option<StreamMessage>, QueueError> {
    let subject = at.names.state_of(message);
    match at.states.get_last_raw_message_by_subject(&subject).await {
        Ok(record) => Ok(Some(record)),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(api_error(error)),
    }
}

/// A wait that the server can count: it takes whole nanoseconds, and none for "at once".
pub(super) fn again_after(wait: Duration) -> async_nats::jetstream::AckKind {
    async_nats::jetstream::AckKind::Nak((!wait.is_zero()).then_some(wait))
}
