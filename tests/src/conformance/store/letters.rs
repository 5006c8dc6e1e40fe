//! Dead letters: written once, and decided once.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use harness::{
    DeadLetterId, DiscardReason, Discarded, LetterFilter, LetterPlace, LetterQuery, NewDeadLetter,
    Reason, Recorded, ReviewStore, ReviewTx as _, Status, Store, StoreError, SweepStore as _,
    WorkTx as _,
};

use super::{HOUR, On, StoreBench, a_consumer, expect, operator};
use crate::conformance::in_the_end;
use crate::db::random_id;

pub(super) async fn b4_a_letter_is_written_once_and_is_what_was_written<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let first = on.new_letter(0)?;
    expect("the first", on.record(&first).await, Recorded::Written)?;
    expect("the same", on.record(&first).await, Recorded::Already)?;
    let mut second = on.new_letter(0)?;
    second.last_error = "another error".to_owned();
    expect("the second", on.record(&second).await, Recorded::Already)?;
    let letter = on.only_letter().await?;
    ensure!(letter.status == Status::PendingReview, "{}", letter.status);
    ensure!(letter == on.read(first.id).await?, "read in two ways");
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text);
    // A store may write JSON in its own way.
    let comparable = |it: &NewDeadLetter| {
        let mut plain = it.clone();
        (plain.payload, plain.headers) = (String::new(), String::new());
        anyhow::Ok((plain, json(&it.payload)?, json(&it.headers)?))
    };
    let (written, found) = (comparable(&first)?, comparable(&letter.letter)?);
    ensure!(written == found, "written: {written:?}, found: {found:?}");
    Ok(())
}

pub(super) async fn b4_a_letter_says_why<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    for reason in [Reason::Exhausted, Reason::Hard, Reason::Poison] {
        let on = On::fresh(bench)?;
        let letter = NewDeadLetter {
            reason,
            attempts: 6,
            tenant_id: None,
            ..on.new_letter(2)?
        };
        expect("a letter", on.record(&letter).await, Recorded::Written)?;
        let found = on.only_letter().await?.letter;
        let seen = (
            found.reason,
            found.attempts,
            found.tenant_id,
            found.generation,
        );
        ensure!(seen == (reason, 6, None, 2), "{seen:?}");
    }
    Ok(())
}

pub(super) async fn a5_there_is_no_letter_for_a_job_that_was_applied<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, HOUR).await?;
    for generation in [0, 1] {
        let recorded = on.record(&on.new_letter(generation)?).await;
        expect("a letter", recorded, Recorded::Applied)?;
    }
    ensure!(on.letters().await?.is_empty(), "there is one");
    on.is(1, true).await
}

pub(super) async fn a5_there_is_no_letter_while_a_run_is_open<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let tx = on.working(0, HOUR).await?;
    let recorded = on.record(&on.new_letter(0)?).await;
    ensure!(
        matches!(recorded, Err(StoreError::Contention(_))),
        "a run is open, and the letter says {recorded:?}"
    );
    ensure!(on.letters().await?.is_empty(), "there is one");
    tx.rollback().await.context("rollback")?;
    on.letter(0).await?;
    on.is(0, false).await
}

pub(super) async fn a5_a_letter_that_waits_for_a_run_finds_out_how_it_ended<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    for (commits, recorded) in [(true, Recorded::Applied), (false, Recorded::Written)] {
        let on = On::fresh(bench)?;
        let patient = bench.client(true);
        let tx = on.working(0, HOUR).await?;
        let letter = on.new_letter(0)?;
        let end = async {
            bench.clock().sleep(crate::conformance::PAUSE * 3).await;
            if commits {
                tx.commit().await.context("commit")
            } else {
                tx.rollback().await.context("rollback")
            }
        };
        let (said, ended) = tokio::join!(patient.record_dead_letter(&letter), end);
        ended?;
        expect("the letter", said, recorded)?;
        let letters = on.letters().await?.len();
        ensure!(letters == usize::from(!commits), "{letters} letters");
        on.is(u64::from(commits), commits).await?;
    }
    Ok(())
}

pub(super) async fn b4_each_generation_and_each_consumer_has_a_letter_of_its_own<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let other = On {
        consumer: a_consumer()?,
        ..on.through(on.store.clone())
    };
    on.letter(0).await?;
    on.letter(1).await?;
    other.letter(0).await?;
    let letters = on.letters().await?;
    let mut seen: Vec<_> = letters
        .iter()
        .map(|it| (it.letter.consumer == on.consumer, it.letter.generation))
        .collect();
    seen.sort_unstable();
    ensure!(seen == [(false, 0), (true, 0), (true, 1)], "{seen:?}");
    Ok(())
}

