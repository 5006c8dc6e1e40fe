//! A4: a schema-invalid payload goes straight to dead letters with zero retries.

use acceptance::award::Award;
use acceptance::db::{Db, job_id};
use acceptance::rig::{Running, awards, handler_fn, run_all};
use harness::{Envelope, NewDeadLetter, Reason, Step};
use serde_json::Value;

/// Puts a row on the queue as anybody could, with SQL.
async fn enqueue_row(db: &Db, message: Option<&str>) {
    sqlx::query("SELECT pgmq.send('points', $1::text::jsonb)")
        .bind(message)
        .execute(&db.pool)
        .await
        .unwrap();
}

/// Runs whatever is on the queue between two good neighbours; the rest must be one dead letter, and no run.
async fn only_letter(db: &Db) -> NewDeadLetter {
    let after = db.publish_award(&Award::new("after", 2)).await;
    let consumer = Running::start(db, db.config(), awards()).await;
    db.settled().await;
    let runs = consumer
        .seen
        .count(|step| matches!(step, Step::RunStarted { .. }));
    let retries = consumer
        .seen
        .count(|step| matches!(step, Step::Retried { .. }));
    consumer.stop().await;
    assert_eq!(runs, 2, "the handler is called for the neighbours only");
    assert_eq!(retries, 0);
    assert_eq!(db.effects(after).await, 1);
    assert_eq!(
        db.count("SELECT count(*) FROM ledger").await,
        2,
        "neighbours are unaffected"
    );
    assert_eq!(
        db.count("SELECT count(*) FROM core.processed_jobs").await,
        2
    );
    let mut letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = letters.remove(0).letter;
    assert_eq!((letter.reason, letter.attempts), (Reason::Poison, 1));
    letter
}

async fn poison(body: impl Into<Vec<u8>>, class: &str, error: &str) -> NewDeadLetter {
    let (db, id) = (Db::fresh().await, job_id());
    db.publish_award(&Award::new("before", 1)).await;
    let body = body.into();
    db.publish(&Envelope::new(id, body.clone())).await;
    let letter = only_letter(&db).await;
    assert_eq!(letter.job_id, id);
    assert_eq!(letter.body, body, "the bytes are kept");
    assert_eq!(letter.error_class.as_str(), class, "{}", letter.last_error);
    assert!(
        letter.last_error.contains(error),
        "{error:?} is not in {:?}",
        letter.last_error
    );
    letter
}

fn payload(letter: &NewDeadLetter) -> Value {
    serde_json::from_str(&letter.payload).unwrap()
}

#[tokio::test]
async fn a4_wrong_type() {
    let letter = poison(
        r#"{"account": "ada", "points": "ten"}"#,
        "poison:schema",
        "expected i64",
    )
    .await;
    assert_eq!(
        payload(&letter),
        serde_json::json!({"account": "ada", "points": "ten"})
    );
}

#[tokio::test]
async fn a4_missing_field() {
    poison(
        r#"{"account": "ada"}"#,
        "poison:schema",
        "missing field `points`",
    )
    .await;
}

#[tokio::test]
async fn a4_unknown_field() {
    poison(
        r#"{"account": "ada", "points": 1, "currency": "x"}"#,
        "poison:schema",
        "unknown field `currency`",
    )
    .await;
}

#[tokio::test]
async fn a4_unknown_kind() {
    poison(
        r#"{"account": "ada", "points": 1, "then": "explode"}"#,
        "poison:schema",
        "unknown variant `explode`",
    )
    .await;
}

#[tokio::test]
async fn a4_not_json() {
    let letter = poison("points=10", "poison:json", "expected value").await;
    assert_eq!(payload(&letter)["unrepresentable"], "not JSON");
}

#[tokio::test]
async fn a4_two_documents() {
    poison(
        r#"{"account": "ada", "points": 1} {}"#,
        "poison:json",
        "trailing characters",
    )
    .await;
}

#[tokio::test]
async fn a4_empty_body() {
    let letter = poison("", "poison:json", "EOF").await;
    assert_eq!(payload(&letter)["unrepresentable"], "empty");
}

#[tokio::test]
async fn a4_nul_as_an_escape() {
    let letter = poison(
        r#"{"account": "a\u0000", "points": "x"}"#,
        "poison:schema",
        "expected i64",
    )
    .await;
    assert_eq!(payload(&letter)["unrepresentable"], "contains U+0000");
}

#[tokio::test]
async fn a4_nul_as_a_byte() {
    let letter = poison(*b"\0", "poison:json", "expected value").await;
    assert_eq!(payload(&letter)["unrepresentable"], "not JSON");
}

#[tokio::test]
async fn a4_lone_surrogate() {
    let letter = poison(
        r#"{"account": "\ud800", "points": 1}"#,
        "poison:json",
        "hex escape",
    )
    .await;
    assert_eq!(
        payload(&letter)["unrepresentable"],
        "contains a lone surrogate"
    );
}

#[tokio::test]
async fn a4_number_out_of_range() {
    // Valid JSON, and JSONB holds it; no i64 does.
    let letter = poison(
        r#"{"account": "ada", "points": 1e400}"#,
        "poison:json",
        "number out of range",
    )
    .await;
    assert!(letter.payload.contains("10000"), "{}", letter.payload);
}

#[tokio::test]
async fn a4_not_utf8() {
    let letter = poison(
        b"{\"account\": \"\xff\", \"points\": 1}".to_vec(),
        "poison:json",
        "unicode",
    )
    .await;
    assert_eq!(payload(&letter)["unrepresentable"], "not UTF-8");
}

