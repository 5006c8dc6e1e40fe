//! A job on its way: what a producer sends and a consumer decodes.
//!
//! On the wire a message is a set of text headers and a body of bytes. Every adapter maps its broker's message to that,
//! so decoding is in one place. The harness owns the headers in [`RESERVED_HEADERS`]; others are carried along.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::ids::{CorrelationId, IdError, JobId, TenantId};
use crate::names::{ConsumerName, NameError, QueueName};
use crate::trace::{TRACEPARENT, TraceParent};

const JOB_ID: &str = "job-id";
const TENANT_ID: &str = "tenant-id";
const CORRELATION_ID: &str = "correlation-id";
const GENERATION: &str = "generation";
const ATTEMPTS: &str = "attempts";
const CONSUMER: &str = "consumer";

/// Headers that mean something to the harness.
pub const RESERVED_HEADERS: [&str; 6] = [
    JOB_ID,
    TENANT_ID,
    CORRELATION_ID,
    GENERATION,
    ATTEMPTS,
    CONSUMER,
];

/// The greatest generation: the database counts in `integer`, and a replay needs one more.
const MAX_GENERATION: u32 = i32::MAX as u32 - 1;

/// What a broker handed out, before anybody looked into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Headers and body as some producer sent them.
    Wire {
        /// Header names are lower case.
        headers: BTreeMap<String, String>,
        /// The body's bytes.
        body: Vec<u8>,
    },
    /// Something on the queue that has no headers and body, such as a row that somebody inserted by hand. It ends as
    /// a dead letter with these bytes.
    Foreign {
        /// All there is.
        bytes: Vec<u8>,
        /// What is wrong with it.
        problem: String,
    },
}

/// A job on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// What makes it the same job.
    pub job_id: JobId,
    /// Whose it is.
    pub tenant_id: Option<TenantId>,
    /// The chain of events that it belongs to.
    pub correlation_id: CorrelationId,
    /// How often it was replayed.
    pub generation: u32,
    /// Runs of this generation that the broker's own count does not know of.
    pub attempts: u32,
    /// On a fan-out queue, the only consumer that it is for; a replay sets it.
    pub consumer: Option<ConsumerName>,
    /// Other headers, carried along. Names are lower case and not reserved.
    pub headers: BTreeMap<String, String>,
    /// The payload's bytes.
    pub body: Vec<u8>,
}

/// A header that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It must be there.
    #[error("header {0:?} is missing")]
    Missing(&'static str),
    /// Not an id.
    #[error("header {name:?}: {error}")]
    Id {
        /// Which header.
        name: &'static str,
        /// What is wrong.
        #[source]
        error: IdError,
    },
    /// Not a name.
    #[error("header {name:?}: {error}")]
    Name {
        /// Which header.
        name: &'static str,
        /// What is wrong.
        #[source]
        error: NameError,
    },
    /// Not a number in range.
    #[error("header {name:?}: {text:?} is not a whole number from 0 to {max}")]
    Number {
        /// Which header.
        name: &'static str,
        /// As received.
        text: String,
        /// The greatest allowed.
        max: u32,
    },
    /// No headers at all.
    #[error("{0}")]
    Foreign(String),
}

/// A message that no consumer can ever read, with what its dead letter needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Derived from queue and bytes: the id in the headers, if any, belongs to nothing we can trust.
    pub job_id: JobId,
    /// All headers as received, as a JSON object.
    pub headers: Value,
    /// The body as received.
    pub body: Vec<u8>,
    /// What is wrong.
    pub error: HeaderError,
}

impl Envelope {
    /// A new job: generation 0, no attempts, a correlation chain of its own.
    pub fn new(job_id: JobId, body: impl Into<Vec<u8>>) -> Self {
        Self {
            job_id,
            tenant_id: None,
            correlation_id: job_id.into(),
            generation: 0,
            attempts: 0,
            consumer: None,
            headers: BTreeMap::new(),
            body: body.into(),
        }
    }

    /// The same job, published in this trace: the consumer's log and [`Job::trace`](crate::Job::trace) will say so.
    #[must_use]
    pub fn in_trace(mut self, trace: TraceParent) -> Self {
        self.headers
            .insert(TRACEPARENT.to_owned(), trace.to_string());
        self
    }

