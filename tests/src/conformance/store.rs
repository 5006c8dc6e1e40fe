//! What every store must do.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use chrono::TimeDelta;
use futures_util::future::BoxFuture;
use harness::{
    Clock, CommitError, Connection, ConsumerName, DeadLetter, DeadLetterId, DiscardReason,
    Discarded, ErrorClass, FenceKey, FenceVerdict, JobId, LetterFilter, LetterPlace, LetterQuery,
    NewDeadLetter, QueueName, Reason, Recorded, ReviewStore, ReviewTx as _, Reviewer, Status,
    Store, StoreError, SweepBatch, SweepStore, TenantId, WorkTx as _,
};

use super::queue::Red;
use super::{away, in_the_end};
use crate::db::{job_id, random_id};

/// Calls `$then!` with the names of all cases.
#[macro_export]
macro_rules! store_cases {
    ($then:ident) => {
        $then! {
            b1_effect_and_fence_commit_together,
            b2_a_second_run_is_a_duplicate,
            a2_a_rollback_leaves_neither_and_frees_the_key,
            a2_a_dropped_transaction_leaves_neither_and_frees_the_key,
            a2_a_commit_after_a_failed_statement_is_refused,
            b1_a_commit_without_a_fence_is_refused,
            a1_a_twin_of_an_open_run_meets_contention_and_changes_nothing,
            a1_a_twin_that_waits_gets_the_key_of_one_that_rolls_back,
            a1_a_twin_that_waits_for_one_that_commits_is_a_duplicate,
            other_jobs_and_other_consumers_are_not_in_the_way,
            a5_a_settled_generation_does_not_run_and_the_next_does,
            b8_a_discarded_generation_settles_the_next,
            a_settled_transaction_holds_the_key_until_it_ends,
            b4_a_letter_is_written_once_and_is_what_was_written,
            b4_a_letter_says_why,
            a5_there_is_no_letter_for_a_job_that_was_applied,
            a5_there_is_no_letter_while_a_run_is_open,
            a5_a_letter_that_waits_for_a_run_finds_out_how_it_ended,
            b4_each_generation_and_each_consumer_has_a_letter_of_its_own,
            b8_a_discard_is_for_ever,
            b8_there_is_nothing_to_decide_about_a_letter_that_is_not_there,
            b8_a_replayed_letter_cannot_be_discarded,
            b8_a_locked_letter_is_nobody_elses,
            b8_a_letter_whose_replay_was_applied_cannot_be_discarded,
            b8_a_list_has_what_fits_page_by_page,
            a6_what_expired_goes_and_what_did_not_stays,
            a6_nothing_inside_the_retry_window_goes,
            a6_nothing_that_expired_after_the_oldest_message_goes,
            a6_a_fence_stays_while_a_letter_is_pending_and_a_day_longer,
            a6_no_batch_is_larger_than_asked_for_and_the_earliest_go_first,
            a6_only_the_consumers_own_fences_go,
            a2_what_was_committed_survives_the_server,
            a2_what_was_open_does_not_survive_the_server,
            a_store_that_is_away_says_so_and_is_usable_again,
        }
    };
}

/// What the suite needs to know of an implementation.
pub trait StoreBench: Sync {
    /// The implementation.
    type Store: Store + ReviewStore + SweepStore;

    /// A client, as one more process would have it. With `patient` it waits for others longer than the suite takes;
    /// without, for a moment. A call to a server that is away should give up within two seconds.
    fn client(&self, patient: bool) -> Self::Store;

    /// One effect of a handler.
    fn effect<'a>(
        connection: &'a mut Connection<Self::Store>,
        job: JobId,
        consumer: &'a ConsumerName,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// A statement of a handler that fails, for which the handler does not care.
    fn failing_statement(connection: &mut Connection<Self::Store>) -> BoxFuture<'_, ()>;

    /// Effects of a job, and whether it has a fence, both as they are committed.
    fn look(
        &self,
        job: JobId,
        consumer: &ConsumerName,
    ) -> impl Future<Output = anyhow::Result<(u64, bool)>> + Send;

