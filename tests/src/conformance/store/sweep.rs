//! Fences that may go, and those that may not.

use std::time::Duration;

use anyhow::ensure;
use chrono::TimeDelta;
use harness::{FenceVerdict, SweepStore};

use super::{HOUR, On, StoreBench};

pub(super) async fn a6_what_expired_goes_and_what_did_not_stays<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let long = on.another();
    on.apply(0, HOUR).await?;
    long.apply(0, HOUR * 100).await?;
    ensure!(on.sweep(HOUR / 2, |_| {}).await? == 0, "none had expired");
    ensure!(on.sweep(HOUR * 2, |_| {}).await? == 1, "one had expired");
    on.is(1, false).await?;
    long.is(1, true).await?;
    long.fence_says(0, FenceVerdict::Duplicate).await?;
    on.fence_says(0, FenceVerdict::Acquired).await
}

pub(super) async fn a6_nothing_inside_the_retry_window_goes<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, Duration::from_millis(1)).await?;
    let swept = on.sweep(HOUR * 2, |it| it.retry_window = HOUR).await?;
    ensure!(swept == 0, "it was swept inside its retry window");
    on.is(1, true).await?;
    ensure!(on.sweep(HOUR * 2, |_| {}).await? == 1, "it stays for ever");
    Ok(())
}

pub(super) async fn a6_nothing_that_expired_after_the_oldest_message_goes<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, HOUR).await?;
    let now = on.store.now().await?;
    let oldest = |after: Duration| TimeDelta::from_std(after).map(|it| Some(now + it));
    let (before, after) = (oldest(HOUR / 2)?, oldest(HOUR * 3 / 2)?);
    let swept = on.sweep(HOUR * 2, |it| it.oldest = before).await?;
    ensure!(swept == 0, "a message is queued that may need it");
    let swept = on.sweep(HOUR * 2, |it| it.oldest = after).await?;
    ensure!(swept == 1, "no message is queued that could need it");
    Ok(())
}

pub(super) async fn a6_a_fence_stays_while_a_letter_is_pending_and_a_day_longer<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let on = On::fresh(bench)?;
    let id = on.letter(0).await?;
    on.apply(1, HOUR).await?;
    ensure!(
        on.sweep(DAY * 100, |_| {}).await? == 0,
        "a letter is pending"
    );
    on.mark_replayed(id).await?;
    ensure!(on.sweep(DAY / 2, |_| {}).await? == 0, "decided just now");
    ensure!(on.sweep(DAY * 3, |_| {}).await? == 1, "it stays for ever");
    on.is(1, false).await
}

pub(super) async fn a6_no_batch_is_larger_than_asked_for_and_the_earliest_go_first<
    B: StoreBench,
>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let mut jobs = Vec::new();
    for hours in [5, 1, 4, 2, 3] {
        let job = on.another();
        job.apply(0, HOUR * hours).await?;
        jobs.push((hours, job));
    }
    jobs.sort_by_key(|(hours, _)| *hours);
    for left in [3, 1, 0, 0] {
        let gone = on.sweep(HOUR * 9, |it| it.limit = 2).await?;
        let mut still = Vec::new();
        for (hours, job) in &jobs {
            if bench.look(job.job, &job.consumer).await?.1 {
                still.push(*hours);
            }
        }
        let wanted: Vec<u32> = (6 - left..=5).collect();
        ensure!(still == wanted, "{gone} went, those of {still:?} h stay");
    }
    ensure!(on.sweep(HOUR * 9, |_| {}).await? == 0, "none is left");
    Ok(())
}

pub(super) async fn a6_only_the_consumers_own_fences_go<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let other = On::fresh(bench)?;
    other.apply(0, HOUR).await?;
    ensure!(on.sweep(HOUR * 9, |_| {}).await? == 0, "one went");
    other.is(1, true).await
}
