//! Fences of several jobs at once.

use super::*;

/// Jobs of one consumer, the smallest id first.
fn in_order<B: StoreBench, const N: usize>(bench: &B) -> anyhow::Result<[On<'_, B>; N]> {
    let first = On::fresh(bench)?;
    let mut all: [On<'_, B>; N] = std::array::from_fn(|_| first.another());
    all.sort_by_key(|on| on.job);
    Ok(all)
}

fn keys<B: StoreBench>(jobs: &[&On<'_, B>]) -> Vec<FenceKey> {
    jobs.iter().map(|on| on.key(0)).collect()
}

/// A transaction, and what its fences say.
async fn gate_all<B: StoreBench>(
    store: &B::Store,
    jobs: &[&On<'_, B>],
) -> anyhow::Result<(WorkTx<B>, Result<Vec<FenceVerdict>, StoreError>)> {
    let mut tx = store.begin().await.context("begin")?;
    let verdicts = tx.fence_all(&keys(jobs), HOUR, DEADLINE).await;
    Ok((tx, verdicts))
}

/// A transaction that holds the fences of new jobs, with one effect of each in it.
async fn working_all<B: StoreBench>(jobs: &[&On<'_, B>]) -> anyhow::Result<WorkTx<B>> {
    let store = &jobs.first().context("no jobs")?.store;
    let (mut tx, verdicts) = gate_all(store, jobs).await?;
    let verdicts = verdicts.context("fences of new keys")?;
    ensure!(
        verdicts == vec![FenceVerdict::Acquired; jobs.len()],
        "fences of new keys say {verdicts:?}"
    );
    for on in jobs {
        B::effect(tx.connection(), on.job, &on.consumer)
            .await
            .context("effect")?;
    }
    Ok(tx)
}

pub(super) async fn b1_a_batch_is_fenced_and_committed_together<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let [applied, given_up, new, replayed] = in_order(bench)?;
    applied.apply(0, HOUR).await?;
    let letter = given_up.new_letter(0)?;
    given_up.store.record_dead_letter(&letter).await?;
    // Its first generation was given up; the next may run.
    let letter = replayed.new_letter(0)?;
    replayed.store.record_dead_letter(&letter).await?;

    let mut tx = new.store.begin().await.context("begin")?;
    let batch = [given_up.key(0), new.key(0), replayed.key(1), applied.key(0)];
    let verdicts = tx
        .fence_all(&batch, HOUR, DEADLINE)
        .await
        .context("fence_all")?;
    let expected = [
        FenceVerdict::Settled,
        FenceVerdict::Acquired,
        FenceVerdict::Acquired,
        FenceVerdict::Duplicate,
    ];
    ensure!(
        verdicts == expected,
        "a job that was given up, a new one, a replay and one that was applied: {verdicts:?}"
    );
    for on in [&new, &replayed] {
        B::effect(tx.connection(), on.job, &on.consumer).await?;
        on.is(0, false).await.context("before the commit")?;
    }
    tx.commit().await.context("commit")?;
    for on in [&new, &replayed, &applied] {
        on.is(1, true).await?;
    }
    given_up.is(0, false).await.context("the one given up")?;
    new.fence_says(0, FenceVerdict::Duplicate).await?;
    given_up.fence_says(0, FenceVerdict::Settled).await
}

pub(super) async fn a2_a_batch_that_is_rolled_back_leaves_nothing<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let [one, two] = in_order(bench)?;
    let tx = working_all(&[&one, &two]).await?;
    tx.rollback().await.context("rollback")?;
    for on in [one, two] {
        on.is(0, false).await?;
        on.free_in_the_end().await?;
    }
    Ok(())
}

pub(super) async fn a1_a_batch_holds_every_key_until_it_ends<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let [one, two, given_up] = in_order(bench)?;
    let letter = given_up.new_letter(0)?;
    given_up.store.record_dead_letter(&letter).await?;
    let (tx, verdicts) = gate_all(&one.store, &[&two, &one, &given_up]).await?;
    verdicts.context("fence_all")?;
    for on in [&one, &two, &given_up] {
        on.fence_is_held("a batch has it").await?;
    }
    tx.commit().await.context("commit")?;
    one.fence_says(0, FenceVerdict::Duplicate).await?;
    two.fence_says(0, FenceVerdict::Duplicate).await?;
    given_up.fence_says(0, FenceVerdict::Settled).await
}

pub(super) async fn a1_a_batch_that_meets_an_open_run_meets_contention<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let [one, two] = in_order(bench)?;
    let open = two.working(0, HOUR).await?;
    let (tx, verdicts) = gate_all(&one.store, &[&one, &two]).await?;
    ensure!(
        matches!(verdicts, Err(StoreError::Contention(_))),
        "a twin is running, and the fences say {verdicts:?}"
    );
    drop(tx);
    one.free_in_the_end().await?;
    open.commit().await.context("commit")?;
    two.is(1, true).await
}

pub(super) async fn a_batch_takes_its_keys_in_the_order_of_their_ids<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let [low, high] = in_order(bench)?;
    // It waits for the low one, without the high one.
    let open = low.working(0, HOUR).await?;
    let patient = bench.client(true);
    let backwards = [&high, &low];
    let waiting = gate_all::<B>(&patient, &backwards);
    let meanwhile = async {
        // Time enough to take what it would take first.
        for _ in 0..10 {
            high.fence_says(0, FenceVerdict::Acquired).await?;
        }
        open.rollback().await.context("rollback")
    };
    let (waited, meanwhile) = futures_util::future::join(waiting, meanwhile).await;
    meanwhile.context("while a batch waits for the other key")?;
    let (tx, verdicts) = waited?;
    ensure!(
        matches!(
            verdicts.as_deref(),
            Ok([FenceVerdict::Acquired, FenceVerdict::Acquired])
        ),
        "after a wait the fences say {verdicts:?}"
    );
    tx.rollback().await.context("rollback")
}

pub(super) async fn a_batch_with_a_job_that_is_there_twice_is_refused<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let [one, two] = in_order(bench)?;
    let (tx, verdicts) = gate_all(&one.store, &[&one, &two, &one]).await?;
    ensure!(
        matches!(verdicts, Err(StoreError::Refused(_))),
        "a job is there twice, and the fences say {verdicts:?}"
    );
    drop(tx);
    for on in [one, two] {
        on.free_in_the_end().await?;
    }
    Ok(())
}
