//! Stores with one mistake each, made of a good one. They are here so that the suite is seen to fail.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use harness::{
    Clock, CommitError, Connection, ConsumerName, DeadLetter, DeadLetterId, DiscardReason,
    Discarded, FenceKey, FenceVerdict, JobId, LetterFilter, LetterQuery, NewDeadLetter, Recorded,
    ReviewStore, ReviewTx, Reviewer, Store, StoreError, SweepBatch, SweepStore, WorkTx,
};

use super::store::StoreBench;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum StoreFlaw {
    DuplicateIsAcquired,
    SettledIsAcquired,
    ContentionIsDuplicate,
    ContentionIsAcquired,
    NewIsDuplicate,
    CommitsNothing,
    RollsBackByCommitting,
    DropsByCommitting,
    UnknownIsCommitted,
    RefusedIsCommitted,
    ForgetsGenerations,
    OneConsumerForAll,
    GivesTheKeyUpWhenSettled,
    BatchForgetsGenerations,
    BatchFencesTheFirstOnly,
    BatchTakesTwins,
    BatchTakesKeysAsTheyCome,
    BatchSkipsWhatIsHeld,
    BatchAnswersBackwards,
    BatchRunsEverything,
    RecordsNothing,
    RecordsTwice,
    AppliedIsRecorded,
    RecordsForTheFirstGenerationOnly,
    LosesBodies,
    LosesReasons,
    DiscardsNothing,
    DiscardedIsDiscardedAgain,
    DiscardsWhatIsNotThere,
    DiscardsWhatWasReplayed,
    DiscardsWhatWasApplied,
    MarksNothing,
    LocksNothing,
    ListsEverything,
    ListsTheFirstPageOnly,
    SweepsNothing,
    SweepsWithoutClock,
    SweepsInsideTheRetryWindow,
    SweepsPastTheOldestMessage,
    SweepsWithoutLimit,
    SweepsMore,
    CountsWithoutSweeping,
    AwayIsRefused,
    AwayIsEmpty,
    PingsItself,
}