pub(super) async fn b8_a_discard_is_for_ever<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = on.letter(0).await?;
    let before = on.store.now().await?;
    ensure!(on.discard(id, "the first reason").await? == Discarded::Discarded);
    ensure!(on.discard(id, "another reason").await? == Discarded::Already);
    let letter = on.read(id).await?;
    ensure!(letter.status == Status::Discarded, "{}", letter.status);
    ensure!(
        letter.discard_reason.as_deref() == Some("the first reason"),
        "the reason is {:?}",
        letter.discard_reason
    );
    ensure!(
        letter.reviewed_by.as_deref() == Some("ada"),
        "by somebody else"
    );
    ensure!(letter.reviewed_at.is_some_and(|at| at >= before), "when?");
    let locked = on.store.lock_dead_letter(id).await?;
    let locked = locked.context("it is not there")?;
    let status = locked.letter().status;
    ensure!(status == Status::Discarded, "locked, it is {status}");
    Ok(())
}

pub(super) async fn b8_there_is_nothing_to_decide_about_a_letter_that_is_not_there<
    B: StoreBench,
>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = DeadLetterId(random_id());
    ensure!(on.store.dead_letter(id).await?.is_none(), "it can be read");
    let locked = on.store.lock_dead_letter(id).await?;
    ensure!(locked.is_none(), "it can be locked");
    on.discard_says(id, Discarded::NotFound).await
}

pub(super) async fn b8_a_replayed_letter_cannot_be_discarded<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = on.letter(0).await?;
    on.mark_replayed(id).await?;
    let letter = on.read(id).await?;
    let seen = (letter.status, letter.reviewed_by.as_deref());
    ensure!(seen == (Status::Replayed, Some("bob")), "{seen:?}");
    ensure!(letter.reviewed_at.is_some() && letter.discard_reason.is_none());
    on.discard_says(id, Discarded::WasReplayed).await?;
    ensure!(on.read(id).await? == letter, "it changed");
    Ok(())
}

pub(super) async fn b8_a_locked_letter_is_nobody_elses<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = on.letter(0).await?;
    let locked = on.store.lock_dead_letter(id).await?;
    ensure!(locked.is_some(), "it is not there");
    let second = bench.client(false).lock_dead_letter(id).await;
    ensure!(
        matches!(second, Err(StoreError::Contention(_))),
        "locked twice"
    );
    let reason = DiscardReason::new("a test")?;
    let discarded = on.store.discard(id, &reason, &operator("ada")?).await;
    ensure!(
        matches!(discarded, Err(StoreError::Contention(_))),
        "it is locked, and the discard says {discarded:?}"
    );
    drop(locked);
    in_the_end(bench.clock(), "the lock is gone", async || {
        Ok(on.store.lock_dead_letter(id).await.map(|_| ())?)
    })
    .await?;
    let status = on.read(id).await?.status;
    ensure!(status == Status::PendingReview, "it is {status}");
    Ok(())
}

/// A replay that was published, applied, and never recorded.
pub(super) async fn b8_a_letter_whose_replay_was_applied_cannot_be_discarded<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = on.letter(0).await?;
    on.apply(1, HOUR).await?;
    on.discard_says(id, Discarded::WasApplied).await?;
    let status = on.read(id).await?.status;
    ensure!(status == Status::PendingReview, "it is {status}");
    on.mark_replayed(id).await
}

pub(super) async fn b8_a_list_has_what_fits_page_by_page<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let mut written = Vec::new();
    for _ in 0..5 {
        written.push(on.another().letter(0).await?);
        // So that each is of a later instant.
        bench.clock().sleep(Duration::from_millis(2)).await;
    }
    on.discard_says(written[4], Discarded::Discarded).await?;
    On::fresh(bench)?.letter(0).await?;
    let filter = LetterFilter {
        consumer: Some(on.consumer.clone()),
        status: Some(Status::PendingReview),
        ..LetterFilter::default()
    };
    let mut query = LetterQuery::first(filter, 3);
    let mut found: Vec<DeadLetterId> = Vec::new();
    for pages in [3, 1, 0] {
        let page = on.store.dead_letters(&query).await?;
        ensure!(page.len() == pages, "{} on a page of {pages}", page.len());
        query.after = page.last().map(LetterPlace::of).or(query.after);
        found.extend(page.iter().map(|it| it.letter.id));
    }
    ensure!(found == written[..4], "{found:?}, not {written:?}");
    Ok(())
}
