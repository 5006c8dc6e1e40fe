//! What the harness relies on. `ci/test` holds tokio's own types against it, `ci/loom` the models: so a model that
//! promises more than the original, or less, is found.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::{CancellationToken, JoinSet, Semaphore};

/// Somebody who polls, and was woken or not.
#[derive(Default)]
struct Sleeper(AtomicBool);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn poll<F: Future>(sleeper: &Arc<Sleeper>, future: Pin<&mut F>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(sleeper));
    future.poll(&mut Context::from_waker(&waker))
}

fn woken(sleeper: &Arc<Sleeper>) -> bool {
    sleeper.0.load(Ordering::Relaxed)
}

#[cfg(not(harness_loom))]
fn check(contract: impl Fn() + Send + Sync + 'static) {
    contract();
}

#[cfg(harness_loom)]
fn check(contract: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(contract);
}

#[cfg(not(harness_loom))]
fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

#[cfg(harness_loom)]
use super::block_on;

#[test]
fn l1_a_token_wakes_everybody_and_stays_cancelled() {
    check(|| {
        let token = CancellationToken::new();
        let same = token.clone();
        let (one, other) = (Arc::default(), Arc::default());
        let mut ones = pin!(token.cancelled());
        let mut others = pin!(same.cancelled());
        let mut gone = Box::pin(same.cancelled());
        assert!(poll(&one, ones.as_mut()).is_pending());
        assert!(poll(&other, others.as_mut()).is_pending());
        assert!(poll(&other, gone.as_mut()).is_pending());
        drop(gone);
        assert!(!same.is_cancelled() && !woken(&one) && !woken(&other));
        token.cancel();
        assert!(same.is_cancelled() && woken(&one) && woken(&other));
        token.cancel();
        assert!(poll(&one, ones.as_mut()).is_ready());
        assert!(poll(&other, others.as_mut()).is_ready());
        assert!(poll(&one, pin!(same.cancelled())).is_ready());
    });
}

#[test]
fn l1_permits_go_in_turn_and_are_never_lost() {
    check(|| {
        let semaphore = Semaphore::new(1);
        let (one, two, three) = (Arc::default(), Arc::default(), Arc::default());
        let Poll::Ready(Ok(held)) = poll(&one, pin!(semaphore.acquire())) else {
            panic!("a free permit is there at once");
        };
        let mut first = Box::pin(semaphore.acquire());
        let mut second = Box::pin(semaphore.acquire());
        let mut third = Box::pin(semaphore.acquire());
        let mut gone = Box::pin(semaphore.acquire());
        assert!(poll(&one, first.as_mut()).is_pending());
        assert!(poll(&two, gone.as_mut()).is_pending());
        assert!(poll(&two, second.as_mut()).is_pending());
        drop(gone);
        drop(held);
        assert!(woken(&one) && !woken(&two), "the first, and no other");
        let late = poll(&three, third.as_mut());
        assert!(late.is_pending(), "it is the first one's, taken or not");
        drop(first);
        assert!(woken(&two) && !woken(&three), "given up, it goes on");
        let Poll::Ready(Ok(held)) = poll(&two, second.as_mut()) else {
            panic!("whoever is woken has it");
        };
        drop(third);
        drop(held);
        let again = poll(&one, pin!(semaphore.acquire()));
        assert!(again.is_ready(), "nobody waits any more");
    });
}

#[test]
fn s3_tasks_stay_in_their_set_until_joined_and_keep_what_they_ended_with() {
    check(|| {
        block_on(async {
            let mut tasks = JoinSet::new();
            assert!(tasks.try_join_next().is_none() && tasks.join_next().await.is_none());
            let ended = CancellationToken::new();
            tasks.spawn(pending());
            tasks.spawn({
                let ended = ended.clone();
                async move { ended.cancel() }
            });
            ended.cancelled().await;
            assert_eq!(tasks.len(), 2, "ended, and not joined");
            tasks.abort_all();
            assert_eq!(tasks.len(), 2, "aborted, and not joined");
            let (mut ended, mut cancelled) = (0, 0);
            while let Some(task) = tasks.join_next().await {
                match task {
                    Ok(()) => ended += 1,
                    Err(error) => cancelled += usize::from(error.is_cancelled()),
                }
            }
            assert_eq!((ended, cancelled, tasks.len()), (1, 1, 0));
        });
    });
}
