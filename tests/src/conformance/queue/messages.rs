//! Messages: what comes, to whom, in which order.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, ensure};
use harness::{ConsumerName, CorrelationId, Envelope, QueuePort as _, TenantId};

use super::{On, QueueBench, decoded};
use crate::db::{job_id, random_id};

pub(super) async fn a_message_comes_as_it_was_published<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let mut envelope = Envelope::new(job_id(), (0..=255).collect::<Vec<u8>>());
    envelope.tenant_id = Some(TenantId::new(random_id())?);
    envelope.correlation_id = CorrelationId::new("order-17")?;
    envelope.generation = 3;
    envelope.attempts = 2;
    envelope.consumer = Some(ConsumerName::new("awards")?);
    envelope.headers = BTreeMap::from([
        ("x-plain".to_owned(), "a".to_owned()),
        (
            "x-wide".to_owned(),
            "Grüße, 你好 🐟 \"quoted\" \\".to_owned(),
        ),
    ]);
    on.publish(&envelope).await?;
    let it = on.take(1).await?;
    ensure!(it.queue == on.queue, "from {}", it.queue);
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    let came = decoded(&it)?;
    ensure!(came == envelope, "{envelope:?} came as {came:?}");
    Ok(())
}

pub(super) async fn bodies_may_be_empty_or_a_megabyte<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    for body in [Vec::new(), vec![0xff; 1 << 20]] {
        let envelope = Envelope::new(job_id(), body);
        on.publish(&envelope).await?;
        let it = on.take(1).await?;
        ensure!(decoded(&it)?.body == envelope.body, "another body came");
        on.ack(&it).await?;
    }
    Ok(())
}

pub(super) async fn an_empty_queue_gives_nothing<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.nothing_ever("nothing was published").await
}

pub(super) async fn no_more_come_than_were_asked_for<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    for _ in 0..5 {
        on.publish_one().await?;
    }
    let mut left = 5;
    while left > 0 {
        let came = on.receive(2, 1).await?.len();
        ensure!((1..=2).contains(&came), "asked for 2, {came} came");
        left -= came.min(left);
    }
    on.nothing("all are held").await
}

/// A queue need not keep the order; but a message may not be overtaken by all that come after it.
pub(super) async fn every_message_comes_once_in_about_this_order<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    const MESSAGES: usize = 20;
    const OVERTAKEN: usize = 8;
    let on = On::fresh(bench).await?;
    let mut published = Vec::new();
    for _ in 0..MESSAGES {
        published.push(on.publish_one().await?.job_id);
    }
    for place in 0..MESSAGES {
        let mut deliveries = on.receive(1, 10).await?;
        let it = deliveries
            .pop()
            .with_context(|| format!("{place} of {MESSAGES} came"))?;
        let job = decoded(&it)?.job_id;
        let at = published.iter().position(|it| *it == job);
        let at = at.context("one that was not published")?;
        ensure!(
            at.abs_diff(place) <= OVERTAKEN,
            "the message at place {at} came at place {place}"
        );
        on.ack(&it).await?;
    }
    on.nothing_ever("all came").await
}

pub(super) async fn clients_that_compete_get_different_messages<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    const MESSAGES: usize = 24;
    let on = On::fresh(bench).await?;
    for _ in 0..MESSAGES {
        on.publish_one().await?;
    }
    let clients = [
        bench.client().await?,
        bench.client().await?,
        bench.client().await?,
        bench.client().await?,
    ];
    let mut seen = BTreeSet::new();
    // Until a round brings nothing: then all have come, and none twice.
    for _ in 0..=MESSAGES {
        let [a, b, c, d] = clients
            .each_ref()
            .map(|it| it.receive(&on.queue, 3, on.unit));
        let (a, b, c, d) = tokio::join!(a, b, c, d);
        let came = [a?, b?, c?, d?].concat();
        if came.is_empty() {
            break;
        }
        for it in came {
            ensure!(
                seen.insert(it.receipt.message.clone()),
                "{} was given to two at once",
                it.receipt.message
            );
        }
    }
    ensure!(seen.len() == MESSAGES, "{} of {MESSAGES} came", seen.len());
    Ok(())
}

pub(super) async fn queues_do_not_mix<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let other = On::fresh(bench).await?;
    let mine = on.publish_one().await?;
    other.nothing("it was published to another queue").await?;
    ensure!(
        other.oldest().await?.is_none(),
        "an oldest in another queue"
    );
    ensure!(decoded(&on.take(1).await?)?.job_id == mine.job_id);
    Ok(())
}
