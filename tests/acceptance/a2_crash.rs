//! A2: a crash between the work and the fence leaves neither.

use acceptance::award::{Award, Misbehave};
use acceptance::clock::{eventually, in_time};
use acceptance::db::Db;
use acceptance::faults::Point;
use acceptance::worker::WorkerArgs;
use harness::JobId;

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

fn args(db: &Db) -> WorkerArgs {
    let mut args = WorkerArgs::new(db.url());
    args.lease_s = 1;
    args.retry_base_ms = 50;
    args
}

/// Effect and fence of one job, read in one snapshot.
async fn effect_and_fence(db: &Db, id: JobId) -> (i64, i64) {
    sqlx::query_as(
        "SELECT (SELECT count(*) FROM ledger WHERE job_id = $1), \
                (SELECT count(*) FROM core.processed_jobs WHERE job_id = $1)",
    )
    .bind(id.as_uuid())
    .fetch_one(&db.pool)
    .await
    .unwrap()
}

/// A worker dies at `point`; another one takes over. Answers what the second one left.
async fn killed_at(point: &str, award: Award) -> (Db, JobId) {
    let db = Db::fresh().await;
    let id = db.publish_award(&award).await;
    let mut doomed = args(&db);
    doomed.kill_at = Some(point.parse::<Point>().unwrap());
    let mut worker = doomed.spawn(WORKER, &[]).unwrap();
    let status = in_time("the worker dies where it is told to", worker.wait())
        .await
        .unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9),
        "{status}"
    );

    // The server may still be about to notice that its client is gone.
    eventually("the dead worker's transactions are over", async || {
        let open = db
            .count(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'job-harness' \
                 AND datname = current_database()",
            )
            .await;
        if open == 0 {
            Ok(())
        } else {
            Err(format!("{open} connections"))
        }
    })
    .await;
    let (effects, fences) = effect_and_fence(&db, id).await;
    assert_eq!(
        effects, fences,
        "after a kill at {point}: fence present <=> effect present"
    );

    let mut successor = args(&db).spawn(WORKER, &[]).unwrap();
    db.settled().await;
    assert!(successor.stop().await.unwrap().success());
    (db, id)
}

macro_rules! killed_then_applied {
    ($($name:ident: $point:literal, $then:expr;)*) => { $(
        #[tokio::test]
        async fn $name() {
            let (db, id) = killed_at($point, Award::new("ada", 10).then($then)).await;
            assert_eq!(effect_and_fence(&db, id).await, (1, 1), "applied once in the end");
            assert!(db.letters().await.is_empty());
        }
    )* };
}

killed_then_applied! {
    a2_killed_before_receive: "before:receive", Misbehave::Never;
    a2_killed_after_receive: "after:receive", Misbehave::Never;
    a2_killed_before_begin: "before:begin", Misbehave::Never;
    a2_killed_after_begin: "after:begin", Misbehave::Never;
    a2_killed_before_fence: "before:fence", Misbehave::Never;
    a2_killed_after_fence: "after:fence", Misbehave::Never;
    a2_killed_before_work: "before:work", Misbehave::Never;
    a2_killed_between_work_and_commit: "after:work", Misbehave::Never;
    a2_killed_before_commit: "before:commit", Misbehave::Never;
    a2_killed_between_commit_and_ack: "after:commit", Misbehave::Never;
    a2_killed_before_ack: "before:ack", Misbehave::Never;
    a2_killed_after_ack: "after:ack", Misbehave::Never;
    a2_killed_before_rollback: "before:rollback", Misbehave::FailRuns(1);
    a2_killed_after_rollback: "after:rollback", Misbehave::FailRuns(1);
    a2_killed_before_retry: "before:retry", Misbehave::FailRuns(1);
    a2_killed_after_retry: "after:retry", Misbehave::FailRuns(1);
}

macro_rules! killed_then_dead_lettered {
    ($($name:ident: $point:literal;)*) => { $(
        #[tokio::test]
        async fn $name() {
            let (db, id) = killed_at($point, Award::new("ada", 10).then(Misbehave::FailHard)).await;
            assert_eq!(effect_and_fence(&db, id).await, (0, 0));
            let letters = db.letters().await;
            assert_eq!(letters.len(), 1, "one letter, not none and not two");
            assert_eq!(letters[0].letter.job_id, id);
        }
    )* };
}

