//! A store that scripts are run on, and how each step is done to it: the same code for both.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::BoxFuture;
use harness::{
    AlertClaim, AlertDue, AlertStore, CommitError, CorrelationId, CountStore, DeadLetter,
    DiscardReason, ErrorClass, ExternalId, FenceKey, FenceVerdict, JobId, LetterFilter,
    LetterOrder, LetterPlace, LetterQuery, NewDeadLetter, PendingStore, QueueName, Recorded,
    ResolveClaim, ReviewStore, ReviewTx as _, Reviewer, Status, Store, StoreError, SweepBatch,
    SweepStore, WorkTx,
};

use crate::script::{Act, Key, Page, State, claim_id, consumer_name, job_id, letter_id};

/// How long a patient client waits for a fence, in the script's time.
pub const FENCE_WAIT: Duration = Duration::from_secs(1);

/// How long its bookkeeping waits for a lock.
pub const LOCK_WAIT: Duration = Duration::from_secs(2);

const HOUR: Duration = Duration::from_secs(3_600);

pub type WorkingTx<S> = <<S as Side>::Store as Store>::Tx;
pub type ReviewingTx<S> = <<S as Side>::Store as ReviewStore>::Tx;
type Conn<S> = <WorkingTx<S> as WorkTx>::Conn;

/// What differs between the stores.
pub trait Side: Sized + 'static {
    type Store: Store + ReviewStore + SweepStore + AlertStore + CountStore + PendingStore;

    /// One effect of a handler.
    fn effect(
        connection: &mut Conn<Self>,
        job: JobId,
        consumer: u8,
        generation: u32,
    ) -> BoxFuture<'_, Result<(), StoreError>>;

    /// A statement that fails.
    fn failing(connection: &mut Conn<Self>) -> BoxFuture<'_, Result<(), StoreError>>;

    /// The server's number for the client's connection, where it has one.
    fn working_pid(connection: &mut Conn<Self>) -> BoxFuture<'_, Option<i32>>;

    /// The same.
    fn reviewing_pid(tx: &mut ReviewingTx<Self>) -> BoxFuture<'_, Option<i32>>;
}

/// What a client has in its hands between two steps.
pub enum Held<S: Side> {
    Nothing,
    Working {
        tx: WorkingTx<S>,
        fence: Option<(Key, u32)>,
        batch: bool,
        pid: Option<i32>,
    },
    Reviewing {
        tx: ReviewingTx<S>,
        pid: Option<i32>,
    },
}

impl<S: Side> Held<S> {
    pub fn state(&self) -> State {
        match self {
            Self::Nothing => State::Idle,
            Self::Working { fence, batch, .. } => State::Working {
                fenced: fence.is_some(),
                batch: *batch,
            },
            Self::Reviewing { .. } => State::Reviewing,
        }
    }

    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Nothing => None,
            Self::Working { pid, .. } | Self::Reviewing { pid, .. } => *pid,
        }
    }
}

/// Claims of alerts by their number; pumps may hand them on.
#[derive(Clone, Default)]
pub struct Claims {
    alerts: Arc<Mutex<BTreeMap<u8, AlertClaim>>>,
    resolves: Arc<Mutex<BTreeMap<u8, ResolveClaim>>>,
}

fn get<T: Clone>(map: &Mutex<BTreeMap<u8, T>>, claim: u8) -> Option<T> {
    map.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&claim)
        .cloned()
}

fn put<T>(map: &Mutex<BTreeMap<u8, T>>, claim: u8, value: T) {
    map.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(claim, value);
}

/// What came of a step.
pub struct Done<S: Side> {
    pub actor: usize,
    pub held: Held<S>,
    /// What is compared.
    pub said: String,
    /// The error in full.
    pub detail: Option<String>,
}

/// What a step says when it fails.
pub const CONTENDED: &str = "contended";
pub const REFUSED: &str = "refused";
const AWAY: &str = "away";
const UNKNOWN: &str = "unknown";

fn class(error: &StoreError) -> &'static str {
    match error {
        StoreError::Away(_) => AWAY,
        StoreError::Contention(_) => CONTENDED,
        StoreError::Refused(_) => REFUSED,
    }
}

struct Said {
    said: String,
    detail: Option<String>,
}

