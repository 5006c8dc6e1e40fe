//! The server's clock, as far as it can be known from here.
//!
//! Servers of the versions that must be served do not tell their time. But they stamp what they store: a message is stored,
//! and its stamp is read. The stamp lies between the two calls, so the clock is known to half of what they took, and is
//! taken to be at the stamp when the second call ended: late rather than early, so that no lease ends before its time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::errors::{api_error, publish_error};
use super::{JetStreamQueue, Opened};
use crate::ports::queue::QueueError;

/// The server's clock may be set, and ours may drift: it is asked again after so long.
const GOOD_FOR: Duration = Duration::from_secs(60);

/// The last time that was heard, and when.
#[derive(Debug, Default)]
pub(super) struct ServerTime {
    heard: Mutex<Option<(DateTime<Utc>, Duration)>>,
}

impl ServerTime {
    /// About now, by the server's clock.
    pub async fn now(
        &self,
        queue: &JetStreamQueue,
        at: &Opened,
    ) -> Result<DateTime<Utc>, QueueError> {
        let elapsed = queue.clock.elapsed();
        let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((time, when)) = heard {
            let since = elapsed.saturating_sub(when);
            if since < GOOD_FOR {
                return Ok(time + since);
            }
        }
        let time = ask(queue, at).await?;
        let heard = (time, queue.clock.elapsed());
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(heard);
        Ok(time)
    }
}

async fn ask(queue: &JetStreamQueue, at: &Opened) -> Result<DateTime<Utc>, QueueError> {
    let subject = at.names.time();
    let stored = queue
        .context
        .publish(subject.clone(), Vec::new().into())
        .await
        .map_err(publish_error)?;
    stored.await.map_err(publish_error)?;
    // Another client may have asked since: its stamp is as good.
    let stamped = at
        .states
        .get_last_raw_message_by_subject(&subject)
        .await
        .map_err(api_error)?;
    Ok(stamped.time)
}
