//! A private server starts, can be crashed and restarted, and leaves nothing behind, however its owner ends.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use embedded_pg::Postgres;

fn port(url: &str) -> u16 {
    url.rsplit_once(':')
        .unwrap()
        .1
        .split('/')
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

fn accepts(url: &str) -> bool {
    TcpStream::connect(("127.0.0.1", port(url))).is_ok()
}

#[allow(clippy::disallowed_methods)]
fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never came true: {what}");
}

fn folder_of(postgres: &Postgres) -> PathBuf {
    postgres.log_path().unwrap().parent().unwrap().to_owned()
}

#[tokio::test]
async fn a_server_is_stopped_and_removed_when_dropped() {
    let postgres = Postgres::own().await.unwrap();
    let (url, folder) = (postgres.url().to_owned(), folder_of(&postgres));
    assert!(accepts(&url));
    assert!(folder.is_dir());
    drop(postgres);
    assert!(!folder.exists(), "the folder is gone");
    assert!(!accepts(&url), "the server is gone");
}

#[tokio::test]
async fn a_server_is_removed_when_its_owner_panics() {
    let folder = tokio::spawn(async {
        let postgres = Postgres::own().await.unwrap();
        let folder = folder_of(&postgres);
        std::panic::panic_any(folder);
    });
    let panic = folder.await.unwrap_err().into_panic();
    let folder = panic.downcast_ref::<PathBuf>().unwrap();
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_killed_server_can_be_restarted_on_the_same_port() {
    let mut postgres = Postgres::own().await.unwrap();
    let url = postgres.url().to_owned();
    for _ in 0..2 {
        postgres.kill().unwrap();
        postgres.restart().unwrap();
        assert!(accepts(&url));
        postgres.stop().unwrap();
        assert!(!accepts(&url));
        postgres.restart().unwrap();
        assert!(accepts(&url));
    }
}

#[test]
fn a_standby_is_removed_with_its_data_and_outlives_its_primary() {
    let primary = Postgres::own_local().unwrap();
    let standby = primary.standby().unwrap();
    let (url, folder) = (standby.url().to_owned(), folder_of(&standby));
    assert!(folder.join("data/standby.signal").is_file());
    drop(primary);
    assert!(accepts(&url));
    drop(standby);
    assert!(!folder.exists(), "the folder is gone");
    assert!(!accepts(&url), "the server is gone");
}

/// Runs a command under `with-postgres`; its first line of output is the URL.
fn with_postgres(script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_with-postgres"));
    command
        .env_remove("DATABASE_URL")
        .args(["--", "sh", "-c", script])
        .stdout(Stdio::piped());
    command
}

#[test]
fn the_owner_may_be_killed_and_nothing_is_left() {
    let mut owner = with_postgres("echo $DATABASE_URL; exec cat")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(owner.stdout.take().unwrap())
        .read_line(&mut url)
        .unwrap();
    assert!(accepts(url.trim()));
    let folder = std::env::temp_dir().join(format!("embedded-pg-run-{}-0", owner.id()));
    assert!(folder.is_dir());
    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the server is gone", || !accepts(url.trim()));
    eventually("the folder is gone", || !folder.exists());
}

#[test]
fn the_commands_exit_code_is_passed_on() {
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        assert_eq!(
            with_postgres(script).status().unwrap().code(),
            Some(code),
            "{script}"
        );
    }
}

#[test]
fn the_error_names_all_three_ways() {
    let output = with_postgres("true")
        .env("POSTGRES_BIN_DIR", Path::new("/nowhere"))
        .env("DOCKER_HOST", "tcp://127.0.0.1:1")
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{error}");
    for way in [
        "1. DATABASE_URL: not set",
        "2. local server binaries",
        "/nowhere",
        "3. a Docker daemon",
    ] {
        assert!(error.contains(way), "{way:?} is missing from: {error}");
    }
}
