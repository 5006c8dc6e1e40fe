//! The HTTP routes over a store in memory.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use chrono::{DateTime, Utc};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use harness::ops::{Access, Api, ApiLimits, Jwt, JwtAlgorithm, JwtConfig, JwtKeys, JwtSecret, Permission, Token, router, token_hash};
use harness::{
    Clock, ConsumerName, CorrelationId, CountStore, DeadLetter, DeadLetterId, DiscardReason, Discarded, Env, Envelope,
    ErrorClass, Event, JobId, LetterCount, LetterFilter, LetterQuery, NewDeadLetter, Observer, QueueError, QueueName,
    Reason, Recorded, ReplayPublisher, ReviewStore, ReviewTx, Reviewer, SeededEntropy, Status, Store, StoreError, WorkTx,
};
use tower::ServiceExt as _;
use uuid::Uuid;

/// A token that may do everything.
pub(crate) const TOKEN: &str = "operator-of-the-fuzzer";
/// What signed tokens are signed with.
pub(crate) const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// When everything happens, in seconds since 1970.
pub(crate) const NOW: i64 = 1_800_000_000;

/// Letters in memory. Nothing is ever waited for.
#[derive(Clone)]
pub(crate) struct Memory(pub(crate) Arc<Vec<DeadLetter>>);

/// Some letters, of several kinds, some of them written at the same time.
pub(crate) fn letters() -> Vec<DeadLetter> {
    let reasons = [Reason::Exhausted, Reason::Hard, Reason::Poison];
    let statuses = [Status::PendingReview, Status::Replayed, Status::Discarded];
    let letter = |n: usize| {
        let status = statuses[n % 3];
        let decided = status != Status::PendingReview;
        let at = |seconds: usize| DateTime::from_timestamp(NOW - 1_000 + seconds as i64, 0).expect("a time");
        let job_id = JobId::new(Uuid::from_u128(1 + n as u128 / 2)).expect("an id");
        DeadLetter {
            letter: NewDeadLetter {
                id: DeadLetterId(Uuid::from_u128(0x1000 - n as u128)),
                job_id,
                consumer: ConsumerName::new(["awards", "mails"][n % 2]).expect("a name"),
                queue: QueueName::new("points").expect("a name"),
                tenant_id: None,
                correlation_id: CorrelationId::from(job_id),
                generation: n as u32 % 2,
                reason: reasons[n / 2 % 3],
                error_class: ErrorClass::of(["timeout", "no account"][n / 3 % 2]),
                attempts: 1,
                last_error: format!("Error number {n}: timeout"),
                payload: "{}".to_owned(),
                body: b"{}".to_vec(),
                headers: "{}".to_owned(),
            },
            status,
            discard_reason: (status == Status::Discarded).then(|| "as planned".to_owned()),
            created_at: at(n / 3),
            reviewed_at: decided.then(|| at(n)),
            reviewed_by: decided.then(|| "olga".to_owned()),
        }
    };
    (0..11).map(letter).collect()
}

impl ReviewStore for Memory {
    type Tx = Locked;

    async fn dead_letter(&self, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        Ok(self.0.iter().find(|it| it.letter.id == id).cloned())
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetter>, StoreError> {
        ASKED.with(|asked| asked.borrow_mut().clone_from(&Some(query.clone())));
        Ok(query.page(self.0.iter()))
    }

    async fn lock_dead_letter(&self, id: DeadLetterId) -> Result<Option<Locked>, StoreError> {
        Ok(self.dead_letter(id).await?.map(Locked))
    }

    async fn discard(&self, id: DeadLetterId, _: &DiscardReason, _: &Reviewer) -> Result<Discarded, StoreError> {
        Ok(match self.dead_letter(id).await?.map(|it| it.status) {
            None => Discarded::NotFound,
            Some(Status::PendingReview) => Discarded::Discarded,
            Some(Status::Replayed) => Discarded::WasReplayed,
            Some(Status::Discarded) => Discarded::Already,
        })
    }
}

impl CountStore for Memory {
    async fn count_dead_letters(&self, _: &LetterFilter, _: u32) -> Result<Vec<LetterCount>, StoreError> {
        Ok(Vec::new())
    }
}

impl Store for Memory {
    type Tx = NoTx;

