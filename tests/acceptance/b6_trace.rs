//! A job's trace: from publish to run, through a dead letter and its replay (B6).

use std::sync::{Arc, Mutex};

use acceptance::db::{Db, job_id};
use acceptance::rig::{handler_fn, run_all};
use harness::{Envelope, Failure, TraceParent};

use crate::replaying::{operator, review};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Runs what is queued; answers the traces that the handler saw.
async fn traces(db: &Db, fail: bool) -> Vec<Option<String>> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let seen = Arc::clone(&seen);
        handler_fn(move |job, _tx| {
            let trace = job.trace.map(|it: TraceParent| it.to_string());
            seen.lock().unwrap().push(trace);
            Box::pin(async move {
                match fail {
                    true => Err(Failure::permanent("as the test wants it")),
                    false => Ok(()),
                }
            })
        })
    };
    run_all(db, handler).await;
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test]
async fn b6_a_trace_reaches_the_run_and_the_run_of_its_replay() {
    let db = Db::fresh().await;
    let envelope = Envelope::new(job_id(), *b"{}").in_trace(TRACE.parse().unwrap());
    db.publish(&envelope).await;
    assert_eq!(traces(&db, true).await, [Some(TRACE.to_owned())]);
    let letter = db.letters().await.remove(0).letter;
    assert!(letter.headers.contains(TRACE), "{}", letter.headers);
    let review = review(&db).await;
    review.replay(letter.id, &operator()).await.unwrap();
    assert_eq!(traces(&db, false).await, [Some(TRACE.to_owned())]);
}

/// Tracing decides nothing: the job runs, and the header is carried as it is.
#[tokio::test]
async fn b6_a_trace_that_cannot_be_read_harms_nothing() {
    let db = Db::fresh().await;
    let mut envelope = Envelope::new(job_id(), *b"{}");
    let broken = "00-not-a-trace";
    envelope
        .headers
        .insert("traceparent".to_owned(), broken.to_owned());
    db.publish(&envelope).await;
    assert_eq!(traces(&db, true).await, [None]);
    let letter = db.letters().await.remove(0).letter;
    assert!(letter.headers.contains(broken), "{}", letter.headers);
}
