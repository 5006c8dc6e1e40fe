//! Models of std's and tokio's types, for loom. Each says which contract it keeps; a contract is what the documentation
//! of the original promises and the harness relies on, and no more.
//!
//! Everything that threads share is behind a [`Mutex`], which is where loom may switch to another thread. Wakers are
//! called after it was given up, as tokio does.
//!
//! A failed execution is unwound with all its threads, and destructors then run outside of loom. They leave loom alone.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::sync::{Arc, LockResult, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::panicking;

pub(crate) use loom::sync::atomic::AtomicBool;

/// What a task's thread gets: polling a consumer takes more than loom's 32 KiB.
const STACK: usize = 256 * 1024;

/// std's: one holder at a time.
#[derive(Debug)]
pub(crate) struct Mutex<T> {
    turns: loom::sync::Mutex<()>,
    data: std::sync::Mutex<T>,
}

pub(crate) struct MutexGuard<'a, T> {
    turn: Option<loom::sync::MutexGuard<'a, ()>>,
    data: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(data: T) -> Self {
        Self {
            turns: loom::sync::Mutex::new(()),
            data: std::sync::Mutex::new(data),
        }
    }

    /// Never poisoned: a panic ends the execution.
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let turn = if panicking() {
            None
        } else {
            Some(self.turns.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let data = Some(self.data.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(MutexGuard { turn, data })
    }

    /// For the models, which have no use for poison.
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.data = None;
        if let Some(turn) = self.turn.take()
            && panicking()
        {
            std::mem::forget(turn);
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data.as_deref().unwrap()
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_deref_mut().unwrap()
    }
}

/// `tokio_util::sync::CancellationToken`, without children: once cancelled it stays so, and whoever waits or will wait is
/// woken. Clones are the same token.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancellationToken(Arc<Mutex<Cancellation>>);

#[derive(Debug, Default)]
struct Cancellation {
    cancelled: bool,
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl CancellationToken {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn cancel(&self) {
        let mut it = self.0.hold();
        it.cancelled = true;
        let waiting = std::mem::take(&mut it.waiting);
        drop(it);
        waiting.into_values().for_each(Waker::wake);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.hold().cancelled
    }

    pub(crate) fn cancelled(&self) -> Cancelled<'_> {
        let place = None;
        Cancelled { token: self, place }
    }
}

pub(crate) struct Cancelled<'a> {
    token: &'a CancellationToken,
    place: Option<u64>,
}

impl Future for Cancelled<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut it = self.token.0.hold();
        if it.cancelled {
            return Poll::Ready(());
        }
        let place = self.place.unwrap_or(it.next);
        it.next = it.next.max(place + 1);
        it.waiting.insert(place, context.waker().clone());
        drop(it);
        self.place = Some(place);
        Poll::Pending
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place
            && !panicking()
        {
            self.token.0.hold().waiting.remove(&place);
        }
    }
}

/// `tokio::sync::Semaphore`: permits go to those who wait in the order in which they came, and to nobody else while
/// somebody waits; an acquisition that is dropped with a permit in its hand passes it on.
#[derive(Debug)]
pub(crate) struct Semaphore(Mutex<Permits>);

#[derive(Debug)]
struct Permits {
    free: usize,
    next: u64,
    waiting: VecDeque<(u64, Waker)>,
    granted: Vec<u64>,
}

impl Semaphore {
    pub(crate) fn new(permits: usize) -> Self {
        Self(Mutex::new(Permits {
            free: permits,
            next: 0,
            waiting: VecDeque::new(),
            granted: Vec::new(),
        }))
    }

    pub(crate) fn add_permit(&self) {
        let mut it = self.0.hold();
        let first = it.waiting.pop_front();
        match &first {
            Some((place, _)) => it.granted.push(*place),
            None => it.free += 1,
        }
        drop(it);
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }

    /// It is never closed, so this never fails.
    pub(crate) fn acquire(&self) -> Acquire<'_> {
        Acquire {
            semaphore: self,
            place: None,
        }
    }
}

pub(crate) struct Acquire<'a> {
    semaphore: &'a Semaphore,
    place: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct SemaphorePermit<'a>(&'a Semaphore);

impl SemaphorePermit<'_> {
    pub(crate) fn forget(self) {
        std::mem::forget(self);
    }
}

