//! The jobs of the demo: read from a file, or generated.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use harness::{Entropy as _, JobId, SeededEntropy};
use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::BadInput;
use crate::award::{Award, Misbehave};

/// One message to publish.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

/// A line of the input that is a job. Its payload is kept as it was written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobLine<'a> {
    job_id: String,
    tenant_id: Option<String>,
    correlation_id: Option<String>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl Line {
    /// A line that is no job is published as it is, without headers: it is the consumer that finds out.
    fn parse(line: &[u8]) -> Self {
        let no_job = || Self {
            headers: BTreeMap::new(),
            body: line.to_vec(),
        };
        let Ok(job) = serde_json::from_slice::<JobLine>(line) else {
            return no_job();
        };
        let headers: BTreeMap<String, String> = [
            ("job-id", Some(job.job_id)),
            ("tenant-id", job.tenant_id),
            ("correlation-id", job.correlation_id),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
        // The queue cannot hold NUL in a header.
        if headers.values().any(|value| value.contains('\0')) {
            return no_job();
        }
        Self {
            headers,
            body: job.payload.get().as_bytes().to_vec(),
        }
    }
}

/// Reads a file, or standard input if it is `-`. Empty lines are no lines.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Line>> {
    let bad = |error: std::io::Error| BadInput(format!("--input {}: {error}", path.display()));
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut bytes).map_err(bad)?;
    } else {
        bytes = std::fs::read(path).map_err(bad)?;
    }
    let lines: Vec<Line> = bytes
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
        .map(Line::parse)
        .collect();
    if lines.is_empty() {
        return Err(BadInput(format!(
            "--input {}: there is no line in it",
            path.display()
        ))
        .into());
    }
    Ok(lines)
}

/// Of every 100 jobs: 10 are published twice, 5 fail once or twice, 1 always fails, 1 fails for good, 1 panics once, and
/// 2 are no valid jobs.
pub(super) fn generate(jobs: u32, seed: u64) -> Vec<Line> {
    let dice = SeededEntropy::new(seed);
    let namespace = Uuid::new_v5(&Uuid::NAMESPACE_OID, &seed.to_le_bytes());
    let mut lines = Vec::new();
    for n in 0..jobs {
        let id = JobId::from_key(namespace, &n.to_string());
        let mut award = Award::new(
            &format!("account-{}", dice.next_u64() % 50),
            1 + (dice.next_u64() % 100) as i64,
        );
        let mut headers = BTreeMap::from([("job-id".to_owned(), id.to_string())]);
        let mut copies = 1;
        let mut body = None;
        match dice.next_u64() % 100 {
            0..10 => copies = 2,
            10..15 => award = award.then(Misbehave::FailRuns(1 + (dice.next_u64() % 2) as u32)),
            15 => award = award.then(Misbehave::FailRuns(u32::MAX)),
            16 => award = award.then(Misbehave::FailHard),
            17 => award = award.then(Misbehave::PanicRuns(1)),
            18 => {
                body = Some(format!(r#"{{"account": "ada", "points": "many {n}"}}"#).into_bytes())
            }
            19 => headers.clear(),
            _ => {}
        }
        let body = body.unwrap_or_else(|| award.body());
        for _ in 0..copies {
            // Copies arrive at different times: anywhere among what is there already.
            let at = if lines.is_empty() {
                0
            } else {
                (dice.next_u64() % lines.len() as u64) as usize
            };
            lines.insert(
                at,
                Line {
                    headers: headers.clone(),
                    body: body.clone(),
                },
            );
        }
    }
    lines
}
