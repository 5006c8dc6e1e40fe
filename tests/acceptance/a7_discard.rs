//! A7: discarding without a reason is rejected; D2: append-only except the status transition.

use acceptance::award::{Award, Misbehave};
use acceptance::db::Db;
use acceptance::rig::{awards, run_all, watched};
use harness::{
    DeadLetterId, DiscardError, DiscardReason, DiscardReasonError, Discarded, Review, Reviewer,
    Status,
};
use sqlx::{AssertSqlSafe, Executor as _};

async fn db_with_letter() -> (Db, DeadLetterId) {
    let db = Db::fresh().await;
    db.publish_award(&Award::new("ada", 10).then(Misbehave::FailHard))
        .await;
    run_all(&db, awards()).await;
    let id = db.letters().await[0].letter.id;
    (db, id)
}

async fn refused(db: &Db, statement: &str) -> String {
    db.pool
        .execute(AssertSqlSafe(statement.to_owned()))
        .await
        .expect_err(statement)
        .to_string()
}

const BLANK: [&str; 8] = [
    "",
    " ",
    "\t\n\r",
    "\u{a0}\u{2003}",
    "\u{200b}\u{200d}",
    "\u{feff}",
    "\u{3164}",
    "\u{e0020}",
];

#[tokio::test]
async fn a7_the_library_refuses_a_reason_with_nothing_to_read_in_it() {
    let (db, id) = db_with_letter().await;
    for blank in BLANK {
        assert!(
            matches!(DiscardReason::new(blank), Err(DiscardReasonError::NoReason)),
            "{blank:?}"
        );
    }
    assert_eq!(db.letters().await[0].status, Status::PendingReview);
    let review = Review::new(db.store(), db.queue().await, watched().0);
    let (reason, by) = (
        DiscardReason::new("the account is closed").unwrap(),
        Reviewer::new("olga").unwrap(),
    );
    assert_eq!(
        review.discard(id, &reason, &by).await.unwrap(),
        Discarded::Discarded
    );
    let letter = db.letters().await.remove(0);
    assert_eq!(
        (letter.status, letter.discard_reason.as_deref()),
        (Status::Discarded, Some("the account is closed"))
    );
    assert_eq!(letter.reviewed_by.as_deref(), Some("olga"));
}

#[tokio::test]
async fn a7_the_database_refuses_an_absent_empty_or_blank_reason() {
    let (db, id) = db_with_letter().await;
    let reviewed = "reviewed_at = now(), reviewed_by = 'olga'";
    let absent =
        format!("UPDATE core.dead_letters SET status = 'discarded', {reviewed} WHERE id = '{id}'");
    assert!(
        refused(&db, &absent)
            .await
            .contains("dead_letters_discard_has_reason")
    );
    for blank in BLANK {
        let blanked = format!(
            "UPDATE core.dead_letters SET status = 'discarded', discard_reason = '{blank}', {reviewed} WHERE id = '{id}'"
        );
        assert!(
            refused(&db, &blanked)
                .await
                .contains("dead_letters_discard_has_reason"),
            "{blank:?}"
        );
        let function = format!("SELECT core.discard_dead_letter('{id}', '{blank}', 'olga', 1000)");
        assert!(
            refused(&db, &function)
                .await
                .contains("dead_letters_discard_has_reason"),
            "{blank:?}"
        );
    }
    assert_eq!(db.letters().await[0].status, Status::PendingReview);
}

/// One rule, written twice: in Rust and in the CHECK.
#[tokio::test]
async fn a7_the_library_and_the_database_agree_on_every_character() {
    let db = Db::fresh().await;
    let seen: Vec<(i32, bool)> = sqlx::query_as(
        "SELECT c, core.has_visible_character(chr(c)) FROM generate_series(1, 1114111) c \
         WHERE c NOT BETWEEN 55296 AND 57343 AND (c < 70000 OR c > 917000)",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    for (code, visible) in seen {
        let text = char::from_u32(u32::try_from(code).unwrap())
            .unwrap()
            .to_string();
        assert_eq!(DiscardReason::new(&text).is_ok(), visible, "U+{code:04X}");
    }
}

#[tokio::test]
async fn b8_a_decision_is_final_and_the_first_reason_stays() {
    let (db, id) = db_with_letter().await;
    let review = Review::new(db.store(), db.queue().await, watched().0);
    let by = Reviewer::new("olga").unwrap();
    let (first, second) = (
        DiscardReason::new("first").unwrap(),
        DiscardReason::new("second").unwrap(),
    );
    assert_eq!(
        review.discard(id, &first, &by).await.unwrap(),
        Discarded::Discarded
    );
    assert_eq!(
        review.discard(id, &second, &by).await.unwrap(),
        Discarded::Already
    );
    assert_eq!(
        db.letters().await[0].discard_reason.as_deref(),
        Some("first")
    );

    let (db, id) = db_with_letter().await;
    let review = Review::new(db.store(), db.queue().await, watched().0);
    review.replay(id, &by).await.unwrap();
    assert!(matches!(
        review.discard(id, &first, &by).await,
        Err(DiscardError::WasReplayed(_))
    ));
    assert_eq!(db.letters().await[0].status, Status::Replayed);
}

#[tokio::test]
async fn b8_a_decision_is_signed() {
    for blank in BLANK {
        assert!(Reviewer::new(blank).is_err(), "{blank:?}");
    }
    let (db, id) = db_with_letter().await;
    let unsigned = format!("UPDATE core.dead_letters SET status = 'replayed' WHERE id = '{id}'");
    assert!(
        refused(&db, &unsigned)
            .await
            .contains("dead_letters_review_is_signed")
    );
}

#[tokio::test]
async fn b8_dead_letters_are_append_only_also_against_a_careless_operator() {
    let (db, id) = db_with_letter().await;
    let reviewed = "reviewed_at = now(), reviewed_by = 'olga'";
    for statement in [
        "DELETE FROM core.dead_letters".to_owned(),
        "TRUNCATE core.dead_letters CASCADE".to_owned(),
        "UPDATE core.dead_letters SET last_error = 'nothing happened'".to_owned(),
        "UPDATE core.dead_letters SET attempts = 1".to_owned(),
        format!("UPDATE core.dead_letters SET status = 'replayed', body = '', {reviewed}"),
        format!(
            "UPDATE core.dead_letters SET status = 'replayed', id = gen_random_uuid(), {reviewed}"
        ),
        format!("UPDATE core.dead_letters SET status = 'replayed', created_at = now(), {reviewed}"),
        "UPDATE core.dead_letters SET status = 'pending_review'".to_owned(),
    ] {
        let error = refused(&db, &statement).await;
        assert!(error.contains("append-only"), "{statement}: {error}");
    }
    let unknown = format!("UPDATE core.dead_letters SET status = 'forgotten', {reviewed}");
    refused(&db, &unknown).await;

    // The one change that is allowed, once.
    let allowed =
        format!("UPDATE core.dead_letters SET status = 'replayed', {reviewed} WHERE id = '{id}'");
    db.pool.execute(AssertSqlSafe(allowed)).await.unwrap();
    for back in ["pending_review", "discarded", "replayed"] {
        let change = format!("UPDATE core.dead_letters SET status = '{back}'");
        assert!(
            refused(&db, &change).await.contains("append-only"),
            "{back}"
        );
    }
}