    /// The server dies, without a word. Nobody can reach it.
    fn take_away(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// It is started again, on what it kept.
    fn bring_back(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// For the suite's own waits.
    fn clock(&self) -> &dyn Clock;
}

macro_rules! dispatch {
    ($($case:ident,)*) => {
        /// All cases.
        pub const CASES: &[&str] = &[$(stringify!($case)),*];

        /// Runs one case.
        ///
        /// # Errors
        /// When the store does something else than it must.
        pub async fn run<B: StoreBench>(case: &str, bench: &B) -> anyhow::Result<()> {
            match case {
                $(stringify!($case) => $case(bench).await,)*
                other => anyhow::bail!("there is no case {other}"),
            }
        }
    };
}
store_cases!(dispatch);

/// Runs all cases; answers those that are red.
pub async fn run_all<B: StoreBench>(bench: &B) -> Vec<Red> {
    let mut red = Vec::new();
    for case in CASES {
        if let Err(error) = run(case, bench).await {
            red.push((*case, format!("{error:#}")));
        }
    }
    red
}

const HOUR: Duration = Duration::from_secs(3_600);
const DEADLINE: Duration = Duration::from_secs(30);

type WorkTx<B> = <<B as StoreBench>::Store as Store>::Tx;

/// One job of a consumer that nobody else uses.
struct On<'a, B: StoreBench> {
    bench: &'a B,
    store: B::Store,
    job: JobId,
    consumer: ConsumerName,
}

impl<'a, B: StoreBench> On<'a, B> {
    fn fresh(bench: &'a B) -> anyhow::Result<Self> {
        Ok(Self {
            bench,
            store: bench.client(false),
            job: job_id(),
            consumer: a_consumer()?,
        })
    }

    /// Another job of the same consumer.
    fn another(&self) -> Self {
        Self {
            bench: self.bench,
            store: self.store.clone(),
            job: job_id(),
            consumer: self.consumer.clone(),
        }
    }

    /// With another client.
    fn through(&self, store: B::Store) -> Self {
        Self {
            bench: self.bench,
            store,
            job: self.job,
            consumer: self.consumer.clone(),
        }
    }

    fn key(&self, generation: u32) -> FenceKey {
        FenceKey {
            job_id: self.job,
            consumer: self.consumer.clone(),
            generation,
            tenant_id: None,
        }
    }

    /// A transaction, and what its fence says.
    async fn gate(
        &self,
        generation: u32,
        ttl: Duration,
    ) -> anyhow::Result<(WorkTx<B>, Result<FenceVerdict, StoreError>)> {
        let mut tx = self.store.begin().await.context("begin")?;
        let verdict = tx.fence(&self.key(generation), ttl, DEADLINE).await;
        Ok((tx, verdict))
    }

    /// A transaction that holds the fence, with one effect in it.
    async fn working(&self, generation: u32, ttl: Duration) -> anyhow::Result<WorkTx<B>> {
        let (mut tx, verdict) = self.gate(generation, ttl).await?;
        expect("the fence of a new key", verdict, FenceVerdict::Acquired)?;
        B::effect(tx.connection(), self.job, &self.consumer)
            .await
            .context("effect")?;
        Ok(tx)
    }

    async fn apply(&self, generation: u32, ttl: Duration) -> anyhow::Result<()> {
        let tx = self.working(generation, ttl).await?;
        tx.commit().await.context("commit")
    }

    /// The fence says so, and the transaction is rolled back.
    async fn fence_says(&self, generation: u32, verdict: FenceVerdict) -> anyhow::Result<()> {
        let (tx, said) = self.gate(generation, HOUR).await?;
        expect(
            &format!("the fence of generation {generation}"),
            said,
            verdict,
        )?;
        tx.rollback().await.context("rollback")
    }

    async fn fence_is_held(&self, why: &str) -> anyhow::Result<()> {
        let (tx, said) = self.gate(0, HOUR).await?;
        drop(tx);
        ensure!(
            matches!(said, Err(StoreError::Contention(_))),
            "{why}, and the fence says {said:?}"
        );
        Ok(())
    }

    async fn free_in_the_end(&self) -> anyhow::Result<()> {
        in_the_end(self.bench.clock(), "the key is free", async || {
            self.fence_says(0, FenceVerdict::Acquired).await
        })
        .await
    }

    async fn is(&self, effects: u64, fence: bool) -> anyhow::Result<()> {
        let found = self.bench.look(self.job, &self.consumer).await?;
        ensure!(
            found == (effects, fence),
            "effects and fence are {found:?}, not {:?}",
            (effects, fence)
        );
        Ok(())
    }

    fn new_letter(&self, generation: u32) -> anyhow::Result<NewDeadLetter> {
        Ok(NewDeadLetter {
            id: DeadLetterId(random_id()),
            job_id: self.job,
            consumer: self.consumer.clone(),
            queue: QueueName::new("points")?,
            tenant_id: Some(TenantId::new(random_id())?),
            correlation_id: self.job.into(),
            generation,
            reason: Reason::Hard,
            error_class: ErrorClass::of("as_told"),
            attempts: 1,
            last_error: "fails for good: 100 %\nof the time".to_owned(),
            payload: r#"{"points": 10}"#.to_owned(),
            body: (0..=255).collect(),
            headers: r#"{"x-wide": "Grüße 🐟"}"#.to_owned(),
        })
    }

    async fn record(&self, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
        self.store.record_dead_letter(letter).await
    }