#[tokio::test]
async fn a4_nested_arrays() {
    for depth in [6_000, 100_000] {
        let body = "[".repeat(depth) + &"]".repeat(depth);
        // The payload's type is looked at first: no recursion, whatever the depth.
        let letter = poison(body, "poison:schema", "invalid type: sequence").await;
        assert_eq!(payload(&letter)["unrepresentable"], "nested too deep");
    }
}

#[tokio::test]
async fn a4_nested_arrays_where_the_schema_allows_them() {
    let (db, id) = (Db::fresh().await, job_id());
    db.publish(&Envelope::new(
        id,
        "[".repeat(100_000) + &"]".repeat(100_000),
    ))
    .await;
    run_all(&db, handler_fn(|_, _| Box::pin(async { Ok(()) }))).await;
    let letters = db.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].letter.body.len(), 200_000);
    assert!(
        letters[0].letter.last_error.contains("recursion limit"),
        "{}",
        letters[0].letter.last_error
    );
}

/// A row whose headers are `headers`, with a good body.
async fn poison_headers(headers: Value, error: &str) -> NewDeadLetter {
    let db = Db::fresh().await;
    db.publish_award(&Award::new("before", 1)).await;
    // {"account": "ada", "points": 1}
    let row = serde_json::json!({"headers": headers, "body": "eyJhY2NvdW50IjogImFkYSIsICJwb2ludHMiOiAxfQ=="});
    enqueue_row(&db, Some(&row.to_string())).await;
    let letter = only_letter(&db).await;
    assert!(
        letter.last_error.contains(error),
        "{error:?} is not in {:?}",
        letter.last_error
    );
    letter
}

#[tokio::test]
async fn a4_missing_headers() {
    let letter = poison_headers(serde_json::json!({}), "header \"job-id\" is missing").await;
    assert_eq!(letter.body, br#"{"account": "ada", "points": 1}"#);
}

#[tokio::test]
async fn a4_malformed_headers() {
    let id = "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01";
    for (headers, error) in [
        (serde_json::json!({"job-id": "7"}), "job id is not a UUID"),
        (
            serde_json::json!({"job-id": uuid::Uuid::nil().to_string()}),
            "nil UUID",
        ),
        (
            serde_json::json!({"job-id": id, "generation": "-1"}),
            "is not a whole number",
        ),
        (
            serde_json::json!({"job-id": id, "tenant-id": "acme"}),
            "tenant id is not a UUID",
        ),
        (
            serde_json::json!({"job-id": id, "correlation-id": "a b"}),
            "correlation id must have",
        ),
    ] {
        let letter = poison_headers(headers.clone(), error).await;
        assert_ne!(
            letter.job_id.to_string(),
            id,
            "the id of a broken message is not trusted"
        );
        assert_eq!(
            serde_json::from_str::<Value>(&letter.headers).unwrap(),
            headers,
            "headers are kept"
        );
    }
}

#[tokio::test]
async fn a4_rows_that_are_no_messages() {
    for (row, body) in [
        (
            Some(r#"{"account": "ada", "points": 1}"#),
            r#"{"points": 1, "account": "ada"}"#,
        ),
        (Some("[1, 2]"), "[1, 2]"),
        (
            Some(r#"{"headers": {"job-id": 7}, "body": ""}"#),
            r#"{"body": "", "headers": {"job-id": 7}}"#,
        ),
        (
            Some(r#"{"headers": {}, "body": "§"}"#),
            r#"{"body": "§", "headers": {}}"#,
        ),
        (Some("1e400"), &format!("1{}", "0".repeat(400))),
        (None, "null"),
    ] {
        let db = Db::fresh().await;
        db.publish_award(&Award::new("before", 1)).await;
        enqueue_row(&db, row).await;
        let letter = only_letter(&db).await;
        assert_eq!(String::from_utf8_lossy(&letter.body), body);
        assert_eq!(letter.error_class.as_str(), "poison:headers");
    }
}

#[tokio::test]
async fn b5_the_same_broken_bytes_twice_are_one_dead_letter() {
    let db = Db::fresh().await;
    for _ in 0..2 {
        enqueue_row(&db, Some("[1, 2]")).await;
    }
    let consumer = Running::start(&db, db.config(), awards()).await;
    db.settled().await;
    let already = consumer
        .seen
        .count(|step| matches!(step, Step::DeadLetterAlready));
    consumer.stop().await;
    assert_eq!((db.letters().await.len(), already), (1, 1));
}

/// The database has the last word on what JSONB can hold; a failure does not vanish over it.
#[tokio::test]
async fn b4_a_payload_that_the_database_refuses_is_replaced_not_lost() {
    use harness::Store as _;
    let db = Db::fresh().await;
    db.publish(&Envelope::new(job_id(), "not json")).await;
    run_all(&db, awards()).await;
    let mut letter = db.letters().await.remove(0).letter;
    letter.job_id = job_id();
    letter.id = harness::DeadLetterId(acceptance::db::random_id());
    letter.payload = r#""\u0000""#.to_owned();
    assert_eq!(
        db.store().record_dead_letter(&letter).await.unwrap(),
        harness::Recorded::Written
    );
    let stored = db.letters().await.remove(1).letter;
    assert_eq!(
        payload(&stored)["unrepresentable"],
        "refused by the database"
    );
    assert_eq!(stored.body, letter.body);
}
