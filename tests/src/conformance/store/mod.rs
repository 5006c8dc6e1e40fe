//! What every store must do.

mod batches;
mod fences;
mod letters;
mod server;
mod sweep;

use std::time::Duration;

use anyhow::{Context as _, ensure};
use chrono::TimeDelta;
use futures_util::future::BoxFuture;
use harness::{
    Clock, Connection, ConsumerName, DeadLetter, DeadLetterId, DiscardReason, Discarded,
    ErrorClass, FenceKey, FenceVerdict, JobId, LetterFilter, LetterQuery, NewDeadLetter, QueueName,
    Reason, Recorded, ReviewStore, ReviewTx as _, Reviewer, Store, StoreError, SweepBatch,
    SweepStore, TenantId, WorkTx as _,
};

use self::batches::*;
use self::fences::*;
use self::letters::*;
use self::server::*;
use self::sweep::*;
use super::in_the_end;
use super::queue::Red;
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
            b1_a_batch_is_fenced_and_committed_together,
            a2_a_batch_that_is_rolled_back_leaves_nothing,
            a1_a_batch_holds_every_key_until_it_ends,
            a1_a_batch_that_meets_an_open_run_meets_contention,
            a_batch_takes_its_keys_in_the_order_of_their_ids,
            a_batch_with_a_job_that_is_there_twice_is_refused,
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
