//! The text of an error as a dead letter keeps it.

use std::error::Error;
use std::fmt::Write;

/// The longest error text that is kept, in bytes of UTF-8.
pub const ERROR_TEXT_MAX_BYTES: usize = 16 * 1024;

/// More causes than this are not followed: a chain may be a loop.
const MAX_CAUSES: usize = 64;

/// An error and its chain of causes, outermost first, separated by `: `; a cause whose text ends the text so far is not
/// repeated. PostgreSQL's TEXT holds no NUL, so NUL becomes U+FFFD. Longer texts are cut on a character boundary and say so.
pub fn error_text(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    for _ in 0..MAX_CAUSES {
        let Some(error) = next else { break };
        let mut one = String::new();
        // A Display that fails half-way still leaves what it wrote.
        let _ = write!(one, "{error}");
        if text.is_empty() {
            text = one;
        } else if !text.ends_with(&one) {
            text.push_str(": ");
            text.push_str(&one);
        }
        if text.len() > ERROR_TEXT_MAX_BYTES {
            break;
        }
        next = error.source();
    }
    storable(&text)
}

/// A text that PostgreSQL's TEXT can hold, within [`ERROR_TEXT_MAX_BYTES`].
pub(crate) fn storable(text: &str) -> String {
    let text = text.replace('\0', "\u{fffd}");
    if text.len() <= ERROR_TEXT_MAX_BYTES {
        return text;
    }
    let mark = format!(" … [cut, {} bytes in all]", text.len());
    let mut end = ERROR_TEXT_MAX_BYTES - mark.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{mark}", &text[..end])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("layer {0}")]
    struct Layer(u32, #[source] Option<Box<Layer>>);

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Text(String);

    #[test]
    fn b4_causes_are_listed_outermost_first() {
        let chain = (0..20)
            .rev()
            .fold(None, |inner, n| Some(Box::new(Layer(n, inner))))
            .unwrap();
        let text = error_text(&*chain);
        assert!(text.starts_with("layer 0: layer 1: layer 2"), "{text}");
        assert!(text.ends_with("layer 18: layer 19"), "{text}");
    }

    #[test]
    fn b4_nul_is_replaced_and_long_texts_are_cut_on_a_character_boundary() {
        assert_eq!(error_text(&Text("a\0b".into())), "a\u{fffd}b");
        for shift in 0..4 {
            let text = error_text(&Text(format!(
                "{}{}",
                "x".repeat(shift),
                "🦀".repeat(262_144)
            )));
            assert!(text.len() <= ERROR_TEXT_MAX_BYTES, "{}", text.len());
            assert!(text.len() > ERROR_TEXT_MAX_BYTES - 8, "{}", text.len());
            assert!(text.ends_with(" bytes in all]"), "{text}");
        }
    }

    #[test]
    fn b4_a_text_of_the_greatest_length_is_kept_whole() {
        let text = "x".repeat(ERROR_TEXT_MAX_BYTES);
        assert_eq!(error_text(&Text(text.clone())), text);
    }
    proptest! {
        #[test]
        fn b4_a_text_is_kept_whole_or_cut_where_it_says_so(
            piece in ".{1,40}", nul in any::<bool>(), bytes in prop_oneof![0_usize..100, 16_000..17_000_usize, 0..100_000_usize],
        ) {
            let piece = if nul { format!("{piece}\0") } else { piece };
            let whole = piece.repeat(bytes / piece.len() + 1);
            let (text, clean) = (storable(&whole), whole.replace('\0', "\u{fffd}"));
            prop_assert!(text.len() <= ERROR_TEXT_MAX_BYTES);
            prop_assert!(!text.contains('\0'));
            match text.rsplit_once(" … [cut, ") {
                Some((start, rest)) if clean.len() > ERROR_TEXT_MAX_BYTES => {
                    prop_assert!(clean.starts_with(start));
                    prop_assert_eq!(rest, format!("{} bytes in all]", clean.len()));
                    // No more is cut than the mark and one character need.
                    prop_assert!(text.len() > ERROR_TEXT_MAX_BYTES - 4);
                }
                _ => prop_assert_eq!(&text, &clean),
            }
            prop_assert_eq!(storable(&text), text);
        }
    }
}
