//! What `job-harness` says to bad arguments: each message names what is wrong and the way out.

use std::io::Write as _;

use super::{program, run, said};

#[test]
fn what_is_wrong_is_named_with_the_way_out() {
    let url = Some("postgres://127.0.0.1:1/nothing");
    let cases: [(&[&str], Option<&str>, i32, &str); 21] = [
        (&["migrate"], url, 1, "cannot be reached"),
        (&["dead-letters", "list", "--queue", "No"], url, 2, "a-z"),
        (
            &["dead-letters", "replay"],
            url,
            2,
            "Give ids, or filters, or --all",
        ),
        (
            &["dead-letters", "replay", "--all", "--queue", "points"],
            url,
            2,
            "one of the three",
        ),
        (
            &["dead-letters", "discard", "--all", "--reason", " "],
            url,
            2,
            "--reason",
        ),
        (
            &["dead-letters", "list", "--config", "/nowhere/at.toml"],
            url,
            2,
            "/nowhere/at.toml",
        ),
        (
            &["enqueue", "--queue", "points", "/nowhere/jobs"],
            url,
            2,
            "/nowhere/jobs",
        ),
        (
            &["check-config", "--set", "sweep.batch=0"],
            None,
            2,
            "sweep.batch: must be at least 1",
        ),
        (&["migrate"], None, 2, "DATABASE_URL: is not set"),
        (
            &["migrate"],
            Some("mysql://127.0.0.1/x"),
            2,
            "is no PostgreSQL URL",
        ),
        (&["serve"], url, 2, "--no-tokens NAME on a loopback address"),
        (
            &["serve", "--no-tokens", " "],
            url,
            2,
            "give the name of who decides",
        ),
        (
            &["serve", "--no-tokens", "ada", "--listen", "0.0.0.0:0"],
            url,
            2,
            "listen on 127.0.0.1",
        ),
        (
            &["serve", "--tokens", "/nowhere/tokens"],
            url,
            2,
            "access.tokens_file: /nowhere/tokens",
        ),
        (&["serve", "--listen", "here"], url, 2, "--listen"),
        (
            &["serve", "--set", "access.jwt.algorithm=none"],
            url,
            2,
            "access.jwt.algorithm (command line)",
        ),
        (
            &["serve", "--set", "access.jwt.issuer=me"],
            url,
            2,
            "access.jwt.algorithm: is not set",
        ),
        (
            &["serve", "--set", "access.jwt.algorithm=EdDSA"],
            url,
            2,
            "access.jwt: needs jwks_file",
        ),
        (
            &[
                "check-config",
                "--set",
                "access.jwt.algorithm=HS256",
                "--set",
                "access.jwt.jwks_file=/nowhere/keys",
                "--set",
                "access.jwt.issuer=me",
                "--set",
                "access.jwt.audience=you",
            ],
            None,
            2,
            "access.jwt.jwks_file: HS256 takes a secret",
        ),
        (
            &["check-config", "--set", "alerts.escalate_after=0s"],
            None,
            2,
            "alerts.escalate_after: must be longer",
        ),
        (&["sing"], url, 2, "unrecognized subcommand"),
    ];
    for (arguments, url, code, text) in cases {
        let said = run(arguments, url, "");
        assert_eq!(said.code, Some(code), "{arguments:?}: {}", said.error);
        assert!(said.error.contains(text), "{arguments:?}: {}", said.error);
    }
}

#[test]
fn the_databases_password_is_on_no_screen() {
    let said = run(
        &["serve", "--help"],
        Some("postgres://ada:hidden@127.0.0.1/x"),
        "",
    );
    assert!(!said.out.contains("hidden"), "{}", said.out);
    let said = run(&["migrate"], Some("postgres://ada:hidden@:x:/x"), "");
    assert_ne!(said.code, Some(0));
    assert!(!said.error.contains("hidden"), "{}", said.error);
}

#[test]
fn a_token_is_hashed_if_it_is_long_enough() {
    let said = run(&["token-hash"], None, "correct horse battery staple\n");
    assert_eq!(said.code, Some(0));
    // printf 'correct horse battery staple' | sha256sum
    let expected = "c4bbcb1fbec99d65bf59d85c8cb62ee2db963f0fe106f483d9afa73bd4e39a8a\n";
    assert_eq!(said.out, expected);
    let said = run(&["token-hash"], None, "short");
    assert_eq!(said.code, Some(2));
    assert!(said.error.contains("at least 20"), "{}", said.error);
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// What is shown can be read again, says the same, and holds no secret.
#[test]
fn the_configuration_that_is_shown_is_one() {
    let given = file(
        "[alerts]\nrequester_email = 'ada@example.com'\n[[consumers]]\nname = 'awards'\nqueue = 'points'\n",
    );
    let path = given.path().to_str().unwrap();
    let mut command = program(
        &["show-config", "--config", path],
        Some("postgres://ada:hidden@x/y"),
    );
    command
        .env("BETTER_STACK_TOKEN", "hidden")
        .env("BETTER_STACK_HEARTBEAT_URL", "https://x/hidden")
        .env("JOB_HARNESS_JWT_SECRET", "hidden")
        .env("JOB_HARNESS_SWEEP_BATCH", "7");
    let shown = said(command, "").good();
    assert!(
        shown.contains("sweep.batch = 7   # JOB_HARNESS_SWEEP_BATCH"),
        "{shown}"
    );
    assert!(!shown.contains("hidden"), "{shown}");
    let again = file(&shown);
    let json = |path: &str, variable: Option<(&str, &str)>| {
        let mut command = program(&["show-config", "--format", "json", "--config", path], None);
        command.envs(variable);
        let shown = said(command, "").json();
        let values = shown.as_object().unwrap().iter();
        values
            .map(|(key, it)| (key.clone(), it["value"].clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        json(path, Some(("JOB_HARNESS_SWEEP_BATCH", "7"))),
        json(again.path().to_str().unwrap(), None)
    );
}

#[test]
fn b7_everything_that_is_wrong_with_a_configuration_is_told_at_once() {
    let given = file(
        "[sweep]\nbatch = 0\n[alerts]\nrequester_email = 'ada@example.com'\n\
         [[consumers]]\nname = 'awards'\nqueue = 'points'\nfence = { ttl = '5days' }\n\
         [[consumers]]\nname = 'Awards'\nqueue = 'points'\n\
         [[consumers]]\nname = 'mails'\nqueue = 'mails'\nretry = { retries = 9 }\n",
    );
    let said = run(
        &["check-config", "--config", given.path().to_str().unwrap()],
        None,
        "",
    );
    assert_eq!(said.code, Some(2));
    let problems = [
        "sweep.batch: must be at least 1",
        "BETTER_STACK_TOKEN",
        "consumers[0].fence.ttl: 432000s is not longer than",
        "consumers[1].name",
        "consumers[2].retry.rationale",
    ];
    for problem in problems {
        assert!(
            said.error.contains(problem),
            "{problem:?} is not in: {}",
            said.error
        );
    }
}