    /// The trace that it was published in; none if there is none, or none that can be read.
    pub fn trace(&self) -> Option<TraceParent> {
        self.headers.get(TRACEPARENT)?.parse().ok()
    }

    /// The headers as they go on the wire.
    pub fn wire_headers(&self) -> BTreeMap<String, String> {
        // Other headers first: a reserved name among them never wins.
        let mut headers = self.headers.clone();
        headers.retain(|name, _| !RESERVED_HEADERS.contains(&name.as_str()));
        headers.insert(JOB_ID.to_owned(), self.job_id.to_string());
        headers.insert(CORRELATION_ID.to_owned(), self.correlation_id.to_string());
        headers.insert(GENERATION.to_owned(), self.generation.to_string());
        headers.insert(ATTEMPTS.to_owned(), self.attempts.to_string());
        if let Some(tenant) = &self.tenant_id {
            headers.insert(TENANT_ID.to_owned(), tenant.to_string());
        }
        if let Some(consumer) = &self.consumer {
            headers.insert(CONSUMER.to_owned(), consumer.to_string());
        }
        headers
    }

    /// Reads a message that came from `queue`.
    ///
    /// # Errors
    /// When a header that the harness needs is missing or unreadable: poison (B5).
    pub fn decode(queue: &QueueName, message: Message) -> Result<Self, Box<Malformed>> {
        let (headers, body) = match message {
            Message::Wire { headers, body } => (headers, body),
            Message::Foreign { bytes, problem } => {
                return Err(Box::new(Malformed {
                    job_id: JobId::derived(queue, &bytes),
                    headers: Value::Object(serde_json::Map::new()),
                    body: bytes,
                    error: HeaderError::Foreign(problem),
                }));
            }
        };
        match Self::from_wire(&headers, &body) {
            Ok(envelope) => Ok(envelope),
            Err(error) => Err(Box::new(Malformed {
                job_id: derived_from_wire(queue, &headers, &body),
                headers: headers
                    .into_iter()
                    .map(|(k, v)| (k, Value::String(v)))
                    .collect(),
                body,
                error,
            })),
        }
    }

    fn from_wire(headers: &BTreeMap<String, String>, body: &[u8]) -> Result<Self, HeaderError> {
        let text = |name: &'static str| headers.get(name).map(String::as_str);
        let number = |name: &'static str, max: u32| match text(name) {
            None => Ok(0),
            // `parse` alone would take "+1".
            Some(text) => Some(text)
                .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))
                .and_then(|text| text.parse().ok())
                .filter(|&value| value <= max)
                .ok_or_else(|| HeaderError::Number {
                    name,
                    text: crate::error_text::storable(text),
                    max,
                }),
        };
        let id_error = |name| move |error| HeaderError::Id { name, error };

        let job_id: JobId = text(JOB_ID)
            .ok_or(HeaderError::Missing(JOB_ID))?
            .parse()
            .map_err(id_error(JOB_ID))?;
        Ok(Self {
            job_id,
            tenant_id: text(TENANT_ID)
                .map(str::parse)
                .transpose()
                .map_err(id_error(TENANT_ID))?,
            correlation_id: text(CORRELATION_ID)
                .map(CorrelationId::new)
                .transpose()
                .map_err(id_error(CORRELATION_ID))?
                .unwrap_or_else(|| job_id.into()),
            generation: number(GENERATION, MAX_GENERATION)?,
            attempts: number(ATTEMPTS, u32::MAX)?,
            consumer: text(CONSUMER)
                .map(ConsumerName::new)
                .transpose()
                .map_err(|error| HeaderError::Name {
                    name: CONSUMER,
                    error,
                })?,
            headers: headers
                .iter()
                .filter(|(name, _)| !RESERVED_HEADERS.contains(&name.as_str()))
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            body: body.to_vec(),
        })
    }

    /// What a replay publishes: the same job and bytes, the next generation, no attempts, for one consumer only (B6).
    #[must_use]
    pub fn replay_of(letter: &crate::dead_letter::NewDeadLetter) -> Self {
        let stored: BTreeMap<String, Value> =
            serde_json::from_str(&letter.headers).unwrap_or_default();
        Self {
            job_id: letter.job_id,
            tenant_id: letter.tenant_id,
            correlation_id: letter.correlation_id.clone(),
            generation: letter.generation.saturating_add(1),
            attempts: 0,
            consumer: Some(letter.consumer.clone()),
            headers: stored
                .into_iter()
                .filter(|(name, _)| !RESERVED_HEADERS.contains(&name.as_str()))
                .filter_map(|(name, value)| match value {
                    Value::String(value) => Some((name, value)),
                    _ => None,
                })
                .collect(),
            body: letter.body.clone(),
        }
    }
}