impl From<StoreError> for Said {
    fn from(error: StoreError) -> Self {
        Self {
            said: class(&error).to_owned(),
            detail: Some(format!("{error}")),
        }
    }
}

fn say<T>(answer: Result<T, StoreError>, say: impl FnOnce(T) -> String) -> Said {
    match answer {
        Ok(value) => Said {
            said: say(value),
            detail: None,
        },
        Err(error) => error.into(),
    }
}

fn done(_: ()) -> String {
    "done".to_owned()
}

fn millis(at: DateTime<Utc>) -> i64 {
    (at - sim::timeline::Timeline::calendar(Duration::ZERO)).num_milliseconds()
}

fn told(letter: &DeadLetter) -> String {
    let mut text = format!("{} {}", letter.letter.id, letter.status);
    if let (Some(at), Some(by)) = (letter.reviewed_at, &letter.reviewed_by) {
        let _ = write!(text, " at {} by {by}", millis(at));
    }
    text
}

fn list(letters: &[DeadLetter]) -> String {
    let letters: Vec<_> = letters.iter().map(told).collect();
    format!("[{}]", letters.join(", "))
}

/// A letter that differs in reason and error class from others of other jobs: they have different fingerprints.
fn letter(number: u8, key: Key, generation: u32, reason: harness::Reason) -> NewDeadLetter {
    NewDeadLetter {
        id: letter_id(number),
        job_id: job_id(key.job),
        consumer: consumer_name(key.consumer),
        queue: QueueName::new("points").unwrap(),
        tenant_id: None,
        correlation_id: CorrelationId::new("chain").unwrap(),
        generation,
        reason,
        error_class: ErrorClass::of("as_told"),
        attempts: 1,
        last_error: "as told".to_owned(),
        payload: "{}".to_owned(),
        body: b"{}".to_vec(),
        headers: "{}".to_owned(),
    }
}

fn by(actor: usize) -> Reviewer {
    Reviewer::new(["ada", "ben", "cleo", "dora"][actor % 4]).unwrap()
}

/// Does one step.
pub async fn perform<S: Side>(
    actor: usize,
    store: S::Store,
    claims: Claims,
    held: Held<S>,
    act: Act,
) -> Done<S> {
    let (held, said) = match held {
        Held::Nothing => idle::<S>(actor, &store, &claims, act).await,
        Held::Working {
            tx,
            fence,
            batch,
            pid,
        } => working::<S>(tx, (fence, batch), pid, act).await,
        Held::Reviewing { tx, .. } => match act {
            Act::MarkReplayed => (Held::Nothing, say(tx.mark_replayed(&by(actor)).await, done)),
            _ => (Held::Nothing, say(Ok(()), done)),
        },
    };
    Done {
        actor,
        held,
        said: said.said,
        detail: said.detail,
    }
}

fn fence_key(key: Key, generation: u32) -> FenceKey {
    FenceKey {
        job_id: job_id(key.job),
        consumer: consumer_name(key.consumer),
        generation,
        tenant_id: None,
    }
}

fn hours(hours: u64) -> Duration {
    HOUR * u32::try_from(hours).unwrap_or(1)
}

const fn verdict_told(verdict: FenceVerdict) -> &'static str {
    match verdict {
        FenceVerdict::Acquired => "acquired",
        FenceVerdict::Duplicate => "duplicate",
        FenceVerdict::Settled => "settled",
    }
}

