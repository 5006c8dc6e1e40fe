//! The invariants, by looking into the tables when everything has settled.

use acceptance::db::{Db, queue_name};
use harness::{DeadLetter, JobId, Message, Reason, Status, Step};
use sim::jobs::{id_of, message};
use sim::plan::{Behaviour, Decision, JobPlan, Plan, RunEnd};
use sim::scenario::is_disturbed;

use crate::play::{Played, ids};

/// Runs of one generation.
const MAX_RUNS: u32 = 6;

/// # Errors
/// The first invariant that is broken, with its name.
pub async fn judge(db: &Db, plan: &Plan, played: &Played) -> Result<(), String> {
    let letters = db.letters().await;
    for job in &plan.jobs {
        let id = id_of(job, &queue_name());
        let mine: Vec<_> = letters.iter().filter(|it| it.letter.job_id == id).collect();
        one_job(db, plan, played, job, id, &mine)
            .await
            .map_err(|wrong| format!("{wrong} (job {}: {:?})", job.id, job.behaviour))?;
    }
    let known = ids(plan);
    if let Some(stranger) = letters.iter().find(|it| !known.contains(&it.letter.job_id)) {
        return Err(format!("S4 a dead letter of nobody's job: {stranger:?}"));
    }
    nothing_else(db, played).await
}

async fn one_job(
    db: &Db,
    plan: &Plan,
    played: &Played,
    job: &JobPlan,
    id: JobId,
    letters: &[&DeadLetter],
) -> Result<(), String> {
    let (effects, fences) = (db.effects(id).await, db.fences(id).await);
    ensure(effects <= 1, || format!("S1 {effects} effects"))?;
    ensure(fences <= effects, || {
        "S2 a fence without an effect".to_owned()
    })?;
    ensure(fences == effects || played.swept, || {
        "S2 an effect without a fence".to_owned()
    })?;
    // Letters are of one generation each, and are listed oldest first: the last is the newest.
    let last = letters.last().map(|it| it.status);
    ensure(effects == 1 || last.is_some(), || {
        "L1 no outcome".to_owned()
    })?;
    ensure(effects == 1 || last != Some(Status::Replayed), || {
        "L1 a replay without an outcome".to_owned()
    })?;
    let undone = letters.iter().any(|it| it.status != Status::Replayed);
    ensure(effects == 0 || !undone, || {
        format!("S4 applied and dead-lettered: {letters:?}")
    })?;
    poison(played, job, id, letters)?;
    // What a letter keeps is what was sent.
    let Message::Wire { body, .. } = message(job) else {
        return Err("a planned message has a body".to_owned());
    };
    ensure(letters.iter().all(|it| it.letter.body == body), || {
        "B4 another body".to_owned()
    })?;
    if is_disturbed(plan) {
        return Ok(());
    }
    if job.behaviour == Behaviour::Succeeds {
        ensure(letters.is_empty(), || {
            format!("S11, S12 a success has letters: {letters:?}")
        })?;
    }
    match expected(job) {
        Some(expected) => {
            let seen = (letters.iter()).map(|it| (it.letter.reason, it.letter.attempts, it.status));
            let seen = (effects == 1, seen.collect::<Vec<_>>());
            ensure(seen == expected, || {
                format!("S4 expected {expected:?}, seen {seen:?}")
            })
        }
        None => Ok(()),
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

/// S7: no run of what can never be valid, and one letter that says so.
fn poison(
    played: &Played,
    job: &JobPlan,
    id: JobId,
    letters: &[&DeadLetter],
) -> Result<(), String> {
    for recorder in &played.seen {
        for event in recorder.events() {
            let Some(about) = event.job.filter(|about| about.id == id) else {
                continue;
            };
            let ran = matches!(event.step, Step::RunStarted { .. });
            let is_poison = job.behaviour.is_poison(about.generation);
            ensure(!ran || !is_poison, || {
                "S7 a poison message was run".to_owned()
            })?;
        }
    }
    for letter in letters.iter().map(|it| &it.letter) {
        let is_poison = job.behaviour.is_poison(letter.generation);
        let said = letter.reason == Reason::Poison;
        ensure(is_poison == said && (!said || letter.attempts == 1), || {
            format!(
                "S7 its letter says {:?} after {} attempts",
                letter.reason, letter.attempts
            )
        })?;
    }
    Ok(())
}

type Outcome = (bool, Vec<(Reason, u32, Status)>);

/// Whether it is applied in the end, and its letters; none where that is a matter of luck.
fn expected(job: &JobPlan) -> Option<Outcome> {
    let copies = !job.resend_after_ms.is_empty();
    if copies && job.behaviour == Behaviour::FailsHardOnce {
        return None;
    }
    let mut letters = Vec::new();
    for generation in 0.. {
        let Some((reason, attempts)) = failure(job.behaviour, generation) else {
            return Some((true, letters));
        };
        let status = match job.decisions.get(generation as usize) {
            None | Some(Decision::Leave) => Status::PendingReview,
            Some(Decision::Replay | Decision::ReplayTwice) => Status::Replayed,
            Some(Decision::Discard) => Status::Discarded,
            Some(Decision::ReplayAndDiscard) => return None,
        };
        letters.push((reason, attempts, status));
        if status != Status::Replayed {
            break;
        }
    }
    Some((false, letters))
}

/// How one generation fails; none when it does not.
fn failure(behaviour: Behaviour, generation: u32) -> Option<(Reason, u32)> {
    if behaviour.is_poison(generation) {
        return Some((Reason::Poison, 1));
    }
    for run in 1..=MAX_RUNS {
        match behaviour.ends(run, generation, generation == 0 && run == 1) {
            RunEnd::Succeeds => return None,
            RunEnd::FailsForGood => return Some((Reason::Hard, run)),
            _ => {}
        }
    }
    Some((Reason::Exhausted, MAX_RUNS))
}

/// S11: no rows but effects, their fences, and letters; fences that are due are gone.
async fn nothing_else(db: &Db, played: &Played) -> Result<(), String> {
    let (ledger, fences) = (
        db.count("SELECT count(*) FROM ledger").await,
        db.count("SELECT count(*) FROM core.processed_jobs").await,
    );
    ensure(
        fences <= ledger && (fences == ledger || played.swept),
        || format!("S11 {fences} fences of {ledger} effects"),
    )?;
    let due = "SELECT count(*) FROM core.processed_jobs WHERE expires_at <= clock_timestamp()";
    let due = db.count(due).await;
    ensure(due == 0, || {
        format!("L1 {due} fences are due and not swept")
    })?;
    let queued = db.queued().await;
    ensure(queued == 0, || format!("L1 {queued} messages are left"))
}
