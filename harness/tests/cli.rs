//! What `job-harness` says to bad arguments: each message names what is wrong and the way out.

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Command, Stdio};

struct Said {
    code: Option<i32>,
    out: String,
    error: String,
}

fn run(arguments: &[&str], url: Option<&str>, input: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_job-harness"));
    command.args(arguments).env_remove("DATABASE_URL");
    command
        .env_remove("JOB_HARNESS_TOKENS")
        .env_remove("JOB_HARNESS_LISTEN");
    if let Some(url) = url {
        command.env("DATABASE_URL", url);
    }
    let pipes = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn what_is_wrong_is_named_with_the_way_out() {
    let url = Some("postgres://127.0.0.1:1/nothing");
    let cases: [(&[&str], Option<&str>, i32, &str); 8] = [
        (&["migrate"], None, 1, "DATABASE_URL: is not set"),
        (
            &["migrate"],
            Some("mysql://127.0.0.1/x"),
            1,
            "is no PostgreSQL URL",
        ),
        (&["serve"], url, 1, "--no-tokens NAME on a loopback address"),
        (
            &["serve", "--no-tokens", " "],
            url,
            1,
            "give the name of who decides",
        ),
        (
            &["serve", "--no-tokens", "ada", "--listen", "0.0.0.0:0"],
            url,
            1,
            "listen on 127.0.0.1",
        ),
        (
            &["serve", "--tokens", "/nowhere/tokens"],
            url,
            1,
            "--tokens /nowhere/tokens",
        ),
        (&["serve", "--listen", "here"], url, 2, "--listen"),
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
    assert_eq!(said.code, Some(1));
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
    assert_eq!(said.code, Some(1));
    assert!(said.error.contains("at least 20"), "{}", said.error);
}
