//! Every state of every model, a counterexample for every wrong design, and the printed specification.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::PathBuf;
use std::time::Duration;

use harness::{FencePolicy, RetryPolicy};
use models::book::{BOOK, Chapter, chapter};
use models::{spec, ttl};

/// The promises of the book are the properties of the model, the sizes are as printed, nothing holds for lack of occasion.
fn holds(name: &str) {
    let chapter = chapter(name).unwrap();
    let checked = chapter.check(2);
    assert!(checked.broken.is_empty(), "{}", checked.broken[0]);
    assert_eq!(checked.never, Vec::<&str>::new(), "these never came true");
    assert_eq!(
        checked.states, chapter.states,
        "the number of states is pinned in book.rs"
    );
}

#[test]
fn a1_a2_b1_b2_fence_holds() {
    holds("fence");
}

#[test]
fn a3_a4_b3_b4_b5_retry_holds() {
    holds("retry");
}

#[test]
fn a6_b7_ttl_holds() {
    holds("ttl");
}

#[test]
fn a5_b6_b8_replay_holds() {
    holds("replay");
}

#[test]
fn b4_alert_holds() {
    holds("alert");
}

fn stories(chapter: &Chapter) -> String {
    let mut text = String::new();
    for wrong in chapter.wrong {
        let story = chapter.counterexample(wrong.name).unwrap();
        assert!(
            story.beats.len() <= 15,
            "{}: {} steps",
            wrong.name,
            story.beats.len()
        );
        text.push_str(&format!("{}: {}\n{story}\n", wrong.name, wrong.what));
    }
    text
}

/// A wrong design without a counterexample would mean that the model does not need that part of the design.
#[test]
fn every_wrong_design_has_a_counterexample() {
    for chapter in BOOK {
        insta::assert_snapshot!(chapter.name, stories(&chapter));
    }
    let designs: usize = BOOK.iter().map(|chapter| chapter.wrong.len()).sum();
    assert!(designs >= 20, "{designs}");
}

#[test]
fn every_promise_is_broken_by_some_design() {
    for chapter in BOOK {
        let broken: Vec<&str> = chapter.wrong.iter().map(|wrong| wrong.breaks).collect();
        for promise in chapter.promises {
            // One effect needs the fence; that is the subject of the model of that name.
            let elsewhere = promise.property == "S1 one effect" && chapter.name == "retry";
            // Settling is lost by what vanishes.
            let follows =
                promise.property == "L1 settles" && broken.iter().any(|it| it.starts_with("S3"));
            assert!(
                broken.contains(&promise.property) || elsewhere || follows,
                "{}: no design breaks {:?}",
                chapter.name,
                promise.property
            );
        }
    }
}

/// Q1: what is long enough, by trying everything at small sizes.
#[test]
fn b7_the_smallest_safe_ttl_is_retention_plus_horizon() {
    for w in 0..=3 {
        for r in 0..=3 {
            for h in 0..=3 {
                let found = ttl::smallest_safe_ttl(w, r, h);
                // The guard of the window alone keeps a fence for longer than W.
                let expected = if w >= r + h { 0 } else { r + h + 1 };
                assert_eq!(found, Some(expected), "W {w}, R {r}, H {h}");
            }
        }
        for h in 0..=3 {
            let found = ttl::smallest_safe_ttl_with_backlog(w, h);
            assert_eq!(found, Some(h + 1), "W {w}, H {h}, with the backlog");
        }
    }
}

/// What the harness accepts at start-up is safe in the model: one rule, in `FencePolicy::check`.
#[test]
fn b7_what_start_up_accepts_is_safe() {
    let hours = |n: u8| Duration::from_secs(u64::from(n) * 3_600);
    let mut accepted = 0;
    for w in 1..=2 {
        for r in 0..=2 {
            for h in 0..=2 {
                for ttl in 0..=w + r + h + 2 {
                    let policy = FencePolicy {
                        ttl: hours(ttl),
                        broker_retention: hours(r),
                        resend_horizon: hours(h),
                        margin: Duration::ZERO,
                    };
                    // Without retries the window is one run.
                    let retry = RetryPolicy::overriding(hours(1), hours(1), 0, "a tick is an hour")
                        .unwrap();
                    if policy.check(&retry, hours(w)).is_ok() {
                        accepted += 1;
                        let model = ttl::Ttl::by_the_clock(ttl, w, r, h);
                        let checked = models::kit::check(model, 2);
                        assert!(
                            checked.broken.is_empty(),
                            "W {w} R {r} H {h} TTL {ttl}: {}",
                            checked.broken[0]
                        );
                    }
                }
            }
        }
    }
    assert!(accepted > 20, "{accepted}");
}

/// The committed pages are what the models say today.
#[test]
fn the_printed_specification_is_up_to_date() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("spec");
    let pages = spec::pages().unwrap();
    for (name, text) in &pages {
        let printed = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(
            printed == *text,
            "models/spec/{name} is not what the models say: cargo model spec --write models/spec"
        );
    }
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files, pages.len(), "a page of a model that is gone?");
}

/// Without this, "in the end" would be said of states that a way may never come to.
#[test]
fn every_way_through_every_model_ends() {
    for chapter in BOOK {
        assert!(chapter.every_way_ends(), "{} has a circle", chapter.name);
    }
}
