//! Streams and consumers: made, and held against what they must be.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType, Stream};

use super::errors::api_error;
use super::neglect::Neglect;
use super::server_time::ServerTime;
use super::{JetStreamQueue, Names, Opened};
use crate::names::QueueName;
use crate::ports::queue::QueueError;

/// The server's consumer of messages that nobody has taken yet.
const NEW: &str = "harness_new";
/// The server's consumer of records.
const DUE: &str = "harness_due";
/// A message that was given to a client to look at, and of which nothing was heard, is given to another after so long.
pub(super) const LOOKED_AT: Duration = Duration::from_secs(5);

/// Why a queue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JetStreamSetupError {
    /// A setting of a stream or consumer under which jobs could be lost, delayed or repeated.
    #[error(
        "{of}: `{setting}` is {found} and must be {needed}. Change it (`nats stream edit`, `nats consumer edit`), or \
         remove it when nothing is in it and let it be made anew"
    )]
    Setting {
        /// Which stream or consumer.
        of: String,
        /// As the server calls it.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it must be.
        needed: String,
    },
    /// No such queue on this server.
    #[error("stream {stream} is missing: create the queue first")]
    Missing {
        /// Which.
        stream: String,
    },
    /// The server did not answer, or refused.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<JetStreamSetupError> for QueueError {
    fn from(error: JetStreamSetupError) -> Self {
        match error {
            JetStreamSetupError::Queue(error) => error,
            other => Self::Refused(other.into()),
        }
    }
}

