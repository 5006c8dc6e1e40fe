//! What an operator decides about a dead letter: who, what, and why (A7, B8).

use std::fmt;

use crate::error_text::ERROR_TEXT_MAX_BYTES;

/// Who decides: 1 to 200 characters, at least one of them visible. Kept with the letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reviewer(String);

/// Why a reviewer was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewerError {
    /// Decisions are signed.
    #[error("reviewed_by: give the name of who decides, 1 to {max} characters", max = Reviewer::MAX_CHARS)]
    NoReviewer,
}

impl Reviewer {
    const MAX_CHARS: usize = 200;

    /// # Errors
    /// When there is nothing to read in it, or it is too long.
    pub fn new(name: &str) -> Result<Self, ReviewerError> {
        if !has_visible_character(name)
            || name.contains('\0')
            || name.chars().count() > Self::MAX_CHARS
        {
            return Err(ReviewerError::NoReviewer);
        }
        Ok(Self(name.to_owned()))
    }

    /// The name as given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a dead letter is given up: at least one visible character. The same rule is a CHECK in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscardReason(String);

/// Why a reason was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscardReasonError {
    /// A7.
    #[error("discard_reason: say why in at least one visible character; discarding is for ever")]
    NoReason,
    /// NUL cannot be stored.
    #[error("discard_reason: contains the character U+0000, which the database cannot hold")]
    Nul,
    /// Too much to read.
    #[error("discard_reason: {0} bytes, at most {max} are kept", max = ERROR_TEXT_MAX_BYTES)]
    TooLong(usize),
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
    pub fn new(reason: &str) -> Result<Self, DiscardReasonError> {
        if reason.contains('\0') {
            return Err(DiscardReasonError::Nul);
        }
        if !has_visible_character(reason) {
            return Err(DiscardReasonError::NoReason);
        }
        if reason.len() > ERROR_TEXT_MAX_BYTES {
            return Err(DiscardReasonError::TooLong(reason.len()));
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

fn has_visible_character(text: &str) -> bool {
    text.chars().any(|c| {
        !INVISIBLE
            .iter()
            .any(|&(first, last)| (first..=last).contains(&c))
    })
}

/// The rule for reasons as a regular expression, for those who describe it to machines.
#[cfg(feature = "ops")]
pub(crate) fn reason_pattern() -> String {
    use std::fmt::Write as _;
    let mut invisible = String::new();
    for (first, last) in INVISIBLE {
        for (c, dash) in [(first, "-"), (last, "")] {
            let _ = match u32::from(c) {
                code @ 0..=0xffff => write!(invisible, "\\u{code:04x}{dash}"),
                // Regular expressions have no common way to write these but themselves.
                _ => write!(invisible, "{c}{dash}"),
            };
        }
    }
    format!("^[^\\u0000]*[^{invisible}][^\\u0000]*$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b8_a_reviewer_is_somebody_whose_name_can_be_read_and_stored() {
        let longest = "重".repeat(Reviewer::MAX_CHARS);
        for name in ["ann", "Ann (support)", &longest] {
            let reviewer = Reviewer::new(name).unwrap();
            assert_eq!(
                (reviewer.as_str(), reviewer.to_string()),
                (name, name.to_owned())
            );
        }
        for name in ["", " ", "\u{200b}", "an\0n", &format!("{longest}x")] {
            assert_eq!(
                Reviewer::new(name),
                Err(ReviewerError::NoReviewer),
                "{name:?}"
            );
        }
    }

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
                matches!(DiscardReason::new(blank), Err(DiscardReasonError::NoReason)),
                "{blank:?}"
            );
        }
        for good in ["x", " . ", "重複", "🦀"] {
            assert_eq!(DiscardReason::new(good).unwrap().as_str(), good);
        }
        assert!(matches!(
            DiscardReason::new("a\0"),
            Err(DiscardReasonError::Nul)
        ));
        let longest = "x".repeat(ERROR_TEXT_MAX_BYTES);
        assert_eq!(DiscardReason::new(&longest).unwrap().as_str(), longest);
        assert_eq!(
            DiscardReason::new(&format!("{longest}x")),
            Err(DiscardReasonError::TooLong(ERROR_TEXT_MAX_BYTES + 1))
        );
    }

    #[cfg(feature = "ops")]
    #[test]
    fn a7_the_pattern_for_machines_names_every_invisible_character() {
        let pattern = reason_pattern();
        assert!(
            pattern.starts_with("^[^\\u0000]*[^\\u0000-\\u0020\\u007f-\\u00a0"),
            "{pattern}"
        );
        assert!(
            pattern.ends_with("\u{e0000}-\u{e0fff}][^\\u0000]*$"),
            "{pattern}"
        );
    }
}
