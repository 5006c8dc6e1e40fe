//! Permits, drain and shutdown: no wake-up is lost, nothing starts after the drain began, nothing is lost.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;

use super::world::{Alarms, Answer, Doing, PATIENCE, REST, World, step};
use super::{Seen, Shared, explore, refute, spawn};
use crate::consumer::{Consumer, Delivery, DrainReport, Shutdown};
use crate::event::DeferReason;
use crate::ports::queue::QueuePort as _;
use crate::sync::{CancellationToken, JoinSet, block_on};

// What waits for a permit when the drain begins goes back.

/// The drain begins while one of two has the only permit. The other never runs.
fn waits_for_a_permit<F>(seen: &Seen, hold: fn(Shared, Delivery) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let world = World::new(&["one", "other"]);
    let started = CancellationToken::new();
    let draining = Arc::new(OnceLock::<CancellationToken>::new());
    let shared = world.shared(1, 1, &Alarms::default(), {
        let (world, started, draining) = (world.clone(), started.clone(), Arc::clone(&draining));
        move |_| {
            let (started, draining) = (started.clone(), Arc::clone(&draining));
            let doing = async move {
                started.cancel();
                draining.get().unwrap().cancelled().await;
            };
            Doing::work(&world, Box::pin(doing))
        }
    });
    draining.set(shared.drain.clone()).unwrap();
    let mut tasks = JoinSet::new();
    for delivery in world.hand_out() {
        tasks.spawn(hold(Arc::clone(&shared), delivery));
    }
    let report = block_on(async {
        started.cancelled().await;
        shared.drain(&mut tasks).await
    });
    world.over();
    world.check(report.abandoned);
    assert_eq!(world.runs(), 1, "started after the drain began");
    assert_eq!(world.count(Answer::Deferred), 1);
    seen.note(format!("{} applied", world.effects()));
}

#[test]
fn s3_what_waits_for_a_permit_when_the_drain_begins_goes_back() {
    explore(Some(2), &["1 applied"], |seen| {
        waits_for_a_permit(seen, super::hold);
    });
}

/// The drain is asked first, and not again when the permit has come: it may begin in between.
async fn hold_not_asked_again(shared: Shared, delivery: Delivery) {
    let permit = tokio::select! {
        biased;
        () = shared.drain.cancelled() => None,
        permit = shared.permits.acquire() => permit.ok(),
    };
    match permit {
        Some(_permit) => shared.gate(delivery).await,
        None => (shared.defer(&delivery.receipt, None, DeferReason::Shutdown)).await,
    }
}

#[test]
fn broken_a_drain_that_is_not_asked_again() {
    refute(Some(2), "started after the drain began", |seen| {
        waits_for_a_permit(seen, hold_not_asked_again);
    });
}

/// The drain is asked once, and then the permit is waited for.
async fn hold_asked_once(shared: Shared, delivery: Delivery) {
    let permit = match shared.drain.is_cancelled() {
        false => shared.permits.acquire().await.ok(),
        true => None,
    };
    match permit {
        Some(_permit) => shared.gate(delivery).await,
        None => (shared.defer(&delivery.receipt, None, DeferReason::Shutdown)).await,
    }
}

#[test]
fn broken_a_drain_that_is_asked_once() {
    refute(Some(2), "started after the drain began", |seen| {
        waits_for_a_permit(seen, hold_asked_once);
    });
}

// Whenever the drain begins and time passes, every delivery has one answer or is reported.

type Drain = fn(Shared, JoinSet<()>) -> BoxFuture<'static, usize>;

