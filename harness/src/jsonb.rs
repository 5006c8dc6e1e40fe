//! The payload column: JSON that PostgreSQL's JSONB can hold, for people to read and search.
//!
//! JSONB refuses some JSON and changes other (key order, duplicate keys), so no replay is made from it. What it cannot
//! hold is replaced by a small object that says so; the bytes themselves are always in the column beside it.

use std::fmt;

use serde_json::value::RawValue;

/// JSONB's parser recurses; its limit depends on the server's stack. Deeper payloads are replaced.
const MAX_DEPTH: usize = 500;

/// JSONB holds numbers as `numeric`, with up to 131,072 digits before the point and 16,383 after it. Longer tokens, and
/// exponents beyond this, are replaced.
const MAX_NUMBER_LENGTH: usize = 1_000;
const MAX_EXPONENT: u32 = 1_000;

/// How much of an unrepresentable payload is shown, in characters.
const PREVIEW_CHARS: usize = 200;

/// Why JSONB cannot hold a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonbProblem {
    /// No bytes at all.
    Empty,
    /// Not UTF-8.
    NotUtf8,
    /// Not JSON.
    NotJson,
    /// A string with the character U+0000.
    Nul,
    /// A `\u` escape that is half of a pair.
    LoneSurrogate,
    /// Nested too deep.
    TooDeep,
    /// A number too long or too large.
    NumberTooLarge,
    /// The database refused it for another reason.
    Refused,
}

impl fmt::Display for JsonbProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::NotUtf8 => "not UTF-8",
            Self::NotJson => "not JSON",
            Self::Nul => "contains U+0000",
            Self::LoneSurrogate => "contains a lone surrogate",
            Self::TooDeep => "nested too deep",
            Self::NumberTooLarge => "contains a number that is too large",
            Self::Refused => "refused by the database",
        })
    }
}

/// `body` itself if JSONB can hold it, else the object that says why not.
pub fn jsonb_text(body: &[u8]) -> String {
    match check(body) {
        Ok(text) => text.to_owned(),
        Err(problem) => wrapper(problem, body),
    }
}

/// The object that stands for a payload that JSONB cannot hold.
pub(crate) fn wrapper(problem: JsonbProblem, body: &[u8]) -> String {
    let preview: String = String::from_utf8_lossy(&body[..body.len().min(4 * PREVIEW_CHARS)])
        .chars()
        .take(PREVIEW_CHARS)
        .map(|c| if c == '\0' { '\u{fffd}' } else { c })
        .collect();
    serde_json::json!({
        "unrepresentable": problem.to_string(),
        "bytes": body.len(),
        "preview": preview,
    })
    .to_string()
}

fn check(body: &[u8]) -> Result<&str, JsonbProblem> {
    if body.is_empty() {
        return Err(JsonbProblem::Empty);
    }
    let text = std::str::from_utf8(body).map_err(|_| JsonbProblem::NotUtf8)?;
    // `RawValue` checks the grammar without recursion and without building anything.
    serde_json::from_str::<&RawValue>(text).map_err(|_| JsonbProblem::NotJson)?;
    scan(text.as_bytes())?;
    Ok(text)
}

/// Looks for what is valid JSON but not valid JSONB. `json` has been checked against the grammar.
fn scan(json: &[u8]) -> Result<(), JsonbProblem> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(JsonbProblem::TooDeep);
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => at = scan_string(json, at)?,
            b'-' | b'0'..=b'9' => {
                let rest = &json[at - 1..];
                let length = rest
                    .iter()
                    .position(|b| !matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
                    .unwrap_or(rest.len());
                check_number(&rest[..length])?;
                at += length - 1;
            }
            _ => {}
        }
    }
    Ok(())
}