killed_then_dead_lettered! {
    a2_killed_before_the_dead_letter: "before:recorddeadletter";
    a2_killed_between_dead_letter_and_ack: "after:recorddeadletter";
}

/// A1 and A2 together: 200 jobs, 5 copies each, 4 worker processes that are killed at random.
#[tokio::test]
async fn a1_a2_twins_in_several_processes_under_random_kills() {
    use harness::{Clock as _, Entropy as _, Envelope, SeededEntropy, SystemClock};
    const JOBS: i64 = 200;
    let db = Db::fresh().await;
    let queue = db.queue().await;
    let mut copies = Vec::new();
    for n in 0..JOBS {
        let twin = Envelope::new(acceptance::db::job_id(), Award::new("ada", n + 1).body());
        copies.extend(std::iter::repeat_n(twin, 5));
    }
    // Copies of one job far apart and close together.
    let dice = SeededEntropy::new(7);
    for at in (1..copies.len()).rev() {
        copies.swap(at, (dice.next_u64() % (at as u64 + 1)) as usize);
    }
    for copy in &copies {
        harness::QueuePort::publish(&queue, &acceptance::db::queue_name(), copy)
            .await
            .unwrap();
    }

    let mut workers: Vec<_> = (0..4)
        .map(|_| args(&db).spawn(WORKER, &[]).unwrap())
        .collect();
    let mut kills = 0;
    eventually("all copies are answered for", async || {
        let left = db.queued().await;
        let effects = db.count("SELECT count(*) FROM ledger").await;
        let fences = db.count("SELECT count(*) FROM core.processed_jobs").await;
        assert!(
            effects <= fences,
            "read in this order, an effect without its fence would show"
        );
        if left == 0 {
            return Ok(());
        }
        if kills < 12 {
            let victim = (dice.next_u64() % 4) as usize;
            workers[victim].kill().await.unwrap();
            kills += 1;
            workers[victim] = args(&db).spawn(WORKER, &[]).unwrap();
            SystemClock::new()
                .sleep(std::time::Duration::from_millis(dice.next_u64() % 150))
                .await;
        }
        Err(format!("{left} messages"))
    })
    .await;
    // As many as the machine's speed left time for.
    assert!(
        kills >= 3,
        "the workers were killed {kills} times while there was work"
    );
    let (effects, jobs, points): (i64, i64, i64) = sqlx::query_as(
        "SELECT count(*), count(DISTINCT job_id), coalesce(sum(points), 0)::bigint FROM ledger",
    )
    .fetch_one(&db.pool)
    .await
    .unwrap();
    assert_eq!((effects, jobs, points), (JOBS, JOBS, JOBS * (JOBS + 1) / 2));
    assert_eq!(
        db.count("SELECT count(*) FROM core.processed_jobs").await,
        JOBS
    );
    assert!(db.letters().await.is_empty());
}

/// Copies of one job, for several worker processes that compete for them.
async fn twins_in_several_processes(copies: usize, processes: usize) {
    let db = Db::fresh().await;
    let id = acceptance::db::job_id();
    let twin = harness::Envelope::new(id, Award::new("ada", 10).then(Misbehave::Sleep(50)).body());
    for _ in 0..copies {
        db.publish(&twin).await;
    }
    let mut workers: Vec<_> = (0..processes)
        .map(|_| args(&db).spawn(WORKER, &[]).unwrap())
        .collect();
    db.settled().await;
    for worker in &mut workers {
        assert!(worker.stop().await.unwrap().success());
    }
    assert_eq!(effect_and_fence(&db, id).await, (1, 1));
    assert!(db.letters().await.is_empty());
}

#[tokio::test]
async fn a1_two_twins_in_two_processes() {
    twins_in_several_processes(2, 2).await;
}

#[tokio::test]
async fn a1_fifty_twins_in_four_processes() {
    twins_in_several_processes(50, 4).await;
}