    async fn begin(&self) -> Result<NoTx, StoreError> {
        Err(StoreError::Refused("nothing is worked here".into()))
    }

    async fn record_dead_letter(&self, _: &NewDeadLetter) -> Result<Recorded, StoreError> {
        Err(StoreError::Refused("nothing is worked here".into()))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_contention(_: &(dyn std::error::Error + 'static)) -> bool {
        false
    }
}

/// There is none.
pub(crate) enum NoTx {}

impl WorkTx for NoTx {
    type Conn = ();

    async fn fence(
        &mut self,
        _: &harness::FenceKey,
        _: Duration,
        _: Duration,
    ) -> Result<harness::FenceVerdict, StoreError> {
        match *self {}
    }

    async fn fence_all(
        &mut self,
        _: &[harness::FenceKey],
        _: Duration,
        _: Duration,
    ) -> Result<Vec<harness::FenceVerdict>, StoreError> {
        match *self {}
    }

    fn connection(&mut self) -> &mut () {
        match *self {}
    }

    async fn commit(self) -> Result<(), harness::CommitError> {
        match self {}
    }

    async fn rollback(self) -> Result<(), StoreError> {
        match self {}
    }
}

/// A letter that nobody else can have.
pub(crate) struct Locked(DeadLetter);

impl ReviewTx for Locked {
    fn letter(&self) -> &DeadLetter {
        &self.0
    }

    async fn mark_replayed(self, _: &Reviewer) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Publishes into nothing.
#[derive(Clone)]
pub(crate) struct Nowhere;

impl ReplayPublisher<Memory> for Nowhere {
    async fn publish(&self, _: &mut Locked, _: &QueueName, _: &Envelope) -> Result<(), QueueError> {
        Ok(())
    }
}

struct Still;

impl Clock for Still {
    fn now(&self) -> DateTime<Utc> {
        DateTime::from_timestamp(NOW, 0).expect("a time")
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

struct Nobody;

impl Observer for Nobody {
    fn event(&self, _: &Event) {}
}

thread_local! {
    static ROUTER: Router = made();
    /// What the store was asked last.
    static ASKED: RefCell<Option<LetterQuery>> = const { RefCell::new(None) };
}

fn made() -> Router {
    let token = Token {
        name: "olga".to_owned(),
        sha256: token_hash(TOKEN),
        permissions: Permission::ALL.to_vec(),
        tenant: false,
    };
    let keys = JwtKeys::Secret(JwtSecret::new(SECRET));
    let jwt = Jwt::new(JwtConfig::new(JwtAlgorithm::HS256, "issuer", "audience", keys)).expect("it can be right");
    router(Api {
        store: Memory(Arc::new(letters())),
        publisher: Nowhere,
        env: Env {
            clock: Arc::new(Still),
            entropy: Arc::new(SeededEntropy::new(1)),
            observer: Arc::new(Nobody),
        },
        access: Access::new(&[token], Some(jwt)).expect("they can be right"),
        limits: ApiLimits::default(),
        metrics: None,
    })
}

/// Status, headers and body of an answer.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) response: Response<()>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("every answer is JSON")
    }
}

/// Asks the API. Nothing there waits for anything, so the answer is there at once.
pub(crate) fn ask(request: Request<Body>) -> Answer {
    let router = ROUTER.with(Router::clone);
    let answered = async {
        let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.expect("it is in memory");
        Answer {
            status: parts.status.as_u16(),
            response: Response::from_parts(parts, ()),
            body: body.to_vec(),
        }
    };
    answered.now_or_never().expect("nothing waits")
}

/// Asks for a list, with a token; answers also what the store was asked.
pub(crate) fn list(query: &str) -> (Answer, Option<LetterQuery>) {
    ASKED.with(|asked| asked.borrow_mut().take());
    let request = Request::get(format!("/v1/core/dead-letters?{query}"))
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(Body::empty())
        .expect("an address");
    (ask(request), ASKED.with(|asked| asked.borrow_mut().take()))
}