impl StoreFlaw {
    /// Each with the case that must find it.
    pub const ALL: [(Self, &str); 45] = [
        (Self::DuplicateIsAcquired, "b2_a_second_run_is_a_duplicate"),
        (
            Self::SettledIsAcquired,
            "a5_a_settled_generation_does_not_run_and_the_next_does",
        ),
        (
            Self::ContentionIsDuplicate,
            "a1_a_twin_of_an_open_run_meets_contention_and_changes_nothing",
        ),
        (
            Self::ContentionIsAcquired,
            "a1_a_twin_of_an_open_run_meets_contention_and_changes_nothing",
        ),
        (Self::NewIsDuplicate, "b1_effect_and_fence_commit_together"),
        (Self::CommitsNothing, "b1_effect_and_fence_commit_together"),
        (
            Self::RollsBackByCommitting,
            "a2_a_rollback_leaves_neither_and_frees_the_key",
        ),
        (
            Self::DropsByCommitting,
            "a2_a_dropped_transaction_leaves_neither_and_frees_the_key",
        ),
        (
            Self::UnknownIsCommitted,
            "a2_what_was_open_does_not_survive_the_server",
        ),
        (
            Self::RefusedIsCommitted,
            "a2_a_commit_after_a_failed_statement_is_refused",
        ),
        (
            Self::ForgetsGenerations,
            "a5_a_settled_generation_does_not_run_and_the_next_does",
        ),
        (
            Self::OneConsumerForAll,
            "other_jobs_and_other_consumers_are_not_in_the_way",
        ),
        (
            Self::GivesTheKeyUpWhenSettled,
            "a_settled_transaction_holds_the_key_until_it_ends",
        ),
        (
            Self::BatchForgetsGenerations,
            "b1_a_batch_is_fenced_and_committed_together",
        ),
        (
            Self::BatchFencesTheFirstOnly,
            "a1_a_batch_holds_every_key_until_it_ends",
        ),
        (
            Self::BatchTakesTwins,
            "a_batch_with_a_job_that_is_there_twice_is_refused",
        ),
        (
            Self::BatchTakesKeysAsTheyCome,
            "a_batch_takes_its_keys_in_the_order_of_their_ids",
        ),
        (
            Self::BatchSkipsWhatIsHeld,
            "a1_a_batch_that_meets_an_open_run_meets_contention",
        ),
        (
            Self::BatchAnswersBackwards,
            "b1_a_batch_is_fenced_and_committed_together",
        ),
        (
            Self::BatchRunsEverything,
            "b1_a_batch_is_fenced_and_committed_together",
        ),
        (
            Self::RecordsNothing,
            "b4_a_letter_is_written_once_and_is_what_was_written",
        ),
        (
            Self::RecordsTwice,
            "b4_a_letter_is_written_once_and_is_what_was_written",
        ),
        (
            Self::AppliedIsRecorded,
            "a5_there_is_no_letter_for_a_job_that_was_applied",
        ),
        (
            Self::RecordsForTheFirstGenerationOnly,
            "b4_each_generation_and_each_consumer_has_a_letter_of_its_own",
        ),
        (
            Self::LosesBodies,
            "b4_a_letter_is_written_once_and_is_what_was_written",
        ),
        (Self::LosesReasons, "b4_a_letter_says_why"),
        (Self::DiscardsNothing, "b8_a_discard_is_for_ever"),
        (Self::DiscardedIsDiscardedAgain, "b8_a_discard_is_for_ever"),
        (
            Self::DiscardsWhatIsNotThere,
            "b8_there_is_nothing_to_decide_about_a_letter_that_is_not_there",
        ),
        (
            Self::DiscardsWhatWasReplayed,
            "b8_a_replayed_letter_cannot_be_discarded",
        ),
        (
            Self::DiscardsWhatWasApplied,
            "b8_a_letter_whose_replay_was_applied_cannot_be_discarded",
        ),
        (
            Self::MarksNothing,
            "b8_a_replayed_letter_cannot_be_discarded",
        ),
        (Self::LocksNothing, "b8_a_locked_letter_is_nobody_elses"),
        (
            Self::ListsEverything,
            "b8_a_list_has_what_fits_page_by_page",
        ),
        (
            Self::ListsTheFirstPageOnly,
            "b8_a_list_has_what_fits_page_by_page",
        ),
        (
            Self::SweepsNothing,
            "a6_what_expired_goes_and_what_did_not_stays",
        ),
        (
            Self::SweepsWithoutClock,
            "a6_what_expired_goes_and_what_did_not_stays",
        ),
        (
            Self::SweepsInsideTheRetryWindow,
            "a6_nothing_inside_the_retry_window_goes",
        ),
        (
            Self::SweepsPastTheOldestMessage,
            "a6_nothing_that_expired_after_the_oldest_message_goes",
        ),
        (
            Self::SweepsWithoutLimit,
            "a6_no_batch_is_larger_than_asked_for_and_the_earliest_go_first",
        ),
        (
            Self::SweepsMore,
            "a6_a_fence_stays_while_a_letter_is_pending_and_a_day_longer",
        ),
        (
            Self::CountsWithoutSweeping,
            "a6_what_expired_goes_and_what_did_not_stays",
        ),
        (
            Self::AwayIsRefused,
            "a_store_that_is_away_says_so_and_is_usable_again",
        ),
        (
            Self::AwayIsEmpty,
            "a_store_that_is_away_says_so_and_is_usable_again",
        ),
        (
            Self::PingsItself,
            "a_store_that_is_away_says_so_and_is_usable_again",
        ),
    ];
}

/// A store with a mistake.
#[derive(Debug, Clone)]
pub struct Flawed<S> {
    inner: S,
    flaw: StoreFlaw,
}

impl<S> Flawed<S> {
    /// Plants the mistake.
    pub fn new(inner: S, flaw: StoreFlaw) -> Self {
        Self { inner, flaw }
    }

