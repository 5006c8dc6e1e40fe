//! One job's life, again and again: each time harm is done at the next message on the wire, until there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use acceptance::clock::{eventually, in_time};
use acceptance::conformance::store_flaws::{self, StoreFlaw};
use acceptance::db::{Db, job_id, queue_at};
use acceptance::rig::{Running, awards};
use acceptance::wire::{Harm, Proxy, Seen, Way};
use futures_util::future::join_all;
use harness::{
    Connection, ConsumerConfig, Failure, Handler, Job, PgStore, PgStoreConfig, RetryPolicy, Store,
};

use crate::ledger::{Kind, exact};

/// Which of the two connections to PostgreSQL is harmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Store,
    Queue,
}

/// Settings under which nothing waits for long.
pub fn quick(db: &Db) -> ConsumerConfig {
    let mut config = db.config();
    config.concurrency = 2;
    config.lease = Duration::from_secs(1);
    config.run_deadline = Duration::from_secs(2);
    config.port_timeout = Duration::from_secs(2);
    config.outage_backoff_cap = Duration::from_millis(200);
    config.busy_delay = Duration::from_millis(50);
    let (base, cap) = (Duration::from_millis(20), Duration::from_millis(100));
    config.retry =
        RetryPolicy::overriding(base, cap, 200, "every wire fault may cost a run").unwrap();
    config
}

/// The store of a consumer behind a proxy.
pub fn quick_store(url: &str) -> PgStore {
    let config = PgStoreConfig {
        max_connections: 4,
        idle_limit: Duration::from_secs(1),
        lock_wait: Duration::from_millis(500),
        acquire_timeout: Duration::from_millis(1_500),
        ..PgStoreConfig::default()
    };
    PgStore::new(url, config).unwrap()
}

/// A database, and a proxy for each of the two ports.
struct Lane {
    db: Db,
    store: Proxy,
    queue: Proxy,
}

/// Where harm is done.
#[derive(Debug, Clone, Copy)]
struct Place {
    side: Side,
    way: Way,
    nth: u64,
    harm: Harm,
}

impl Lane {
    async fn new() -> Self {
        let db = Db::fresh().await;
        let store = Proxy::start(db.url()).await.unwrap();
        let queue = Proxy::start(db.url()).await.unwrap();
        Self { db, store, queue }
    }

    /// One job's life with harm at `place`; answers at which message it was done, if the life was long enough, and what is
    /// wrong afterwards.
    async fn life<S, H>(
        &self,
        kind: Kind,
        place: Place,
        flawed: impl Fn(PgStore) -> S,
        handler: H,
    ) -> (Option<Seen>, Result<(), String>)
    where
        S: Store,
        H: Handler<S>,
    {
        let id = job_id();
        self.db.publish(&kind.envelope(id)).await;
        let harmed = match place.side {
            Side::Store => &self.store,
            Side::Queue => &self.queue,
        };
        harmed.set_plan(move |seen| {
            (seen.way == place.way && seen.nth == place.nth).then_some(place.harm)
        });
        let store = quick_store(&self.store.url(self.db.url()).unwrap());
        let queue = queue_at(&self.queue.url(self.db.url()).unwrap()).await;
        let mut config = quick(&self.db);
        // A consumer whose only place is taken asks for nothing more: its messages have their numbers.
        config.concurrency = 1;
        config.lease = Duration::from_secs(60);
        let consumer = Running::start_on(config, flawed(store), queue, handler);
        let what = format!("{kind:?} settles after {place:?}");
        let (mut probes, mut last) = (0, String::new());
        eventually(&what, async || {
            let left = self.db.queued().await;
            if left == 0 {
                return Ok(());
            }
            probes += 1;
            if probes % 20 == 0 && !harmed.harmed().is_empty() {
                // Nobody waits for what was leased to a call whose answer never came.
                self.db.skip_delays().await;
                let steps = consumer.seen.events().into_iter().rev().take(8);
                last = format!("{:?}", steps.map(|it| it.step).collect::<Vec<_>>());
            }
            Err(format!(
                "{left} messages; the last steps, latest first: {last}"
            ))
        })
        .await;
        let seen = harmed.harmed().pop().map(|(seen, _)| seen);
        // What was cut or fell silent may not be in the way of the next life.
        self.store.heal();
        self.queue.heal();
        in_time("the consumer stops", consumer.stop()).await;
        (seen, exact(&self.db, id, kind).await)
    }
}

