//! A worker process that stands still (SIGSTOP) at any port call, beyond its lease, and goes on when somebody else has done
//! the job.

use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, job_id};
use acceptance::worker::WorkerArgs;
use futures_util::future::join_all;
use nix::sys::signal::Signal;

use crate::ledger::{Kind, exact};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

fn args(db: &Db) -> WorkerArgs {
    let mut args = WorkerArgs::new(db.url());
    args.lease_s = 1;
    args.retry_base_ms = 50;
    args.run_deadline_ms = 2_000;
    args
}

/// A worker stands still at `point`; another one does the job; the first goes on and ends in good order.
async fn stands_still_at(point: &str, kind: Kind) {
    let db = Db::fresh().await;
    let id = job_id();
    db.publish(&kind.envelope(id)).await;
    let mut slow = args(&db);
    slow.stop_at = Some(point.parse().unwrap());
    let mut slow = slow.spawn(WORKER, &[]).unwrap();
    eventually(&format!("the worker stands still at {point}"), async || {
        slow.stands_still().then_some(()).ok_or("it goes on")
    })
    .await;
    let mut other = args(&db).spawn(WORKER, &[]).unwrap();
    db.settled().await;
    let meanwhile = exact(&db, id, kind).await;
    assert_eq!(meanwhile, Ok(()), "while the first stood still at {point}");
    slow.signal(Signal::SIGCONT).unwrap();
    // Both drain: whatever the first still had to do about the job, it has done.
    let status = in_time("the first worker ends", slow.stop()).await.unwrap();
    assert!(status.success(), "{status}");
    assert!(other.stop().await.unwrap().success());
    assert_eq!(db.queued().await, 0);
    let afterwards = exact(&db, id, kind).await;
    assert_eq!(afterwards, Ok(()), "the first stood still at {point}");
}

async fn stands_still_at_each(points: &[&str], kind: Kind) {
    join_all(points.iter().map(|point| stands_still_at(point, kind))).await;
}

#[tokio::test]
async fn a1_a2_a_worker_that_stands_still_before_its_commit() {
    let points = [
        "after:receive",
        "before:begin",
        "after:begin",
        "before:fence",
        "after:fence",
        "before:work",
        "after:work",
        "before:commit",
    ];
    stands_still_at_each(&points, Kind::Well).await;
}

#[tokio::test]
async fn a1_a2_a_worker_that_stands_still_after_its_commit() {
    stands_still_at_each(&["after:commit", "before:ack"], Kind::Well).await;
}

#[tokio::test]
async fn a1_a2_b3_a_worker_that_stands_still_around_a_retry() {
    let points = ["before:rollback", "after:rollback", "before:retry"];
    stands_still_at_each(&points, Kind::FailsOnce).await;
}

#[tokio::test]
async fn a2_b4_a_worker_that_stands_still_around_a_dead_letter() {
    let points = ["before:recorddeadletter", "after:recorddeadletter"];
    stands_still_at_each(&points, Kind::Hard).await;
}
