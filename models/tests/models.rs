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

#[test]
fn a1_a3_a4_b1_b2_b3_b4_b5_lifecycle_holds() {
    holds("lifecycle");
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

/// A promise that no wrong design breaks would be a promise about nothing. The same invariant may be broken in another model.
#[test]
fn every_promise_is_broken_by_some_design() {
    let invariant = |property: &'static str| property.split([' ', ':']).next().unwrap();
    let broken: Vec<&str> = BOOK
        .iter()
        .flat_map(|chapter| chapter.wrong)
        .map(|wrong| invariant(wrong.breaks))
        .collect();
    for chapter in BOOK {
        for promise in chapter.promises {
            // That world and protocol agree is shown by the histories that are held against it.
            let agreed = promise.property == "the protocol allows it";
            assert!(
                agreed || broken.contains(&invariant(promise.property)),
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

mod conformance {
    use harness::{
        CorrelationId, DeferReason, Event, FenceVerdict, JobId, JobRef, Receipt, RetryPolicy,
        RunResult, Step,
    };
    use models::lifecycle::conform::Conformance;

    use super::Duration;

    fn event(delivery: u64, step: Step) -> Event {
        let id = JobId::from_key(harness_namespace(), "a job");
        Event {
            consumer: None,
            queue: None,
            job: Some(JobRef {
                id,
                generation: 0,
                correlation_id: CorrelationId::from(id),
                delivery: Some(Receipt {
                    message: "1".to_owned(),
                    delivery,
                }),
            }),
            step,
        }
    }

    fn harness_namespace() -> uuid::Uuid {
        uuid::Uuid::NAMESPACE_OID
    }

    fn fence(verdict: FenceVerdict) -> Step {
        Step::Fence {
            verdict,
            waited: Duration::ZERO,
        }
    }

    fn worked() -> Step {
        Step::RunEnded {
            run: 1,
            result: RunResult::Worked,
            took: Duration::ZERO,
        }
    }

    /// What the model says of the last step; all before it are allowed.
    fn last(steps: &[Step]) -> Result<(), String> {
        let mut model = Conformance::new();
        let retry = RetryPolicy::default();
        let started = Event {
            job: None,
            ..event(0, Step::Started { retry })
        };
        model.see("w", &started).unwrap();
        let (last, before) = steps.split_last().unwrap();
        for step in before {
            model.see("w", &event(1, step.clone())).unwrap();
        }
        let seen = model.see("w", &event(1, last.clone()));
        seen.map_err(|refusal| refusal.to_string())
    }

    fn received(runs_before: u32) -> Step {
        Step::Received { runs_before }
    }

    #[test]
    fn a_whole_delivery_is_allowed() {
        let steps = [
            received(0),
            fence(FenceVerdict::Acquired),
            Step::RunStarted { run: 1 },
            worked(),
            Step::Committed,
            Step::Acked,
        ];
        for end in 1..=steps.len() {
            assert_eq!(last(&steps[..end]), Ok(()), "the first {end}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_refused_and_says_what_would_have_been() {
        let acked_early = last(&[
            received(0),
            fence(FenceVerdict::Acquired),
            Step::RunStarted { run: 1 },
            worked(),
            Step::Acked,
        ]);
        let error = acked_early.unwrap_err();
        assert!(
            error.contains("Ack") && error.contains("Committed, CommitUnknown"),
            "{error}"
        );

        let skipped_a_run = [
            received(1),
            fence(FenceVerdict::Acquired),
            Step::RunStarted { run: 1 },
        ];
        assert!(last(&skipped_a_run).is_err());
        let one_too_many = [
            received(6),
            fence(FenceVerdict::Acquired),
            Step::RunStarted { run: 7 },
        ];
        assert!(last(&one_too_many).is_err());
        let wrong_reason = Step::Deferred {
            reason: DeferReason::Shutdown,
            wait: Duration::ZERO,
        };
        assert!(last(&[received(0), Step::Busy, wrong_reason]).is_err());
        assert!(last(&[received(0), Step::Acked]).is_err());
        assert!(last(&[Step::Acked]).is_err(), "it never arrived");
        assert!(
            last(&[received(0), received(0)]).is_err(),
            "it arrived twice"
        );
    }

    #[test]
    fn a_second_delivery_of_an_applied_job_may_not_run() {
        let mut model = Conformance::new();
        let first = [
            received(0),
            fence(FenceVerdict::Acquired),
            Step::RunStarted { run: 1 },
            worked(),
            Step::Committed,
        ];
        for step in first {
            model.see("w", &event(1, step)).unwrap();
        }
        model.see("v", &event(2, received(1))).unwrap();
        let refused = model.see("v", &event(2, fence(FenceVerdict::Acquired)));
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains("applied before it came")
        );
        assert_eq!(model.unanswered().len(), 2);
        model.ended("w");
        assert_eq!(model.unanswered().len(), 1);
    }
}