    fn told<T>(&self, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        match outcome {
            Err(StoreError::Away(error)) if self.flaw == StoreFlaw::AwayIsRefused => {
                Err(StoreError::Refused(error))
            }
            outcome => outcome,
        }
    }

    fn told_or<T>(&self, outcome: Result<T, StoreError>, empty: T) -> Result<T, StoreError> {
        match outcome {
            Err(StoreError::Away(_)) if self.flaw == StoreFlaw::AwayIsEmpty => Ok(empty),
            outcome => self.told(outcome),
        }
    }
}

/// A transaction with a mistake. What is left of it when it is dropped depends on the mistake, too.
#[derive(Debug)]
pub struct FlawedTx<T: WorkTx + 'static> {
    inner: Option<T>,
    flaw: StoreFlaw,
}

impl<T: WorkTx + 'static> Drop for FlawedTx<T> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take()
            && self.flaw == StoreFlaw::DropsByCommitting
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(inner.commit());
        }
    }
}

fn gone() -> StoreError {
    StoreError::Refused("the transaction was given up".into())
}

impl<S: Store> Store for Flawed<S> {
    type Tx = FlawedTx<S::Tx>;

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        let inner = self.told(self.inner.begin().await)?;
        Ok(FlawedTx {
            inner: Some(inner),
            flaw: self.flaw,
        })
    }

    async fn record_dead_letter(&self, letter: &NewDeadLetter) -> Result<Recorded, StoreError> {
        let mut letter = letter.clone();
        match self.flaw {
            StoreFlaw::RecordsNothing => return Ok(Recorded::Written),
            StoreFlaw::LosesBodies => letter.body.clear(),
            StoreFlaw::LosesReasons => letter.reason = harness::Reason::Hard,
            StoreFlaw::RecordsForTheFirstGenerationOnly => letter.generation = 0,
            _ => {}
        }
        let recorded = self.told(self.inner.record_dead_letter(&letter).await)?;
        Ok(match (recorded, self.flaw) {
            (Recorded::Already, StoreFlaw::RecordsTwice)
            | (Recorded::Applied, StoreFlaw::AppliedIsRecorded) => Recorded::Written,
            _ => recorded,
        })
    }

    async fn ping(&self) -> Result<(), StoreError> {
        if self.flaw == StoreFlaw::PingsItself {
            return Ok(());
        }
        self.told(self.inner.ping().await)
    }

    fn is_contention(error: &(dyn std::error::Error + 'static)) -> bool {
        S::is_contention(error)
    }
}

