//! Taking messages: first those whose wait is over, then new ones.

use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::RawMessageErrorKind;
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;

use super::answer::{again_after, forget};
use super::errors::api_error;
use super::state::State;
use super::{JetStreamQueue, Opened, wire};
use crate::envelope::Message;
use crate::names::QueueName;
use crate::ports::queue::{Delivery, QueueError, Receipt};

/// A question that is not answered for so long is doubted.
const SILENCE: Duration = Duration::from_millis(100);

/// The server's word for one message that it gave us to look at.
struct Seen {
    message: async_nats::jetstream::Message,
    sequence: u64,
    stored_at: DateTime<Utc>,
}

pub(super) async fn receive(
    queue: &JetStreamQueue,
    at: &Opened,
    name: &QueueName,
    max: usize,
    lease: Duration,
) -> Result<Vec<Delivery>, QueueError> {
    let mut deliveries = Vec::new();
    while deliveries.len() < max {
        let seen = fetch(queue, &at.due, max - deliveries.len()).await?;
        if seen.is_empty() {
            break;
        }
        let now = at.time.now(queue, at).await?;
        let taken = seen
            .iter()
            .map(|it| take_again(queue, at, name, it, now, lease));
        deliveries.extend(all(taken).await?);
    }
    if deliveries.len() < max {
        let seen = fetch(queue, &at.new, max - deliveries.len()).await?;
        let taken = seen.iter().map(|it| take_new(queue, at, name, it, lease));
        deliveries.extend(all(taken).await?);
    }
    // A consumer that has more than was asked for is not done yet.
    if deliveries.is_empty() {
        at.neglect.look(queue, at).await?;
    } else if deliveries.len() < max {
        // They are leased: an error must not keep them from being worked on.
        drop(at.neglect.look(queue, at).await);
    }
    Ok(deliveries)
}

/// What came of all of them. Those that were taken are delivered, also when others could not be: they come again.
async fn all(
    taken: impl Iterator<Item = impl Future<Output = Result<Option<Delivery>, QueueError>>>,
) -> Result<Vec<Delivery>, QueueError> {
    let mut deliveries = Vec::new();
    let mut failed = None;
    for outcome in futures_util::future::join_all(taken).await {
        match outcome {
            Ok(delivery) => deliveries.extend(delivery),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if deliveries.is_empty() => Err(error),
        _ => Ok(deliveries),
    }
}

/// What a consumer of the server's has now, without waiting.
///
/// A server that was killed may count messages that are not there any more, and then lets the question wait for the next
/// one instead of saying that there is none. So silence is not waited out: once the server has answered another question,
/// and is still silent about this one, there is nothing.
async fn fetch(
    queue: &JetStreamQueue,
    consumer: &PullConsumer,
    max: usize,
) -> Result<Vec<Seen>, QueueError> {
    let away = |error: async_nats::Error| QueueError::Away(error);
    let mut batch = consumer
        .fetch()
        .max_messages(max)
        .messages()
        .await
        .map_err(|error| away(error.into()))?;
    let mut messages = Vec::new();
    let mut was_silent = false;
    loop {
        let silence = queue.clock.sleep(SILENCE);
        let next = tokio::select! {
            next = batch.next() => next,
            () = silence => {
                if was_silent {
                    break;
                }
                was_silent = true;
                consumer.get_info().await.map_err(api_error)?;
                continue;
            }
        };
        match next {
            Some(Ok(message)) => messages.push(message),
            Some(Err(error)) if messages.is_empty() => return Err(away(error)),
            Some(Err(_)) | None => break,
        }
    }
    messages
        .into_iter()
        .map(|message| {
            let info = message.info().map_err(away)?;
            Ok(Seen {
                sequence: info.stream_sequence,
                stored_at: info.published,
                message,
            })
        })
        .collect()
}

/// A record came up: of a message whose wait is over, or is not over yet.
async fn take_again(
    queue: &JetStreamQueue,
    at: &Opened,
    name: &QueueName,
    seen: &Seen,
    now: DateTime<Utc>,
    lease: Duration,
) -> Result<Option<Delivery>, QueueError> {
    let subject = seen.message.subject.as_str();
    let Some(message) = subject.rsplit('.').next().and_then(|it| it.parse().ok()) else {
        return settled(seen).await;
    };
    let state = State::decode(&seen.message.payload);
    let waited = (now - seen.stored_at).to_std().unwrap_or_default();
    let left = state
        .map_or(Duration::ZERO, State::wait)
        .saturating_sub(waited);
    if !left.is_zero() {
        told(seen, again_after(left)).await?;
        return Ok(None);
    }
    let stored = match at.messages.get_raw_message(message).await {
        Ok(stored) => stored,
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => {
            // It was acknowledged, and its record is left over.
            forget(at, message).await?;
            return settled(seen).await;
        }
        Err(error) => return Err(api_error(error)),
    };
    let next = State::handed_out(state, lease);
    let body = wire::message(Some(&stored.headers), &stored.payload);
    let place = Place {
        message,
        expected: seen.sequence,
        enqueued_at: stored.time,
    };
    take(queue, at, name, seen, &place, next, body).await
}

/// A message came that the server takes for a new one.
async fn take_new(
    queue: &JetStreamQueue,
    at: &Opened,
    name: &QueueName,
    seen: &Seen,
    lease: Duration,
) -> Result<Option<Delivery>, QueueError> {
    let next = State::handed_out(None, lease);
    let body = wire::message(seen.message.headers.as_ref(), &seen.message.payload);
    let place = Place {
        message: seen.sequence,
        expected: 0,
        enqueued_at: seen.stored_at,
    };
    take(queue, at, name, seen, &place, next, body).await
}

/// Where a message is, and which record of it was the last one that was seen (0: none).
struct Place {
    message: u64,
    expected: u64,
    enqueued_at: DateTime<Utc>,
}

/// Makes a delivery of it, unless somebody else did.
async fn take(
    queue: &JetStreamQueue,
    at: &Opened,
    name: &QueueName,
    seen: &Seen,
    place: &Place,
    next: State,
    message: Message,
) -> Result<Option<Delivery>, QueueError> {
    let delivery = match queue.replace(at, place.message, place.expected, next).await {
        Ok(delivery) => delivery,
        Err(QueueError::LeaseLost) => return settled(seen).await,
        Err(error) => return Err(error),
    };
    // From here on its record brings it back. Whether the server hears this does not matter.
    drop(settled(seen).await);
    Ok(Some(Delivery {
        receipt: Receipt {
            message: place.message.to_string(),
            delivery,
        },
        queue: name.clone(),
        message,
        redeliveries: next.redeliveries(),
        enqueued_at: place.enqueued_at,
    }))
}

/// It need not come up again.
async fn settled(seen: &Seen) -> Result<Option<Delivery>, QueueError> {
    told(seen, AckKind::Ack).await?;
    Ok(None)
}

async fn told(seen: &Seen, answer: AckKind) -> Result<(), QueueError> {
    seen.message
        .ack_with(answer)
        .await
        .map_err(QueueError::Away)
}
