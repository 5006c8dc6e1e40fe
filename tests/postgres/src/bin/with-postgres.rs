//! Runs a command with `DATABASE_URL` set to a PostgreSQL that goes away afterwards.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use clap::Parser;
use embedded_pg::{Postgres, forget_cargo};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a command with DATABASE_URL set to a PostgreSQL that goes away afterwards.
#[derive(Parser)]
#[command(
    name = "with-postgres",
    after_help = "Exit code: the command's own; 128 + signal if a signal ended it; 125 if no PostgreSQL could be had.\n\n\
                  Example:\n  with-postgres -- cargo nextest run"
)]
struct Args {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args.command).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("with-postgres: {error}");
            ExitCode::from(125)
        }
    }
}

async fn run(command: &[String]) -> Result<u8, Box<dyn std::error::Error>> {
    // Asked for before anything starts, so that none of these ends us without the server being stopped.
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let postgres = Postgres::obtain().await?;
    let mut child = Command::new(&command[0]);
    forget_cargo(child.as_std_mut());
    let mut child = child
        .args(&command[1..])
        .env("DATABASE_URL", postgres.url())
        .spawn()
        .map_err(|error| format!("{}: {error}", command[0]))?;
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .map(Pid::from_raw);
    let status = loop {
        let passed_on = tokio::select! {
            status = child.wait() => break status?,
            // From a terminal the child has got it already; a second one does no harm.
            _ = interrupted.recv() => Signal::SIGINT,
            _ = terminated.recv() => Signal::SIGTERM,
        };
        if let Some(pid) = pid {
            let _ = kill(pid, passed_on);
        }
    };
    drop(postgres);
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}