impl<'a> Future for Acquire<'a> {
    type Output = Result<SemaphorePermit<'a>, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let semaphore = self.semaphore;
        let mut it = semaphore.0.hold();
        let Some(place) = self.place else {
            if it.free > 0 {
                it.free -= 1;
                return Poll::Ready(Ok(SemaphorePermit(semaphore)));
            }
            let place = it.next;
            it.next += 1;
            it.waiting.push_back((place, context.waker().clone()));
            drop(it);
            self.place = Some(place);
            return Poll::Pending;
        };
        if let Some(granted) = it.granted.iter().position(|it| *it == place) {
            it.granted.swap_remove(granted);
            drop(it);
            self.place = None;
            return Poll::Ready(Ok(SemaphorePermit(semaphore)));
        }
        for (waits, waker) in &mut it.waiting {
            if *waits == place {
                waker.clone_from(context.waker());
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        if panicking() {
            return;
        }
        let mut it = self.semaphore.0.hold();
        it.waiting.retain(|(waits, _)| *waits != place);
        let granted = it.granted.iter().position(|it| *it == place);
        if let Some(granted) = granted {
            it.granted.swap_remove(granted);
        }
        drop(it);
        if granted.is_some() {
            self.semaphore.add_permit();
        }
    }
}

impl Drop for SemaphorePermit<'_> {
    fn drop(&mut self) {
        if !panicking() {
            self.0.add_permit();
        }
    }
}

/// `tokio::task::JoinSet`: a task runs by itself, on a thread of its own here, and stays in the set until it ended and was
/// joined; an aborted one is dropped at its next poll instead, unless it has ended by then. Dropping the set is not modelled.
#[derive(Debug)]
pub(crate) struct JoinSet<T> {
    shared: Arc<Mutex<Joined<T>>>,
    aborts: BTreeMap<u64, CancellationToken>,
    next: u64,
}

#[derive(Debug)]
struct Joined<T> {
    ended: VecDeque<(u64, Result<T, JoinError>)>,
    waiting: Option<Waker>,
}

/// The task was aborted. A panic ends the execution instead.
#[derive(Debug, thiserror::Error)]
#[error("aborted")]
pub(crate) struct JoinError;

impl JoinError {
    pub(crate) fn is_cancelled(&self) -> bool {
        true
    }
}

impl<T: Send + 'static> JoinSet<T> {
    pub(crate) fn new() -> Self {
        let shared = Arc::new(Mutex::new(Joined {
            ended: VecDeque::new(),
            waiting: None,
        }));
        Self {
            shared,
            aborts: BTreeMap::new(),
            next: 0,
        }
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        let id = self.next;
        self.next += 1;
        let abort = CancellationToken::new();
        self.aborts.insert(id, abort.clone());
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let ended = block_on(async move {
                tokio::select! {
                    biased;
                    () = abort.cancelled() => Err(JoinError),
                    output = task => Ok(output),
                }
            });
            let mut it = shared.hold();
            it.ended.push_back((id, ended));
            let waiting = it.waiting.take();
            drop(it);
            if let Some(waker) = waiting {
                waker.wake();
            }
        };
        let thread = loom::thread::Builder::new().stack_size(STACK);
        thread.spawn(body).unwrap();
    }

    pub(crate) fn len(&self) -> usize {
        self.aborts.len()
    }

    pub(crate) fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        let (id, ended) = self.shared.hold().ended.pop_front()?;
        self.aborts.remove(&id);
        Some(ended)
    }

    pub(crate) async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        std::future::poll_fn(|context| self.poll_join_next(context)).await
    }

    fn poll_join_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, JoinError>>> {
        if self.aborts.is_empty() {
            return Poll::Ready(None);
        }
        let mut it = self.shared.hold();
        let Some((id, ended)) = it.ended.pop_front() else {
            it.waiting = Some(context.waker().clone());
            return Poll::Pending;
        };
        drop(it);
        self.aborts.remove(&id);
        Poll::Ready(Some(ended))
    }

    pub(crate) fn abort_all(&mut self) {
        self.aborts.values().for_each(CancellationToken::cancel);
    }

    pub(crate) async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }
}

/// Runs one future on this thread. A wake is never lost.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(Arc::clone(&bell));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        bell.wait();
    }
}

/// Not loom's `Notify`: that also rings when nobody rang it, which is allowed and costs ten times the executions.
#[derive(Debug, Default)]
struct Bell {
    rung: loom::sync::Mutex<bool>,
    ringing: loom::sync::Condvar,
}

impl Bell {
    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            rung = (self.ringing.wait(rung)).unwrap_or_else(PoisonError::into_inner);
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_one();
    }
}
