//! Which dead letters an operator wants to see (P1).

use chrono::{DateTime, Utc};

use crate::dead_letter::{DeadLetter, DeadLetterId, Reason, Status};
use crate::ids::{CorrelationId, JobId, TenantId};
use crate::names::{ConsumerName, QueueName};

/// What a dead letter must have to be listed; everything that is given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LetterFilter {
    /// Its status.
    pub status: Option<Status>,
    /// Where its job came from.
    pub queue: Option<QueueName>,
    /// Who failed on it.
    pub consumer: Option<ConsumerName>,
    /// Whose it is.
    pub tenant_id: Option<TenantId>,
    /// Why it was given up.
    pub reason: Option<Reason>,
    /// Its job.
    pub job_id: Option<JobId>,
    /// The chain of events that it belongs to.
    pub correlation_id: Option<CorrelationId>,
    /// Queue, consumer, reason and error class: the kind of failure that incidents are grouped by.
    pub fingerprint: Option<String>,
    /// Written at this time or later.
    pub created_from: Option<DateTime<Utc>>,
    /// Written before this time.
    pub created_before: Option<DateTime<Utc>>,
    /// The error says this somewhere, in upper or lower case. Found by an index when three letters or digits of it are in a
    /// row; otherwise all rows are read.
    pub error_contains: Option<String>,
}

/// In which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LetterOrder {
    /// By the time of writing.
    #[default]
    OldestFirst,
    /// The other way round.
    NewestFirst,
}

/// Where a page ended: the place of its last letter in the order. Letters keep their place whatever happens to their status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LetterPlace {
    /// When it was written.
    pub created_at: DateTime<Utc>,
    /// Which.
    pub id: DeadLetterId,
}

impl LetterPlace {
    /// A letter's place.
    pub fn of(letter: &DeadLetter) -> Self {
        Self {
            created_at: letter.created_at,
            id: letter.letter.id,
        }
    }
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterQuery {
    /// Which.
    pub filter: LetterFilter,
    /// In which order.
    pub order: LetterOrder,
    /// Those behind this place in the order.
    pub after: Option<LetterPlace>,
    /// At most so many.
    pub limit: u32,
}

impl LetterQuery {
    /// The oldest so many that fit the filter.
    pub fn first(filter: LetterFilter, limit: u32) -> Self {
        Self {
            filter,
            order: LetterOrder::OldestFirst,
            after: None,
            limit,
        }
    }
}

impl LetterFilter {
    /// Of one status.
    pub fn of_status(status: Status) -> Self {
        Self {
            status: Some(status),
            ..Self::default()
        }
    }

    /// Whether a letter fits: what a store without an index of its own asks.
    pub fn fits(&self, it: &DeadLetter) -> bool {
        fn same<T: PartialEq>(wanted: Option<&T>, is: &T) -> bool {
            wanted.is_none_or(|wanted| wanted == is)
        }
        let letter = &it.letter;
        same(self.status.as_ref(), &it.status)
            && same(self.queue.as_ref(), &letter.queue)
            && same(self.consumer.as_ref(), &letter.consumer)
            && (self.tenant_id.is_none() || self.tenant_id == letter.tenant_id)
            && same(self.reason.as_ref(), &letter.reason)
            && same(self.job_id.as_ref(), &letter.job_id)
            && same(self.correlation_id.as_ref(), &letter.correlation_id)
            && same(self.fingerprint.as_ref(), &letter.fingerprint())
            && self.created_from.is_none_or(|from| it.created_at >= from)
            && self.created_before.is_none_or(|end| it.created_at < end)
            && self.error_contains.as_ref().is_none_or(|text| {
                let error = letter.last_error.to_lowercase();
                error.contains(&text.to_lowercase())
            })
    }
}

impl LetterQuery {
    /// The page, from all letters there are: what a store without an index of its own answers.
    pub fn page<'a>(&self, letters: impl IntoIterator<Item = &'a DeadLetter>) -> Vec<DeadLetter> {
        let place = |it: &DeadLetter| (it.created_at, it.letter.id);
        let behind = |it: &&DeadLetter| {
            self.after.is_none_or(|after| {
                let after = (after.created_at, after.id);
                match self.order {
                    LetterOrder::OldestFirst => place(it) > after,
                    LetterOrder::NewestFirst => place(it) < after,
                }
            })
        };
        let letters = letters.into_iter().filter(|it| self.filter.fits(it));
        let mut page: Vec<DeadLetter> = letters.filter(behind).cloned().collect();
        page.sort_by_key(place);
        if self.order == LetterOrder::NewestFirst {
            page.reverse();
        }
        page.truncate(usize::try_from(self.limit).unwrap_or(usize::MAX));
        page
    }
}

/// How many letters there are of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterCount {
    /// Queue, consumer, reason and error class.
    pub fingerprint: String,
    /// How many fit the filter.
    pub letters: u64,
    /// When the first of them was written.
    pub first_at: DateTime<Utc>,
    /// When the last of them was written.
    pub last_at: DateTime<Utc>,
}
