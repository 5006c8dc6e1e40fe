//! Ways through the lifecycle model, driven through the real harness on the simulated store.

#![allow(clippy::unwrap_used, clippy::panic)]

use models::book::chapter;
use models::lifecycle::cover::{Grain, Way, counterexample, cover, models};
use models::lifecycle::protocol::Move;
use models::lifecycle::{Action, Design};
use sim::script::{Deviation, simulated};

/// `cargo sim drive` takes every turn; here, where nothing is optimised, every edge.
#[test]
fn a1_a3_a4_a5_a7_b1_b2_b3_b4_b5_b8_every_edge_of_the_model_is_gone() {
    sim::jobs::silence_planned_panics();
    let cover = cover(&models()[..5], Grain::Edges);
    assert!(cover.ways.len() > 20, "{} ways", cover.ways.len());
    let mut refused = 0;
    for way in &cover.ways {
        let driven = simulated::run(way).unwrap_or_else(|error| panic!("{error:#}\n{way:?}"));
        assert_eq!(driven.steps, way.actions.len());
        refused += driven.refused;
    }
    assert!(
        refused > 1_000,
        "{refused} things that are not allowed were tried"
    );
}

fn deviation(way: &Way) -> Deviation {
    let error = simulated::run(way).unwrap_err();
    error
        .downcast()
        .unwrap_or_else(|error| panic!("the bench broke: {error:#}"))
}

/// Each counterexample is a script. The harness leaves it where the wrong design differs from the right one.
#[test]
fn the_harness_does_not_follow_a_wrong_design() {
    let wrong = [
        (Design::LetterWithoutFence, "it did Some(LetterApplied)"),
        (Design::FenceIgnoresLetter, "it did Some(Fence(Settled))"),
        (Design::AckBeforeCommit, "it did Some(Retry(1))"),
        (Design::SweepIgnoresQueue, "the sweep took 0 fences"),
    ];
    let chapter = chapter("lifecycle").unwrap();
    assert_eq!(chapter.wrong.len(), wrong.len(), "all of them");
    for ((design, what), wrong) in wrong.into_iter().zip(chapter.wrong) {
        let way = counterexample(design, wrong.breaks).unwrap();
        let deviation = deviation(&way);
        assert!(deviation.what.contains(what), "{}: {deviation}", wrong.name);
    }
}

/// A script that the model does not have is refused, not driven.
#[test]
fn a_step_that_the_model_does_not_have_is_named() {
    let mut way = cover(&models()[..1], Grain::Edges).ways.remove(0);
    way.actions.truncate(1);
    way.actions.push(Action::Step(0, Move::Committed));
    let deviation = deviation(&way);
    assert_eq!(deviation.step, 2);
    assert!(deviation.what.contains("does not have"), "{deviation}");
}
