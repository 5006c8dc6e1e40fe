//! A server that dies.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use harness::QueuePort as _;

use super::{On, QueueBench, decoded};
use crate::conformance::{away, in_the_end};

pub(super) async fn what_was_published_survives_the_server<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let published = on.publish_one().await?;
    on.outage().await?;
    let it = on.take_in_the_end(1).await?;
    ensure!(decoded(&it)? == published, "it changed");
    ensure!(it.redeliveries == 0, "{} redeliveries", it.redeliveries);
    Ok(())
}

pub(super) async fn what_was_held_survives_the_server_with_its_count<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.retry(&on.take(1).await?, 0).await?;
    on.take(1).await?;
    on.outage().await?;
    in_the_end(bench.clock(), "time passes again", async || {
        on.pass(1.5).await
    })
    .await?;
    let it = on.take_in_the_end(1).await?;
    ensure!(it.redeliveries == 2, "{} redeliveries", it.redeliveries);
    Ok(())
}

pub(super) async fn an_ack_survives_the_server<B: QueueBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    on.publish_one().await?;
    on.ack(&on.take(1).await?).await?;
    on.outage().await?;
    in_the_end(bench.clock(), "the queue answers", async || {
        on.oldest().await.map(|_| ())
    })
    .await?;
    on.nothing_ever("it was acknowledged").await
}

pub(super) async fn a_queue_that_is_away_says_so_and_is_usable_again<B: QueueBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench).await?;
    let published = on.publish_one().await?;
    let held = on.take(100).await?;
    // A client for each call, so that each is made on a connection that was good.
    let mut clients = Vec::new();
    for _ in 0..7 {
        let client = bench.client().await?;
        client.oldest(&on.queue).await.context("oldest")?;
        clients.push(client);
    }
    bench.take_away().await?;
    let (client, queue, clock) = (&on.client, &on.queue, bench.clock());
    let (receipt, second) = (&held.receipt, Duration::from_secs(1));
    // All at once: a client that has noticed that nobody is there may only be trying.
    let (a, b, c, d, e, f, g) = tokio::join!(
        away(clock, "receive", clients[0].receive(queue, 1, second)),
        away(clock, "ack", clients[1].ack(queue, receipt)),
        away(clock, "retry", clients[2].retry(queue, receipt, second)),
        away(clock, "defer", clients[3].defer(queue, receipt, second)),
        away(clock, "extend", clients[4].extend(queue, receipt, second)),
        away(clock, "publish", clients[5].publish(queue, &published)),
        away(clock, "oldest", clients[6].oldest(queue)),
    );
    // Nor on a second call.
    let again = away(clock, "receive", clients[0].receive(queue, 1, second)).await;
    let outcomes = [a, b, c, d, e, f, g, again];
    let wrong: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    bench.bring_back().await?;
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    // The same client, and nothing of what it tried had an effect.
    in_the_end(clock, "the lease still holds", async || {
        client.extend(queue, receipt, on.unit).await?;
        Ok(())
    })
    .await?;
    on.pass(1.5).await?;
    let it = on.take(1).await?;
    ensure!(it.redeliveries == 1, "{} redeliveries", it.redeliveries);
    on.ack(&it).await?;
    on.nothing_ever("it was the only one").await
}