/// `at` is behind the opening quote; answers the position behind the closing one.
fn scan_string(json: &[u8], mut at: usize) -> Result<usize, JsonbProblem> {
    let mut high_surrogate = false;
    while let Some(&byte) = json.get(at) {
        if byte == b'\\' && json.get(at + 1) == Some(&b'u') {
            let unit = json
                .get(at + 2..at + 6)
                .and_then(|hex| std::str::from_utf8(hex).ok())
                .and_then(|hex| u16::from_str_radix(hex, 16).ok())
                .ok_or(JsonbProblem::NotJson)?;
            match (high_surrogate, unit) {
                (false, 0) => return Err(JsonbProblem::Nul),
                (false, 0xD800..=0xDBFF) => high_surrogate = true,
                (true, 0xDC00..=0xDFFF) => high_surrogate = false,
                (true, _) | (false, 0xDC00..=0xDFFF) => return Err(JsonbProblem::LoneSurrogate),
                (false, _) => {}
            }
            at += 6;
            continue;
        }
        if high_surrogate {
            return Err(JsonbProblem::LoneSurrogate);
        }
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    Err(JsonbProblem::NotJson)
}

fn check_number(number: &[u8]) -> Result<(), JsonbProblem> {
    let too_large = Err(JsonbProblem::NumberTooLarge);
    if number.len() > MAX_NUMBER_LENGTH {
        return too_large;
    }
    let Some(e) = number.iter().position(|b| matches!(b, b'e' | b'E')) else {
        return Ok(());
    };
    let digits: String = number[e + 1..]
        .iter()
        .filter(|b| b.is_ascii_digit())
        .map(|&b| char::from(b))
        .collect();
    match digits.parse::<u32>() {
        Ok(exponent) if exponent <= MAX_EXPONENT => Ok(()),
        _ => too_large,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn b4_what_jsonb_can_hold_is_kept_as_it_is() {
        for body in [
            r#"{"b":1,"a":2,"a":3}"#,
            r#"["\ud83e\udd80","\\u0000","\\\\ud800"]"#,
            "18446744073709551617",
            "0.1234567890123456789012345",
            "1e400",
            "-12.5E-10",
            " null ",
        ] {
            assert_eq!(jsonb_text(body.as_bytes()), body);
        }
    }

    #[test]
    fn b4_what_jsonb_cannot_hold_is_replaced_by_an_object_that_says_so() {
        let deep = "[".repeat(6_000) + &"]".repeat(6_000);
        let very_deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let long = "9".repeat(2_000);
        for (body, problem) in [
            (&b""[..], "empty"),
            (b"\xff", "not UTF-8"),
            (b"{", "not JSON"),
            (b"1 2", "not JSON"),
            (br#"{"a":"\u0000"}"#, "contains U+0000"),
            (br#"{"\u0000":1}"#, "contains U+0000"),
            (br#""\ud800""#, "contains a lone surrogate"),
            (br#""\ud800x""#, "contains a lone surrogate"),
            (br#""\ud800\n""#, "contains a lone surrogate"),
            (br#""\udc00\ud800""#, "contains a lone surrogate"),
            (br#""\ud800\u0041""#, "contains a lone surrogate"),
            (deep.as_bytes(), "nested too deep"),
            (very_deep.as_bytes(), "nested too deep"),
            (b"1e99999", "contains a number that is too large"),
            (long.as_bytes(), "contains a number that is too large"),
        ] {
            let value: serde_json::Value = serde_json::from_str(&jsonb_text(body)).unwrap();
            assert_eq!(value["unrepresentable"], problem);
            assert_eq!(value["bytes"], body.len());
        }
    }

    #[test]
    fn b4_the_preview_is_short_and_holds_no_nul() {
        let body = "\0🦀".repeat(10_000);
        let value: serde_json::Value = serde_json::from_str(&jsonb_text(body.as_bytes())).unwrap();
        let preview = value["preview"].as_str().unwrap();
        assert_eq!(preview.chars().count(), PREVIEW_CHARS);
        assert!(!preview.contains('\0'));
    }
    /// Bytes, and text that is nearly JSON.
    fn bodies() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..64),
            "[\\[\\]{}:,\"\\\\u0dD8a1eE.+-]{0,40}".prop_map(String::into_bytes),
            any::<String>().prop_map(|text| {
                serde_json::json!({ "text": text, "n": [1, 2.5, null] })
                    .to_string()
                    .into_bytes()
            }),
        ]
    }

    proptest! {
        #[test]
        fn b4_a_payload_is_kept_or_replaced_and_never_changed(body in bodies()) {
            let text = jsonb_text(&body);
            if text.as_bytes() == body {
                // What is kept holds nothing that JSONB refuses.
                prop_assert!(check(&body).is_ok());
            } else {
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(&value["bytes"], body.len());
                prop_assert!(value["unrepresentable"].is_string());
                // What stands for it can be held itself.
                prop_assert_eq!(jsonb_text(text.as_bytes()), text);
            }
        }

        #[test]
        fn b4_what_serde_json_wrote_without_nul_is_kept(text in "[^\\x00]*", number in any::<f64>(), other in any::<i64>()) {
            let body = serde_json::json!({ &text: [number, other, &text] }).to_string();
            // Exponents of doubles are within what `numeric` holds.
            prop_assert_eq!(jsonb_text(body.as_bytes()), body);
        }
    }
}
