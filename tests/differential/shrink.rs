//! Makes a script that shows a difference short.

use sim::plan::Knobs;

use crate::compare::{Difference, run};
use crate::real::Real;
use crate::script::{Act, Step};

/// Simpler steps to try instead of one.
fn simpler(step: &Step) -> Vec<Step> {
    let mut simpler = Vec::new();
    let mut add = |actor, act| {
        let it = Step { actor, act };
        if it != *step && !simpler.contains(&it) {
            simpler.push(it);
        }
    };
    if let Act::Fence {
        mut key,
        generation,
        ttl_hours,
    } = step.act
    {
        add(
            step.actor,
            Act::Fence {
                key,
                generation: 0,
                ttl_hours,
            },
        );
        key.consumer = 0;
        add(
            step.actor,
            Act::Fence {
                key,
                generation,
                ttl_hours,
            },
        );
        key.job = 0;
        add(
            step.actor,
            Act::Fence {
                key,
                generation,
                ttl_hours,
            },
        );
    }
    if let Act::FenceAll { jobs, .. } = &step.act {
        for left_out in 0..jobs.len() {
            let mut fewer = step.act.clone();
            if let Act::FenceAll { jobs, .. } = &mut fewer {
                jobs.remove(left_out);
                if jobs.is_empty() {
                    continue;
                }
            }
            add(step.actor, fewer);
        }
    }
    if let Act::Record {
        letter,
        mut key,
        generation,
        reason,
    } = step.act
    {
        add(
            step.actor,
            Act::Record {
                letter,
                key,
                generation: 0,
                reason,
            },
        );
        key.consumer = 0;
        add(
            step.actor,
            Act::Record {
                letter,
                key,
                generation,
                reason,
            },
        );
        key.job = 0;
        add(
            step.actor,
            Act::Record {
                letter,
                key,
                generation,
                reason,
            },
        );
    }
    if step.act == Act::Drop || step.act == Act::LoseConnection {
        add(step.actor, Act::Rollback);
    }
    simpler
}

/// Leaves out as much as it can, as long as the two still differ somewhere.
pub async fn shrink(
    real: &mut Real,
    knobs: &Knobs,
    script: Vec<Step>,
    difference: Difference,
) -> (Vec<Step>, Difference) {
    let (mut script, mut difference) = (script, difference);
    let mut chunk = script.len().div_ceil(2).max(1);
    loop {
        let (mut at, mut smaller) = (0, false);
        while at < script.len() {
            let mut candidate = script.clone();
            candidate.drain(at..(at + chunk).min(script.len()));
            match run(real, knobs, &candidate).await {
                Err(found) => (script, difference, smaller) = (candidate, found, true),
                Ok(_) => at += chunk,
            }
        }
        if chunk == 1 && !smaller {
            break;
        }
        chunk = (chunk / 2).max(1);
    }
    for at in 0..script.len() {
        for step in simpler(&script[at]) {
            let mut candidate = script.clone();
            candidate[at] = step;
            if let Err(found) = run(real, knobs, &candidate).await {
                (script, difference) = (candidate, found);
            }
        }
    }
    (script, difference)
}
