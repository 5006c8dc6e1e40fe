//! Waiting on conditions, with a deadline that says which part never came true.

use std::time::Duration;

use harness::{Clock, SystemClock};

/// How long a condition may take before a test gives up. Generous, because it only matters when something is broken.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Asks `probe` until it gives a value.
///
/// # Panics
/// After [`DEADLINE`], naming `what` and the last thing that `probe` said instead.
#[allow(clippy::panic)]
pub async fn eventually<T, E: std::fmt::Display>(
    what: &str,
    mut probe: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let clock = SystemClock::new();
    loop {
        let missing = match probe().await {
            Ok(value) => return value,
            Err(missing) => missing,
        };
        if clock.elapsed() > DEADLINE {
            panic!("never came true within {DEADLINE:?}: {what}; last seen: {missing}");
        }
        clock.sleep(Duration::from_millis(10)).await;
    }
}

/// Runs `future`, which must end by itself.
///
/// # Panics
/// After [`DEADLINE`], naming `what`.
#[allow(clippy::panic)]
pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let clock = SystemClock::new();
    tokio::select! {
        output = future => output,
        () = clock.sleep(DEADLINE) => panic!("did not end within {DEADLINE:?}: {what}"),
    }
}
