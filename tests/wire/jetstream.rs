//! NATS ends in the middle of work, again and again: alone, and as one of three.

use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, job_id, queue_name};
use acceptance::nats::{self, Nats};
use acceptance::rig::{Running, awards};
use acceptance::worker::WorkerArgs;
use harness::{JetStreamQueue, JobId, MeterQueue as _, QueuePort as _};

use crate::every_message::{quick, quick_store};
use crate::ledger::{Kind, all_exact};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const JOBS: usize = 150;
const OUTAGES: u64 = 6;

/// Publishes all jobs, every fifth one twice.
async fn publish(queue: &JetStreamQueue) -> Vec<(JobId, Kind)> {
    let kinds = [
        Kind::Well,
        Kind::Well,
        Kind::FailsOnce,
        Kind::Hard,
        Kind::Poison,
    ];
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let kind = kinds[n % kinds.len()];
        let envelope = kind.envelope(job_id());
        for _ in 0..1 + usize::from(n % 5 == 0) {
            queue.publish(&queue_name(), &envelope).await.unwrap();
        }
        jobs.push((envelope.job_id, kind));
    }
    jobs
}

/// As many messages are left; an error while NATS is away.
async fn left(queue: &JetStreamQueue) -> Result<u64, String> {
    let stock = queue.measure(&queue_name()).await;
    stock
        .map(|stock| stock.messages)
        .map_err(|error| error.to_string())
}

async fn nothing_is_left(queue: &JetStreamQueue) {
    eventually("nothing is left", async || match left(queue).await {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?} messages")),
    })
    .await;
}

/// Kills one server after the other in the middle of work; all jobs come to their end, once.
async fn outages(servers: &mut [Nats]) {
    let urls: Vec<_> = servers.iter().map(Nats::url).collect();
    let db = Db::fresh().await;
    let queue = nats::queue(&urls, servers.len()).await.unwrap();
    queue.create(&queue_name()).await.unwrap();
    let jobs = publish(&queue).await;
    let mut consumers = Vec::new();
    for _ in 0..2 {
        consumers.push(Running::start_on(
            quick(&db),
            quick_store(db.url()),
            nats::queue(&urls, servers.len()).await.unwrap(),
            awards(),
        ));
    }
    let mut endings = 0;
    let messages = left(&queue).await.unwrap();
    for outage in 1..=OUTAGES {
        // After a different share of the work each time.
        let goal = messages * (OUTAGES - outage) / OUTAGES;
        let still = eventually("work goes on", async || match left(&queue).await {
            Ok(left) if left <= goal => Ok(left),
            other => Err(format!("{other:?} messages, not {goal}")),
        })
        .await;
        endings += u32::from(still > 0);
        let next = outage as usize % servers.len();
        servers[next].kill().unwrap();
        if servers.len() > 1 {
            // Two of three go on without it.
            let goal = still.saturating_sub(5);
            eventually("work goes on without it", async || {
                match left(&queue).await {
                    Ok(left) if left <= goal => Ok(()),
                    other => Err(format!("{other:?} messages, not {goal}")),
                }
            })
            .await;
        }
        servers[next].restart().await.unwrap();
    }
    assert!(endings >= 3, "only {endings} times in the middle of work");
    nothing_is_left(&queue).await;
    for consumer in consumers {
        in_time("a consumer stops", consumer.stop()).await;
    }
    all_exact(&db, &jobs).await;
}

#[tokio::test]
async fn a1_a2_a_jetstream_server_is_killed_again_and_again() {
    outages(&mut [Nats::start().await.unwrap()]).await;
}

#[tokio::test]
async fn a1_a2_a_jetstream_cluster_loses_one_node_after_the_other() {
    outages(&mut Nats::cluster(3).await.unwrap()).await;
}

/// Workers are killed as well: the leases of what they held run out, and the records remember the runs.
#[tokio::test]
async fn a1_a2_workers_on_jetstream_are_killed_again_and_again() {
    let server = Nats::start().await.unwrap();
    let urls = [server.url()];
    let db = Db::fresh().await;
    let queue = nats::queue(&urls, 1).await.unwrap();
    queue.create(&queue_name()).await.unwrap();
    let jobs = publish(&queue).await;
    let mut args = WorkerArgs::new(db.url());
    args.nats = Some(server.url());
    args.lease_s = 1;
    args.retry_base_ms = 50;
    let kill_at = [
        "after:fence",
        "before:commit",
        "after:commit",
        "after:receive",
    ];
    for point in kill_at {
        args.kill_at = Some(point.parse().unwrap());
        args.kill_nth = 7;
        let mut worker = args.spawn(WORKER, &[]).unwrap();
        let status = in_time("the worker kills itself", worker.wait()).await;
        assert!(!status.unwrap().success(), "killed at {point}");
    }
    args.kill_at = None;
    let mut worker = args.spawn(WORKER, &[]).unwrap();
    nothing_is_left(&queue).await;
    assert!(worker.stop().await.unwrap().success());
    all_exact(&db, &jobs).await;
}