    /// A letter that is on record now.
    async fn letter(&self, generation: u32) -> anyhow::Result<DeadLetterId> {
        let letter = self.new_letter(generation)?;
        expect("a letter", self.record(&letter).await, Recorded::Written)?;
        Ok(letter.id)
    }

    async fn letters(&self) -> anyhow::Result<Vec<DeadLetter>> {
        let filter = LetterFilter {
            job_id: Some(self.job),
            ..LetterFilter::default()
        };
        let query = LetterQuery::first(filter, 100);
        self.store.dead_letters(&query).await.context("letters")
    }

    async fn only_letter(&self) -> anyhow::Result<DeadLetter> {
        let mut letters = self.letters().await?;
        ensure!(letters.len() == 1, "{} letters", letters.len());
        letters.pop().context("one")
    }

    async fn read(&self, id: DeadLetterId) -> anyhow::Result<DeadLetter> {
        let letter = self.store.dead_letter(id).await.context("read")?;
        letter.context("the letter is not there")
    }

    async fn discard(&self, id: DeadLetterId, reason: &str) -> Result<Discarded, anyhow::Error> {
        let reason = DiscardReason::new(reason)?;
        let discarded = self.store.discard(id, &reason, &operator("ada")?).await;
        discarded.context("discard")
    }

    async fn discard_says(&self, id: DeadLetterId, answer: Discarded) -> anyhow::Result<()> {
        let said = self.discard(id, "a test").await?;
        ensure!(said == answer, "the discard says {said:?}, not {answer:?}");
        Ok(())
    }

    async fn mark_replayed(&self, id: DeadLetterId) -> anyhow::Result<()> {
        let locked = self.store.lock_dead_letter(id).await.context("lock")?;
        let locked = locked.context("there is nothing to lock")?;
        ensure!(locked.letter().letter.id == id, "another letter is locked");
        let marked = locked.mark_replayed(&operator("bob")?).await;
        marked.context("mark")
    }

    /// One batch, so long after now.
    async fn sweep(
        &self,
        after: Duration,
        change: impl FnOnce(&mut SweepBatch),
    ) -> anyhow::Result<u64> {
        let now = self.store.now().await.context("now")?;
        let mut batch = SweepBatch {
            consumer: self.consumer.clone(),
            asked_at: now + TimeDelta::from_std(after)?,
            oldest: None,
            retry_window: Duration::ZERO,
            limit: 100,
        };
        change(&mut batch);
        // By the store's clock, a fence is inside a retry window of nothing for as long as it is of this instant.
        self.bench.clock().sleep(Duration::from_millis(5)).await;
        self.store.sweep(&batch).await.context("sweep")
    }

    async fn outage(&self) -> anyhow::Result<()> {
        self.bench.take_away().await.context("take away")?;
        self.bench.bring_back().await.context("bring back")?;
        in_the_end(self.bench.clock(), "the store answers", async || {
            Ok(self.store.ping().await?)
        })
        .await
    }
}

fn a_consumer() -> anyhow::Result<ConsumerName> {
    Ok(ConsumerName::new(&format!("c{}", random_id().simple()))?)
}

fn operator(name: &str) -> anyhow::Result<Reviewer> {
    Ok(Reviewer::new(name)?)
}

fn expect<T: PartialEq + std::fmt::Debug, E: std::fmt::Debug>(
    what: &str,
    got: Result<T, E>,
    wanted: T,
) -> anyhow::Result<()> {
    match got {
        Ok(got) if got == wanted => Ok(()),
        other => anyhow::bail!("{what} says {other:?}, not {wanted:?}"),
    }
}

async fn b1_effect_and_fence_commit_together<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let tx = on.working(0, HOUR).await?;
    on.is(0, false).await.context("before the commit")?;
    tx.commit().await.context("commit")?;
    on.is(1, true).await.context("after the commit")
}

async fn b2_a_second_run_is_a_duplicate<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, HOUR).await?;
    for generation in [0, 0, 1, 7] {
        on.fence_says(generation, FenceVerdict::Duplicate).await?;
    }
    on.is(1, true).await
}

async fn a2_a_rollback_leaves_neither_and_frees_the_key<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let tx = on.working(0, HOUR).await?;
    tx.rollback().await.context("rollback")?;
    on.is(0, false).await?;
    on.apply(0, HOUR).await?;
    on.is(1, true).await
}

async fn a2_a_dropped_transaction_leaves_neither_and_frees_the_key<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    drop(on.working(0, HOUR).await?);
    on.free_in_the_end().await?;
    on.is(0, false).await
}

