//! `enqueue`: jobs from lines of JSON, all in one transaction.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use base64::Engine as _;
use harness::{CorrelationId, Envelope, JobId, QueueName, RESERVED_HEADERS, TenantId, TraceParent};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::database::opened;
use super::output::{Format, out};
use super::{Common, Wrong};

/// One job per line: {"job_id": UUID, "payload": any JSON} and, if wanted, "tenant_id", "correlation_id", "traceparent",
/// "headers"; "body_base64" in the place of "payload" for bytes that are no JSON.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    job-harness enqueue --queue points jobs.ndjson\n  \
    echo '{\"job_id\":\"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01\",\"payload\":{\"account\":\"ada\",\"points\":10}}' |\n    \
    job-harness enqueue --queue points -\n\n\
    One line that is wrong, and nothing is put on the queue. To send a file again is safe: same job ids, same jobs.")]
pub(crate) struct Enqueue {
    /// The file, or - for standard input.
    file: PathBuf,
    /// Where to.
    #[arg(long)]
    queue: QueueName,
    /// Only checks the lines.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    job_id: JobId,
    tenant_id: Option<TenantId>,
    correlation_id: Option<CorrelationId>,
    traceparent: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    body_base64: Option<String>,
}

fn envelope(line: &str) -> Result<Envelope, String> {
    let line: Line<'_> = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let body = match (line.payload, line.body_base64) {
        (Some(payload), None) => payload.get().as_bytes().to_vec(),
        (None, Some(text)) => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|error| format!("body_base64: {error}"))?,
        _ => return Err("payload: give it, or body_base64; one of the two".to_owned()),
    };
    for (name, value) in &line.headers {
        let good = !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_graphic() && !b.is_ascii_uppercase());
        if !good || RESERVED_HEADERS.contains(&name.as_str()) {
            return Err(format!(
                "headers: {name:?} must be lower-case visible ASCII, and none of {}",
                RESERVED_HEADERS.join(", ")
            ));
        }
        if value.contains('\0') {
            return Err(format!("headers: {name:?} contains U+0000"));
        }
    }
    let mut envelope = Envelope::new(line.job_id, body);
    envelope.tenant_id = line.tenant_id;
    if let Some(correlation_id) = line.correlation_id {
        envelope.correlation_id = correlation_id;
    }
    envelope.headers = line.headers;
    if let Some(trace) = line.traceparent {
        let trace: TraceParent = trace.parse().map_err(|error| format!("{error}"))?;
        envelope = envelope.in_trace(trace);
    }
    Ok(envelope)
}

impl Enqueue {
    pub(crate) async fn run(&self, common: &Common) -> anyhow::Result<()> {
        let name = self.file.display();
        let reader: Box<dyn BufRead> = if self.file == Path::new("-") {
            Box::new(BufReader::new(std::io::stdin()))
        } else {
            let file = std::fs::File::open(&self.file);
            Box::new(BufReader::new(
                file.map_err(|error| Wrong(format!("{name}: {error}")))?,
            ))
        };
        let opened = match self.dry_run {
            true => None,
            false => Some(opened(common).await?),
        };
        let away = "nothing was put on the queue";
        let mut tx = match &opened {
            Some(opened) => Some(opened.pool.begin().await.context(away)?),
            None => None,
        };
        let mut jobs = 0_u64;
        for (n, line) in reader.lines().enumerate() {
            let wrong = |problem: String| {
                Wrong(format!(
                    "{name}, line {}: {problem}; nothing was put on the queue",
                    n + 1
                ))
            };
            let line = line.map_err(|error| wrong(error.to_string()))?;
            if line.trim().is_empty() {
                continue;
            }
            let envelope = envelope(&line).map_err(wrong)?;
            if let (Some(opened), Some(tx)) = (&opened, &mut tx) {
                let sent = opened.queue.publish_in(&mut **tx, &self.queue, &envelope);
                sent.await.with_context(|| {
                    format!(
                        "queue {}: {away}; `job-harness migrate --queue {}` creates it",
                        self.queue, self.queue
                    )
                })?;
            }
            jobs += 1;
        }
        if let Some(tx) = tx {
            tx.commit().await.context(
                "whether the jobs are on the queue is not known; to send them again is safe",
            )?;
        }
        let mut out = out();
        match common.format {
            Format::Json => {
                let line = serde_json::json!({ "queue": self.queue, "jobs": jobs, "dry_run": self.dry_run });
                writeln!(out, "{line}")?;
            }
            Format::Text if self.dry_run => {
                writeln!(out, "{jobs} jobs are good; nothing was put on the queue")?
            }
            Format::Text => writeln!(out, "{jobs} jobs are on the queue {}", self.queue)?,
        }
        Ok(())
    }
}
