//! The PostgreSQL server ends, again and again, in the middle of work: killed, crashed, and shut down.

use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, job_id, queue_name};
use acceptance::rig::{Running, awards};
use embedded_pg::{LocalError, Postgres};
use harness::{QueuePort as _, Store as _, WorkTx as _, connect_options};
use sqlx::PgPool;

use crate::every_message::{quick, quick_store};
use crate::ledger::{Kind, all_exact};

const JOBS: usize = 150;
const OUTAGES: u64 = 6;

/// As many messages are left; an error while the server is away.
async fn left(db: &Db) -> Result<i64, String> {
    sqlx::query_scalar("SELECT count(*) FROM pgmq.q_points")
        .fetch_one(&db.pool)
        .await
        .map_err(|error| error.to_string())
}

async fn outages(end: fn(&mut Postgres) -> Result<(), LocalError>) {
    let mut db = Db::own_server().await;
    let queue = db.queue().await;
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let kind = [
            Kind::Well,
            Kind::Well,
            Kind::FailsOnce,
            Kind::Hard,
            Kind::Poison,
        ][n % 5];
        let envelope = kind.envelope(job_id());
        queue.publish(&queue_name(), &envelope).await.unwrap();
        jobs.push((envelope.job_id, kind));
    }
    let mut consumers = Vec::new();
    for _ in 0..2 {
        let queue = acceptance::db::queue_at(db.url()).await;
        consumers.push(Running::start_on(
            quick(&db),
            quick_store(db.url()),
            queue,
            awards(),
        ));
    }
    let mut endings = 0;
    for outage in 1..=OUTAGES {
        // After a different share of the work each time.
        let goal = (JOBS as i64) * (OUTAGES - outage) as i64 / OUTAGES as i64;
        let still = eventually("work goes on", async || match left(&db).await {
            Ok(left) if left <= goal => Ok(left),
            other => Err(format!("{other:?} messages, not {goal}")),
        })
        .await;
        endings += u32::from(still > 0);
        end(db.server()).unwrap();
        db.server().restart().unwrap();
    }
    assert!(endings >= 3, "only {endings} times in the middle of work");
    eventually("nothing is left", async || match left(&db).await {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?} messages")),
    })
    .await;
    for consumer in consumers {
        in_time("a consumer stops", consumer.stop()).await;
    }
    all_exact(&db, &jobs).await;
}

#[tokio::test]
async fn a1_a2_the_server_is_killed_again_and_again() {
    outages(Postgres::kill).await;
}

#[tokio::test]
async fn a1_a2_the_server_is_shut_down_again_and_again() {
    outages(Postgres::shut_down).await;
}

/// A host that vanished in the middle of a message: no timeout of the server's ends a session that waits for the rest of it,
/// only TCP does. (Silence on the wire is in `every_message`; here: that half a minute is asked for, by both ports.)
#[tokio::test]
async fn a2_the_server_is_asked_to_notice_a_vanished_host() {
    let db = Db::fresh().await;
    let mut tx = db.store().begin().await.unwrap();
    let pool = PgPool::connect_with(connect_options(db.url()).unwrap());
    let mut plain = pool.await.unwrap().acquire().await.unwrap();
    for connection in [tx.connection(), &mut *plain] {
        let seconds: i32 = sqlx::query_scalar(
            "SELECT current_setting('tcp_keepalives_idle')::int
                + current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int",
        )
        .fetch_one(connection)
        .await
        .unwrap();
        assert_eq!(seconds, 25);
    }
}
