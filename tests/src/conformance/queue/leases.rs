//! Leases: what is held, and what is done with.

use anyhow::{Context as _, ensure};
use harness::QueuePort as _;

use super::{On, QueueBench, decoded};

pub(super) async fn a_held_message_is_nobody_elses<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.take(2).await?;
    on.nothing("it is held").await?;
    let somebody = On {
        client: bench.client().await?,
        queue: on.queue.clone(),
        ..on
    };
    somebody.nothing("somebody else holds it").await?;
    somebody.pass(1.0).await?;
    somebody.nothing("half of the lease is left").await
}

pub(super) async fn a_lease_that_ran_out_is_a_redelivery_that_counts<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let published = on.publish_one().await?;
    let first = on.take(1).await?;
    on.pass(1.5).await?;
    let second = on.take(1).await?;
    ensure!(
        second.redeliveries == 1,
        "{} redeliveries",
        second.redeliveries
    );
    ensure!(
        second.receipt.message == first.receipt.message,
        "it goes by another name now"
    );
    ensure!(decoded(&second)? == published, "it changed on the way");
    Ok(())
}

pub(super) async fn an_extended_lease_lasts_longer_and_not_for_ever<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(2).await?;
    on.pass(1.0).await?;
    on.client
        .extend(&on.queue, &it.receipt, on.unit * 2)
        .await
        .context("extend")?;
    on.pass(1.5).await?;
    on.nothing("the lease was extended").await?;
    on.pass(1.0).await?;
    let again = on.take(1).await?;
    ensure!(
        again.redeliveries == 1,
        "{} redeliveries",
        again.redeliveries
    );
    Ok(())
}

pub(super) async fn an_acknowledged_message_is_gone<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(1).await?;
    on.ack(&it).await?;
    on.nothing_ever("it was acknowledged").await
}

pub(super) async fn an_ack_may_be_repeated<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(1).await?;
    for _ in 0..3 {
        on.ack(&it).await?;
    }
    Ok(())
}

pub(super) async fn an_ack_counts_whoever_holds_the_message<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let first = on.take(1).await?;
    on.pass(1.5).await?;
    let second = on.take(1).await?;
    on.ack(&first).await?;
    on.spent(&second.receipt, "it was acknowledged meanwhile")
        .await?;
    on.ack(&second).await?;
    on.nothing_ever("it was acknowledged").await
}
