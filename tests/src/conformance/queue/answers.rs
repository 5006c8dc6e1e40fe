//! Retries, deferrals, and answers that come too late.

use std::collections::BTreeSet;

use anyhow::ensure;

use super::{On, QueueBench};

pub(super) async fn b3_a_retry_waits_and_counts<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.retry(&on.take(10).await?, 2).await?;
    on.nothing("it waits").await?;
    on.pass(1.0).await?;
    on.nothing("it waits on").await?;
    on.pass(1.5).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 1, "{} redeliveries", it.redeliveries);
    on.retry(&it, 0).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 2, "{} redeliveries", it.redeliveries);
    Ok(())
}

pub(super) async fn b3_a_deferral_waits_and_does_not_count<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.defer(&on.take(10).await?, 2).await?;
    on.nothing("it waits").await?;
    on.pass(1.0).await?;
    on.nothing("it waits on").await?;
    on.pass(1.5).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    on.defer(&it, 0).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    Ok(())
}

pub(super) async fn b3_counts_add_up<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let mut counted = 0;
    for end in "drldrrdlld".chars() {
        let it = on.take(1).await?;
        ensure!(
            it.redeliveries == counted,
            "{} redeliveries, {counted} counted",
            it.redeliveries
        );
        match end {
            'd' => on.defer(&it, 0).await?,
            'r' => on.retry(&it, 0).await?,
            _ => on.pass(1.5).await?,
        }
        counted += u32::from(end != 'd');
    }
    Ok(())
}

/// S6: an answer that is repeated, or was still on its way, must not cut a wait.
pub(super) async fn a_receipt_is_good_for_one_answer<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let retried = on.take(10).await?;
    on.retry(&retried, 2).await?;
    on.spent(&retried.receipt, "it was given back").await?;
    on.nothing("the wait was cut").await?;
    on.pass(2.5).await?;
    let deferred = on.take(10).await?;
    ensure!(
        deferred.redeliveries == 1,
        "the wait was not one of two units"
    );
    on.defer(&deferred, 2).await?;
    on.spent(&deferred.receipt, "it was given back").await?;
    on.nothing("the wait was cut").await?;
    on.pass(2.5).await?;
    let it = on.take(10).await?;
    ensure!(it.redeliveries == 1, "{} redeliveries", it.redeliveries);
    Ok(())
}

pub(super) async fn an_answer_to_an_earlier_delivery_changes_nothing<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let lost = on.take(1).await?;
    on.pass(1.5).await?;
    let held = on.take(10).await?;
    on.spent(&lost.receipt, "it was delivered again").await?;
    on.nothing("somebody holds it").await?;
    on.defer(&held, 0).await?;
    // The next delivery has the same count, and is another one.
    let again = on.take(2).await?;
    on.spent(&held.receipt, "it was deferred, and delivered again")
        .await?;
    on.nothing("somebody holds it").await?;
    on.pass(2.5).await?;
    let last = on.take(1).await?;
    ensure!(last.redeliveries == 2, "{} redeliveries", last.redeliveries);
    on.spent(
        &again.receipt,
        "its lease ran out, and it was delivered again",
    )
    .await?;
    on.retry(&last, 0).await
}

pub(super) async fn no_two_deliveries_share_a_receipt<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let mut receipts = BTreeSet::new();
    for end in "ddrldrdd".chars() {
        let it = on.take(1).await?;
        ensure!(
            receipts.insert(it.receipt.clone()),
            "{:?} was given out before",
            it.receipt
        );
        match end {
            'd' => on.defer(&it, 0).await?,
            'r' => on.retry(&it, 0).await?,
            _ => on.pass(1.5).await?,
        }
    }
    Ok(())
}

pub(super) async fn an_answer_for_a_message_that_is_gone_changes_nothing<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    let it = on.take(1).await?;
    on.ack(&it).await?;
    on.spent(&it.receipt, "it was acknowledged").await?;
    on.nothing_ever("it was acknowledged").await
}
