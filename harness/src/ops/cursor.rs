//! Where a page ended, for the client to send back: opaque, versioned, and good only for the list that it came from.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::DateTime;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::dead_letter::DeadLetterId;
use crate::review::{LetterPlace, LetterQuery};

const VERSION: u8 = 1;

/// Version, fingerprint of the list, microseconds, id.
const LENGTH: usize = 1 + 8 + 8 + 16;

/// What the list is, so that a cursor is not taken for one of another list.
fn list(query: &LetterQuery) -> [u8; 8] {
    let text = format!("{:?} {:?}", query.filter, query.order);
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|at| digest[at])
}

pub(super) fn encode(query: &LetterQuery, place: LetterPlace) -> String {
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.push(VERSION);
    bytes.extend(list(query));
    bytes.extend(place.created_at.timestamp_micros().to_be_bytes());
    bytes.extend(place.id.0.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

/// None when it is no cursor of this list.
pub(super) fn decode(query: &LetterQuery, cursor: &str) -> Option<LetterPlace> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
    let (version, rest) = bytes.split_first()?;
    if *version != VERSION || bytes.len() != LENGTH {
        return None;
    }
    let (of, rest) = rest.split_at(8);
    let (micros, id) = rest.split_at(8);
    if of != list(query) {
        return None;
    }
    Some(LetterPlace {
        created_at: DateTime::from_timestamp_micros(i64::from_be_bytes(micros.try_into().ok()?))?,
        id: DeadLetterId(Uuid::from_slice(id).ok()?),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::review::LetterFilter;

    fn query() -> LetterQuery {
        LetterQuery::first(LetterFilter::default(), 10)
    }

    proptest! {
        #[test]
        fn a_place_survives_its_cursor(micros in -1_000_000_000_000_000_i64..4_000_000_000_000_000, id: u128) {
            let created_at = DateTime::from_timestamp_micros(micros).unwrap();
            let place = LetterPlace { created_at, id: DeadLetterId(Uuid::from_u128(id)) };
            let cursor = encode(&query(), place);
            prop_assert_eq!(decode(&query(), &cursor), Some(place));
            let other = LetterQuery::first(LetterFilter { error_contains: Some("x".into()), ..LetterFilter::default() }, 10);
            prop_assert_eq!(decode(&other, &cursor), None);
        }

        #[test]
        fn nothing_panics(cursor in ".*") {
            let _ = decode(&query(), &cursor);
        }
    }
}
