//! P1: what operators see of dead letters: every filter, in both orders, page by page, by an index.

use acceptance::db::{Db, random_id};
use chrono::{DateTime, TimeDelta, Utc};
use harness::{
    CorrelationId, CountStore as _, DeadLetter, JobId, LetterFilter, LetterOrder, LetterPlace,
    LetterQuery, PgStore, Reason, ReviewStore as _, Status, TenantId,
};

/// Letters of every kind, written as `record` would, with times of our own.
async fn fill(db: &Db, rows: i64) {
    // Everything that can be filtered by takes each of its values, in combinations that do not repeat soon.
    let insert = "INSERT INTO core.dead_letters (id, job_id, consumer, queue, tenant_id, correlation_id, generation, reason,
            error_class, attempts, last_error, payload, body, headers, status, discard_reason, created_at, reviewed_at, reviewed_by)
        SELECT gen_random_uuid(), gen_random_uuid(), 'awards_' || n % 3, 'points_' || n % 5,
            CASE WHEN n % 2 = 0 THEN md5((n % 7)::text)::uuid END, 'chain-' || n % 11, 0,
            (ARRAY['exhausted', 'hard', 'poison'])[1 + n % 3], 'class_' || n % 4, 1,
            CASE n % 13 WHEN 0 THEN '100% of it_is WRONG\\path' ELSE 'timeout ' || n END,
            '{}', '{}', '{}', s.status, CASE s.status WHEN 'discarded' THEN 'why not' END,
            timestamptz '2026-01-01' + (n / 2) * interval '1 s',
            CASE s.status WHEN 'pending_review' THEN NULL ELSE clock_timestamp() END,
            CASE s.status WHEN 'pending_review' THEN NULL ELSE 'ada' END
        FROM generate_series(1, $1) AS n,
            LATERAL (SELECT (ARRAY['pending_review', 'replayed', 'discarded', 'pending_review'])[1 + n % 4] AS status) AS s";
    sqlx::query(insert)
        .bind(rows)
        .execute(&db.pool)
        .await
        .unwrap();
    db.execute("ANALYZE core.dead_letters").await;
}

async fn pages(store: &PgStore, query: &LetterQuery) -> Vec<DeadLetter> {
    let (mut all, mut query) = (Vec::new(), query.clone());
    loop {
        let page = store.dead_letters(&query).await.unwrap();
        let Some(last) = page.last() else { return all };
        query.after = Some(LetterPlace::of(last));
        all.extend(page);
    }
}

fn at(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_767_225_600, 0).unwrap() + TimeDelta::seconds(second)
}

/// One filter of each kind, and some together.
fn filters(sample: &DeadLetter) -> Vec<(&'static str, LetterFilter)> {
    let none = LetterFilter::default;
    let letter = &sample.letter;
    let text = |text: &str| Some(text.to_owned());
    vec![
        ("nothing", none()),
        ("status", LetterFilter::of_status(Status::Discarded)),
        (
            "queue",
            LetterFilter {
                queue: Some(letter.queue.clone()),
                ..none()
            },
        ),
        (
            "consumer",
            LetterFilter {
                consumer: Some(letter.consumer.clone()),
                ..none()
            },
        ),
        (
            "tenant",
            LetterFilter {
                tenant_id: letter.tenant_id,
                ..none()
            },
        ),
        (
            "nobody's tenant",
            LetterFilter {
                tenant_id: Some(TenantId::new(random_id()).unwrap()),
                ..none()
            },
        ),
        (
            "reason",
            LetterFilter {
                reason: Some(Reason::Poison),
                ..none()
            },
        ),
        (
            "job",
            LetterFilter {
                job_id: Some(letter.job_id),
                ..none()
            },
        ),
        (
            "nobody's job",
            LetterFilter {
                job_id: Some(JobId::new(random_id()).unwrap()),
                ..none()
            },
        ),
        (
            "chain",
            LetterFilter {
                correlation_id: Some(CorrelationId::new("chain-3").unwrap()),
                ..none()
            },
        ),
        (
            "kind",
            LetterFilter {
                fingerprint: Some(letter.fingerprint()),
                ..none()
            },
        ),
        (
            "from",
            LetterFilter {
                created_from: Some(at(40)),
                ..none()
            },
        ),
        (
            "before",
            LetterFilter {
                created_before: Some(at(40)),
                ..none()
            },
        ),
        (
            "error",
            LetterFilter {
                error_contains: text("% OF IT_is wrong\\p"),
                ..none()
            },
        ),
        (
            "error, no sign of LIKE",
            LetterFilter {
                error_contains: text("zebra%path"),
                ..none()
            },
        ),
        (
            "several",
            LetterFilter {
                status: Some(Status::PendingReview),
                reason: Some(letter.reason),
                created_from: Some(at(3)),
                error_contains: text("timeout"),
                ..none()
            },
        ),
    ]
}

