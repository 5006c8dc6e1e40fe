//! The simulated store, driven by hand: nothing moves but what the script moves.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use harness::{JobId, StoreError};
use sim::broker::Broker;
use sim::database::{Database, SimConnection, SimStore};
use sim::history::{History, Log};
use sim::plan::{Knobs, Plan};
use sim::timeline::Timeline;

use crate::script::{ACTORS, Act, IMPATIENT, State, Step, consumer_name};
use crate::side::{Claims, Done, FENCE_WAIT, Held, LOCK_WAIT, ReviewingTx, Side, perform};

pub struct Sim;

impl Side for Sim {
    type Store = SimStore;

    fn effect(
        connection: &mut SimConnection,
        job: JobId,
        consumer: u8,
        generation: u32,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            connection
                .work((job, consumer_name(consumer)), generation)
                .await
        })
    }

    fn failing(connection: &mut SimConnection) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(connection.fail())
    }

    fn working_pid(_: &mut SimConnection) -> BoxFuture<'_, Option<i32>> {
        Box::pin(std::future::ready(None))
    }

    fn reviewing_pid(_: &mut ReviewingTx<Self>) -> BoxFuture<'_, Option<i32>> {
        Box::pin(std::future::ready(None))
    }
}

/// Somebody's step has ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ended {
    pub actor: usize,
    pub said: String,
}

// There are four of them.
#[allow(clippy::large_enum_variant)]
enum Actor {
    Free(Held<Sim>),
    Busy(BoxFuture<'static, Done<Sim>>),
}

/// In which order clients look again when a lock is free: the first of them gets it. PostgreSQL promises no order.
pub type Order = [usize; ACTORS];

pub const FIRST_COME: Order = [0, 1, 2, 3];

pub struct Simulated {
    timeline: Timeline,
    database: Database,
    stores: Vec<SimStore>,
    claims: Claims,
    actors: Vec<Actor>,
}

/// Settings in which nothing happens by chance.
pub fn knobs() -> Knobs {
    let mut knobs = Plan::draw(0, 1).knobs;
    knobs.contention_per_mille = 0;
    knobs.broker_duplicates_per_mille = 0;
    knobs.broker_ahead_s = 0;
    knobs
}

impl Simulated {
    pub fn new(knobs: &Knobs) -> Self {
        let timeline = Timeline::default();
        let history = History::new(false);
        let log = |host| Log::new(history.clone(), timeline.clone(), host);
        let broker = Broker::new(timeline.clone(), log("broker"), 1, knobs);
        let database = Database::new(timeline.clone(), log("database"), broker, 2, knobs)
            .without_idle_limits();
        let stores = (0..ACTORS)
            .map(|actor| match actor {
                IMPATIENT => SimStore::direct(&database, Duration::ZERO, Duration::ZERO),
                _ => SimStore::direct(&database, FENCE_WAIT, LOCK_WAIT),
            })
            .collect();
        Self {
            timeline,
            database,
            stores,
            claims: Claims::default(),
            actors: (0..ACTORS).map(|_| Actor::Free(Held::Nothing)).collect(),
        }
    }

    pub fn state(&self, actor: usize) -> State {
        match &self.actors[actor] {
            Actor::Free(held) => held.state(),
            Actor::Busy(_) => State::Blocked,
        }
    }

    pub fn rows(&self) -> Vec<String> {
        let mut rows = self.database.look(sim::database::Tables::rows);
        rows.sort();
        rows
    }

    /// Milliseconds since the script began.
    pub fn now(&self) -> i64 {
        i64::try_from(self.timeline.now().as_millis()).unwrap_or(i64::MAX)
    }

    /// Lets time pass up to the next lock timeout, or to the end. How much is left, and who ended; the first of them, if
    /// there is one, because its time ran out.
    pub fn advance(&mut self, left: Duration, order: &Order) -> (Duration, Vec<Ended>) {
        let next = self
            .timeline
            .until_next_deadline()
            .unwrap_or(left)
            .min(left);
        self.timeline.advance(next);
        (left.saturating_sub(next), self.settle(order))
    }

    /// Does a step that is possible, and lets everybody else do what they can now.
    pub fn step(&mut self, step: &Step, order: &Order) -> Vec<Ended> {
        let actor = step.actor;
        if step.act == Act::LoseConnection {
            self.stores[actor].lose_connection();
            return self.settle(order);
        }
        let taken = std::mem::replace(&mut self.actors[actor], Actor::Free(Held::Nothing));
        let Actor::Free(held) = taken else {
            self.actors[actor] = taken;
            return Vec::new();
        };
        let doing = perform(
            actor,
            self.stores[actor].clone(),
            self.claims.clone(),
            held,
            step.act.clone(),
        );
        self.actors[actor] = Actor::Busy(Box::pin(doing));
        // The step itself comes first: whoever waits is told of its end, not before.
        let mut first = *order;
        first.sort_by_key(|it| *it != actor);
        let mut ended = self.poll(&first[..1]);
        ended.extend(self.settle(order));
        ended
    }

    fn settle(&mut self, order: &Order) -> Vec<Ended> {
        let mut all = Vec::new();
        loop {
            let ended = self.poll(order);
            if ended.is_empty() {
                return all;
            }
            all.extend(ended);
        }
    }

    fn poll(&mut self, order: &[usize]) -> Vec<Ended> {
        let mut ended = Vec::new();
        for actor in order {
            if let Actor::Busy(doing) = &mut self.actors[*actor]
                && let Some(done) = doing.now_or_never()
            {
                self.actors[*actor] = Actor::Free(done.held);
                ended.push(Ended {
                    actor: done.actor,
                    said: done.said,
                });
            }
        }
        ended
    }
}
