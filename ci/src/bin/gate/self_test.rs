//! `cargo gate --self-test`: breaks what every step looks at, one after the other, and demands that the step turns red.

use anyhow::Context as _;
use gate::canary::{NoCanary, Sang, canaries};
use gate::evidence::Layer;
use gate::planted::Scratch;
use gate::report::Judgement;
use harness::{Clock as _, SystemClock};

use crate::{root, target};

/// With a layer, its canaries only.
pub(crate) fn run(only: Option<Layer>) -> anyhow::Result<Judgement> {
    let root = root()?;
    let scratch = Scratch::of(root, &target(root))?;
    let mut judgement = Judgement::Green;
    let is_in = |layer: Option<Layer>| only.is_none() || layer == only;
    for canary in canaries()?.into_iter().filter(|it| is_in(it.layer)) {
        let name = canary.name();
        let (mistake, says) = match &canary.broken {
            Ok(broken) => broken,
            Err(NoCanary(why)) => {
                eprintln!("{name}: none, for it is {why}");
                continue;
            }
        };
        let clock = SystemClock::new();
        let sang = canary
            .sings(mistake, says, &scratch)
            .with_context(|| name.clone())?;
        let seconds = clock.elapsed().as_secs_f64();
        let (said, becomes) = match sang {
            Sang::Yes => (format!("red, as it must be: {says}"), Judgement::Green),
            Sang::NotRun => ("NOT RUN here".to_owned(), Judgement::Incomplete),
            Sang::No(why) => (format!("NOT RED: {why}"), Judgement::Red),
        };
        eprintln!("{name}: {said} ({seconds:.0} s)");
        judgement = judgement.max(becomes);
    }
    Ok(judgement)
}