#[tokio::test]
async fn b8_every_filter_finds_what_fits_and_nothing_else() {
    let db = Db::fresh().await;
    fill(&db, 500).await;
    let store = db.store();
    let all = db.letters().await;
    assert_eq!(all.len(), 500);
    let sample = all.iter().find(|it| it.letter.tenant_id.is_some()).unwrap();
    for (name, filter) in filters(sample) {
        for order in [LetterOrder::OldestFirst, LetterOrder::NewestFirst] {
            // A page of 7 ends in the middle of letters that were written at the same time.
            let query = LetterQuery {
                filter: filter.clone(),
                order,
                after: None,
                limit: 7,
            };
            let expected = LetterQuery {
                limit: 1_000,
                ..query.clone()
            }
            .page(&all);
            let found = pages(&store, &query).await;
            let ids =
                |letters: &[DeadLetter]| letters.iter().map(|it| it.letter.id).collect::<Vec<_>>();
            assert_eq!(ids(&found), ids(&expected), "{name}, {order:?}");
            let none =
                ["nobody's tenant", "nobody's job", "error, no sign of LIKE"].contains(&name);
            assert_eq!(found.is_empty(), none, "{name}");
            assert!(
                name == "nothing" || found.len() < all.len(),
                "{name} filters nothing out"
            );
        }
        let counts = store.count_dead_letters(&filter, 1_000).await.unwrap();
        let counted: u64 = counts.iter().map(|count| count.letters).sum();
        let fitting = all.iter().filter(|it| filter.fits(it)).count();
        assert_eq!(counted, fitting as u64, "{name}");
        assert!(
            counts
                .windows(2)
                .all(|two| two[0].letters >= two[1].letters)
        );
    }
}

/// A letter that is decided between two pages is neither lost nor seen twice, if the list is not of one status.
#[tokio::test]
async fn b8_a_list_is_stable_while_letters_are_decided() {
    let db = Db::fresh().await;
    fill(&db, 60).await;
    let store = db.store();
    let mut query = LetterQuery {
        order: LetterOrder::NewestFirst,
        ..LetterQuery::first(LetterFilter::default(), 10)
    };
    let mut seen = Vec::new();
    loop {
        let page = store.dead_letters(&query).await.unwrap();
        let Some(last) = page.last() else { break };
        query.after = Some(LetterPlace::of(last));
        seen.extend(page.iter().map(|it| it.letter.id));
        db.execute(
            "UPDATE core.dead_letters SET status = 'replayed', reviewed_at = now(), reviewed_by = 'ada'
             WHERE id IN (SELECT id FROM core.dead_letters WHERE status = 'pending_review' ORDER BY created_at LIMIT 3)",
        )
        .await;
    }
    let mut different = seen.clone();
    different.sort();
    different.dedup();
    assert_eq!((seen.len(), different.len()), (60, 60));
}

/// With many rows, no filter reads all of them: there is an index for each, alone and in either order.
#[tokio::test]
async fn b8_every_filter_uses_an_index() {
    let db = Db::fresh().await;
    fill(&db, 20_000).await;
    let store = db.store();
    let page = store
        .dead_letters(&LetterQuery::first(LetterFilter::default(), 50))
        .await
        .unwrap();
    let sample = page
        .iter()
        .find(|it| it.letter.tenant_id.is_some())
        .unwrap();
    for (name, filter) in filters(sample) {
        for order in [LetterOrder::OldestFirst, LetterOrder::NewestFirst] {
            for after in [None, Some(LetterPlace::of(sample))] {
                let query = LetterQuery {
                    filter: filter.clone(),
                    order,
                    after,
                    limit: 50,
                };
                let plan = store.explain_dead_letters(&query).await.unwrap();
                let indexed = plan.contains("Index Scan") || plan.contains("Bitmap Index");
                assert!(
                    indexed && !plan.contains("Seq Scan"),
                    "{name}, {order:?}:\n{plan}"
                );
            }
        }
    }
}
