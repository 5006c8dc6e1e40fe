//! Many jobs, two consumers, and harm at random on all of their connections.

use std::sync::Arc;
use std::time::Duration;

use acceptance::clock::{eventually, in_time};
use acceptance::db::{Db, job_id, queue_at, queue_name};
use acceptance::rig::{Running, awards};
use acceptance::wire::{Harm, Proxy, Seen};
use harness::{Entropy as _, QueuePort as _, SeededEntropy};

use crate::every_message::{quick, quick_store};
use crate::ledger::{Kind, all_exact};

const JOBS: usize = 60;
const KINDS: [Kind; 6] = [
    Kind::Well,
    Kind::Well,
    Kind::Well,
    Kind::FailsOnce,
    Kind::Hard,
    Kind::Poison,
];

/// One message in so many is harmed.
const RARITY: u64 = 90;

fn harm(dice: &SeededEntropy, _: &Seen) -> Option<Harm> {
    if !dice.next_u64().is_multiple_of(RARITY) {
        return None;
    }
    Some(match dice.next_u64() % 5 {
        0 => Harm::CutBefore,
        1 => Harm::CutAfter,
        2 => Harm::CutInside,
        3 => Harm::Stall,
        _ => Harm::Delay(Duration::from_millis(dice.next_u64() % 700)),
    })
}

/// What the seed decides is where harm is done; which message is the how manieth is the machine's to say.
async fn one_seed(seed: u64) {
    let db = Db::fresh().await;
    let queue = db.queue().await;
    let dice = SeededEntropy::new(seed);
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let kind = KINDS[n % KINDS.len()];
        let envelope = kind.envelope(job_id());
        // Poison has no id of its own to be known by when its body is broken, but it keeps that of its headers.
        let copies = 1 + dice.next_u64() % 2;
        for _ in 0..copies {
            queue.publish(&queue_name(), &envelope).await.unwrap();
        }
        jobs.push((envelope.job_id, kind));
    }
    let mut proxies = Vec::new();
    let mut consumers = Vec::new();
    for consumer in 0..2 {
        let mut urls = Vec::new();
        for side in 0..2 {
            let proxy = Proxy::start(db.url()).await.unwrap();
            let dice = Arc::new(SeededEntropy::new(seed ^ (consumer * 2 + side + 1) << 32));
            proxy.set_plan(move |seen| harm(&dice, seen));
            urls.push(proxy.url(db.url()).unwrap());
            proxies.push(proxy);
        }
        let (store, queue) = (quick_store(&urls[0]), queue_at(&urls[1]).await);
        consumers.push(Running::start_on(quick(&db), store, queue, awards()));
    }
    let harmed = || proxies.iter().map(|it| it.harmed().len()).sum::<usize>();
    let what = format!("seed {seed}: enough harm is done, or nothing is left to harm");
    eventually(&what, async || {
        let (harmed, left) = (harmed(), db.queued().await);
        if harmed >= 60 || left == 0 {
            Ok(())
        } else {
            Err(format!("{harmed} harmed, {left} messages left"))
        }
    })
    .await;
    let done = harmed();
    assert!(done >= 10, "seed {seed}: harm was done {done} times only");
    proxies.iter().for_each(Proxy::heal);
    db.settled().await;
    for consumer in consumers {
        in_time("a consumer stops", consumer.stop()).await;
    }
    all_exact(&db, &jobs).await;
}

/// `WIRE_SEEDS` seeds, from `WIRE_FROM` on.
#[tokio::test]
async fn a1_a2_a4_b3_b4_random_harm_on_every_connection() {
    let from_env = |name: &str| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let from = from_env("WIRE_FROM").unwrap_or(1);
    let seeds: u64 = from_env("WIRE_SEEDS").unwrap_or(3);
    for seed in from..from + seeds {
        one_seed(seed).await;
    }
}
