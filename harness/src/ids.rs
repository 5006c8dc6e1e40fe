//! Identities: of a job, of its tenant, of the chain of events that it belongs to.
//!
//! Ids are compared by value and never matched loosely: one textual form is read, nothing is trimmed, and the values that
//! unset variables have (nil, max) are refused, because every job that carried one would be a "duplicate" of the first.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::names::QueueName;

/// Namespace of ids that were derived from a message's bytes.
const DERIVED: Uuid = Uuid::from_u128(0x6f2f_35d0_9e0b_5c31_8a55_6d1f_31c8_7a10);

/// Why an id was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not the hyphenated form, 36 characters.
    #[error("{what} is not a UUID of the form 01234567-89ab-cdef-0123-456789abcdef")]
    NotAUuid {
        /// Which id.
        what: &'static str,
    },
    /// All zeros or all ones: the value of something that nobody set.
    #[error("{what} is the {which} UUID, which stands for \"not set\"")]
    Unset {
        /// Which id.
        what: &'static str,
        /// `nil` or `max`.
        which: &'static str,
    },
    /// A correlation id outside its alphabet or length.
    #[error("correlation id must have 1 to 128 visible ASCII characters, without spaces")]
    Correlation,
}

fn checked(what: &'static str, id: Uuid) -> Result<Uuid, IdError> {
    if id.is_nil() {
        Err(IdError::Unset { what, which: "nil" })
    } else if id.is_max() {
        Err(IdError::Unset { what, which: "max" })
    } else {
        Ok(id)
    }
}

fn parse(what: &'static str, text: &str) -> Result<Uuid, IdError> {
    // `Uuid::parse_str` also reads braces, URNs and the form without hyphens.
    if text.len() != 36 {
        return Err(IdError::NotAUuid { what });
    }
    checked(
        what,
        Uuid::parse_str(text).map_err(|_| IdError::NotAUuid { what })?,
    )
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Uuid);

        impl $type {
            /// # Errors
            /// When the id is the nil or the max UUID.
            pub fn new(id: Uuid) -> Result<Self, IdError> {
                checked($what, id).map(Self)
            }

            /// The id as a UUID.
            pub fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $type {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                parse($what, text).map(Self)
            }
        }

        impl TryFrom<String> for $type {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(id: $type) -> String {
                id.to_string()
            }
        }
    };
}

uuid_id! {
    /// What makes two deliveries the same job: half of the fence key (B1, D1).
    JobId, "job id"
}

uuid_id! {
    /// Whose job it is.
    TenantId, "tenant id"
}

impl JobId {
    /// The id of a job whose identity a provider chose: the same key gives the same id (UUID v5), everywhere.
    pub fn from_key(namespace: Uuid, key: &str) -> Self {
        Self(Uuid::new_v5(&namespace, key.as_bytes()))
    }

    /// The id of a message that has no usable one: redeliveries of the same bytes meet the same dead letter.
    pub fn derived(queue: &QueueName, bytes: &[u8]) -> Self {
        // A queue name has no NUL, so the pair is encoded without ambiguity.
        let mut name = Vec::with_capacity(queue.as_str().len() + 1 + bytes.len());
        name.extend_from_slice(queue.as_str().as_bytes());
        name.push(0);
        name.extend_from_slice(bytes);
        Self(Uuid::new_v5(&DERIVED, &name))
    }
}

/// The chain of events that a job belongs to, carried from publish to dead letter (B4): 1 to 128 visible ASCII
/// characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CorrelationId(String);

impl CorrelationId {
    /// # Errors
    /// When the text is empty, longer than 128 characters, or has anything but visible ASCII.
    pub fn new(text: &str) -> Result<Self, IdError> {
        if (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(IdError::Correlation)
        }
    }

    /// The id as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A job that belongs to no chain is a chain of its own.
impl From<JobId> for CorrelationId {
    fn from(id: JobId) -> Self {
        Self(id.to_string())
    }
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for CorrelationId {
    type Error = IdError;
    fn try_from(text: String) -> Result<Self, IdError> {
        Self::new(&text)
    }
}

impl From<CorrelationId> for String {
    fn from(id: CorrelationId) -> String {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d1_a_job_id_is_read_in_one_form_only() {
        let good = "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01";
        assert_eq!(good.parse::<JobId>().unwrap().to_string(), good);
        for bad in [
            "",
            " 0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01",
            "0198f9a27c107b7e9b1a2f6f3c5d8e01",
            "{0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01}",
            "urn:uuid:0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01",
            "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e0g",
        ] {
            assert_eq!(
                bad.parse::<JobId>(),
                Err(IdError::NotAUuid { what: "job id" }),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn d1_the_id_of_an_unset_variable_is_refused() {
        for unset in [Uuid::nil(), Uuid::max()] {
            assert!(matches!(JobId::new(unset), Err(IdError::Unset { .. })));
            assert!(matches!(
                unset.to_string().parse::<JobId>(),
                Err(IdError::Unset { .. })
            ));
        }
    }

    #[test]
    fn b5_a_derived_id_depends_on_queue_and_bytes_only() {
        let points = QueueName::new("points").unwrap();
        let mail = QueueName::new("mail").unwrap();
        assert_eq!(JobId::derived(&points, b"x"), JobId::derived(&points, b"x"));
        assert_ne!(JobId::derived(&points, b"x"), JobId::derived(&points, b"y"));
        assert_ne!(JobId::derived(&points, b"x"), JobId::derived(&mail, b"x"));
    }

    #[test]
    fn b4_a_correlation_id_is_visible_ascii() {
        assert!(CorrelationId::new("4bf92f3577b34da6a3ce929d0e0e4736").is_ok());
        for bad in ["", "a b", "a\0", "é", &"x".repeat(129)] {
            assert_eq!(
                CorrelationId::new(bad),
                Err(IdError::Correlation),
                "{bad:?}"
            );
        }
    }
}
