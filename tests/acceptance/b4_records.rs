//! B4: exhausted retries and hard failures are on record, whatever the error looks like and wherever the database is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use acceptance::award::{Award, Misbehave};
use acceptance::db::{Db, job_id};
use acceptance::faults::{Call, Fault, Point, When};
use acceptance::rig::{Running, awards, handler_fn, run_all};
use harness::{
    CorrelationId, ERROR_TEXT_MAX_BYTES, Envelope, Failure, Reason, Status, Step, TenantId,
};

#[derive(Debug, thiserror::Error)]
#[error("cause {0}")]
struct Cause(u32, #[source] Option<Box<Cause>>);

async fn last_error(make: impl Fn() -> Failure + Send + Sync + 'static) -> String {
    let db = Db::fresh().await;
    db.publish(&Envelope::new(job_id(), "{}")).await;
    let handler = handler_fn(move |_, _| {
        let failure = make();
        Box::pin(async move { Err(failure) })
    });
    run_all(&db, handler).await;
    db.letters().await.remove(0).letter.last_error
}

#[tokio::test]
async fn b4_an_error_text_with_nul_is_recorded() {
    assert_eq!(
        last_error(|| Failure::permanent("a\0b")).await,
        "a\u{fffd}b"
    );
}

#[tokio::test]
async fn b4_an_error_text_with_bytes_that_are_not_utf8_is_recorded() {
    let error =
        last_error(|| Failure::permanent(String::from_utf8_lossy(b"a\xff\xfeb").into_owned()))
            .await;
    assert_eq!(error, "a\u{fffd}\u{fffd}b");
}

#[tokio::test]
async fn b4_an_error_text_of_1_mib_is_cut_on_a_character_boundary() {
    let error = last_error(|| Failure::permanent("ä".repeat(524_288))).await;
    assert!(
        error.len() <= ERROR_TEXT_MAX_BYTES && error.len() > ERROR_TEXT_MAX_BYTES - 10,
        "{}",
        error.len()
    );
    assert!(
        error.ends_with("ä … [cut, 1048576 bytes in all]"),
        "{:?}",
        &error[error.len() - 60..]
    );
}

#[tokio::test]
async fn b4_twenty_nested_causes_are_recorded() {
    let error = last_error(|| {
        let chain = (0..20)
            .rev()
            .fold(None, |inner, n| Some(Box::new(Cause(n, inner))));
        Failure::permanent(*chain.unwrap())
    })
    .await;
    let expected: Vec<String> = (0..20).map(|n| format!("cause {n}")).collect();
    assert_eq!(error, expected.join(": "));
}

#[tokio::test]
async fn b4_a_hard_failure_is_on_record_at_once_with_everything_that_is_known() {
    let db = Db::fresh().await;
    let mut envelope = Envelope::new(
        job_id(),
        Award::new("ada", 10).then(Misbehave::FailHard).body(),
    );
    envelope.correlation_id = CorrelationId::new("order-4711").unwrap();
    envelope.tenant_id = Some(TenantId::new(acceptance::db::random_id()).unwrap());
    envelope
        .headers
        .insert("x-source".to_owned(), "shop".to_owned());
    db.publish(&envelope).await;
    run_all(&db, awards()).await;
    let letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0].letter;
    assert_eq!(
        (letter.reason, letter.attempts, letters[0].status),
        (Reason::Hard, 1, Status::PendingReview)
    );
    assert_eq!(letter.job_id, envelope.job_id);
    assert_eq!(
        (&letter.correlation_id, letter.tenant_id),
        (&envelope.correlation_id, envelope.tenant_id)
    );
    assert_eq!(
        (letter.queue.as_str(), letter.consumer.as_str()),
        ("points", "awards")
    );
    assert_eq!(letter.body, envelope.body);
    assert_eq!(letter.last_error, "fails for good, as told");
    let headers: serde_json::Value = serde_json::from_str(&letter.headers).unwrap();
    assert_eq!(headers["x-source"], "shop");
    let payload: serde_json::Value = serde_json::from_str(&letter.payload).unwrap();
    assert_eq!(
        payload["points"], 10,
        "the payload can be read and searched"
    );
}

