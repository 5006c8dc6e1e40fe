//! Giving a dead letter up, with a reason (A7, B8).

use crate::dead_letter::DeadLetterId;
use crate::error_text::ERROR_TEXT_MAX_BYTES;
use crate::ports::store::StoreError;

/// Why a dead letter is given up: at least one visible character. The same rule is a CHECK in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscardReason(String);

/// Why a discard was refused.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// A7.
    #[error("discard_reason: say why in at least one visible character; discarding is for ever")]
    NoReason,
    /// NUL cannot be stored.
    #[error("discard_reason: contains the character U+0000, which the database cannot hold")]
    Nul,
    /// Too much to read.
    #[error("discard_reason: {0} bytes, at most {max} are kept", max = ERROR_TEXT_MAX_BYTES)]
    TooLong(usize),
    /// There is none of that id.
    #[error("there is no dead letter {0}")]
    NotFound(DeadLetterId),
    /// The decision was another one.
    #[error("dead letter {0} was replayed and can no longer be discarded")]
    WasReplayed(DeadLetterId),
    /// A replay was published but could not be recorded, and its job was applied.
    #[error(
        "dead letter {0} was replayed before (that could not be recorded), and its job was applied since: \
         replay it to close it, which has no second effect"
    )]
    WasApplied(DeadLetterId),
    /// Try again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What the store made of a discard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discarded {
    /// It was pending and is discarded now.
    Discarded,
    /// It was discarded before; the first reason stays.
    Already,
    /// There is none of that id.
    NotFound,
    /// It was replayed before.
    WasReplayed,
    /// It is pending, but an unrecorded replay of it was applied.
    WasApplied,
}

impl DiscardReason {
    /// # Errors
    /// When there is nothing to read in it, or it cannot be stored.
    pub fn new(reason: &str) -> Result<Self, DiscardError> {
        if reason.contains('\0') {
            return Err(DiscardError::Nul);
        }
        if !has_visible_character(reason) {
            return Err(DiscardError::NoReason);
        }
        if reason.len() > ERROR_TEXT_MAX_BYTES {
            return Err(DiscardError::TooLong(reason.len()));
        }
        Ok(Self(reason.to_owned()))
    }

    /// The reason as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Characters that show nothing: controls, white space of every kind, soft hyphen, fillers, joiners, variation
/// selectors, marks of direction, byte order mark. The same ranges are in `core.has_visible_character`.
const INVISIBLE: [(char, char); 20] = [
    ('\u{0}', '\u{20}'),
    ('\u{7f}', '\u{a0}'),
    ('\u{ad}', '\u{ad}'),
    ('\u{34f}', '\u{34f}'),
    ('\u{61c}', '\u{61c}'),
    ('\u{115f}', '\u{1160}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{17b4}', '\u{17b5}'),
    ('\u{180b}', '\u{180f}'),
    ('\u{2000}', '\u{200f}'),
    ('\u{2028}', '\u{202f}'),
    ('\u{205f}', '\u{206f}'),
    ('\u{2800}', '\u{2800}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{3164}', '\u{3164}'),
    ('\u{fe00}', '\u{fe0f}'),
    ('\u{feff}', '\u{feff}'),
    ('\u{ffa0}', '\u{ffa0}'),
    ('\u{fff9}', '\u{fffb}'),
    ('\u{e0000}', '\u{e0fff}'),
];

pub(super) fn has_visible_character(text: &str) -> bool {
    text.chars().any(|c| {
        !INVISIBLE
            .iter()
            .any(|&(first, last)| (first..=last).contains(&c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a7_a_reason_has_something_to_read_in_it() {
        for blank in [
            "",
            " ",
            "\t\r\n",
            "\u{a0}",
            "\u{200b}",
            "\u{feff}\u{2060}",
            "\u{3164}",
        ] {
            assert!(
                matches!(DiscardReason::new(blank), Err(DiscardError::NoReason)),
                "{blank:?}"
            );
        }
        for good in ["x", " . ", "重複", "🦀"] {
            assert_eq!(DiscardReason::new(good).unwrap().as_str(), good);
        }
        assert!(matches!(DiscardReason::new("a\0"), Err(DiscardError::Nul)));
        assert!(matches!(
            DiscardReason::new(&"x".repeat(20_000)),
            Err(DiscardError::TooLong(20_000))
        ));
    }
}