async fn a2_a_commit_after_a_failed_statement_is_refused<B: StoreBench>(
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

async fn b1_a_commit_without_a_fence_is_refused<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn a1_a_twin_of_an_open_run_meets_contention_and_changes_nothing<B: StoreBench>(
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
async fn waiting_twin<B: StoreBench>(
    on: &On<'_, B>,
    commits: bool,
) -> anyhow::Result<FenceVerdict> {
    let first = on.working(0, HOUR).await?;
    let patient = on.through(on.bench.client(true));
    let end = async {
        on.bench.clock().sleep(super::PAUSE * 3).await;
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

async fn a1_a_twin_that_waits_gets_the_key_of_one_that_rolls_back<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let said = waiting_twin(&on, false).await?;
    ensure!(said == FenceVerdict::Acquired, "the twin is told {said:?}");
    on.is(0, false).await
}

async fn a1_a_twin_that_waits_for_one_that_commits_is_a_duplicate<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let said = waiting_twin(&on, true).await?;
    ensure!(said == FenceVerdict::Duplicate, "the twin is told {said:?}");
    on.is(1, true).await
}

async fn other_jobs_and_other_consumers_are_not_in_the_way<B: StoreBench>(
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

async fn a5_a_settled_generation_does_not_run_and_the_next_does<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.letter(0).await?;
    on.fence_says(0, FenceVerdict::Settled).await?;
    on.is(0, false).await?;
    on.apply(1, HOUR).await?;
    on.is(1, true).await
}

async fn b8_a_discarded_generation_settles_the_next<B: StoreBench>(
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

async fn a_settled_transaction_holds_the_key_until_it_ends<B: StoreBench>(
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

async fn b4_a_letter_is_written_once_and_is_what_was_written<B: StoreBench>(
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

async fn b4_a_letter_says_why<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn a5_there_is_no_letter_for_a_job_that_was_applied<B: StoreBench>(
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

async fn a5_there_is_no_letter_while_a_run_is_open<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn a5_a_letter_that_waits_for_a_run_finds_out_how_it_ended<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    for (commits, recorded) in [(true, Recorded::Applied), (false, Recorded::Written)] {
        let on = On::fresh(bench)?;
        let patient = bench.client(true);
        let tx = on.working(0, HOUR).await?;
        let letter = on.new_letter(0)?;
        let end = async {
            bench.clock().sleep(super::PAUSE * 3).await;
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

async fn b4_each_generation_and_each_consumer_has_a_letter_of_its_own<B: StoreBench>(
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

async fn b8_a_discard_is_for_ever<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn b8_there_is_nothing_to_decide_about_a_letter_that_is_not_there<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let id = DeadLetterId(random_id());
    ensure!(on.store.dead_letter(id).await?.is_none(), "it can be read");
    let locked = on.store.lock_dead_letter(id).await?;
    ensure!(locked.is_none(), "it can be locked");
    on.discard_says(id, Discarded::NotFound).await
}

async fn b8_a_replayed_letter_cannot_be_discarded<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn b8_a_locked_letter_is_nobody_elses<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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
async fn b8_a_letter_whose_replay_was_applied_cannot_be_discarded<B: StoreBench>(
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

async fn b8_a_list_has_what_fits_page_by_page<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn a6_what_expired_goes_and_what_did_not_stays<B: StoreBench>(
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

async fn a6_nothing_inside_the_retry_window_goes<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    on.apply(0, Duration::from_millis(1)).await?;
    let swept = on.sweep(HOUR * 2, |it| it.retry_window = HOUR).await?;
    ensure!(swept == 0, "it was swept inside its retry window");
    on.is(1, true).await?;
    ensure!(on.sweep(HOUR * 2, |_| {}).await? == 1, "it stays for ever");
    Ok(())
}

async fn a6_nothing_that_expired_after_the_oldest_message_goes<B: StoreBench>(
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

async fn a6_a_fence_stays_while_a_letter_is_pending_and_a_day_longer<B: StoreBench>(
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

async fn a6_no_batch_is_larger_than_asked_for_and_the_earliest_go_first<B: StoreBench>(
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

async fn a6_only_the_consumers_own_fences_go<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let other = On::fresh(bench)?;
    other.apply(0, HOUR).await?;
    ensure!(on.sweep(HOUR * 9, |_| {}).await? == 0, "one went");
    other.is(1, true).await
}

async fn a2_what_was_committed_survives_the_server<B: StoreBench>(bench: &B) -> anyhow::Result<()> {
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

async fn a2_what_was_open_does_not_survive_the_server<B: StoreBench>(
    bench: &B,
) -> anyhow::Result<()> {
    let on = On::fresh(bench)?;
    let other = on.another();
    let (before, after) = (on.working(0, HOUR).await?, other.working(0, HOUR).await?);
    bench.take_away().await?;
    let clock = bench.clock();
    let ended = tokio::select! {
        ended = before.commit() => ended,
        () = clock.sleep(super::STILL_TRYING) => Ok(()),
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

async fn a_store_that_is_away_says_so_and_is_usable_again<B: StoreBench>(
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