/// The database is away for the writing of dead letters: nothing is acked, nothing is lost, one letter in the end.
#[tokio::test]
async fn b4_a_dead_letter_waits_for_the_database() {
    let db = Db::fresh().await;
    let id = db
        .publish_award(&Award::new("ada", 10).then(Misbehave::FailHard))
        .await;
    let away = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicU32::new(0));
    let plan: acceptance::faults::Plan = {
        let (away, asked) = (Arc::clone(&away), Arc::clone(&asked));
        Arc::new(move |point| match point {
            Point {
                when: When::Before,
                call: Call::RecordDeadLetter | Call::Ping,
            } if away.load(Ordering::SeqCst) => {
                asked.fetch_add(1, Ordering::SeqCst);
                Fault::Away
            }
            _ => Fault::None,
        })
    };
    let handler = awards();
    let consumer = Running::start_faulty(&db, plan, handler).await;
    let failed = |step: &Step| matches!(step, Step::StoreFailed { call, .. } if call == "record_dead_letter");
    consumer
        .seen
        .wait_for("the letter is tried several times", 4, failed)
        .await;
    consumer
        .seen
        .wait_for("no new work is taken", 1, |step| {
            matches!(step, Step::Paused)
        })
        .await;
    assert_eq!(
        (db.queued().await, db.letters().await.len()),
        (1, 0),
        "no ack before the letter"
    );
    let healthy = db.publish_award(&Award::new("ben", 1)).await;
    assert_eq!(db.effects(healthy).await, 0);

    away.store(false, Ordering::SeqCst);
    db.settled().await;
    assert_eq!(
        consumer
            .seen
            .count(|step| matches!(step, Step::DeadLettered { .. })),
        1
    );
    consumer.stop().await;
    let letters = db.letters().await;
    assert_eq!((letters.len(), letters[0].letter.job_id), (1, id));
    assert_eq!(
        letters[0].letter.last_error, "fails for good, as told",
        "the error is not forgotten meanwhile"
    );
    assert_eq!(db.effects(healthy).await, 1, "and work goes on");
}

/// The whole server is away, queue included.
#[tokio::test]
async fn b4_a_dead_letter_waits_for_the_server() {
    let mut db = Db::own_server().await;
    let id = db
        .publish_award(&Award::new("ada", 10).then(Misbehave::FailHard))
        .await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let open = Arc::clone(&gate);
    let handler = handler_fn(move |_, _| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            gate.acquire().await?.forget();
            Err(Failure::permanent("fails for good, as told"))
        })
    });
    let consumer = Running::start(&db, db.config(), handler).await;
    consumer
        .seen
        .wait_for("runs", 1, |step| matches!(step, Step::RunStarted { .. }))
        .await;
    db.server().stop().unwrap();
    open.add_permits(10);
    let failed = |step: &Step| matches!(step, Step::StoreFailed { call, .. } if call == "record_dead_letter");
    consumer
        .seen
        .wait_for("the letter is tried", 2, failed)
        .await;
    db.server().restart().unwrap();
    let lettered =
        |step: &Step| matches!(step, Step::DeadLettered { .. } | Step::DeadLetterAlready);
    consumer
        .seen
        .wait_for("the letter is written", 1, lettered)
        .await;
    acceptance::clock::eventually("the queue is empty", async || {
        match sqlx::query_scalar::<_, i64>("SELECT count(*) FROM pgmq.q_points")
            .fetch_one(&db.pool)
            .await
        {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    consumer.stop().await;
    let letters = db.letters().await;
    assert_eq!((letters.len(), letters[0].letter.job_id), (1, id));
}

/// An answer that is lost after the letter was written: it is written again, and there is still one.
#[tokio::test]
async fn b4_a_lost_answer_to_a_dead_letter_does_not_make_two() {
    let db = Db::fresh().await;
    db.publish_award(&Award::new("ada", 10).then(Misbehave::FailHard))
        .await;
    let lost = AtomicU32::new(0);
    let plan: acceptance::faults::Plan = Arc::new(move |point| match point {
        Point {
            when: When::After,
            call: Call::RecordDeadLetter,
        } if lost.fetch_add(1, Ordering::SeqCst) < 2 => Fault::Away,
        _ => Fault::None,
    });
    let handler = awards();
    let consumer = Running::start_faulty(&db, plan, handler).await;
    db.settled().await;
    assert_eq!(
        consumer
            .seen
            .count(|step| matches!(step, Step::DeadLetterAlready)),
        1
    );
    consumer.stop().await;
    assert_eq!(db.letters().await.len(), 1);
}

/// What a handler logs carries the job's ids, so that a correlation id finds it.
#[tokio::test]
async fn b4_log_lines_of_a_run_carry_the_correlation_id() {
    use std::sync::Mutex;
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _default = tracing::subscriber::set_default(subscriber);
    let db = Db::fresh().await;
    let mut envelope = Envelope::new(job_id(), "{}");
    envelope.correlation_id = CorrelationId::new("order-4711").unwrap();
    db.publish(&envelope).await;
    let handler = handler_fn(|_, _| {
        Box::pin(async {
            tracing::info!("the handler says something");
            Err(Failure::permanent("no"))
        })
    });
    run_all(&db, handler).await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for said in ["the handler says something", "run failed", "dead letter"] {
        let line = text
            .lines()
            .find(|line| line.contains(said))
            .unwrap_or_else(|| panic!("{said:?} not in {text}"));
        assert!(line.contains("correlation_id=order-4711"), "{line}");
        assert!(
            line.contains(&format!("job_id={}", envelope.job_id)),
            "{line}"
        );
    }
}
