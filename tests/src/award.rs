//! The jobs of the tests and the demo: they award points, and points are money.
//!
//! The ledger has no unique key on purpose: a second effect must show.

use std::time::Duration;

use harness::{Clock, Failure, Handler, Job, PgStore, SystemClock};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

/// Where effects go.
pub const LEDGER: &str = "CREATE TABLE IF NOT EXISTS ledger (
    entry bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id uuid NOT NULL,
    consumer text NOT NULL,
    account text NOT NULL,
    points bigint NOT NULL)";

/// What to do for one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Award {
    /// Whose points.
    pub account: String,
    /// How many.
    pub points: i64,
    /// How the run misbehaves, after it wrote its effect.
    #[serde(default)]
    pub then: Misbehave,
}

/// How a run ends badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misbehave {
    /// It does not.
    #[default]
    Never,
    /// A transient failure on each of the first so many runs.
    FailRuns(u32),
    /// A permanent failure.
    FailHard,
    /// A panic on each of the first so many runs.
    PanicRuns(u32),
    /// SIGKILL to its own process on each of the first so many runs.
    KillRuns(u32),
    /// Works for so many milliseconds.
    Sleep(u64),
}

impl Award {
    /// A well-behaved one.
    pub fn new(account: &str, points: i64) -> Self {
        Self {
            account: account.to_owned(),
            points,
            then: Misbehave::Never,
        }
    }

    /// The same, misbehaving.
    #[must_use]
    pub fn then(mut self, then: Misbehave) -> Self {
        self.then = then;
        self
    }

    /// As a payload.
    pub fn body(&self) -> Vec<u8> {
        serde_json::json!(self).to_string().into_bytes()
    }
}

/// Writes awards to the ledger.
#[derive(Debug, Clone)]
pub struct Awards {
    /// Recorded with every entry.
    pub consumer: String,
}

impl Handler<PgStore> for Awards {
    type Payload = Award;

    async fn handle(&self, job: Job<Award>, tx: &mut PgConnection) -> Result<(), Failure> {
        sqlx::query(
            "INSERT INTO ledger (job_id, consumer, account, points) VALUES ($1, $2, $3, $4)",
        )
        .bind(job.id.as_uuid())
        .bind(&self.consumer)
        .bind(&job.payload.account)
        .bind(job.payload.points)
        .execute(&mut *tx)
        .await?;
        misbehave(job.payload.then, job.run).await
    }
}

#[allow(clippy::panic)]
async fn misbehave(how: Misbehave, run: u32) -> Result<(), Failure> {
    match how {
        Misbehave::FailRuns(runs) if run <= runs => {
            Err(Failure::transient(format!("run {run} fails as told")).class("as_told"))
        }
        Misbehave::FailHard => Err(Failure::permanent("fails for good, as told").class("as_told")),
        Misbehave::PanicRuns(runs) if run <= runs => panic!("run {run} panics as told"),
        Misbehave::KillRuns(runs) if run <= runs => {
            crate::faults::kill_self();
            std::future::pending().await
        }
        Misbehave::Sleep(millis) => {
            SystemClock::new()
                .sleep(Duration::from_millis(millis))
                .await;
            Ok(())
        }
        _ => Ok(()),
    }
}
