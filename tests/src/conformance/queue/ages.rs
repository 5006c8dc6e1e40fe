//! How long messages have waited.

use anyhow::{Context as _, ensure};

use super::{On, QueueBench};
use crate::conformance::in_the_end;

pub(super) async fn b7_the_oldest_message_is_seen_wherever_it_is<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    ensure!(on.oldest().await?.is_none(), "nothing was published");
    on.publish_one().await?;
    let first = on.oldest().await?.context("it waits")?;
    let held = on.take(1).await?;
    // By the queue's clock, whose steps need not be small.
    let mut younger = 0;
    in_the_end(bench.clock(), "a younger message", async || {
        on.publish_one().await?;
        younger += 1;
        let mut times = on.receive(100, 100).await?;
        ensure!(!times.is_empty(), "it did not come");
        times.retain(|it| it.enqueued_at > first);
        ensure!(!times.is_empty(), "none is younger");
        Ok(())
    })
    .await?;
    ensure!(held.enqueued_at == first, "delivered with another time");
    let still = async |where_it_is: &str| {
        let oldest = on.oldest().await?;
        ensure!(
            oldest == Some(first),
            "{where_it_is}: {oldest:?}, not {first}"
        );
        anyhow::Ok(())
    };
    still("held").await?;
    on.retry(&held, 2).await?;
    still("waiting for a retry").await?;
    on.pass(2.5).await?;
    still("due").await?;
    let held = on.take(1).await?;
    on.defer(&held, 2).await?;
    still("deferred").await?;
    on.pass(2.5).await?;
    let held = on.take(1).await?;
    on.pass(1.5).await?;
    still("its lease ran out").await?;
    on.ack(&held).await?;
    let oldest = on.oldest().await?;
    ensure!(
        oldest.is_some_and(|at| at > first),
        "after its ack: {oldest:?}"
    );
    Ok(())
}

pub(super) async fn b7_the_enqueue_time_stays<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let first = on.take(1).await?;
    bench.clock().sleep(crate::conformance::PAUSE).await;
    on.retry(&first, 0).await?;
    for end in "drl.".chars() {
        let it = on.take(1).await?;
        ensure!(
            it.enqueued_at == first.enqueued_at,
            "enqueued at {}, now at {}",
            first.enqueued_at,
            it.enqueued_at
        );
        match end {
            'd' => on.defer(&it, 0).await?,
            'r' => on.retry(&it, 0).await?,
            'l' => on.pass(1.5).await?,
            _ => on.ack(&it).await?,
        }
    }
    Ok(())
}
