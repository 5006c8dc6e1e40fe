//! A job's headers and body as a NATS message: the same names, the same bytes.

use std::collections::BTreeMap;

use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::envelope::Message;
use crate::ports::queue::QueueError;

/// Names that are orders to the server.
const ORDERS: &str = "nats-";

/// As NATS carries them.
///
/// # Errors
/// When NATS would not carry a header as it is, or would take it for an order: the error names it.
pub(super) fn headers(headers: &BTreeMap<String, String>) -> Result<HeaderMap, QueueError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let refused = |why: String| QueueError::Refused(format!("header {name:?}: {why}").into());
        if name.to_ascii_lowercase().starts_with(ORDERS) {
            return Err(refused(
                "NATS takes it for an order; call it something else".to_owned(),
            ));
        }
        if value.trim() != value {
            return Err(refused(format!(
                "NATS cuts spaces at the ends of {value:?}; put it into the body"
            )));
        }
        let key: HeaderName = name.parse().map_err(|_| {
            refused("NATS takes printable ASCII without ':' and spaces in a name".to_owned())
        })?;
        let text: HeaderValue = value.parse().map_err(|_| {
            refused(format!(
                "NATS takes one line, not {value:?}; put it into the body"
            ))
        })?;
        map.insert(key, text);
    }
    Ok(map)
}

/// As it came. A header that is there twice says nothing for certain, so nobody guesses.
pub(super) fn message(headers: Option<&HeaderMap>, body: &[u8]) -> Message {
    let mut read = BTreeMap::new();
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        let name: &str = name.as_ref();
        let [value] = values.as_slice() else {
            return Message::Foreign {
                bytes: body.to_vec(),
                problem: format!("header {name:?} is there {} times", values.len()),
            };
        };
        // What the server or the client put there is not the job's.
        if !name.to_ascii_lowercase().starts_with(ORDERS) {
            read.insert(name.to_owned(), value.as_str().to_owned());
        }
    }
    Message::Wire {
        headers: read,
        body: body.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn headers_come_as_they_went() {
        let sent = of(&[
            ("job-id", "1"),
            ("x-empty", ""),
            ("x-wide", "Grüße, 你好 🐟 \"quoted\" \\ a: b"),
        ]);
        let came = message(Some(&headers(&sent).unwrap()), b"\0\xff");
        assert_eq!(
            came,
            Message::Wire {
                headers: sent,
                body: vec![0, 255]
            }
        );
    }

    #[test]
    fn a_header_that_would_change_or_command_is_refused_by_name() {
        let bad = [
            ("Nats-Rollup", "all", "order"),
            ("nats-msg-id", "1", "order"),
            ("x-lines", "a\nb", "one line"),
            ("x-space", " a", "cuts spaces"),
            ("x-space", "a\t", "cuts spaces"),
            ("x y", "a", "printable"),
            ("x:y", "a", "printable"),
            ("", "a", "printable"),
            ("größe", "a", "printable"),
        ];
        for (name, value, why) in bad {
            let error = headers(&of(&[(name, value)])).unwrap_err();
            let QueueError::Refused(error) = error else {
                panic!("{name:?}: {error:?}");
            };
            let text = error.to_string();
            assert!(text.contains(&format!("{name:?}")), "{text}");
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn b5_a_header_that_is_there_twice_is_poison() {
        let mut twice = HeaderMap::new();
        twice.append("job-id", "1");
        twice.append("job-id", "2");
        let Message::Foreign { bytes, problem } = message(Some(&twice), b"body") else {
            panic!("it was read");
        };
        assert_eq!(bytes, b"body");
        assert_eq!(problem, "header \"job-id\" is there 2 times");
    }
}
