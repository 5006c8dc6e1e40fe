//! The primary dies for good in the middle of work, and a standby is promoted. The consumer goes on against that: its address
//! moves, as a virtual address or a proxy's does. What the standby has not got is decided by the test, which takes the standby's
//! connection to the primary away.

use std::collections::BTreeSet;

use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, job_id, queue_at, queue_name};
use acceptance::rig::{Running, awards};
use acceptance::wire::Proxy;
use embedded_pg::Postgres;
use harness::{JobId, PgmqQueue, QueuePort as _, Step};
use sqlx::{Connection as _, PgConnection};

use crate::every_message::{quick, quick_store};
use crate::ledger::{Kind, all_exact, exact};

/// Whether a COMMIT waits until the standby has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replication {
    Synchronous,
    Asynchronous,
}

/// A primary, its standby, and the address that moves.
struct Pair {
    db: Db,
    standby: Option<Postgres>,
    address: Proxy,
}

type Jobs = Vec<(JobId, Kind)>;

impl Pair {
    async fn new(replication: Replication) -> Self {
        let mut db = Db::on(Postgres::own_local().unwrap()).await.unwrap();
        let standby = db.server().standby().unwrap();
        if replication == Replication::Synchronous {
            db.server().set("synchronous_standby_names", "*").unwrap();
        }
        let due = match replication {
            Replication::Synchronous => "sync",
            Replication::Asynchronous => "async",
        };
        let address = Proxy::start(db.url()).await.unwrap();
        let pair = Self {
            db,
            standby: Some(standby),
            address,
        };
        pair.primary_says(
            "SELECT coalesce(string_agg(state || ' ' || sync_state, ','), '') FROM pg_stat_replication",
            &format!("streaming {due}"),
        )
        .await;
        pair
    }

    async fn primary_says(&self, query: &'static str, due: &str) {
        eventually(query, async || {
            let said: Result<String, _> = sqlx::query_scalar(query).fetch_one(&self.db.pool).await;
            match said {
                Ok(said) if said == due => Ok(()),
                other => Err(format!("{other:?}, not {due}")),
            }
        })
        .await;
    }

    /// Everything that the primary has committed is on the standby.
    async fn catch_up(&self) {
        self.primary_says(
            "SELECT (count(*) = 1 AND bool_and(flush_lsn >= pg_current_wal_lsn()))::text FROM pg_stat_replication",
            "true",
        )
        .await;
    }

    /// From here on the standby gets nothing more.
    async fn cut_off_standby(&mut self) {
        let standby = self.standby.as_mut().unwrap();
        standby.set("primary_conninfo", "").unwrap();
        self.primary_says("SELECT count(*)::text FROM pg_stat_replication", "0")
            .await;
    }

