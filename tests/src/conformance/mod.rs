//! What every queue and every store must do: one suite for all implementations of a port.
//!
//! An implementation is made known to the suite by a **bench**: how to make a client, how time passes, how the server is
//! taken away and brought back. The cases see nothing but the bench, so PostgreSQL and pgmq, the simulated ones, and what
//! will be added (NATS JetStream, RabbitMQ) are held against the same text. A new implementation needs a bench, and
//!
//! ```text
//! macro_rules! on_mine { ($($case:ident,)*) => { $( #[tokio::test] async fn $case() {
//!     acceptance::conformance::queue::run(stringify!($case), &MyBench::new().await).await.unwrap();
//! } )* } }
//! acceptance::queue_cases!(on_mine);
//! ```
//!
//! The suite itself is tested: [`queue_flaws`] and [`store_flaws`] decorate a good implementation with one mistake each,
//! every mistake must turn the case red that is named for it, and every case must turn red for some mistake.

pub mod queue;
pub mod queue_flaws;
pub mod store;
pub mod store_flaws;

use std::time::Duration;

use harness::{Clock, StoreError};

/// How often something that must come true in the end is asked for.
const TRIES: u32 = 400;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A call to a server that is gone may still be trying to reach it after so long.
const STILL_TRYING: Duration = Duration::from_secs(2);

/// Asks until it is so.
async fn in_the_end<T>(
    clock: &dyn Clock,
    what: &str,
    mut probe: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let mut last = None;
    for _ in 0..TRIES {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(error) => last = Some(error),
        }
        clock.sleep(PAUSE).await;
    }
    let last = last.map_or_else(String::new, |error| format!("{error:#}"));
    anyhow::bail!("never came true: {what}; last seen: {last}")
}

/// A port's error, seen from outside: is it one that says "nobody there"?
pub(crate) trait SaysAway: std::fmt::Debug {
    fn is_away(&self) -> bool;
}

impl SaysAway for harness::QueueError {
    fn is_away(&self) -> bool {
        matches!(self, Self::Away(_))
    }
}

impl SaysAway for StoreError {
    fn is_away(&self) -> bool {
        matches!(self, Self::Away(_))
    }
}

/// A call while the server is away: it says so, or is still trying. Anything else is a claim about a server that nobody
/// asked.
async fn away<T: std::fmt::Debug, E: SaysAway>(
    clock: &dyn Clock,
    call: &str,
    future: impl Future<Output = Result<T, E>>,
) -> anyhow::Result<()> {
    let ended = tokio::select! {
        ended = future => ended,
        () = clock.sleep(STILL_TRYING) => return Ok(()),
    };
    match ended {
        Err(error) if error.is_away() => Ok(()),
        other => anyhow::bail!("{call}: the server is away, and the answer is {other:?}"),
    }
}
