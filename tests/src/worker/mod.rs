//! Worker processes: a consumer of its own in a process of its own, to be killed.

pub mod process;

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use clap::Parser;
use tokio::process::{Child, ChildStdin, Command};

use crate::faults::Point;

/// What a worker process is told.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "worker",
    about = "One consumer of the `points` queue in a process of its own, for tests and the demo"
)]
pub struct WorkerArgs {
    /// The database, with schema, queue and ledger in it.
    #[arg(long)]
    pub url: String,
    /// The NATS server that has the queue, such as nats://127.0.0.1:4222; without it the queue is in the database.
    #[arg(long)]
    pub nats: Option<String>,
    /// The name of the consumer.
    #[arg(long, default_value = "awards")]
    pub consumer: String,
    /// Handlers that run at once.
    #[arg(long, default_value_t = 4)]
    pub concurrency: usize,
    /// Jobs that may run in one transaction.
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// The lease of a delivery, in seconds.
    #[arg(long, default_value_t = 2)]
    pub lease_s: u64,
    /// The longest that one run may take, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    pub run_deadline_ms: u64,
    /// The first wait before a retry, in milliseconds; the cap is 120 times that, as in the standard policy.
    #[arg(long, default_value_t = 30_000)]
    pub retry_base_ms: u64,
    /// The grace period of a shutdown, in milliseconds.
    #[arg(long, default_value_t = 5_000)]
    pub grace_ms: u64,
    /// Writes the name of every step to standard output, a line each.
    #[arg(long)]
    pub report: bool,
    /// Dies (SIGKILL) at this point, such as before:commit.
    #[arg(long)]
    pub kill_at: Option<Point>,
    /// Stands still (SIGSTOP) at this point, once.
    #[arg(long)]
    pub stop_at: Option<Point>,
    /// … when it gets there for this time, from 1.
    #[arg(long, default_value_t = 1)]
    pub kill_nth: u32,
}

impl WorkerArgs {
    /// The defaults, for the database at `url`.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            nats: None,
            consumer: "awards".to_owned(),
            concurrency: 4,
            batch: 1,
            lease_s: 2,
            run_deadline_ms: 10_000,
            retry_base_ms: 30_000,
            grace_ms: 5_000,
            report: false,
            kill_at: None,
            stop_at: None,
            kill_nth: 1,
        }
    }

    /// Starts `program` with these arguments, behind those in `first`. It ends when it gets SIGTERM, or when its standard input is closed: so it
    /// never outlives this process.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&self, program: impl AsRef<OsStr>, first: &[&str]) -> std::io::Result<Worker> {
        let mut command = Command::new(program);
        command
            .args(first)
            .args(["--url", &self.url, "--consumer", &self.consumer])
            .args(["--concurrency", &self.concurrency.to_string()])
            .args(["--batch", &self.batch.to_string()])
            .args(["--lease-s", &self.lease_s.to_string()])
            .args(["--run-deadline-ms", &self.run_deadline_ms.to_string()])
            .args(["--retry-base-ms", &self.retry_base_ms.to_string()])
            .args(["--grace-ms", &self.grace_ms.to_string()])
            .args(["--kill-nth", &self.kill_nth.to_string()])
            .stdin(Stdio::piped())
            .kill_on_drop(true);
        if self.report {
            command.arg("--report").stdout(Stdio::piped());
        }
        if let Some(nats) = &self.nats {
            command.args(["--nats", nats]);
        }
        if let Some(point) = self.kill_at {
            command.args(["--kill-at", &point.to_string()]);
        }
        if let Some(point) = self.stop_at {
            command.args(["--stop-at", &point.to_string()]);
        }
        let mut child = command.spawn()?;
        // Kept apart from the child, which would close it as soon as somebody waits.
        let leash = child.stdin.take();
        Ok(Worker { child, leash })
    }

    /// The lease as a duration.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_s)
    }
}

/// A running worker process. Killed when dropped.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    leash: Option<ChildStdin>,
}

impl Worker {
    /// The steps that it reports, if it was told to; once.
    pub fn take_report(&mut self) -> Option<tokio::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub async fn kill(&mut self) -> std::io::Result<()> {
        self.child.kill().await
    }

    /// Tells it to shut down gracefully, and waits until it is gone.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub async fn stop(&mut self) -> std::io::Result<std::process::ExitStatus> {
        drop(self.leash.take());
        self.child.wait().await
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> nix::Result<()> {
        let id = self
            .child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .ok_or(nix::Error::ESRCH)?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), signal)
    }

    /// Whether it stands still (SIGSTOP).
    pub fn stands_still(&self) -> bool {
        let stat = self.child.id().map(|id| format!("/proc/{id}/stat"));
        let stat = stat.and_then(|path| std::fs::read_to_string(path).ok());
        // The name in parentheses may contain anything; the state follows it.
        stat.is_some_and(|stat| {
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            state.is_some_and(|state| state.starts_with('T'))
        })
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub async fn wait(&mut self) -> std::io::Result<std::process::ExitStatus> {
        self.child.wait().await
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn has_ended(&mut self) -> std::io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }
}
