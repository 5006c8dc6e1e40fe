//! Twins in one process.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use uuid::Uuid;

use super::world::{Alarms, Answer, Doing, World, step};
use super::{Seen, explore, refute, spawn};
use crate::consumer::single_flight::{Flight, SingleFlight};
use crate::ids::JobId;
use crate::sync::{AtomicBool, JoinSet, Mutex, block_on};
use std::sync::atomic::Ordering;

/// What keeps twins apart: the real one, and broken ones.
trait Flights: Default + Send + Sync + 'static {
    type Guard<'a>;
    fn enter(&self, job: JobId) -> Option<Self::Guard<'_>>;
}

impl Flights for SingleFlight {
    type Guard<'a> = Flight<'a>;

    fn enter(&self, job: JobId) -> Option<Flight<'_>> {
        self.enter(job)
    }
}

/// Three twins at once: no two are inside together, and one gets in.
fn three_twins<T: Flights>(seen: &Seen) {
    let job = JobId::from_key(Uuid::NAMESPACE_OID, "one");
    let flights = Arc::new(T::default());
    let inside = Arc::new(AtomicBool::new(false));
    let twin = {
        let (flights, inside) = (Arc::clone(&flights), Arc::clone(&inside));
        move || {
            let flight = flights.enter(job);
            if flight.is_some() {
                let twin = inside.swap(true, Ordering::AcqRel);
                assert!(!twin, "two twins inside");
                inside.store(false, Ordering::Release);
            }
            flight.is_some()
        }
    };
    let others = [spawn(twin.clone()), spawn(twin.clone())];
    let mut entered = usize::from(twin());
    for other in others {
        entered += usize::from(other.join().unwrap());
    }
    assert!(entered > 0, "nobody got in");
    assert!(flights.enter(job).is_some(), "it stays closed");
    seen.note(format!("{entered} entered"));
}

#[test]
fn s1_no_two_twins_run_in_one_process() {
    let outcomes = ["1 entered", "2 entered", "3 entered"];
    explore(None, &outcomes, three_twins::<SingleFlight>);
}

/// Looks first, and enters then.
#[derive(Default)]
struct LookedFirst(Mutex<BTreeSet<JobId>>);

struct Entered<'a>(&'a Mutex<BTreeSet<JobId>>, JobId);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(&self.1);
    }
}

impl Flights for LookedFirst {
    type Guard<'a> = Entered<'a>;

    fn enter(&self, job: JobId) -> Option<Entered<'_>> {
        if self.0.lock().unwrap().contains(&job) {
            return None;
        }
        self.0.lock().unwrap().insert(job);
        Some(Entered(&self.0, job))
    }
}

#[test]
fn broken_a_flight_that_is_looked_for_and_then_entered() {
    refute(None, "two twins inside", three_twins::<LookedFirst>);
}

/// Makes the guard before it is known whose the flight is, and drops it if it is another's.
#[derive(Default)]
struct GuardedTooEarly(Mutex<BTreeSet<JobId>>);

impl Flights for GuardedTooEarly {
    type Guard<'a> = Entered<'a>;

    fn enter(&self, job: JobId) -> Option<Entered<'_>> {
        let entered = self.0.lock().unwrap().insert(job);
        entered.then_some(Entered(&self.0, job))
    }
}

#[test]
fn broken_a_guard_that_is_made_too_early() {
    refute(None, "two twins inside", three_twins::<GuardedTooEarly>);
}

/// Two twins and two permits: the second is deferred while the first runs, and is a duplicate after it.
#[test]
fn s1_twins_have_one_effect_and_never_meet_in_the_store() {
    explore(Some(3), &["busy", "duplicate"], |seen| {
        let world = World::new(&["one", "one"]);
        let shared = world.shared(2, 0, &Alarms::default(), {
            let world = world.clone();
            move |_| Doing::work(&world, Box::pin(step()))
        });
        let mut tasks = JoinSet::new();
        for delivery in world.hand_out() {
            tasks.spawn(super::hold(Arc::clone(&shared), delivery));
        }
        block_on(async { while tasks.join_next().await.is_some() {} });
        world.check(0);
        assert_eq!((world.effects(), world.runs()), (1, 1));
        match (world.count(Answer::Acked), world.count(Answer::Deferred)) {
            (1, 1) => seen.note("busy"),
            (2, 0) => seen.note("duplicate"),
            other => panic!("acked and deferred: {other:?}"),
        }
    });
}
