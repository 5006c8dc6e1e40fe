//! A task that finds the store away tells the loop, which then waits until the store answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;

use super::world::{Alarms, Doing, World, step};
use super::{Seen, Shared, explore, refute, spawn};
use crate::consumer::Shutdown;
use crate::ports::store::Store as _;
use crate::sync::block_on;

type Wait = fn(Shared, Shutdown) -> BoxFuture<'static, ()>;

/// The store answers, and goes away for good at any time, which a task reports.
fn away_again(seen: &Seen, wait: Wait) {
    let world = World::new(&[]);
    let shared = world.shared(1, 0, &Alarms::default(), {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    shared.store_away.store(true, Ordering::Release);
    let shutdown = Shutdown::new();
    let task = spawn({
        let (world, shared, shutdown) = (world.clone(), Arc::clone(&shared), shutdown.clone());
        move || {
            world.go_away();
            shared.store_away.store(true, Ordering::Release);
            shutdown.begin();
        }
    });
    block_on(wait(Arc::clone(&shared), shutdown));
    task.join().unwrap();
    if world.answered_pings() == 0 {
        return seen.note("ended by shutdown");
    }
    let reported = shared.store_away.load(Ordering::Acquire);
    assert!(reported, "an outage was forgotten");
    seen.note("ended by an answer");
}

fn wait(shared: Shared, shutdown: Shutdown) -> BoxFuture<'static, ()> {
    Box::pin(async move { shared.wait_for_store(&shutdown).await })
}

#[test]
fn l1_an_outage_that_begins_while_the_store_answers_is_not_forgotten() {
    explore(None, &["ended by an answer", "ended by shutdown"], |seen| {
        away_again(seen, wait);
    });
}

/// The report is cleared when the answer has come.
fn wait_and_clear(shared: Shared, _: Shutdown) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if shared.store.ping().await.is_ok() {
            shared.store_away.store(false, Ordering::Release);
        }
    })
}

#[test]
fn broken_a_report_that_is_cleared_after_the_answer() {
    refute(None, "an outage was forgotten", |seen| {
        away_again(seen, wait_and_clear)
    });
}

/// The store stays away, and shutdown begins at any time.
fn stopped_while_away(seen: &Seen, wait: Wait) {
    let world = World::new(&[]);
    world.go_away();
    let shared = world.shared(1, 0, &Alarms::default(), {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    let shutdown = Shutdown::new();
    let operator = spawn({
        let shutdown = shutdown.clone();
        move || shutdown.begin()
    });
    block_on(wait(shared, shutdown));
    operator.join().unwrap();
    seen.note("stopped");
}

#[test]
fn l1_shutdown_ends_the_wait_for_a_store_that_stays_away() {
    explore(None, &["stopped"], |seen| stopped_while_away(seen, wait));
}

/// Looks whether shutdown began, and then sleeps.
fn wait_and_sleep(shared: Shared, shutdown: Shutdown) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        while !shutdown.has_begun() && shared.store.ping().await.is_err() {
            if !shutdown.has_begun() {
                let mut backoff = shared.outage_backoff();
                shared.env.clock.sleep(backoff.next_wait()).await;
            }
        }
    })
}

#[test]
fn broken_a_wait_for_the_store_that_shutdown_does_not_end() {
    refute(None, "deadlock", |seen| {
        stopped_while_away(seen, wait_and_sleep);
    });
}
