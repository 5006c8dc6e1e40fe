//! The demo as a newcomer runs it.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn demo(args: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn demo_settles_with_a_worker_killed_and_the_ledger_right() {
    let output = demo(
        &["--jobs", "400", "--workers", "3", "--format", "json"],
        b"",
    );
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(report["workers_killed"], 1);
    assert_eq!(report["points_expected"], report["points_in_ledger"]);
    assert!(report["points_in_ledger"].as_i64().unwrap() > 0);
    for kind in ["exhausted", "hard", "poison"] {
        assert!(
            report["dead_letters"][kind].as_i64().unwrap() > 0,
            "{kind}: {report}"
        );
    }
    assert!(
        report["duplicates_skipped"].as_i64().unwrap() > 0,
        "{report}"
    );
    assert!(report["retries"].as_i64().unwrap() > 0, "{report}");
}

#[test]
fn demo_lines_that_are_no_jobs_end_as_dead_letters() {
    let mut input = Vec::new();
    for line in [
        br#"{"job_id": "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01", "payload": {"account": "ada", "points": 10}}"#.as_slice(),
        br#"{"job_id": "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e01", "payload": {"account": "ada", "points": 10}}"#,
        br#"{"job_id": "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e02", "payload": {"account": "ben", "points": 7, "then": {"kill_runs": 1}}}"#,
        b"not json",
        br#"{"payload": {"account": "ada", "points": 1}}"#,
        br#"{"job_id": "7", "payload": {"account": "ada", "points": 1}}"#,
        br#"{"job_id": "a\u0000", "payload": {"account": "ada", "points": 1}}"#,
        b"\0",
        b"\xff\xfe",
        b"",
        br#"{"job_id": "0198f9a2-7c10-7b7e-9b1a-2f6f3c5d8e03", "payload": {"account": "\u0000", "points": "x"}}"#,
    ] {
        input.extend_from_slice(line);
        input.push(b'\n');
    }
    let output = demo(
        &["--input", "-", "--workers", "2", "--format", "json"],
        &input,
    );
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report}");
    assert_eq!(report["applied"], 2, "{report}");
    assert_eq!(report["points_in_ledger"], 17);
    assert_eq!(report["dead_letters"]["poison"], 7, "{report}");
}

#[test]
fn demo_bad_arguments_and_input_are_errors_that_say_what_to_do() {
    let output = demo(&["--input", "/nowhere.ndjson"], b"");
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("--input /nowhere.ndjson: No such file"),
        "{error}"
    );
    let output = demo(&["--input", "-"], b"\n\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no line in it"));
    assert_eq!(demo(&["--jobs", "0"], b"").status.code(), Some(2));
}

#[tokio::test]
async fn demo_keeps_its_dead_letters_for_practice_if_it_is_told_to() {
    let output = Command::new(env!("CARGO_BIN_EXE_demo"))
        .arg("--keep")
        .env_remove("DATABASE_URL")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--keep: set DATABASE_URL"));

    let server = embedded_pg::Postgres::obtain().await.unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_demo"))
        .args(["--keep", "--jobs", "100", "--format", "json"])
        .env("DATABASE_URL", server.url())
        .output()
        .unwrap();
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let url = said
        .trim_end()
        .rsplit_once("export DATABASE_URL=")
        .unwrap()
        .1;
    let store = harness::PgStore::new(url, harness::PgStoreConfig::default()).unwrap();
    let query = harness::LetterQuery::first(harness::LetterFilter::default(), 200);
    let letters = harness::ReviewStore::dead_letters(&store, &query)
        .await
        .unwrap();
    let expected: i64 = ["exhausted", "hard", "poison"]
        .iter()
        .map(|kind| report["dead_letters"][kind].as_i64().unwrap())
        .sum();
    assert!(
        expected > 0 && i64::try_from(letters.len()).unwrap() == expected,
        "{report}"
    );
    let name = url.rsplit_once('/').unwrap().1;
    let mut admin = <sqlx::PgConnection as sqlx::Connection>::connect(server.url())
        .await
        .unwrap();
    let drop = format!("DROP DATABASE {name} WITH (FORCE)");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop))
        .execute(&mut admin)
        .await
        .unwrap();
}
