//! What the demo prints in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use harness::JobId;
use serde::Serialize;

use super::expect::Expectation;
use super::input::Line;
use super::workers::Steps;
use super::{DemoArgs, Format, SHORTENED};
use crate::db::Db;

/// The result of a demo.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    jobs: usize,
    messages: usize,
    deliveries: u64,
    applied: i64,
    duplicates_skipped: u64,
    retries: u64,
    deferred: u64,
    dead_letters: BTreeMap<String, i64>,
    workers_killed: u32,
    points_expected: i64,
    points_in_ledger: i64,
    /// Jobs that ended in no way that they may.
    wrong: Vec<String>,
}

impl Report {
    pub(super) async fn make(
        db: &Db,
        lines: &[Line],
        expectation: &Expectation,
        steps: Steps,
        workers_killed: u32,
    ) -> anyhow::Result<Self> {
        let mut ledger: BTreeMap<JobId, Vec<i64>> = BTreeMap::new();
        let entries: Vec<(uuid::Uuid, i64)> = sqlx::query_as("SELECT job_id, points FROM ledger")
            .fetch_all(&db.pool)
            .await?;
        for (id, points) in &entries {
            ledger.entry(JobId::new(*id)?).or_default().push(*points);
        }
        let dead_jobs: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT job_id FROM core.dead_letters")
            .fetch_all(&db.pool)
            .await?;
        let dead = dead_jobs
            .into_iter()
            .map(JobId::new)
            .collect::<Result<BTreeSet<_>, _>>()?;
        let by_reason: Vec<(String, i64)> =
            sqlx::query_as("SELECT reason, count(*) FROM core.dead_letters GROUP BY reason")
                .fetch_all(&db.pool)
                .await?;
        let mut dead_letters: BTreeMap<String, i64> = ["exhausted", "hard", "poison"]
            .map(|reason| (reason.to_owned(), 0))
            .into();
        dead_letters.extend(by_reason);
        let (points_expected, wrong) = expectation.compare(&ledger, &dead);
        let step = |name: &str| steps.get(name).copied().unwrap_or(0);
        Ok(Self {
            jobs: expectation.jobs(),
            messages: lines.len(),
            deliveries: step("received"),
            applied: i64::try_from(entries.len())?,
            duplicates_skipped: step("duplicate"),
            retries: step("retried"),
            deferred: step("deferred"),
            dead_letters,
            workers_killed,
            points_expected,
            points_in_ledger: entries.iter().map(|(_, points)| points).sum(),
            wrong,
        })
    }

    pub(super) fn is_right(&self) -> bool {
        self.wrong.is_empty() && self.points_expected == self.points_in_ledger
    }

    pub(super) fn print(&self, args: &DemoArgs) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if args.format == Format::Json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
            return Ok(());
        }
        let waits = if args.real_time {
            "real waits".to_owned()
        } else {
            format!("waits shortened {SHORTENED} times")
        };
        let source = match &args.input {
            Some(path) => path.display().to_string(),
            None => format!("generated, seed {}", args.seed),
        };
        writeln!(
            out,
            "{source}; {} worker processes; {waits}\n",
            args.workers
        )?;
        let dead: i64 = self.dead_letters.values().sum();
        let rows = [
            ("jobs", self.jobs.to_string()),
            ("messages published", self.messages.to_string()),
            ("deliveries", self.deliveries.to_string()),
            ("applied", self.applied.to_string()),
            ("duplicates skipped", self.duplicates_skipped.to_string()),
            ("retries", self.retries.to_string()),
            ("deferred, uncounted", self.deferred.to_string()),
            ("dead letters", dead.to_string()),
        ];
        for (name, value) in rows {
            writeln!(out, "{name:<24}{value:>12}")?;
        }
        for (reason, count) in &self.dead_letters {
            writeln!(out, "  {reason:<22}{count:>12}")?;
        }
        writeln!(out, "{:<24}{:>12}", "workers killed", self.workers_killed)?;
        writeln!(out, "{:<24}{:>12}", "points expected", self.points_expected)?;
        writeln!(
            out,
            "{:<24}{:>12}",
            "points in the ledger", self.points_in_ledger
        )?;
        for line in self.wrong.iter().take(20) {
            writeln!(out, "WRONG: {line}")?;
        }
        writeln!(
            out,
            "\n{}",
            if self.is_right() {
                "The ledger is right."
            } else {
                "THE LEDGER IS WRONG."
            }
        )?;
        Ok(())
    }
}
