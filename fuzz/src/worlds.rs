//! Whole scenarios: bytes stand for what would be drawn, and all checks are on.

use sim::plan::Saved;
use sim::world::{Options, run};

/// To be called once, after the fuzzer set its panic hook: jobs that panic as planned are no finding.
pub fn prepare() {
    sim::world::check_build().expect("built as ci/fuzz does");
    sim::jobs::silence_planned_panics();
}

/// No check may find anything.
pub fn scenario(bytes: &[u8]) {
    let plan = sim::scenario::from_bytes(bytes);
    let outcome = run(&plan, Options::default());
    let wrong = match outcome {
        Ok(ran) => match ran.violations.first() {
            None => return,
            Some(violation) => violation.to_string(),
        },
        Err(error) => format!("{error:#}"),
    };
    let saved = Saved {
        about: wrong,
        expected: None,
        plan,
    };
    let text = saved.text().expect("every plan can be written");
    panic!("{}\nsave this as a file, then `cargo sim replay FILE`:\n{text}", saved.about);
}
