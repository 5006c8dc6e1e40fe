//! Jobs from lines: all of them, or none.

use acceptance::db::{Db, queue_name};
use harness::{Envelope, PgmqQueue, QueuePort as _};
use std::time::Duration;

use super::run;

const GOOD: &str = r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01","payload":{"b": 1,  "a":2},"correlation_id":"c-1","traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","headers":{"x-from":"test"}}"#;
const BYTES: &str = r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","body_base64":"AP8="}"#;
const ENQUEUE: [&str; 4] = ["enqueue", "--queue", "points", "-"];

#[tokio::test]
async fn jobs_arrive_as_they_were_written_in_their_trace() {
    let db = Db::fresh().await;
    let said = run(&ENQUEUE, Some(db.url()), &format!("{GOOD}\n\n{BYTES}\n"));
    assert_eq!(said.good(), "2 jobs are on the queue points\n");
    let queue = PgmqQueue::new(db.pool.clone()).await;
    let got = queue
        .receive(&queue_name(), 10, Duration::from_secs(30))
        .await
        .unwrap();
    let mut got: Vec<Envelope> = (got.into_iter())
        .map(|it| Envelope::decode(&queue_name(), it.message).unwrap())
        .collect();
    got.sort_by_key(|it| it.job_id);
    assert_eq!(got[0].body, br#"{"b": 1,  "a":2}"#, "byte for byte");
    assert_eq!(got[0].correlation_id.to_string(), "c-1");
    assert_eq!(got[0].headers["x-from"], "test");
    assert_eq!(
        got[0].trace().unwrap().trace_id(),
        "4bf92f3577b34da6a3ce929d0e0e4736"
    );
    assert_eq!(got[1].body, [0, 255]);
}

#[tokio::test]
async fn one_line_that_is_wrong_and_nothing_is_on_the_queue() {
    let db = Db::fresh().await;
    let wrong = [
        ("no json", "expected"),
        (r#"{"payload":1}"#, "job_id"),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02"}"#,
            "payload",
        ),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","payload":1,"body_base64":""}"#,
            "one of the two",
        ),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","body_base64":"?"}"#,
            "body_base64",
        ),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","payload":1,"headers":{"job-id":"x"}}"#,
            "job-id",
        ),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","payload":1,"headers":{"x":"\u0000"}}"#,
            "U+0000",
        ),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","payload":1,"traceparent":"x"}"#,
            "traceparent",
        ),
        (
            r#"{"job_id":"0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02","payload":1,"more":1}"#,
            "more",
        ),
    ];
    for (line, part) in wrong {
        let said = run(&ENQUEUE, Some(db.url()), &format!("{GOOD}\n{line}\n"));
        assert_eq!(said.code, Some(2), "{line}");
        for part in ["line 2", "nothing was put on the queue", part] {
            assert!(
                said.error.contains(part),
                "{part:?} is not in: {}",
                said.error
            );
        }
    }
    let dry = ["enqueue", "--queue", "points", "--dry-run", "-"];
    let said = run(&dry, None, &format!("{GOOD}\n"));
    assert_eq!(
        said.good(),
        "1 jobs are good; nothing was put on the queue\n"
    );
    let nowhere = run(
        &["enqueue", "--queue", "nowhere", "-"],
        Some(db.url()),
        GOOD,
    );
    assert_eq!(nowhere.code, Some(1));
    assert!(
        nowhere.error.contains("migrate --queue nowhere"),
        "{}",
        nowhere.error
    );
    assert_eq!(db.count("SELECT count(*) FROM pgmq.q_points").await, 0);
}
