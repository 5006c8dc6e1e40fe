//! Poison: messages that can never be valid, in every way in which a message can be wrong.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Shape {
    Empty,
    NotUtf8,
    CutOff,
    TwoValues,
    Nul,
    LoneSurrogate,
    TooDeep,
    HugeNumber,
    OtherType,
    MissingField,
    StrangeField,
    NoJobId,
    NilJobId,
    JobIdIsNone,
    NegativeGeneration,
    LastGeneration,
    AttemptsAreNone,
    NilTenant,
    EmptyCorrelation,
    ConsumerIsNone,
}

impl Shape {
    /// All there are, those of the body first.
    pub const ALL: [Self; 20] = [
        Self::Empty,
        Self::NotUtf8,
        Self::CutOff,
        Self::TwoValues,
        Self::Nul,
        Self::LoneSurrogate,
        Self::TooDeep,
        Self::HugeNumber,
        Self::OtherType,
        Self::MissingField,
        Self::StrangeField,
        Self::NoJobId,
        Self::NilJobId,
        Self::JobIdIsNone,
        Self::NegativeGeneration,
        Self::LastGeneration,
        Self::AttemptsAreNone,
        Self::NilTenant,
        Self::EmptyCorrelation,
        Self::ConsumerIsNone,
    ];

    /// Whether the headers are wrong and the body is not.
    pub fn is_of_headers(self) -> bool {
        self >= Self::NoJobId
    }

    /// Spoils the body of job `id`, a JSON object.
    pub fn body(self, id: u64, good: String) -> Vec<u8> {
        let with = |more: &str| good.replacen('{', &format!("{{{more},"), 1).into_bytes();
        match self {
            Self::Empty => Vec::new(),
            Self::NotUtf8 => [b"\xff\xfe", good.as_bytes()].concat(),
            Self::CutOff => good.as_bytes()[..good.len() - 1].to_vec(),
            Self::TwoValues => format!("{good}{good}").into_bytes(),
            Self::Nul => with("\"\\u0000\":1"),
            Self::LoneSurrogate => with("\"x\":\"\\ud800\""),
            Self::TooDeep => format!("{}{id}{}", "[".repeat(600), "]".repeat(600)).into_bytes(),
            Self::HugeNumber => with("\"x\":1e99999"),
            Self::OtherType => format!("[{id}]").into_bytes(),
            Self::MissingField => format!("{{\"job\":{id}}}").into_bytes(),
            Self::StrangeField => with("\"x\":1"),
            _ => good.into_bytes(),
        }
    }

    /// Spoils good headers.
    pub fn headers(self, headers: &mut BTreeMap<String, String>) {
        let (name, value) = match self {
            Self::NoJobId => {
                headers.remove("job-id");
                return;
            }
            Self::NilJobId => ("job-id", "00000000-0000-0000-0000-000000000000"),
            Self::JobIdIsNone => ("job-id", "7"),
            Self::NegativeGeneration => ("generation", "-1"),
            // The database counts in `integer`, and a replay needs one more.
            Self::LastGeneration => ("generation", "2147483647"),
            Self::AttemptsAreNone => ("attempts", "many"),
            Self::NilTenant => ("tenant-id", "00000000-0000-0000-0000-000000000000"),
            Self::EmptyCorrelation => ("correlation-id", ""),
            Self::ConsumerIsNone => ("consumer", "Nobody!"),
            _ => return,
        };
        headers.insert(name.to_owned(), value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use harness::{Envelope, QueueName};

    use super::*;
    use crate::jobs::{Task, message};
    use crate::plan::{Behaviour, JobPlan};

    /// Each shape is wrong in the part that it says, and only there.
    #[test]
    fn s7_every_shape_is_poison() {
        let queue = QueueName::new("points").unwrap();
        assert!(Shape::ALL.is_sorted());
        for shape in Shape::ALL {
            let job = JobPlan {
                id: 7,
                publish_at_ms: 0,
                resend_after_ms: Vec::new(),
                behaviour: Behaviour::PoisonAs(shape),
                work_ms: 0,
                decisions: Vec::new(),
            };
            let decoded = Envelope::decode(&queue, message(&job));
            assert_eq!(decoded.is_err(), shape.is_of_headers(), "{shape:?}");
            let body = match decoded {
                Ok(envelope) => envelope.body,
                Err(malformed) => malformed.body,
            };
            let read = serde_json::from_slice::<Task>(&body);
            assert_eq!(read.is_ok(), shape.is_of_headers(), "{shape:?}");
        }
    }
}