/// `jobs` are held, the drain begins at any time, and so do the ends of patience and of the grace period.
fn drained(seen: &Seen, jobs: &[&str], alarms: &Alarms, drain: Drain) {
    let world = World::new(jobs);
    let shared = world.shared(1, 1, alarms, {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    let mut tasks = JoinSet::new();
    for delivery in world.hand_out() {
        tasks.spawn(super::hold(Arc::clone(&shared), delivery));
    }
    let clock = alarms.clone();
    let time = (!clock.is_empty()).then(|| {
        spawn(move || {
            clock.ring(PATIENCE);
            clock.ring(REST);
        })
    });
    let abandoned = block_on(drain(shared, tasks));
    world.over();
    if let Some(time) = time {
        time.join().unwrap();
    }
    world.check(abandoned);
    assert_eq!(world.count(Answer::Retried), 0, "a drain counts no run");
    let applied = world.effects();
    let dropped = world.runs() - applied;
    let (acked, deferred) = (world.count(Answer::Acked), world.count(Answer::Deferred));
    assert!(acked <= applied, "acked without its effect");
    assert!(deferred + applied <= jobs.len(), "deferred with its effect");
    seen.note(format!(
        "{applied} applied, {dropped} dropped, {abandoned} abandoned"
    ));
}

fn drain(shared: Shared, mut tasks: JoinSet<()>) -> BoxFuture<'static, usize> {
    Box::pin(async move { shared.drain(&mut tasks).await.abandoned })
}

#[test]
fn s3_every_delivery_has_one_answer_whenever_the_drain_begins() {
    let outcomes = [
        "0 applied, 0 dropped, 0 abandoned",
        "1 applied, 0 dropped, 0 abandoned",
        "2 applied, 0 dropped, 0 abandoned",
    ];
    explore(Some(3), &outcomes, |seen| {
        drained(seen, &["one", "other"], &Alarms::default(), drain);
    });
}

#[test]
fn s4_a_run_that_is_dropped_when_patience_ends_has_one_outcome() {
    let outcomes = [
        "0 applied, 0 dropped, 0 abandoned",
        "0 applied, 1 dropped, 0 abandoned",
        "1 applied, 0 dropped, 0 abandoned",
    ];
    explore(Some(3), &outcomes, |seen| {
        drained(seen, &["one"], &Alarms::of(&[PATIENCE]), drain);
    });
}

#[test]
fn s3_what_is_abandoned_when_the_grace_period_ends_is_reported() {
    let outcomes = [
        "0 applied, 0 dropped, 0 abandoned",
        "0 applied, 0 dropped, 1 abandoned",
        "0 applied, 1 dropped, 0 abandoned",
        "0 applied, 1 dropped, 1 abandoned",
        "1 applied, 0 dropped, 0 abandoned",
        "1 applied, 0 dropped, 1 abandoned",
    ];
    explore(Some(3), &outcomes, |seen| {
        drained(seen, &["one"], &Alarms::of(&[PATIENCE, REST]), drain);
    });
}

/// Tasks are killed instead of told.
fn drain_by_killing(shared: Shared, mut tasks: JoinSet<()>) -> BoxFuture<'static, usize> {
    Box::pin(async move {
        shared.drain.cancel();
        tasks.shutdown().await;
        0
    })
}

#[test]
fn broken_a_drain_that_kills_its_tasks() {
    refute(Some(3), "handed out and forgotten", |seen| {
        drained(seen, &["one"], &Alarms::default(), drain_by_killing);
    });
}

/// Tasks are told to stop, and not waited for.
fn drain_and_leave(shared: Shared, tasks: JoinSet<()>) -> BoxFuture<'static, usize> {
    Box::pin(async move {
        shared.drain.cancel();
        shared.abort.cancel();
        tasks.len()
    })
}

#[test]
fn broken_a_drain_that_leaves_before_its_tasks() {
    refute(Some(3), "after the consumer had stopped", |seen| {
        drained(seen, &["one"], &Alarms::default(), drain_and_leave);
    });
}

/// Whoever is still there when the grace period ends is counted, and ends by itself meanwhile.
fn drain_counted_too_early(shared: Shared, mut tasks: JoinSet<()>) -> BoxFuture<'static, usize> {
    Box::pin(async move {
        shared.drain.cancel();
        shared.abort.cancel();
        let abandoned = tasks.len();
        tasks.shutdown().await;
        abandoned
    })
}

#[test]
fn broken_a_drain_that_counts_before_its_tasks_have_ended() {
    refute(Some(3), "handed out and forgotten", |seen| {
        drained(seen, &["one"], &Alarms::default(), drain_counted_too_early);
    });
}

// The loop, told to stop at any time.

type Run = fn(Shared, Shutdown) -> BoxFuture<'static, DrainReport>;