async fn working<S: Side>(
    mut tx: WorkingTx<S>,
    (fence, mut batch): (Option<(Key, u32)>, bool),
    pid: Option<i32>,
    act: Act,
) -> (Held<S>, Said) {
    let (key, generation) = fence.unwrap_or((
        Key {
            job: 0,
            consumer: 0,
        },
        0,
    ));
    let mut fenced = fence;
    let said = match act {
        Act::Fence {
            key: wanted,
            generation,
            ttl_hours,
        } => {
            // A transaction has one fence; asked twice, it is asked for the same.
            let (key, generation) = fence.unwrap_or((wanted, generation));
            fenced = Some((key, generation));
            let key = fence_key(key, generation);
            let verdict = tx.fence(&key, hours(ttl_hours), HOUR).await;
            say(verdict, |verdict| verdict_told(verdict).to_owned())
        }
        Act::FenceAll {
            jobs,
            consumer,
            generation,
            ttl_hours,
        } => {
            batch = true;
            let key = |job: &u8| Key {
                job: *job,
                consumer,
            };
            let keys: Vec<_> = jobs
                .iter()
                .map(|job| fence_key(key(job), generation))
                .collect();
            let verdicts = tx.fence_all(&keys, hours(ttl_hours), HOUR).await;
            if let Ok(verdicts) = &verdicts {
                let mut both = jobs.iter().zip(verdicts);
                fenced = both
                    .find(|(_, verdict)| **verdict == FenceVerdict::Acquired)
                    .map(|(job, _)| (key(job), generation));
            }
            say(verdicts, |verdicts| {
                let told: Vec<_> = verdicts.into_iter().map(verdict_told).collect();
                told.join(", ")
            })
        }
        Act::Effect => {
            let effect = S::effect(tx.connection(), job_id(key.job), key.consumer, generation);
            say(effect.await, done)
        }
        Act::SwallowError => say(S::failing(tx.connection()).await, done),
        Act::Commit => {
            let said = match tx.commit().await {
                Ok(()) => say(Ok(()), done),
                Err(CommitError::Refused(error)) => StoreError::Refused(error).into(),
                Err(CommitError::Contention(error)) => StoreError::Contention(error).into(),
                Err(CommitError::Unknown(error)) => Said {
                    said: UNKNOWN.to_owned(),
                    detail: Some(format!("{error}")),
                },
            };
            return (Held::Nothing, said);
        }
        Act::Rollback => return (Held::Nothing, say(tx.rollback().await, done)),
        _ => return (Held::Nothing, say(Ok(()), done)),
    };
    let held = Held::Working {
        tx,
        fence: fenced,
        batch,
        pid,
    };
    (held, said)
}

async fn idle<S: Side>(
    actor: usize,
    store: &S::Store,
    claims: &Claims,
    act: Act,
) -> (Held<S>, Said) {
    match act {
        Act::Begin => match store.begin().await {
            Ok(mut tx) => {
                let pid = S::working_pid(tx.connection()).await;
                let held = Held::Working {
                    tx,
                    fence: None,
                    batch: false,
                    pid,
                };
                (held, say(Ok(()), done))
            }
            Err(error) => (Held::Nothing, error.into()),
        },
        Act::Lock { letter } => match store.lock_dead_letter(letter_id(letter)).await {
            Ok(Some(mut tx)) => {
                let said = told(tx.letter());
                let pid = S::reviewing_pid(&mut tx).await;
                (Held::Reviewing { tx, pid }, say(Ok(said), |said| said))
            }
            Ok(None) => (Held::Nothing, say(Ok(()), |()| "none".to_owned())),
            Err(error) => (Held::Nothing, error.into()),
        },
        act => {
            let said = match alerting::<S>(store, claims, &act).await {
                Some(said) => said,
                None => bookkeeping::<S>(actor, store, act).await,
            };
            (Held::Nothing, said)
        }
    }
}

