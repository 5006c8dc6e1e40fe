//! Fences: one effect for a key, however many try.

use anyhow::{Context as _, ensure};
use harness::{CommitError, Discarded, FenceVerdict, Store, WorkTx as _};

use super::{HOUR, On, StoreBench, a_consumer, expect};

pub(super) async fn b1_effect_and_fence_commit_together<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let tx = on.working(0, HOUR).await?;
    on.is(0, false).await.context("before the commit")?;
    tx.commit().await.context("commit")?;
    on.is(1, true).await.context("after the commit")
}

pub(super) async fn b2_a_second_run_is_a_duplicate<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, HOUR).await?;
    for generation in [0, 0, 1, 7] {
        on.fence_says(generation, FenceVerdict::Duplicate).await?;
    }
    on.is(1, true).await
}

pub(super) async fn a2_a_rollback_leaves_neither_and_frees_the_key<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let tx = on.working(0, HOUR).await?;
    tx.rollback().await.context("rollback")?;
    on.is(0, false).await?;
    on.apply(0, HOUR).await?;
    on.is(1, true).await
}

pub(super) async fn a2_a_dropped_transaction_leaves_neither_and_frees_the_key<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    drop(on.working(0, HOUR).await?);
    on.free_in_the_end().await?;
    on.is(0, false).await
}

pub(super) async fn a2_a_commit_after_a_failed_statement_is_refused<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let mut tx = on.working(0, HOUR).await?;
    B::failing_statement(tx.connection()).await;
    let ended = tx.commit().await;
    ensure!(
        matches!(ended, Err(CommitError::Refused(_))),
        "the commit says {ended:?}"
    );
    on.is(0, false).await?;
    on.free_in_the_end().await
}

pub(super) async fn b1_a_commit_without_a_fence_is_refused<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let mut tx = on.store.begin().await?;
    // A store may refuse this already.
    let _ = B::effect(tx.connection(), on.job, &on.consumer).await;
    let ended = tx.commit().await;
    ensure!(
        matches!(ended, Err(CommitError::Refused(_))),
        "the commit says {ended:?}"
    );
    on.is(0, false).await
}

pub(super) async fn a1_a_twin_of_an_open_run_meets_contention_and_changes_nothing<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let first = on.working(0, HOUR).await?;
    on.fence_is_held("a run is open").await?;
    on.through(bench.client(false))
        .fence_is_held("a run of another process is open")
        .await?;
    first.commit().await.context("commit")?;
    on.fence_says(0, FenceVerdict::Duplicate).await?;
    on.is(1, true).await
}

/// What a twin is told that already waits when the first run ends.
pub(super) async fn waiting_twin<B: StoreBench>(
    on: &On<'_, B>,
    commits: bool,
) -> anyhow::Result<FenceVerdict> {
    let first = on.working(0, HOUR).await?;
    let patient = on.through(on.bench.client(true));
    let end = async {
        on.bench.clock().sleep(crate::conformance::PAUSE * 3).await;
        if commits {
            first.commit().await.context("commit")
        } else {
            first.rollback().await.context("rollback")
        }
    };
    let (twin, ended) = tokio::join!(patient.gate(0, HOUR), end);
    ended?;
    let (tx, said) = twin?;
    tx.rollback().await.context("rollback of the twin")?;
    Ok(said?)
}

pub(super) async fn a1_a_twin_that_waits_gets_the_key_of_one_that_rolls_back<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let said = waiting_twin(&on, false).await?;
    ensure!(said == FenceVerdict::Acquired, "the twin is told {said:?}");
    on.is(0, false).await
}

pub(super) async fn a1_a_twin_that_waits_for_one_that_commits_is_a_duplicate<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let said = waiting_twin(&on, true).await?;
    ensure!(said == FenceVerdict::Duplicate, "the twin is told {said:?}");
    on.is(1, true).await
}

pub(super) async fn other_jobs_and_other_consumers_are_not_in_the_way<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let other_consumer = On {
        consumer: a_consumer()?,
        ..on.through(on.store.clone())
    };
    let tx = on.working(0, HOUR).await?;
    other_consumer.apply(0, HOUR).await?;
    on.another().apply(0, HOUR).await?;
    tx.commit().await.context("commit")?;
    other_consumer.fence_says(0, FenceVerdict::Duplicate).await
}

pub(super) async fn a5_a_settled_generation_does_not_run_and_the_next_does<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.letter(0).await?;
    on.fence_says(0, FenceVerdict::Settled).await?;
    on.is(0, false).await?;
    on.apply(1, HOUR).await?;
    on.is(1, true).await
}

pub(super) async fn b8_a_discarded_generation_settles_the_next<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = on.letter(3).await?;
    on.fence_says(4, FenceVerdict::Acquired).await?;
    on.discard_says(id, Discarded::Discarded).await?;
    on.fence_says(3, FenceVerdict::Settled).await?;
    on.fence_says(4, FenceVerdict::Settled).await?;
    on.is(0, false).await
}

pub(super) async fn a_settled_transaction_holds_the_key_until_it_ends<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.letter(0).await?;
    let (settled, said) = on.gate(0, HOUR).await?;
    expect("the fence", said, FenceVerdict::Settled)?;
    on.fence_is_held("somebody looks at the key").await?;
    settled.rollback().await.context("rollback")?;
    on.fence_says(0, FenceVerdict::Settled).await
}
