//! The program `job-harness`, run as a process.

#![allow(clippy::unwrap_used, clippy::panic)]

mod arguments;
mod dead_letters;
mod enqueue;
mod serve;

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a run of the program said.
struct Said {
    code: Option<i32>,
    out: String,
    error: String,
}

impl Said {
    /// It ended well.
    #[track_caller]
    fn good(self) -> String {
        assert_eq!(self.code, Some(0), "{} {}", self.out, self.error);
        self.out
    }

    /// Standard output is one JSON document.
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|_| panic!("no JSON: {} {}", self.out, self.error))
    }
}

/// The program, without what this machine's environment would tell it.
fn program(arguments: &[&str], url: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_job-harness"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("JOB_HARNESS_")
            || name.starts_with("BETTER_STACK_")
            || name == "DATABASE_URL"
        {
            command.env_remove(name);
        }
    }
    command.args(arguments);
    command.envs(url.map(|url| ("DATABASE_URL", url)));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn said(mut command: Command, input: &str) -> Said {
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may end before it has read everything.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(arguments: &[&str], url: Option<&str>, input: &str) -> Said {
    said(program(arguments, url), input)
}