fn stopped_at_any_time(seen: &Seen, run: Run) {
    let world = World::new(&["one"]);
    let shared = world.shared(1, 0, &Alarms::default(), {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    let shutdown = Shutdown::new();
    let consumer = spawn({
        let (world, shutdown) = (world.clone(), shutdown.clone());
        move || {
            let report = block_on(run(shared, shutdown));
            world.over();
            report
        }
    });
    shutdown.begin();
    let report = consumer.join().unwrap();
    world.check(report.abandoned);
    seen.note(format!(
        "{} handed out, {} applied",
        world.handed_out(),
        world.effects()
    ));
}

fn run(shared: Shared, shutdown: Shutdown) -> BoxFuture<'static, DrainReport> {
    Box::pin(Consumer { shared }.run(shutdown))
}

#[test]
fn s3_nothing_that_was_handed_out_is_forgotten_whenever_shutdown_begins() {
    let outcomes = [
        "0 handed out, 0 applied",
        "1 handed out, 0 applied",
        "1 handed out, 1 applied",
    ];
    explore(Some(3), &outcomes, |seen| stopped_at_any_time(seen, run));
}

/// The loop of `consume`, with one step of it replaced.
async fn looped(
    shared: Shared,
    shutdown: Shutdown,
    receive_in_select: bool,
    sleep_in_select: bool,
) -> DrainReport {
    let mut tasks = JoinSet::new();
    while !shutdown.has_begun() {
        let config = &shared.config;
        let receive = shared.queue.receive(&config.queue, 1, config.lease);
        let deliveries = if receive_in_select {
            tokio::select! {
                biased;
                () = shutdown.begun() => break,
                received = receive => received,
            }
        } else {
            receive.await
        };
        let deliveries = deliveries.unwrap();
        for delivery in deliveries {
            tasks.spawn(super::hold(Arc::clone(&shared), delivery));
        }
        let sleep = shared.env.clock.sleep(config.poll_interval);
        if sleep_in_select {
            tokio::select! {
                biased;
                () = shutdown.begun() => {}
                () = sleep => {}
            }
        } else if !shutdown.has_begun() {
            sleep.await;
        }
    }
    shared.drain(&mut tasks).await
}

/// What the broker hands out while shutdown begins is dropped.
#[test]
fn broken_a_receive_that_shutdown_interrupts() {
    refute(Some(3), "handed out and forgotten", |seen| {
        stopped_at_any_time(seen, |shared, shutdown| {
            Box::pin(looped(shared, shutdown, true, true))
        });
    });
}

/// Shutdown begins between the look and the sleep, and nobody is woken.
#[test]
fn broken_a_sleep_that_shutdown_does_not_end() {
    refute(Some(3), "deadlock", |seen| {
        stopped_at_any_time(seen, |shared, shutdown| {
            Box::pin(looped(shared, shutdown, false, false))
        });
    });
}

// Permits and prefetch: as many as are allowed, and all get their turn.

/// Two jobs and one permit; shutdown begins when both are answered.
fn taken_in_turn(seen: &Seen, prefetch: usize, run: Run) {
    let world = World::new(&["one", "other"]);
    let shared = world.shared(1, prefetch, &Alarms::default(), {
        let world = world.clone();
        move |_| Doing::work(&world, Box::pin(step()))
    });
    let shutdown = Shutdown::new();
    let consumer = spawn({
        let (world, shutdown) = (world.clone(), shutdown.clone());
        move || {
            let report = block_on(run(shared, shutdown));
            world.over();
            report
        }
    });
    block_on(world.answered());
    shutdown.begin();
    let report = consumer.join().unwrap();
    world.check(report.abandoned);
    assert_eq!(world.count(Answer::Acked), 2, "both were acked");
    assert_eq!(world.most_at_work(), 1, "as many at work as permits");
    seen.note(format!("{} held at once", world.most_held()));
}

#[test]
fn l1_two_jobs_and_one_place_both_get_their_turn() {
    explore(Some(3), &["1 held at once"], |seen| {
        taken_in_turn(seen, 0, run);
    });
}

#[test]
fn l1_two_jobs_and_one_permit_both_get_their_turn() {
    explore(Some(2), &["2 held at once"], |seen| {
        taken_in_turn(seen, 1, run);
    });
}

/// The permit is asked for, and not kept.
async fn hold_without_keeping_the_permit(shared: Shared, delivery: Delivery) {
    let permitted = tokio::select! {
        biased;
        () = shared.drain.cancelled() => false,
        permit = shared.permits.acquire() => permit.is_ok(),
    };
    if permitted {
        shared.gate(delivery).await;
    } else {
        (shared.defer(&delivery.receipt, None, DeferReason::Shutdown)).await;
    }
}

#[test]
fn broken_a_permit_that_is_not_kept() {
    refute(Some(2), "as many at work as permits", |seen| {
        taken_in_turn(seen, 1, |shared, shutdown| {
            Box::pin(async move {
                let mut tasks = JoinSet::new();
                for delivery in shared.queue.hand_out() {
                    let shared = Arc::clone(&shared);
                    tasks.spawn(hold_without_keeping_the_permit(shared, delivery));
                }
                shutdown.begun().await;
                shared.drain(&mut tasks).await
            })
        });
    });
}
