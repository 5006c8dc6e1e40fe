//! Scripts by chance.

use std::time::Duration;

use harness::{Clock as _, SystemClock};

use crate::compare::{Shown, run};
use crate::generate::script;
use crate::real::Real;
use crate::shrink::shrink;
use crate::simulated::knobs;

/// How many scripts, and from which seed on.
fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {text:?} is no number")),
        Err(_) => default,
    }
}

/// On a thread of its own.
pub fn in_lane<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// Runs every `step`-th seed from `first` on; tells of the first difference.
async fn lane(first: u64, end: u64, step: u64) -> Shown {
    let knobs = knobs();
    let mut real = Real::new().await;
    let mut all = Shown::default();
    for seed in (first..end).step_by(usize::try_from(step).unwrap()) {
        let script = script(&knobs, seed);
        match run(&mut real, &knobs, &script).await {
            Ok(shown) => all += shown,
            Err(difference) => {
                let (script, difference) = shrink(&mut real, &knobs, script, difference).await;
                let json = serde_json::json!(script);
                panic!("script {seed} differs:\n{difference}\n{json}");
            }
        }
    }
    all
}

/// `DIFFERENTIAL_SCRIPTS=100000` is the deep run; `DIFFERENTIAL_FROM` another first seed.
#[test]
fn s1_s2_s4_s8_s9_s10_the_simulated_store_does_what_postgresql_does() {
    const LANES: u64 = 3;
    let scripts = number("DIFFERENTIAL_SCRIPTS", 800);
    let from = number("DIFFERENTIAL_FROM", 0);
    let clock = SystemClock::new();
    let lanes: Vec<_> = (0..LANES)
        .map(|n| std::thread::spawn(move || in_lane(lane(from + n, from + scripts, LANES))))
        .collect();
    let mut all = Shown::default();
    for lane in lanes {
        match lane.join() {
            Ok(shown) => all += shown,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    let took = clock.elapsed().max(Duration::from_millis(1));
    println!(
        "{scripts} scripts in {took:.1?}, {:.0} a second: {all:?}",
        scripts as f64 / took.as_secs_f64()
    );
    assert!(all.steps > 8 * scripts, "{all:?}");
    assert!(
        all.waits > scripts / 4 && all.woken > scripts / 8,
        "they hardly meet: {all:?}"
    );
    assert!(all.time_outs > scripts / 200, "{all:?}");
}