impl<T: WorkTx + 'static> WorkTx for FlawedTx<T> {
    type Conn = T::Conn;

    async fn fence(
        &mut self,
        key: &FenceKey,
        ttl: Duration,
        deadline: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        let mut key = key.clone();
        match self.flaw {
            StoreFlaw::ForgetsGenerations => key.generation = 0,
            StoreFlaw::OneConsumerForAll => {
                key.consumer = ConsumerName::new("everybody")
                    .map_err(|error| StoreError::Refused(error.into()))?;
            }
            _ => {}
        }
        let inner = self.inner.as_mut().ok_or_else(gone)?;
        let verdict = inner.fence(&key, ttl, deadline).await;
        if self.flaw == StoreFlaw::GivesTheKeyUpWhenSettled
            && matches!(verdict, Ok(FenceVerdict::Settled))
            && let Some(inner) = self.inner.take()
        {
            inner.rollback().await?;
        }
        match (verdict, self.flaw) {
            (Ok(FenceVerdict::Duplicate), StoreFlaw::DuplicateIsAcquired)
            | (Ok(FenceVerdict::Settled), StoreFlaw::SettledIsAcquired)
            | (Err(StoreError::Contention(_)), StoreFlaw::ContentionIsAcquired) => {
                Ok(FenceVerdict::Acquired)
            }
            (Ok(FenceVerdict::Acquired), StoreFlaw::NewIsDuplicate)
            | (Err(StoreError::Contention(_)), StoreFlaw::ContentionIsDuplicate) => {
                Ok(FenceVerdict::Duplicate)
            }
            (verdict, _) => verdict,
        }
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        ttl: Duration,
        deadline: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        let mut keys = keys.to_vec();
        let asked = keys.len();
        match self.flaw {
            StoreFlaw::BatchForgetsGenerations => {
                keys.iter_mut().for_each(|key| key.generation = 0);
            }
            StoreFlaw::BatchFencesTheFirstOnly => keys.truncate(1),
            StoreFlaw::BatchTakesTwins => {
                let mut seen = BTreeSet::new();
                keys.retain(|key| seen.insert(key.job_id));
            }
            _ => {}
        }
        let inner = self.inner.as_mut().ok_or_else(gone)?;
        if self.flaw == StoreFlaw::BatchTakesKeysAsTheyCome {
            let mut verdicts = Vec::new();
            for key in &keys {
                verdicts.push(inner.fence(key, ttl, deadline).await?);
            }
            return Ok(verdicts);
        }
        let mut verdicts = match inner.fence_all(&keys, ttl, deadline).await {
            Err(StoreError::Contention(_)) if self.flaw == StoreFlaw::BatchSkipsWhatIsHeld => {
                vec![FenceVerdict::Duplicate; asked]
            }
            verdicts => verdicts?,
        };
        match self.flaw {
            StoreFlaw::BatchAnswersBackwards => verdicts.reverse(),
            StoreFlaw::BatchRunsEverything => verdicts.fill(FenceVerdict::Acquired),
            _ => {}
        }
        verdicts.resize(asked, FenceVerdict::Acquired);
        Ok(verdicts)
    }

    // Nobody works on a transaction that was given up.
    #[allow(clippy::expect_used)]
    fn connection(&mut self) -> &mut T::Conn {
        self.inner.as_mut().expect("open").connection()
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        let Some(inner) = self.inner.take() else {
            return Err(CommitError::Refused(gone().into()));
        };
        if self.flaw == StoreFlaw::CommitsNothing {
            let _ = inner.rollback().await;
            return Ok(());
        }
        match (inner.commit().await, self.flaw) {
            (Err(CommitError::Unknown(_)), StoreFlaw::UnknownIsCommitted)
            | (Err(CommitError::Refused(_)), StoreFlaw::RefusedIsCommitted) => Ok(()),
            (ended, _) => ended,
        }
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        match (self.inner.take(), self.flaw) {
            (None, _) => Ok(()),
            (Some(inner), StoreFlaw::RollsBackByCommitting) => {
                let _ = inner.commit().await;
                Ok(())
            }
            (Some(inner), _) => inner.rollback().await,
        }
    }
}

/// A locked letter with a mistake.
#[derive(Debug)]
pub enum FlawedReview<T> {
    /// It is locked.
    Locked(T, StoreFlaw),
    /// It is not.
    Read(Box<DeadLetter>),
}

impl<T: ReviewTx> ReviewTx for FlawedReview<T> {
    fn letter(&self) -> &DeadLetter {
        match self {
            Self::Locked(inner, _) => inner.letter(),
            Self::Read(letter) => letter,
        }
    }

    async fn mark_replayed(self, by: &Reviewer) -> Result<(), StoreError> {
        match self {
            Self::Locked(inner, flaw) if flaw != StoreFlaw::MarksNothing => {
                inner.mark_replayed(by).await
            }
            _ => Ok(()),
        }
    }
}

impl<S: ReviewStore> ReviewStore for Flawed<S> {
    type Tx = FlawedReview<S::Tx>;

