//! Names of queues and consumers: validated once, at registration, and trusted afterwards.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a name was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing there.
    #[error("{what} is empty: give 1 to {max} characters from a-z, 0-9 and '_'")]
    Empty {
        /// Which name.
        what: &'static str,
        /// The longest allowed, in characters.
        max: usize,
    },
    /// Longer than every engine can hold.
    #[error("{what} has {length} characters, at most {max} are allowed")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Its length in characters.
        length: usize,
        /// The longest allowed, in characters.
        max: usize,
    },
    /// A character outside the alphabet.
    #[error(
        "{what} {name:?} has {found:?} at position {position}: use a-z first, then a-z, 0-9 and '_'"
    )]
    BadCharacter {
        /// Which name.
        what: &'static str,
        /// The name as given.
        name: String,
        /// The first offending character.
        found: char,
        /// Its position, counted in characters from 0.
        position: usize,
    },
}

/// The alphabet `[a-z][a-z0-9_]*` is what every engine we know takes without quoting or folding: PostgreSQL
/// identifiers, NATS subjects and durable names, RabbitMQ queues, metric labels. Names are never folded or trimmed.
fn validate(what: &'static str, max: usize, name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { what, max });
    }
    let length = name.chars().count();
    if length > max {
        return Err(NameError::TooLong { what, length, max });
    }
    let bad = name.chars().enumerate().find(|&(position, c)| match c {
        'a'..='z' => false,
        '0'..='9' | '_' => position == 0,
        _ => true,
    });
    match bad {
        None => Ok(()),
        Some((position, found)) => Err(NameError::BadCharacter {
            what,
            name: name.to_owned(),
            found,
            position,
        }),
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(std::sync::Arc<str>);

        impl $type {
            /// The longest allowed, in characters.
            pub const MAX_LENGTH: usize = $max;

            /// # Errors
            /// When the name is empty, too long, or leaves the alphabet `[a-z][a-z0-9_]*`.
            pub fn new(name: &str) -> Result<Self, NameError> {
                validate($what, Self::MAX_LENGTH, name)?;
                Ok(Self(name.into()))
            }

            /// The name as registered.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = NameError;
            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;
            fn try_from(name: String) -> Result<Self, NameError> {
                Self::new(&name)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.as_str().to_owned()
            }
        }
    };
}

name! {
    /// A queue: 1 to 47 characters `[a-z][a-z0-9_]*` (47 is what pgmq's table names leave).
    QueueName, "queue name", 47
}

name! {
    /// A consumer of a queue, half of the fence key (D1): 1 to 63 characters `[a-z][a-z0-9_]*`.
    ConsumerName, "consumer name", 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d1_names_keep_to_the_stated_alphabet_and_length() {
        for good in ["a", "points", "points_v2", &"q".repeat(47)] {
            assert_eq!(QueueName::new(good).unwrap().as_str(), good);
        }
        for (bad, message) in [
            (
                "",
                "queue name is empty: give 1 to 47 characters from a-z, 0-9 and '_'",
            ),
            (
                "Points",
                "queue name \"Points\" has 'P' at position 0: use a-z first, then a-z, 0-9 and '_'",
            ),
            (
                "1st",
                "queue name \"1st\" has '1' at position 0: use a-z first, then a-z, 0-9 and '_'",
            ),
            (
                "a b",
                "queue name \"a b\" has ' ' at position 1: use a-z first, then a-z, 0-9 and '_'",
            ),
            (
                "a\0",
                "queue name \"a\\0\" has '\\0' at position 1: use a-z first, then a-z, 0-9 and '_'",
            ),
        ] {
            assert_eq!(QueueName::new(bad).unwrap_err().to_string(), message);
        }
        assert_eq!(
            QueueName::new(&"q".repeat(48)).unwrap_err().to_string(),
            "queue name has 48 characters, at most 47 are allowed"
        );
    }
}
