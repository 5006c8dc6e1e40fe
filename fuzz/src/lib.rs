//! What the fuzz targets check. A target is a function of bytes that panics when something is wrong; `fuzz_targets` has a
//! program for each.
//!
//! Everything goes through what a producer, a client or an operator can reach: the public API of `harness`, the HTTP
//! routes over a store in memory, the program's own configuration, and the simulation.

#![forbid(unsafe_code)]

mod api;
#[allow(dead_code, unused_imports, missing_docs)]
#[path = "../../harness/src/bin/job-harness/config/mod.rs"]
mod config;
pub mod files;
pub mod http;
pub mod messages;
mod tokens;
pub mod worlds;

/// Headers, an empty line, and the rest: most inputs are of this form, so that seeds can be read and written by hand.
fn parts(bytes: &[u8]) -> (Vec<(String, String)>, &[u8]) {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, rest) = match end {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &[][..]),
    };
    let head = String::from_utf8_lossy(head);
    let headers = head.split('\n').filter_map(|line| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_owned(), value.to_owned()))
    });
    (headers.collect(), rest)
}