/// Headers are part of what was received: two messages with one body and different broken headers are two failures.
fn derived_from_wire(queue: &QueueName, headers: &BTreeMap<String, String>, body: &[u8]) -> JobId {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        // How often it was tried is not what it is.
        if name == ATTEMPTS {
            continue;
        }
        for part in [name, value] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
    }
    bytes.extend_from_slice(body);
    JobId::derived(queue, &bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01";

    fn queue() -> QueueName {
        QueueName::new("points").unwrap()
    }

    fn wire(headers: &[(&str, &str)], body: &[u8]) -> Message {
        let headers = headers
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Message::Wire {
            headers,
            body: body.to_vec(),
        }
    }

    #[test]
    fn b5_a_message_without_a_usable_id_gets_one_from_its_bytes() {
        for headers in [
            &[][..],
            &[("job-id", "7")],
            &[("job-id", ID), ("generation", "-1")],
        ] {
            let one = Envelope::decode(&queue(), wire(headers, b"{}")).unwrap_err();
            let again = Envelope::decode(&queue(), wire(headers, b"{}")).unwrap_err();
            let other = Envelope::decode(&queue(), wire(headers, b"[]")).unwrap_err();
            assert_eq!(one.job_id, again.job_id);
            assert_ne!(one.job_id, other.job_id);
            assert_ne!(
                one.job_id.to_string(),
                ID,
                "the id of a broken message is not trusted"
            );
        }
    }

    #[test]
    fn a4_the_error_names_the_header() {
        for (headers, message) in [
            (&[][..], "header \"job-id\" is missing"),
            (
                &[("job-id", "7")],
                "header \"job-id\": job id is not a UUID of the form 01234567-89ab-cdef-0123-456789abcdef",
            ),
            (
                &[("job-id", ID), ("generation", "+1")],
                "header \"generation\": \"+1\" is not a whole number from 0 to 2147483646",
            ),
            (
                &[("job-id", ID), ("attempts", "4294967296")],
                "header \"attempts\": \"4294967296\" is not a whole number from 0 to 4294967295",
            ),
            (
                &[("job-id", ID), ("correlation-id", "")],
                "header \"correlation-id\": correlation id must have 1 to 128 visible ASCII characters, without spaces",
            ),
            (
                &[("job-id", ID), ("consumer", "Ä")],
                "header \"consumer\": consumer name \"Ä\" has 'Ä' at position 0: use a-z first, then a-z, 0-9 and '_'",
            ),
        ] {
            let malformed = Envelope::decode(&queue(), wire(headers, b"")).unwrap_err();
            assert_eq!(malformed.error.to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn b6_an_envelope_survives_the_wire(
            id in 1_u128..u128::MAX, tenant in proptest::option::of(1_u128..u128::MAX),
            correlation in "[!-~]{1,128}", generation in 0..=MAX_GENERATION, attempts in any::<u32>(),
            consumer in proptest::option::of("[a-z][a-z0-9_]{0,62}"),
            headers in proptest::collection::btree_map("x-[a-z]{1,8}", ".*", 0..4),
            body in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let envelope = Envelope {
                job_id: JobId::new(uuid::Uuid::from_u128(id)).unwrap(),
                tenant_id: tenant.map(|t| TenantId::new(uuid::Uuid::from_u128(t)).unwrap()),
                correlation_id: CorrelationId::new(&correlation).unwrap(),
                generation, attempts,
                consumer: consumer.map(|c| ConsumerName::new(&c).unwrap()),
                headers, body,
            };
            let message = Message::Wire { headers: envelope.wire_headers(), body: envelope.body.clone() };
            prop_assert_eq!(Envelope::decode(&queue(), message).unwrap(), envelope);
        }

        #[test]
        fn b5_decoding_anything_never_panics(
            headers in proptest::collection::btree_map(".*", ".*", 0..8),
            body in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let _ = Envelope::decode(&queue(), Message::Wire { headers, body });
        }
    }
}
