//! Generated scenarios on a real PostgreSQL: the same plans as in the simulation (`sim::scenario`), played through the real
//! consumer, store and queue, and judged by looking into the tables.
//!
//! `PROPTEST_CASES` sets how many there are of each kind. A failure is shrunk and printed as a plan file, to be kept in
//! `tests/generated/regressions`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod jsonb;
mod judge;
mod play;
mod workers;

use acceptance::db::Db;
use proptest::strategy::BoxedStrategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use sim::jobs::silence_planned_panics;
use sim::plan::{Plan, Saved};
use sim::scenario::{duplicates, mixed, poisoned, replays};

fn config(cases: u32) -> Config {
    let standard = Config::default();
    Config {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => standard.cases,
            None => cases,
        },
        // What is found is kept as a plan: a seed of proptest's is good only for today's strategies.
        failure_persistence: None,
        max_shrink_iters: 200,
        // In milliseconds. What never settles takes its time, every time.
        max_shrink_time: 120_000,
        ..standard
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Plays a plan in a database of its own, which `prepare` may change first.
async fn verdict(plan: &Plan, prepare: &'static str) -> Result<(), String> {
    let db = Db::fresh().await;
    if !prepare.is_empty() {
        db.execute(prepare).await;
    }
    let played = play::play(&db, plan).await?;
    judge::judge(&db, plan, &played).await?;
    // Last, because it panics: every process followed the lifecycle model, and answered everything unless it was killed.
    for recorder in &played.seen {
        let _ = recorder.events();
    }
    for recorder in &played.stopped {
        recorder.all_answered();
    }
    Ok(())
}

fn search(
    scenarios: BoxedStrategy<Plan>,
    config: Config,
    prepare: &'static str,
) -> Result<(), Box<TestError<Plan>>> {
    silence_planned_panics();
    let runtime = runtime();
    let outcome = TestRunner::new(config).run(&scenarios, |plan| {
        let outcome = runtime.block_on(verdict(&plan, prepare));
        outcome.map_err(TestCaseError::fail)
    });
    outcome.map_err(Box::new)
}

fn holds(scenarios: BoxedStrategy<Plan>, cases: u32) {
    let outcome = search(scenarios, config(cases), "");
    if let Err(TestError::Fail(why, plan)) = outcome.as_ref().map_err(AsRef::as_ref) {
        let saved = Saved {
            about: why.to_string(),
            expected: None,
            plan: plan.clone(),
        };
        panic!(
            "{why}\nkeep this in tests/generated/regressions:\n{}",
            saved.text().unwrap()
        );
    }
    outcome.unwrap();
}

#[test]
fn s1_s12_duplicates() {
    holds(duplicates(), 5);
}

#[test]
fn s7_poison() {
    holds(poisoned(), 5);
}

#[test]
fn s4_replays() {
    holds(replays(), 5);
}

#[test]
fn s1_l1_mixed() {
    holds(mixed(), 8);
}

/// Every plan that ever failed here, and every one that failed in the simulation.
#[test]
fn s1_l1_regressions() {
    silence_planned_panics();
    let here = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        here.join("generated/regressions"),
        here.join("../sim/corpus"),
    ];
    let mut files: Vec<_> = (folders.iter())
        .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() > 6, "{files:?}");
    let runtime = runtime();
    for file in files {
        let plan = Saved::read(&file).unwrap().plan;
        let outcome = runtime.block_on(verdict(&plan, ""));
        assert_eq!(outcome, Ok(()), "{}", file.display());
    }
}

/// Generated scenarios must find what is wrong: databases whose functions do not do what they promise.
fn is_caught(scenarios: BoxedStrategy<Plan>, broken: &'static str, invariant: &str) {
    // That scenarios are shrunk is shown in the simulation, where it costs less.
    let config = Config {
        max_shrink_iters: 0,
        ..config(100)
    };
    match search(scenarios, config, broken).map_err(|error| *error) {
        Err(TestError::Fail(why, _)) => assert!(why.message().starts_with(invariant), "{why}"),
        other => panic!("nobody noticed: {other:?}"),
    }
}

/// A trigger lets every fence vanish, as if it were written outside of the transaction and lost.
const NO_FENCE: &str = "
    CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN DELETE FROM core.processed_jobs WHERE job_id = NEW.job_id; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER zz_lose AFTER INSERT ON core.processed_jobs DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION lose()";

#[test]
fn s1_a_database_that_loses_fences_is_caught() {
    is_caught(duplicates(), NO_FENCE, "S");
}

/// Dead letters are not written, but said to be.
const NO_LETTER: &str = "
    CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
    CREATE TRIGGER aa_lose BEFORE INSERT ON core.dead_letters FOR EACH ROW EXECUTE FUNCTION lose()";

#[test]
fn s7_a_database_that_loses_dead_letters_is_caught() {
    is_caught(poisoned(), NO_LETTER, "L1");
}

/// A replayed job's message gets lost.
const NO_REPLAY: &str = "
    CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN DELETE FROM pgmq.q_points WHERE msg_id = NEW.msg_id; RETURN NULL; END $$;
    CREATE TRIGGER zz_lose AFTER INSERT ON pgmq.q_points FOR EACH ROW
    WHEN (NEW.message->'headers'->>'generation' <> '0') EXECUTE FUNCTION lose()";

#[test]
fn s4_a_queue_that_loses_replays_is_caught() {
    is_caught(replays(), NO_REPLAY, "L1");
}