/// One setting, as it is and as it must be.
type Setting = (&'static str, String, String);

fn setting<T: std::fmt::Debug>(name: &'static str, found: T, needed: T) -> Setting {
    (name, format!("{found:?}"), format!("{needed:?}"))
}

fn held_against(
    of: &str,
    settings: impl IntoIterator<Item = Setting>,
) -> Result<(), JetStreamSetupError> {
    for (setting, found, needed) in settings {
        if found != needed {
            return Err(JetStreamSetupError::Setting {
                of: of.to_owned(),
                setting,
                found,
                needed,
            });
        }
    }
    Ok(())
}

/// Nothing is removed but by us, and nothing is dropped to make room: a full stream refuses what is published (B4).
fn messages(names: &Names, replicas: usize) -> Config {
    Config {
        name: names.messages.clone(),
        subjects: vec![names.subject.clone()],
        description: Some("Jobs, until they are acknowledged.".to_owned()),
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::New,
        storage: StorageType::File,
        num_replicas: replicas,
        ..unlimited()
    }
}

/// One record for each message, and each replaces the one before.
fn states(names: &Names, replicas: usize) -> Config {
    Config {
        name: names.states.clone(),
        subjects: vec![names.all_states(), names.time()],
        description: Some("What becomes of each job that was delivered.".to_owned()),
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        max_messages_per_subject: 1,
        storage: StorageType::File,
        num_replicas: replicas,
        ..unlimited()
    }
}

fn unlimited() -> Config {
    Config {
        max_messages: -1,
        max_bytes: -1,
        max_messages_per_subject: -1,
        max_consumers: -1,
        ..Config::default()
    }
}

fn check_stream(found: &Config, needed: &Config) -> Result<(), JetStreamSetupError> {
    let mut settings = vec![
        setting("subjects", &found.subjects, &needed.subjects),
        setting("retention", found.retention, needed.retention),
        setting("storage", found.storage, needed.storage),
        setting("discard", found.discard, needed.discard),
        setting(
            "max_msgs_per_subject",
            found.max_messages_per_subject,
            needed.max_messages_per_subject,
        ),
        setting("max_age", found.max_age, needed.max_age),
        setting("no_ack", found.no_ack, false),
        setting("sealed", found.sealed, false),
        setting("deny_delete", found.deny_delete, false),
        setting("mirror", found.mirror.is_some(), false),
    ];
    if needed.discard == DiscardPolicy::Old {
        // A record that made room for another would be a job that nobody comes back to.
        settings.push(setting("max_msgs", found.max_messages, needed.max_messages));
        settings.push(setting("max_bytes", found.max_bytes, needed.max_bytes));
    }
    held_against(&format!("stream {}", found.name), settings)
}

/// The consumer of new messages, as it must be. It takes all that there are: a server that was killed may have forgotten
/// which subject they have.
pub(super) fn consumer_of_new() -> pull::Config {
    consumer(NEW, String::new())
}

/// The consumer of records, as it must be.
pub(super) fn consumer_of_due(names: &Names) -> pull::Config {
    consumer(DUE, names.all_states())
}

/// Looks at everything, as often as it takes, and gives up on nothing: how often a job may run is for the harness to say.
fn consumer(name: &str, filter: String) -> pull::Config {
    pull::Config {
        durable_name: Some(name.to_owned()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: LOOKED_AT,
        max_deliver: -1,
        max_ack_pending: -1,
        filter_subject: filter,
        ..pull::Config::default()
    }
}

fn check_consumer(
    stream: &str,
    found: &async_nats::jetstream::consumer::Config,
    needed: &pull::Config,
) -> Result<(), JetStreamSetupError> {
    let name = needed.durable_name.as_deref().unwrap_or_default();
    held_against(
        &format!("consumer {name} of stream {stream}"),
        [
            setting("deliver_subject", found.deliver_subject.is_some(), false),
            setting(
                "deliver_policy",
                found.deliver_policy,
                needed.deliver_policy,
            ),
            setting("ack_policy", found.ack_policy, needed.ack_policy),
            setting("ack_wait", found.ack_wait, needed.ack_wait),
            setting("max_deliver", found.max_deliver, needed.max_deliver),
            setting(
                "max_ack_pending",
                found.max_ack_pending,
                needed.max_ack_pending,
            ),
            setting(
                "filter_subject",
                &found.filter_subject,
                &needed.filter_subject,
            ),
            setting("backoff", &found.backoff, &needed.backoff),
            setting("headers_only", found.headers_only, false),
            setting("mem_storage", found.memory_storage, false),
            setting(
                "inactive_threshold",
                found.inactive_threshold,
                Duration::ZERO,
            ),
        ],
    )
}

pub(super) async fn create(
    queue: &JetStreamQueue,
    name: &QueueName,
) -> Result<Opened, JetStreamSetupError> {
    queue.connected()?;
    let names = Names::of(name);
    let replicas = queue.config.replicas;
    let makes = [
        (messages(&names, replicas), consumer(NEW, String::new())),
        (states(&names, replicas), consumer_of_due(&names)),
    ];
    for (stream, consumer) in makes {
        let made = queue
            .context
            .get_or_create_stream(stream)
            .await
            .map_err(api_error)?;
        let durable = consumer.durable_name.clone().unwrap_or_default();
        made.get_or_create_consumer(&durable, consumer)
            .await
            .map_err(api_error)?;
    }
    check(queue, name).await
}

pub(super) async fn check(
    queue: &JetStreamQueue,
    name: &QueueName,
) -> Result<Opened, JetStreamSetupError> {
    queue.connected()?;
    let names = Names::of(name);
    let (messages, new) = checked(
        queue,
        &messages(&names, queue.config.replicas),
        &consumer_of_new(),
    )
    .await?;
    let (states, due) = checked(
        queue,
        &states(&names, queue.config.replicas),
        &consumer_of_due(&names),
    )
    .await?;
    Ok(Opened {
        names,
        messages,
        states,
        new,
        due,
        time: ServerTime::default(),
        neglect: Neglect::default(),
    })
}

/// A stream and its consumer, as they must be.
async fn checked(
    queue: &JetStreamQueue,
    needed: &Config,
    consumer: &pull::Config,
) -> Result<(Stream<()>, PullConsumer), JetStreamSetupError> {
    let missing = || JetStreamSetupError::Missing {
        stream: needed.name.clone(),
    };
    let stream = match queue.context.get_stream(&needed.name).await {
        Ok(stream) => stream,
        Err(error) if errors_not_found(&error) => return Err(missing()),
        Err(error) => return Err(api_error(error).into()),
    };
    check_stream(&stream.cached_info().config, needed)?;
    let durable = consumer.durable_name.as_deref().unwrap_or_default();
    let info = stream.consumer_info(durable).await.map_err(api_error)?;
    check_consumer(&needed.name, &info.config, consumer)?;
    let handle = queue
        .context
        .get_stream_no_info(&needed.name)
        .await
        .map_err(api_error)?;
    let consumer = PullConsumer::new(consumer.clone(), info, queue.context.clone());
    Ok((handle, consumer))
}

fn errors_not_found(error: &async_nats::jetstream::context::GetStreamError) -> bool {
    use super::errors::Kind as _;
    error
        .kind()
        .answered()
        .is_some_and(|it| it.error_code() == async_nats::jetstream::ErrorCode::STREAM_NOT_FOUND)
}