async fn bookkeeping<S: Side>(actor: usize, store: &S::Store, act: Act) -> Said {
    match act {
        Act::Record {
            letter: number,
            key,
            generation,
            reason,
        } => {
            let letter = letter(number, key, generation, reason);
            say(store.record_dead_letter(&letter).await, |recorded| {
                match recorded {
                    Recorded::Written => "written",
                    Recorded::Already => "already",
                    Recorded::Applied => "applied",
                }
                .to_owned()
            })
        }
        Act::Discard { letter } => {
            let reason = DiscardReason::new("not owed").unwrap();
            let discarded = store.discard(letter_id(letter), &reason, &by(actor)).await;
            say(discarded, |discarded| format!("{discarded:?}"))
        }
        Act::Sweep {
            consumer,
            oldest_hours_ago,
            retry_window_hours,
            limit,
        } => {
            let asked_at = match store.now().await {
                Ok(now) => now,
                Err(error) => return error.into(),
            };
            let batch = SweepBatch {
                consumer: consumer_name(consumer),
                asked_at,
                oldest: oldest_hours_ago.map(|hours| asked_at - TimeDelta::hours(hours)),
                retry_window: HOUR * u32::try_from(retry_window_hours).unwrap_or(1),
                limit,
            };
            say(store.sweep(&batch).await, |rows| format!("{rows} gone"))
        }
        Act::Read { letter } => say(store.dead_letter(letter_id(letter)).await, |letter| {
            letter.map_or_else(|| "none".to_owned(), |letter| told(&letter))
        }),
        Act::List { page } => {
            let mut query = LetterQuery::first(LetterFilter::default(), 100);
            match page {
                Page::All => {}
                Page::NewestTwo => {
                    query.order = LetterOrder::NewestFirst;
                    query.limit = 2;
                }
                Page::Pending => query.filter.status = Some(Status::PendingReview),
                Page::OfJob(job) => query.filter.job_id = Some(job_id(job)),
                Page::Second => {
                    let first = LetterQuery::first(LetterFilter::default(), 1);
                    match store.dead_letters(&first).await {
                        Ok(first) => query.after = first.first().map(LetterPlace::of),
                        Err(error) => return error.into(),
                    }
                    query.limit = 1;
                }
            }
            say(store.dead_letters(&query).await, |letters| list(&letters))
        }
        Act::Pending => say(store.pending(&LetterFilter::default()).await, |ids| {
            let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
            format!("[{}]", ids.join(", "))
        }),
        Act::Count => say(
            store.count_dead_letters(&LetterFilter::default(), 10).await,
            |counts| {
                let counts: Vec<_> = counts
                    .iter()
                    .map(|it| {
                        let (first, last) = (millis(it.first_at), millis(it.last_at));
                        format!("{} {} from {first} to {last}", it.fingerprint, it.letters)
                    })
                    .collect();
                format!("[{}]", counts.join(", "))
            },
        ),
        other => say(Ok(()), |()| format!("{other:?} is no bookkeeping")),
    }
}

async fn alerting<S: Side>(store: &S::Store, claims: &Claims, act: &Act) -> Option<Said> {
    let unknown = || say(Ok(()), |()| "no such claim".to_owned());
    let minute = Duration::from_secs(60);
    let hours = |hours: u64| HOUR * u32::try_from(hours).unwrap_or(1);
    Some(match act {
        Act::ClaimAlert {
            claim,
            kind,
            age_hours,
            window_minutes,
        } => {
            let due = AlertDue {
                kind: *kind,
                age: hours(*age_hours),
                window: minute * u32::try_from(*window_minutes).unwrap_or(1),
            };
            let claimed = store.claim_alert(claim_id(*claim), &due, minute).await;
            say(claimed, |claimed| {
                let Some(it) = claimed else {
                    return "none".to_owned();
                };
                let text = format!(
                    "{} {}: {} letters from {} to {}, as {}, failed {} times",
                    it.kind.as_str(),
                    it.fingerprint,
                    it.letters,
                    millis(it.first_at),
                    millis(it.last_at),
                    it.sample.letter.id,
                    it.failures,
                );
                put(&claims.alerts, *claim, it);
                text
            })
        }
        Act::Delivered { claim, named } => match get(&claims.alerts, *claim) {
            Some(it) => {
                let external = named.then(|| ExternalId(it.claim_id.to_string()));
                let covered = store.alert_delivered(&it, external.as_ref()).await;
                say(covered, |letters| format!("{letters} covered"))
            }
            None => unknown(),
        },
        Act::AlertFailed { claim } => match get(&claims.alerts, *claim) {
            Some(it) => say(store.alert_failed(&it, minute * 2, "as told").await, done),
            None => unknown(),
        },
        Act::ClaimResolve { claim } => {
            let claimed = store.claim_resolve(claim_id(*claim), minute).await;
            say(claimed, |claimed| {
                let Some(it) = claimed else {
                    return "none".to_owned();
                };
                let text = format!(
                    "{} called {} of {}, failed {} times",
                    it.incident, it.external_id.0, it.fingerprint, it.failures
                );
                put(&claims.resolves, *claim, it);
                text
            })
        }
        Act::Resolved { claim } => match get(&claims.resolves, *claim) {
            Some(it) => say(store.incident_resolved(&it).await, done),
            None => unknown(),
        },
        Act::ResolveFailed { claim } => match get(&claims.resolves, *claim) {
            Some(it) => say(store.resolve_failed(&it, minute * 2, "as told").await, done),
            None => unknown(),
        },
        Act::AlertsFailing { escalate_hours } => say(
            store.alerts_failing(hours(*escalate_hours)).await,
            |failing| failing.to_string(),
        ),
        _ => return None,
    })
}
