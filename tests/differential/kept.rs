//! Scripts that are kept: each once showed a difference, or shows a mistake that chance needs long for.

use serde::Deserialize;

use crate::compare::run;
use crate::random::in_lane;
use crate::real::Real;
use crate::script::Step;
use crate::simulated::knobs;

#[derive(Deserialize)]
pub struct Kept {
    pub shows: String,
    pub script: Vec<Step>,
}

pub fn kept() -> Vec<Kept> {
    let lines = include_str!("kept.jsonl").lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn s1_s4_s8_s9_s10_kept_scripts_do_not_differ() {
    in_lane(async {
        let (mut real, knobs) = (Real::new().await, knobs());
        for Kept { shows, script } in kept() {
            if let Err(difference) = run(&mut real, &knobs, &script).await {
                panic!("{shows}:\n{difference}");
            }
        }
    });
}
