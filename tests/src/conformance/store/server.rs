//! A server that dies.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use harness::{
    CommitError, DiscardReason, Discarded, FenceVerdict, LetterFilter, LetterQuery, ReviewStore,
    Status, Store, SweepBatch, SweepStore, WorkTx as _,
};

use super::{HOUR, On, StoreBench, operator};
use crate::conformance::{away, in_the_end};

pub(super) async fn a2_what_was_committed_survives_the_server<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, HOUR).await?;
    let (pending, discarded, replayed) = (on.another(), on.another(), on.another());
    pending.letter(0).await?;
    let id = discarded.letter(0).await?;
    discarded.discard_says(id, Discarded::Discarded).await?;
    let id = replayed.letter(0).await?;
    replayed.mark_replayed(id).await?;
    on.outage().await?;
    on.is(1, true).await?;
    on.fence_says(0, FenceVerdict::Duplicate).await?;
    for (job, status) in [
        (pending, Status::PendingReview),
        (discarded, Status::Discarded),
        (replayed, Status::Replayed),
    ] {
        let found = job.only_letter().await?.status;
        ensure!(found == status, "{status} became {found}");
    }
    Ok(())
}

pub(super) async fn a2_what_was_open_does_not_survive_the_server<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let other = on.another();
    let (before, after) = (on.working(0, HOUR).await?, other.working(0, HOUR).await?);
    bench.take_away().await?;
    let clock = bench.clock();
    let ended = tokio::select! {
        ended = before.commit() => ended,
        () = clock.sleep(crate::conformance::STILL_TRYING) => Ok(()),
    };
    let unknown = matches!(ended, Err(CommitError::Unknown(_)));
    bench.bring_back().await?;
    ensure!(unknown, "the server is gone, and the commit says {ended:?}");
    let ended = after.commit().await;
    ensure!(ended.is_err(), "of another server, and committed");
    on.free_in_the_end().await?;
    other.free_in_the_end().await?;
    on.is(0, false).await?;
    other.is(0, false).await
}

pub(super) async fn a_store_that_is_away_says_so_and_is_usable_again<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = on.letter(0).await?;
    let next = on.new_letter(1)?;
    let (reason, by) = (DiscardReason::new("a test")?, operator("ada")?);
    let query = LetterQuery::first(LetterFilter::default(), 1);
    let batch = SweepBatch {
        consumer: on.consumer.clone(),
        asked_at: on.store.now().await?,
        oldest: None,
        retry_window: Duration::ZERO,
        limit: 1,
    };
    // A client for each call, so that each is made on a connection that was good.
    let mut clients = Vec::new();
    for _ in 0..9 {
        let client = bench.client(false);
        client.ping().await.context("ping")?;
        clients.push(client);
    }
    bench.take_away().await?;
    let clock = bench.clock();
    let begin = async { clients[0].begin().await.map(|_| ()) };
    let lock = async { clients[1].lock_dead_letter(id).await.map(|_| ()) };
    // All at once: a client that has noticed that nobody is there may only be trying.
    let (a, b, c, d, e, f, g, h, i) = tokio::join!(
        away(clock, "begin", begin),
        away(clock, "lock", lock),
        away(clock, "ping", clients[2].ping()),
        away(clock, "record", clients[3].record_dead_letter(&next)),
        away(clock, "read", clients[4].dead_letter(id)),
        away(clock, "list", clients[5].dead_letters(&query)),
        away(clock, "discard", clients[6].discard(id, &reason, &by)),
        away(clock, "now", clients[7].now()),
        away(clock, "sweep", clients[8].sweep(&batch)),
    );
    // Nor on a second call.
    let again = away(clock, "ping", clients[2].ping()).await;
    let outcomes = [a, b, c, d, e, f, g, h, i, again];
    let wrong: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let wrong: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    bench.bring_back().await?;
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    // The same client.
    let store = &on.store;
    in_the_end(clock, "the store answers", async || {
        Ok(store.ping().await?)
    })
    .await?;
    let status = on.only_letter().await?.status;
    ensure!(status == Status::PendingReview, "it is {status}");
    on.apply(1, HOUR).await
}
