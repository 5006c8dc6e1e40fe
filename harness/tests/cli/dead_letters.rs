//! Reviewing from the command line, on a real PostgreSQL (B6, B8).

use acceptance::db::{Db, job_id, random_id};
use harness::{
    CorrelationId, DeadLetterId, ErrorClass, NewDeadLetter, Reason, Reviewer, Status, Store as _,
};

use super::run;

/// A dead letter of this class.
async fn letter(db: &Db, class: &str) -> String {
    let id = DeadLetterId(random_id());
    let job_id = job_id();
    let letter = NewDeadLetter {
        id,
        job_id,
        consumer: acceptance::db::consumer_name(),
        queue: acceptance::db::queue_name(),
        tenant_id: None,
        correlation_id: CorrelationId::from(job_id),
        generation: 0,
        reason: Reason::Hard,
        error_class: ErrorClass::of(class),
        attempts: 1,
        last_error: "no such account\u{1b}[2J".to_owned(),
        payload: "{\"account\": \"ada\"}".to_owned(),
        body: b"{\"account\":\"ada\"}".to_vec(),
        headers: "{}".to_owned(),
    };
    db.store().record_dead_letter(&letter).await.unwrap();
    id.to_string()
}

async fn statuses(db: &Db) -> Vec<(String, Status, Option<String>)> {
    let letters = db.letters().await.into_iter();
    letters
        .map(|it| (it.letter.id.to_string(), it.status, it.reviewed_by))
        .collect()
}

#[tokio::test]
async fn b8_letters_are_listed_counted_and_shown() {
    let db = Db::fresh().await;
    let (first, second) = (letter(&db, "one").await, letter(&db, "two").await);
    let url = Some(db.url());
    let listed = run(&["dead-letters", "list", "--order", "oldest"], url, "").good();
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(
        lines[1].starts_with(&first) && lines[2].starts_with(&second),
        "{listed}"
    );
    assert!(
        !listed.contains('\u{1b}'),
        "an error must not steer the terminal"
    );
    let one = [
        "dead-letters",
        "list",
        "--fingerprint",
        "points/awards/hard/two",
        "--format",
        "json",
    ];
    assert_eq!(run(&one, url, "").json()["id"], second);
    let none = ["dead-letters", "list", "--status", "discarded"];
    assert_eq!(run(&none, url, "").good(), "none\n");
    let counts = run(&["dead-letters", "list", "--counts"], url, "").good();
    assert!(counts.contains("points/awards/hard/one"), "{counts}");
    let shown = run(&["dead-letters", "show", &first], url, "").good();
    assert!(
        shown.contains("no such account\\u{1b}[2J") && shown.contains("\"account\""),
        "{shown}"
    );
    let json = run(
        &["dead-letters", "show", &first, "--format", "json"],
        url,
        "",
    )
    .json();
    assert_eq!(json["body_base64"], "eyJhY2NvdW50IjoiYWRhIn0=");
    let gone = run(&["dead-letters", "show", &random_id().to_string()], url, "");
    assert_eq!(gone.code, Some(1));
}

#[tokio::test]
async fn b6_a_replay_over_a_filter_takes_what_is_pending_and_fits_and_can_be_run_again() {
    let db = Db::fresh().await;
    let url = Some(db.url());
    for _ in 0..5 {
        letter(&db, "one").await;
    }
    let other = letter(&db, "two").await;
    let replay = [
        "dead-letters",
        "replay",
        "--fingerprint",
        "points/awards/hard/one",
        "--by",
        "ada",
        "--format",
        "json",
    ];
    let with = |more: &[&'static str]| {
        let mut all = replay.to_vec();
        all.extend(more);
        all
    };
    // Nobody to ask: nothing happens.
    let refused = run(&replay, url, "");
    assert_eq!(refused.code, Some(2));
    assert!(refused.error.contains("--dry-run"), "{}", refused.error);
    let dry = run(&with(&["--dry-run"]), url, "").json();
    assert_eq!(dry["letters"], 5);
    assert_eq!(dry["kinds"]["points/awards/hard/one"], 5);
    assert_eq!(db.count("SELECT count(*) FROM pgmq.q_points").await, 0);
    assert!(
        statuses(&db)
            .await
            .iter()
            .all(|it| it.1 == Status::PendingReview)
    );

    let done = run(&with(&["--yes"]), url, "").json();
    assert_eq!(
        (&done["replayed"], &done["refused"]),
        (&5.into(), &0.into())
    );
    assert_eq!(db.count("SELECT count(*) FROM pgmq.q_points").await, 5);
    for (id, status, by) in statuses(&db).await {
        let expected = if id == other {
            (Status::PendingReview, None)
        } else {
            (Status::Replayed, Some("ada".to_owned()))
        };
        assert_eq!((status, by), expected);
    }
    // Again: there is nothing left that is pending.
    let again = run(&with(&["--yes"]), url, "").json();
    assert_eq!(again["replayed"], 0);
    assert_eq!(db.count("SELECT count(*) FROM pgmq.q_points").await, 5);
}

#[tokio::test]
async fn a7_a_discard_says_who_and_why_and_one_that_cannot_be_is_told() {
    let db = Db::fresh().await;
    let url = Some(db.url());
    let (first, second) = (letter(&db, "one").await, letter(&db, "one").await);
    let ada = Reviewer::new("ada").unwrap();
    run(
        &["dead-letters", "replay", &first, "--by", ada.as_str()],
        url,
        "",
    )
    .good();
    let nobody = run(
        &["dead-letters", "discard", &second, "--reason", "test data"],
        url,
        "",
    );
    assert_eq!(nobody.code, Some(2));
    assert!(nobody.error.contains("JOB_HARNESS_BY"), "{}", nobody.error);
    let discard = [
        "dead-letters",
        "discard",
        &first,
        &second,
        "--reason",
        "test data",
        "--by",
        "ben",
        "--format",
        "json",
    ];
    let said = run(&discard, url, "");
    assert_eq!(said.code, Some(3), "one of two");
    let json = said.json();
    assert_eq!(
        (&json["discarded"], &json["refused"]),
        (&1.into(), &1.into())
    );
    assert!(
        json["problems"][0]
            .as_str()
            .unwrap()
            .contains("was replayed"),
        "{json}"
    );
    let letters = db.letters().await;
    let it = letters
        .iter()
        .find(|it| it.letter.id.to_string() == second)
        .unwrap();
    assert_eq!(it.discard_reason.as_deref(), Some("test data"));
    assert_eq!(it.reviewed_by.as_deref(), Some("ben"));
}