    /// Sessions of the primary whose COMMIT waits for the standby.
    async fn waiting(&self) -> i64 {
        self.db
            .count("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            .await
    }

    /// The primary is gone, and the standby is promoted; nobody works on it yet.
    async fn fail_over(&mut self) {
        self.db.server().kill().unwrap();
        let standby = self.standby.take().unwrap();
        let mut admin = PgConnection::connect(standby.url()).await.unwrap();
        let promoted: bool = sqlx::query_scalar("SELECT pg_promote()")
            .fetch_one(&mut admin)
            .await
            .unwrap();
        assert!(promoted);
        drop(self.db.move_to(standby).await.unwrap());
    }

    fn move_address(&self) {
        self.address.switch_to(self.db.url()).unwrap();
    }

    /// The queue in the same database, behind the address.
    async fn queue(&self) -> PgmqQueue {
        queue_at(&self.address.url(self.db.url()).unwrap()).await
    }

    fn consumer(&self, queue: PgmqQueue) -> Running {
        let store = quick_store(&self.address.url(self.db.url()).unwrap());
        Running::start_on(quick(&self.db), store, queue, awards())
    }

    /// Effects, fences and dead letters of a job.
    async fn outcome(&self, job: JobId) -> (i64, i64, i64) {
        sqlx::query_as(
            "SELECT (SELECT count(*) FROM ledger WHERE job_id = $1),
                    (SELECT count(*) FROM core.processed_jobs WHERE job_id = $1),
                    (SELECT count(*) FROM core.dead_letters WHERE job_id = $1)",
        )
        .bind(job.as_uuid())
        .fetch_one(&self.db.pool)
        .await
        .unwrap()
    }

    async fn have_outcomes(&self, jobs: &Jobs) {
        for (id, kind) in jobs {
            exact(&self.db, *id, *kind).await.unwrap();
        }
    }

    async fn have_left_no_trace(&self, jobs: &Jobs) {
        for (id, kind) in jobs {
            assert_eq!(self.outcome(*id).await, (0, 0, 0), "{kind:?} {id}");
        }
    }
}

async fn publish(queue: &PgmqQueue, jobs: usize) -> Jobs {
    let mut published = Vec::new();
    for n in 0..jobs {
        let kind = [
            Kind::Well,
            Kind::Well,
            Kind::FailsOnce,
            Kind::Hard,
            Kind::Poison,
        ][n % 5];
        let envelope = kind.envelope(job_id());
        queue.publish(&queue_name(), &envelope).await.unwrap();
        published.push((envelope.job_id, kind));
    }
    published
}

async fn left(db: &Db) -> Result<i64, String> {
    sqlx::query_scalar("SELECT count(*) FROM pgmq.q_points")
        .fetch_one(&db.pool)
        .await
        .map_err(|error| error.to_string())
}

/// Until so many messages are left, or fewer.
async fn until_left(db: &Db, goal: i64) {
    eventually("work goes on", async || match left(db).await {
        Ok(left) if left <= goal => Ok(()),
        other => Err(format!("{other:?} messages, not {goal}")),
    })
    .await;
}

#[tokio::test]
async fn a1_a2_a_synchronous_standby_is_promoted_and_nothing_is_lost() {
    let mut pair = Pair::new(Replication::Synchronous).await;
    let jobs = publish(&pair.db.queue().await, 100).await;
    let consumers = [
        pair.consumer(pair.queue().await),
        pair.consumer(pair.queue().await),
    ];
    until_left(&pair.db, 70).await;
    pair.cut_off_standby().await;
    eventually("commits wait for the standby, or do not", async || {
        match (pair.waiting().await, left(&pair.db).await) {
            (0, Ok(0)) | (1.., _) => Ok(()),
            other => Err(format!("{other:?} sessions and messages")),
        }
    })
    .await;
    pair.fail_over().await;

    // Of all that was acknowledged nothing is missing, before anybody does it again.
    let acked: BTreeSet<JobId> = consumers
        .iter()
        .flat_map(|it| it.seen.events())
        .filter(|event| matches!(event.step, Step::Acked))
        .filter_map(|event| event.job.map(|job| job.id))
        .collect();
    let mut done: Jobs = jobs.clone();
    done.retain(|(id, _)| acked.contains(id));
    assert!(done.len() >= 20, "only {} were acknowledged", done.len());
    pair.have_outcomes(&done).await;
    assert!(
        left(&pair.db).await.unwrap() > 0,
        "not in the middle of work"
    );

    pair.move_address();
    until_left(&pair.db, 0).await;
    for consumer in consumers {
        in_time("a consumer stops", consumer.stop()).await;
    }
    all_exact(&pair.db, &jobs).await;
}

/// Message and effect go back to the same instant: what is lost is done again. What was only published is lost for good.
#[tokio::test]
async fn a1_a2_an_asynchronous_standby_takes_message_and_effect_back_together() {
    let mut pair = Pair::new(Replication::Asynchronous).await;
    let queue = pair.db.queue().await;
    let before = publish(&queue, 10).await;
    let consumer = pair.consumer(pair.queue().await);
    until_left(&pair.db, 0).await;
    in_time("the consumer stops", consumer.stop()).await;
    let around = publish(&queue, 10).await;
    pair.catch_up().await;
    pair.cut_off_standby().await;
    let after = publish(&queue, 5).await;
    let consumer = pair.consumer(pair.queue().await);
    until_left(&pair.db, 0).await;
    pair.have_outcomes(&around).await;
    pair.have_outcomes(&after).await;
    pair.fail_over().await;

    pair.have_outcomes(&before).await;
    pair.have_left_no_trace(&around).await;
    pair.have_left_no_trace(&after).await;
    assert_eq!(left(&pair.db).await.unwrap(), around.len() as i64);

    pair.move_address();
    until_left(&pair.db, 0).await;
    // Not asked whether the lifecycle model allows what it saw: for the model what is committed stays committed.
    drop(consumer);
    let all: Jobs = before.into_iter().chain(around).collect();
    all_exact(&pair.db, &all).await;
}

/// A queue elsewhere does not go back with the store: what it was told is done may be undone.
#[tokio::test]
async fn a_queue_outside_forgets_jobs_whose_outcome_an_asynchronous_standby_has_not_got() {
    let mut pair = Pair::new(Replication::Asynchronous).await;
    let outside = Db::fresh().await;
    let consumer = pair.consumer(outside.queue().await);
    let before = publish(&outside.queue().await, 10).await;
    until_left(&outside, 0).await;
    pair.catch_up().await;
    pair.cut_off_standby().await;
    let vanished = publish(&outside.queue().await, 10).await;
    until_left(&outside, 0).await;
    pair.have_outcomes(&vanished).await;
    pair.fail_over().await;
    pair.move_address();

    in_time("the consumer stops", consumer.stop()).await;
    all_exact(&pair.db, &before).await;
    pair.have_left_no_trace(&vanished).await;
    assert_eq!(left(&outside).await.unwrap(), 0, "nobody does them again");
}

#[tokio::test]
async fn a1_a2_a_queue_outside_is_told_only_what_a_synchronous_standby_has() {
    let mut pair = Pair::new(Replication::Synchronous).await;
    let outside = Db::fresh().await;
    let consumer = pair.consumer(outside.queue().await);
    let mut jobs = publish(&outside.queue().await, 10).await;
    until_left(&outside, 0).await;
    pair.cut_off_standby().await;
    let later = publish(&outside.queue().await, 10).await;
    eventually("commits wait for the standby, or do not", async || {
        match (pair.waiting().await, left(&outside).await) {
            (0, Ok(0)) | (1.., _) => Ok(()),
            other => Err(format!("{other:?} sessions and messages")),
        }
    })
    .await;
    pair.fail_over().await;
    pair.have_outcomes(&jobs).await;
    pair.have_left_no_trace(&later).await;
    assert_eq!(left(&outside).await.unwrap(), 10, "none was acknowledged");

    pair.move_address();
    until_left(&outside, 0).await;
    in_time("the consumer stops", consumer.stop()).await;
    jobs.extend(later);
    all_exact(&pair.db, &jobs).await;
}

/// The limit of that: a COMMIT whose wait for the standby is ended by an administrator is seen on the primary, although no
/// standby has it. The next delivery meets its fence, and the queue is told that the job is done.
#[tokio::test]
async fn a_wait_for_the_standby_that_is_ended_by_hand_makes_a_queue_outside_forget() {
    let mut pair = Pair::new(Replication::Synchronous).await;
    let outside = Db::fresh().await;
    let consumer = pair.consumer(outside.queue().await);
    pair.cut_off_standby().await;
    let id = job_id();
    let envelope = Kind::Well.envelope(id);
    outside.publish(&envelope).await;
    let mut ended = 0;
    eventually("the wait is ended, and the job called done", async || {
        ended += pair
            .db
            .count(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'",
            )
            .await;
        match left(&outside).await {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?} messages")),
        }
    })
    .await;
    assert!(ended > 0, "nothing waited for the standby");
    assert_eq!(pair.outcome(id).await, (1, 1, 0));
    pair.fail_over().await;
    pair.move_address();
    in_time("the consumer stops", consumer.stop()).await;
    assert_eq!(pair.outcome(id).await, (0, 0, 0), "nobody has it");
}
