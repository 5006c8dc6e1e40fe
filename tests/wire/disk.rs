//! The disk of the server is full, and then it is not.

use std::io::Write as _;
use std::path::Path;

use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, job_id, queue_name};
use acceptance::rig::{Running, awards};
use embedded_pg::Postgres;
use harness::QueuePort as _;

use crate::every_message::{quick, quick_store};
use crate::ledger::{Kind, all_exact};

const DISK_MB: u32 = 192;

/// Takes everything that is left of the disk; answers how much that was.
fn fill(file: &Path) -> u64 {
    let mut filler = std::fs::File::create(file).unwrap();
    let mut taken = 0;
    for size in [1 << 20, 1 << 12, 1] {
        let block = vec![b'x'; size];
        while let Ok(written) = filler.write(&block) {
            if written == 0 {
                break;
            }
            taken += written as u64;
        }
    }
    taken
}

/// Run by `ci/test` where there is the right to mount a file system; elsewhere it says that this was not run.
#[tokio::test]
#[ignore = "needs the right to mount a small file system; ci/test runs it where that is there"]
async fn a1_a2_a_full_disk_loses_nothing_and_applies_nothing_twice() {
    let server = Postgres::own_on_a_disk_of(DISK_MB).unwrap();
    let mut db = Db::on(server).await.unwrap();
    let queue = db.queue().await;
    let mut jobs = Vec::new();
    for n in 0..400 {
        let kind = [Kind::Well, Kind::FailsOnce, Kind::Hard, Kind::Well][n % 4];
        let mut envelope = kind.envelope(job_id());
        // So that a dead letter needs room.
        envelope
            .headers
            .insert("x-ballast".to_owned(), "b".repeat(4_000));
        queue.publish(&queue_name(), &envelope).await.unwrap();
        jobs.push((envelope.job_id, kind));
    }
    let filler = db.server().log_path().unwrap().with_file_name("filler");
    let taken = fill(&filler);
    assert!(taken > 1 << 20, "the disk was full before: {taken} bytes");

    let store = quick_store(db.url());
    let consumer = Running::start_on(quick(&db), store, db.queue().await, awards());
    let seen = consumer.seen.clone();
    eventually("the harness is told that the disk is full", async || {
        let full = seen.count(|step| format!("{step:?}").contains("No space left on device"));
        if full > 0 {
            Ok(())
        } else {
            Err(format!("{} steps", seen.events().len()))
        }
    })
    .await;
    std::fs::remove_file(&filler).unwrap();
    // Without room for its log of changes the server ends itself, and stays down.
    db.server().restart_if_ended().unwrap();
    eventually("nothing is left", async || {
        let left: Result<i64, _> = sqlx::query_scalar("SELECT count(*) FROM pgmq.q_points")
            .fetch_one(&db.pool)
            .await;
        match left {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?} messages")),
        }
    })
    .await;
    in_time("the consumer stops", consumer.stop()).await;
    all_exact(&db, &jobs).await;
}
