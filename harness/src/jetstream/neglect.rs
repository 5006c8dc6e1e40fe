//! Messages that the server does not come back to.
//!
//! A server that was killed may go on with counts that are older than what it stored. Then a consumer may take messages for
//! settled that nobody was given; and a stream may count messages that were removed, with which its oldest one is wrong, and
//! holds back the sweep (B7).
//!
//! Whatever is left out becomes the oldest message sooner or later. So now and then the oldest is looked at: it must have
//! been handed out, or be waiting, or not have been reached yet. If it is overdue twice in a row, longer than a client may
//! take to look at it, its consumer is made anew, and looks at everything again: that repeats much and changes nothing, the
//! records decide. If it cannot be read twice in a row, it was removed, and the stream is told to begin after it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use chrono::{DateTime, Utc};

use super::answer::record_of;
use super::errors::api_error;
use super::setup::{LOOKED_AT, consumer_of_due, consumer_of_new};
use super::state::State;
use super::{JetStreamQueue, Opened};
use crate::ports::queue::QueueError;

/// Between two looks: longer than a message may be with a client that looks at it, so that whoever had it at the first look
/// has said something by the second.
const BETWEEN: Duration = Duration::from_secs(LOOKED_AT.as_secs() + 1);

/// So many messages are asked for in one look.
const AT_ONCE: u64 = 1_000;

/// What a message waits for that should have come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overdue {
    /// The server counts it and does not have it.
    Gone { message: u64 },
    /// It was never handed out, and the consumer says that it was given away.
    New { message: u64 },
    /// Its record is due.
    Record { sequence: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Neglect(Mutex<Looked>);

#[derive(Debug, Default)]
struct Looked {
    /// By our clock.
    at: Option<Duration>,
    seen: Option<Overdue>,
}

impl Neglect {
    /// Looks after the oldest message, if that was not done for a while.
    pub async fn look(&self, queue: &JetStreamQueue, at: &Opened) -> Result<(), QueueError> {
        let now = queue.clock.elapsed();
        let seen = {
            let mut looked = self.looked();
            if looked
                .at
                .is_some_and(|last| now.saturating_sub(last) < BETWEEN)
            {
                return Ok(());
            }
            looked.at = Some(now);
            looked.seen.take()
        };
        let overdue = overdue(queue, at).await?;
        match overdue {
            Some(again) if seen == overdue => match again {
                Overdue::Gone { message } => begin_after(at, message).await,
                Overdue::New { .. } => anew(&at.messages, consumer_of_new()).await,
                Overdue::Record { .. } => anew(&at.states, consumer_of_due(&at.names)).await,
            },
            _ => {
                self.looked().seen = overdue;
                Ok(())
            }
        }
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is wrong with the oldest message.
async fn overdue(queue: &JetStreamQueue, at: &Opened) -> Result<Option<Overdue>, QueueError> {
    let stream = at.messages.get_info().await.map_err(api_error)?.state;
    if stream.messages == 0 {
        return Ok(None);
    }
    let message = stream.first_sequence;
    if !is_there(at, message).await? {
        return Ok(Some(Overdue::Gone { message }));
    }
    let Some(record) = record_of(at, message).await? else {
        let consumer = at.new.get_info().await.map_err(api_error)?;
        let was_given = consumer.delivered.stream_sequence >= message;
        return Ok(was_given.then_some(Overdue::New { message }));
    };
    let now = at.time.now(queue, at).await?;
    Ok(
        is_due(&record.payload, record.time, now).then_some(Overdue::Record {
            sequence: record.sequence,
        }),
    )
}

async fn is_there(at: &Opened, message: u64) -> Result<bool, QueueError> {
    match at.messages.get_raw_message(message).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(false),
        Err(error) => Err(api_error(error)),
    }
}

/// Lets the stream begin at the first message that is there. Every one is asked for by itself: nothing that is there may be
/// taken for gone.
async fn begin_after(at: &Opened, gone: u64) -> Result<(), QueueError> {
    let end = at.messages.get_info().await.map_err(api_error)?.state;
    let end = end.last_sequence.min(gone + AT_ONCE);
    let mut first = gone + 1;
    while first <= end && !is_there(at, first).await? {
        first += 1;
    }
    tracing::warn!(
        gone,
        first,
        "NATS counts jobs that were acknowledged; it is told to begin after them"
    );
    at.messages
        .purge()
        .sequence(first)
        .await
        .map(drop)
        .map_err(api_error)
}

fn is_due(record: &[u8], stored_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    let wait = State::decode(record).map_or(Duration::ZERO, State::wait);
    (now - stored_at).to_std().is_ok_and(|waited| waited > wait)
}

/// Makes a consumer anew. Several clients may do so at once; each leaves a good one behind.
async fn anew(stream: &Stream<()>, consumer: pull::Config) -> Result<(), QueueError> {
    let name = consumer.durable_name.clone().unwrap_or_default();
    drop(stream.delete_consumer(&name).await);
    stream
        .get_or_create_consumer(&name, consumer)
        .await
        .map(drop)
        .map_err(api_error)
}
