//! The consumer's own concurrency under loom (`ci/loom`): its code as it is, run in every order that threads can take
//! with so many preemptions, each task on a thread of its own.
//!
//! [`sync`](crate::sync) stands for what std and tokio give us, [`world`] for queue, store, clock and handler. Each test
//! says which outcomes must have been seen, so that it cannot pass by exploring nothing. Beside it stand broken variants,
//! copies of the few lines concerned, which loom must catch.

mod drain;
mod flight;
mod lease;
mod outage;
mod world;

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, set_hook, take_hook};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use self::world::{Doing, World};
use super::Delivery;

/// What the tasks of one consumer share.
type Shared = Arc<super::Shared<World, World, Doing>>;

/// One task, as the consumer's loop spawns it. In a box: the test itself runs on a stack of 32 KiB, and moves it about.
async fn hold(shared: Shared, delivery: Delivery) {
    Box::pin(shared.hold(delivery)).await;
}

/// A thread with a stack for a consumer: loom's own have 32 KiB.
fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> loom::thread::JoinHandle<T> {
    let thread = loom::thread::Builder::new().stack_size(128 * 1024);
    thread.spawn(body).unwrap()
}

/// How many preemptions are explored; none is all that there are. `ci/loom --deep` takes more.
type Bound = Option<usize>;

fn deepened(bound: Bound) -> Bound {
    let more = std::env::var("HARNESS_LOOM_MORE").ok();
    Some(bound? + more.and_then(|more| more.parse().ok()).unwrap_or(0))
}

/// What was seen in some execution.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeSet<String>>>);

impl Seen {
    fn note(&self, what: impl Into<String>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(what.into());
    }
}

/// Runs `execution` in every order within `bound`: nothing may fail, and exactly `expected` be seen.
fn explore(bound: Bound, expected: &[&str], execution: impl Fn(&Seen) + Send + Sync + 'static) {
    let explored = Explored::new(bound, execution);
    if let Some(panic) = explored.panic {
        panic_any(panic);
    }
    report(&format!(
        "{} executions, complete for {} preemptions, {:.1} s",
        explored.executions,
        deepened(bound).map_or("all".to_owned(), |it| format!("<= {it}")),
        explored.seconds
    ));
    assert!(explored.seen.iter().eq(expected), "{:?}", explored.seen);
}

/// Runs a broken variant: some order within `bound` must fail, with `message`.
fn refute(bound: Bound, message: &str, execution: impl Fn(&Seen) + Send + Sync + 'static) {
    QUIET.set(true);
    let explored = Explored::new(bound, execution);
    QUIET.set(false);
    let executions = explored.executions;
    let failure = explored.panic.as_deref().map(text);
    let caught = failure.as_ref().is_some_and(|it| it.contains(message));
    assert!(caught, "not caught in {executions} executions: {failure:?}");
    report(&format!("caught in execution {executions}"));
}

/// One search through the orders, which ends with the first that fails.
struct Explored {
    executions: usize,
    seen: BTreeSet<String>,
    seconds: f64,
    panic: Option<Box<dyn Any + Send>>,
}

impl Explored {
    #[allow(clippy::disallowed_methods)] // what it costs is told, and decides nothing
    fn new(bound: Bound, execution: impl Fn(&Seen) + Send + Sync + 'static) -> Self {
        hush();
        let mut model = loom::model::Builder::new();
        model.preemption_bound = deepened(bound);
        model.max_branches = 10_000;
        let (seen, executions) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
        let body = {
            let (seen, executions) = (seen.clone(), Arc::clone(&executions));
            move || {
                executions.fetch_add(1, Ordering::Relaxed);
                execution(&seen);
            }
        };
        let started = std::time::Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| model.check(body)));
        let seen = seen.0.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            executions: executions.load(Ordering::Relaxed),
            seen: seen.clone(),
            seconds: started.elapsed().as_secs_f64(),
            panic: ended.err(),
        }
    }
}

thread_local! {
    /// A failure is expected here.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Expected failures are not printed.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                loud(panic);
            }
        }));
    });
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_default()
}

/// A line of the table that `ci/loom` prints.
fn report(what: &str) {
    let thread = std::thread::current(); // named after the test
    let test = thread.name().and_then(|it| it.rsplit("::").next());
    let line = format!("{}: {what}", test.unwrap_or_default());
    println!("{line}");
    if let Some(path) = std::env::var_os("HARNESS_LOOM_REPORT") {
        let file = std::fs::OpenOptions::new().append(true).open(path);
        writeln!(file.unwrap(), "{line}").unwrap();
    }
}
