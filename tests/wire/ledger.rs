//! What must be true of a job when everything has settled.

use acceptance::award::{Award, Misbehave};
use acceptance::db::Db;
use harness::{Envelope, JobId};

/// What a job does, and what must come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It works.
    Well,
    /// It works at the second run.
    FailsOnce,
    /// It never works.
    Hard,
    /// It cannot be read.
    Poison,
}

impl Kind {
    /// One of its jobs.
    pub fn envelope(self, id: JobId) -> Envelope {
        let award = Award::new("ada", 10);
        let body = match self {
            Self::Well => award.body(),
            Self::FailsOnce => award.then(Misbehave::FailRuns(1)).body(),
            Self::Hard => award.then(Misbehave::FailHard).body(),
            Self::Poison => b"{".to_vec(),
        };
        Envelope::new(id, body)
    }

    fn is_applied(self) -> bool {
        matches!(self, Self::Well | Self::FailsOnce)
    }
}

/// S1, S2, S4 for one job, and S3 and L1 since its messages are gone: it has its outcome, once.
///
/// # Errors
/// When it has not.
pub async fn exact(db: &Db, id: JobId, kind: Kind) -> Result<(), String> {
    let found: (i64, i64, i64) = sqlx::query_as(
        "SELECT (SELECT count(*) FROM ledger WHERE job_id = $1),
                (SELECT count(*) FROM core.processed_jobs WHERE job_id = $1),
                (SELECT count(*) FROM core.dead_letters WHERE job_id = $1)",
    )
    .bind(id.as_uuid())
    .fetch_one(&db.pool)
    .await
    .map_err(|error| error.to_string())?;
    let due = if kind.is_applied() {
        (1, 1, 0)
    } else {
        (0, 0, 1)
    };
    if found == due {
        return Ok(());
    }
    Err(format!(
        "{kind:?} {id}: effects, fences and dead letters are {found:?}, not {due:?}"
    ))
}

/// The same for many, and nothing else is there.
pub async fn all_exact(db: &Db, jobs: &[(JobId, Kind)]) {
    for (id, kind) in jobs {
        exact(db, *id, *kind).await.unwrap();
    }
    let applied = jobs.iter().filter(|(_, kind)| kind.is_applied()).count();
    let (applied, all) = (applied as i64, jobs.len() as i64);
    let points: i64 = db
        .count("SELECT coalesce(sum(points), 0)::bigint FROM ledger")
        .await;
    assert_eq!(points, applied * 10, "points in the ledger");
    for (table, rows) in [
        ("ledger", applied),
        ("core.processed_jobs", applied),
        ("core.dead_letters", all - applied),
    ] {
        assert_eq!(
            db.count(&format!("SELECT count(*) FROM {table}")).await,
            rows,
            "{table}"
        );
    }
}
