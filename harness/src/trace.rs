//! Which trace a job belongs to: the W3C `traceparent` that its producer sent along. It is carried, from publish to run and
//! through a replay; it decides nothing, so one that cannot be read is left alone and the job runs.

use std::fmt;
use std::str::FromStr;

/// A place in a trace: W3C Trace Context, level 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    trace_id: u128,
    parent_id: u64,
    flags: u8,
}

/// The header that carries it.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// Not a `traceparent`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "traceparent: must be like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 (version, trace id, parent id, flags)"
)]
pub struct TraceParentError;

impl TraceParent {
    /// 32 lower-case hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace_id)
    }

    /// The span that published the job: 16 lower-case hexadecimal digits.
    pub fn parent_id(&self) -> String {
        format!("{:016x}", self.parent_id)
    }

    /// Whether whoever began the trace records it.
    pub const fn sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

/// So many lower-case hexadecimal digits: the standard allows no others.
fn hex<T>(text: &str, digits: usize, read: fn(&str) -> Option<T>) -> Result<T, TraceParentError> {
    let is_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() != digits || !text.bytes().all(is_hex) {
        return Err(TraceParentError);
    }
    read(text).ok_or(TraceParentError)
}

impl FromStr for TraceParent {
    type Err = TraceParentError;

    fn from_str(text: &str) -> Result<Self, TraceParentError> {
        let byte = |text: &str| u8::from_str_radix(text, 16).ok();
        let mut parts = text.split('-');
        let mut part = || parts.next().ok_or(TraceParentError);
        let version = hex(part()?, 2, byte)?;
        let trace_id = hex(part()?, 32, |text| u128::from_str_radix(text, 16).ok())?;
        let parent_id = hex(part()?, 16, |text| u64::from_str_radix(text, 16).ok())?;
        let flags = hex(part()?, 2, byte)?;
        // A later version may say more behind these four; the first one may not.
        let says_more = parts.next().is_some();
        if version == 0xff || (version == 0 && says_more) || trace_id == 0 || parent_id == 0 {
            return Err(TraceParentError);
        }
        Ok(Self {
            trace_id,
            parent_id,
            flags,
        })
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            trace_id,
            parent_id,
            flags,
        } = self;
        write!(f, "00-{trace_id:032x}-{parent_id:016x}-{flags:02x}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_the_standard_allows_is_read() {
        let read: TraceParent = GOOD.parse().unwrap();
        assert_eq!(read.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(read.parent_id(), "00f067aa0ba902b7");
        assert!(read.sampled());
        assert_eq!(read.to_string(), GOOD);
        // A later version with more behind it: read as the first.
        let later = GOOD.replacen("00", "cc", 1) + "-what-comes-later";
        assert_eq!(later.parse::<TraceParent>().unwrap(), read);
    }

    #[test]
    fn everything_else_is_refused() {
        let cases = [
            String::new(),
            GOOD.to_uppercase(),
            GOOD.replacen("00", "ff", 1),
            format!("{GOOD}-more"),
            format!("{GOOD} "),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace("4bf9", "+bf9"),
            GOOD.replace("-01", ""),
        ];
        for case in cases {
            assert_eq!(
                case.parse::<TraceParent>(),
                Err(TraceParentError),
                "{case:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn it_survives_its_text(trace_id in 1_u128.., parent_id in 1_u64.., flags: u8) {
            let it = TraceParent { trace_id, parent_id, flags };
            prop_assert_eq!(it.to_string().parse(), Ok(it));
        }

        #[test]
        fn nothing_panics(text in ".*") {
            let _ = text.parse::<TraceParent>();
        }
    }
}