/// Every message of a kind's life, on both sides and in both directions; `lanes` work on each at once. Answers what was
/// harmed.
async fn every_message(kind: Kind, harm: Harm, lanes: u64) -> Vec<Seen> {
    let mut all = Vec::new();
    for side in [Side::Store, Side::Queue] {
        for way in [Way::ToServer, Way::ToClient] {
            let next = Arc::new(AtomicU64::new(1));
            for _ in 0..lanes {
                let next = Arc::clone(&next);
                all.push(async move {
                    let lane = Lane::new().await;
                    let mut harmed = Vec::new();
                    loop {
                        let nth = next.fetch_add(1, Ordering::Relaxed);
                        let place = Place {
                            side,
                            way,
                            nth,
                            harm,
                        };
                        let (seen, exact) = lane.life(kind, place, |store| store, awards()).await;
                        let Some(seen) = seen else {
                            exact.unwrap();
                            return harmed;
                        };
                        if let Err(wrong) = exact {
                            panic!("{harm:?} at {seen:?} of the {side:?}: {wrong}");
                        }
                        harmed.push(seen);
                    }
                });
            }
        }
    }
    join_all(all).await.concat()
}

/// The harm was done where it matters: around the commit, the ack, and what is special about the kind.
fn all_met(harmed: &[Seen], markers: &[(Way, &str)]) {
    for (way, marker) in markers {
        assert!(
            harmed
                .iter()
                .any(|seen| seen.way == *way && seen.told.contains(marker)),
            "no harm was done to {marker:?} ({way:?}); harmed were {:?}",
            harmed.iter().map(|seen| &seen.told).collect::<Vec<_>>()
        );
    }
    let lives = harmed.len();
    assert!(lives > 80, "a life has more messages than {lives}");
    eprintln!("{lives} messages harmed, one after the other");
}

const COMMIT: [(Way, &str); 5] = [
    (Way::ToServer, "startup"),
    (Way::ToServer, "core.seal"),
    (Way::ToClient, "C COMMIT"),
    (Way::ToServer, "pgmq.delete"),
    (Way::ToServer, "INSERT INTO ledger"),
];

const LETTER: [(Way, &str); 3] = [
    (Way::ToServer, "record_dead_letter"),
    (Way::ToClient, "C COMMIT"),
    (Way::ToServer, "ROLLBACK"),
];

const RETRY: [(Way, &str); 3] = [
    (Way::ToServer, "last_read_at = NULL"),
    (Way::ToServer, "ROLLBACK"),
    (Way::ToClient, "C ROLLBACK"),
];

macro_rules! harmed_at_every_message {
    ($($name:ident: $kind:ident, $harm:ident, $lanes:literal, $markers:expr;)*) => { $(
        #[tokio::test]
        async fn $name() {
            let harmed = every_message(Kind::$kind, Harm::$harm, $lanes).await;
            all_met(&harmed, &$markers);
        }
    )* };
}

harmed_at_every_message! {
    a1_a2_a_job_whose_connection_is_cut_before_any_message: Well, CutBefore, 1, COMMIT;
    a1_a2_a_job_whose_connection_is_cut_after_any_message: Well, CutAfter, 1, COMMIT;
    a1_a2_a_job_whose_connection_is_cut_inside_any_message: Well, CutInside, 1, COMMIT;
    a1_a2_a_job_whose_connection_falls_silent_at_any_message: Well, Stall, 4, COMMIT;
    a2_b4_a_dead_letter_whose_connection_is_cut_after_any_message: Hard, CutAfter, 1, LETTER;
    a2_b4_a_dead_letter_whose_connection_falls_silent_at_any_message: Hard, Stall, 4, LETTER;
    a2_b3_a_retry_whose_connection_is_cut_after_any_message: FailsOnce, CutAfter, 1, RETRY;
}

/// The handler, for a store with a mistake: both give it the same connection.
struct OnFlawed<H>(H);

impl<H: Handler<PgStore>> Handler<store_flaws::Flawed<PgStore>> for OnFlawed<H> {
    type Payload = H::Payload;

    async fn handle(
        &self,
        job: Job<H::Payload>,
        tx: &mut Connection<store_flaws::Flawed<PgStore>>,
    ) -> Result<(), Failure> {
        self.0.handle(job, tx).await
    }
}

/// The same with a store that takes silence for success: the job is acknowledged, and nothing happened. It must be found.
#[tokio::test]
async fn silence_that_is_taken_for_success_is_found() {
    let lane = Lane::new().await;
    let flawed = |store| store_flaws::Flawed::new(store, StoreFlaw::UnknownIsCommitted);
    let mut found = Vec::new();
    for nth in 1.. {
        let place = Place {
            side: Side::Store,
            way: Way::ToServer,
            nth,
            harm: Harm::CutBefore,
        };
        let handler = OnFlawed(awards());
        let (seen, exact) = lane.life(Kind::Well, place, flawed, handler).await;
        let Some(seen) = seen else { break };
        if let Err(wrong) = exact {
            found.push((seen, wrong));
        }
    }
    let found_at: Vec<_> = found.iter().map(|(seen, _)| seen.told.as_str()).collect();
    assert!(
        matches!(found_at[..], [told] if told.contains("core.seal")),
        "lost where the commit is, and nowhere else: {found:?}"
    );
}