    async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.told_or(self.inner.dead_letter(id).await, None)
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        let mut query = query.clone();
        match self.flaw {
            StoreFlaw::ListsEverything => query.filter = LetterFilter::default(),
            StoreFlaw::ListsTheFirstPageOnly => query.after = None,
            _ => {}
        }
        self.told_or(self.inner.dead_letters(&query).await, Vec::new())
    }

    async fn lock_dead_letter(&self, id: DeadLetterId) -> Result<Option<Self::Tx>, StoreError> {
        if self.flaw == StoreFlaw::LocksNothing {
            let letter = self.inner.dead_letter(id).await?;
            return Ok(letter.map(|letter| FlawedReview::Read(Box::new(letter))));
        }
        let locked = self.told(self.inner.lock_dead_letter(id).await)?;
        Ok(locked.map(|inner| FlawedReview::Locked(inner, self.flaw)))
    }

    async fn discard(
        &self,
        id: DeadLetterId,
        reason: &DiscardReason,
        by: &Reviewer,
    ) -> Result<Discarded, StoreError> {
        if self.flaw == StoreFlaw::DiscardsNothing {
            return Ok(Discarded::Discarded);
        }
        let discarded = self.told(self.inner.discard(id, reason, by).await)?;
        Ok(match (discarded, self.flaw) {
            (Discarded::Already, StoreFlaw::DiscardedIsDiscardedAgain)
            | (Discarded::NotFound, StoreFlaw::DiscardsWhatIsNotThere)
            | (Discarded::WasReplayed, StoreFlaw::DiscardsWhatWasReplayed)
            | (Discarded::WasApplied, StoreFlaw::DiscardsWhatWasApplied) => Discarded::Discarded,
            _ => discarded,
        })
    }
}

impl<S: SweepStore> SweepStore for Flawed<S> {
    async fn now(&self) -> Result<DateTime<Utc>, StoreError> {
        self.told(self.inner.now().await)
    }

    async fn sweep(&self, batch: &SweepBatch) -> Result<u64, StoreError> {
        let mut batch = batch.clone();
        match self.flaw {
            StoreFlaw::SweepsNothing => return Ok(0),
            StoreFlaw::CountsWithoutSweeping => return Ok(1),
            StoreFlaw::SweepsWithoutClock => batch.asked_at += chrono::TimeDelta::days(9_000),
            StoreFlaw::SweepsInsideTheRetryWindow => batch.retry_window = Duration::ZERO,
            StoreFlaw::SweepsPastTheOldestMessage => batch.oldest = None,
            StoreFlaw::SweepsWithoutLimit => batch.limit = 1_000,
            // A calendar that is ahead: the day after a decision is over too early.
            StoreFlaw::SweepsMore => batch.asked_at += chrono::TimeDelta::hours(20),
            _ => {}
        }
        self.told_or(self.inner.sweep(&batch).await, 0)
    }
}

/// A bench whose clients are flawed.
#[derive(Debug)]
pub struct FlawedBench<B> {
    inner: B,
    flaw: StoreFlaw,
}

impl<B> FlawedBench<B> {
    /// Plants the mistake.
    pub fn new(inner: B, flaw: StoreFlaw) -> Self {
        Self { inner, flaw }
    }
}

impl<B: StoreBench> StoreBench for FlawedBench<B> {
    type Store = Flawed<B::Store>;

    fn client(&self, patient: bool) -> Self::Store {
        Flawed::new(self.inner.client(patient), self.flaw)
    }

    fn effect<'a>(
        connection: &'a mut Connection<Self::Store>,
        job: JobId,
        consumer: &'a ConsumerName,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        B::effect(connection, job, consumer)
    }

    fn failing_statement(connection: &mut Connection<Self::Store>) -> BoxFuture<'_, ()> {
        B::failing_statement(connection)
    }

    async fn look(&self, job: JobId, consumer: &ConsumerName) -> anyhow::Result<(u64, bool)> {
        self.inner.look(job, consumer).await
    }

    async fn take_away(&self) -> anyhow::Result<()> {
        self.inner.take_away().await
    }

    async fn bring_back(&self) -> anyhow::Result<()> {
        self.inner.bring_back().await
    }

    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }
}
