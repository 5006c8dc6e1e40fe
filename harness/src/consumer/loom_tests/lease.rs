//! A lease is kept for as long as its delivery is held, and no longer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::world::{Alarms, Answer, Doing, EXTENSION, Extending, World, step};
use super::{Seen, Shared, explore, refute, spawn};
use crate::consumer::Delivery;
use crate::consumer::lease::Leased;
use crate::ports::queue::QueuePort as _;
use crate::sync::{AtomicBool, JoinSet, block_on};

/// One job, and an alarm that rings twice at any time.
fn kept<F>(seen: &Seen, extending: Extending, hold: fn(Shared, Delivery) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let world = World::with(&["one"], extending);
    let alarms = Alarms::of(&[EXTENSION]);
    let shared = world.shared(1, 0, &alarms, {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    let mut tasks = JoinSet::new();
    for delivery in world.hand_out() {
        tasks.spawn(hold(Arc::clone(&shared), delivery));
    }
    let time = spawn(move || {
        alarms.ring(EXTENSION);
        alarms.ring(EXTENSION);
    });
    block_on(async { while tasks.join_next().await.is_some() {} });
    time.join().unwrap();
    world.check(0);
    assert_eq!(world.count(Answer::Acked), 1);
    assert_eq!(world.effects(), 1);
    seen.note(format!("{} extensions", world.extensions()));
}

#[test]
fn s6_no_lease_is_extended_after_its_answer() {
    let outcomes = ["0 extensions", "1 extensions", "2 extensions"];
    explore(Some(3), &outcomes, |seen| {
        kept(seen, Extending::Granted, super::hold);
    });
}

#[test]
fn s3_a_lost_lease_ends_the_extensions_and_not_the_work() {
    let outcomes = ["0 extensions", "1 extensions"];
    explore(Some(3), &outcomes, |seen| {
        kept(seen, Extending::Lost, super::hold);
    });
}

#[test]
fn l1_an_extension_that_is_never_answered_does_not_hold_up_the_answer() {
    let outcomes = ["0 extensions", "1 extensions"];
    explore(Some(3), &outcomes, |seen| {
        kept(seen, Extending::Unanswered, super::hold);
    });
}

/// A task of its own keeps the lease until it is told to stop.
async fn hold_kept_by_a_task(shared: Shared, delivery: Delivery) {
    let stop = Arc::new(AtomicBool::new(false));
    let receipt = delivery.receipt.clone();
    let mut keeper = JoinSet::new();
    keeper.spawn({
        let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
        async move {
            loop {
                shared.env.clock.sleep(EXTENSION).await;
                if stop.load(Ordering::Acquire) {
                    return;
                }
                let config = &shared.config;
                let _ = shared
                    .queue
                    .extend(&config.queue, &receipt, config.lease)
                    .await;
            }
        }
    });
    shared.gate(delivery).await;
    stop.store(true, Ordering::Release);
    keeper.shutdown().await;
}

#[test]
fn broken_a_lease_that_is_kept_by_another_task() {
    refute(
        Some(3),
        "a lease extended after its delivery was answered",
        |seen| {
            kept(seen, Extending::Granted, hold_kept_by_a_task);
        },
    );
}

/// The work stands still while an extension is under way.
async fn hold_extending_in_between(shared: Shared, delivery: Delivery) {
    let receipt = delivery.receipt.clone();
    let mut work = Box::pin(shared.gate(delivery));
    loop {
        tokio::select! {
            biased;
            () = &mut work => return,
            () = shared.env.clock.sleep(EXTENSION) => {}
        }
        let config = &shared.config;
        let _ = shared
            .queue
            .extend(&config.queue, &receipt, config.lease)
            .await;
    }
}

#[test]
fn broken_an_extension_that_the_work_waits_for() {
    refute(Some(3), "deadlock", |seen| {
        kept(seen, Extending::Unanswered, hold_extending_in_between);
    });
}

/// Three jobs in one task: two share a transaction; the third is in its second run, and runs alone after them.
fn kept_together<F>(seen: &Seen, hold: fn(Shared, Vec<Delivery>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let world = World::with(&["one", "two", "three"], Extending::Granted);
    let alarms = Alarms::of(&[EXTENSION]);
    let shared = world.shared(1, 0, &alarms, {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    let mut tasks = JoinSet::new();
    let mut deliveries = world.hand_out();
    deliveries[2].redeliveries = 1;
    tasks.spawn(hold(shared, deliveries));
    let time = spawn(move || {
        alarms.ring(EXTENSION);
        alarms.ring(EXTENSION);
    });
    block_on(async { while tasks.join_next().await.is_some() {} });
    time.join().unwrap();
    world.check(0);
    assert_eq!(world.count(Answer::Acked), 3);
    assert_eq!(world.effects(), 3);
    seen.note(format!("{} extensions", world.extensions()));
}

async fn hold_together(shared: Shared, deliveries: Vec<Delivery>) {
    Box::pin(shared.hold_batch(deliveries)).await;
}

#[test]
fn s6_no_lease_of_a_batch_is_extended_after_its_answer() {
    let outcomes = ["0 extensions", "1 extensions", "2 extensions"];
    explore(Some(2), &outcomes, |seen| {
        kept_together(seen, hold_together);
    });
}

/// All leases are kept until the last delivery is answered.
async fn hold_kept_to_the_end(shared: Shared, deliveries: Vec<Delivery>) {
    let others: Vec<_> = deliveries.iter().cloned().map(Leased::new).collect();
    let leases: Vec<_> = others.iter().map(Leased::lease).collect();
    let deliveries = deliveries.into_iter().map(Leased::new).collect();
    let work = Box::pin(shared.batch(deliveries));
    Box::pin(shared.keep_leases(&leases, work)).await;
}

#[test]
fn broken_leases_of_a_batch_that_are_kept_to_its_end() {
    refute(
        Some(2),
        "a lease extended after its delivery was answered",
        |seen| {
            kept_together(seen, hold_kept_to_the_end);
        },
    );
}
