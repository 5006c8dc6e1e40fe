//! `job-harness`: the operators' program.

mod config;
mod database;
mod dead_letters;
mod enqueue;
mod output;
mod serve;
mod show;

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use harness::ops::token_hash;

use self::config::{Given, Layers};
use self::output::Format;

/// Something did not work; it may later.
const FAILED: u8 = 1;
/// The arguments or the configuration cannot be right.
const WRONG: u8 = 2;
/// Some were done and some were not.
const PARTLY: u8 = 3;

/// What must be changed before it is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Wrong(String);

/// Some were done and some were not; what was told already is not told again.
#[derive(Debug, thiserror::Error)]
enum Partly {
    /// It can be tried again.
    #[error("not all could be decided; to decide the rest, run it again")]
    Away,
    /// It cannot.
    #[error("some cannot be decided so; the others are")]
    Refused,
}

/// For operators: reviews dead letters, serves the API, sweeps, alerts.
#[derive(Parser)]
#[command(
    name = "job-harness",
    version,
    after_help = "Examples:\n  \
        job-harness migrate\n  \
        job-harness enqueue --queue points jobs.ndjson\n  \
        job-harness dead-letters list --status pending_review --queue points\n  \
        job-harness dead-letters replay --fingerprint points/awards/hard/no_account --dry-run\n  \
        job-harness serve --config job-harness.toml\n\n\
        Exit codes: 0 done; 1 failed, and may work later (the database is away, a port is taken);\n\
        2 bad arguments or configuration; 3 some were done and some were not.\n\n\
        The database is DATABASE_URL, or what database.url_file holds. NO_COLOR is respected."
)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Args)]
struct Common {
    /// The configuration.
    #[arg(long, value_name = "FILE", env = "JOB_HARNESS_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// Sets one key of the configuration, whatever file and environment say. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    set: Vec<String>,
    /// How to print.
    #[arg(long, value_enum, default_value = "text", global = true)]
    format: Format,
}

impl Common {
    /// File, environment, `--set`, and what a command's own flags set.
    fn given(&self, flags: &[String]) -> anyhow::Result<Given> {
        let mut layers = Layers::default();
        let mut add = || -> Result<(), String> {
            if let Some(file) = &self.config {
                layers.file(file)?;
            }
            // Not `vars()`, which panics on a variable that is no text.
            let variables = std::env::vars_os();
            let texts = variables.filter_map(|(name, value)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            });
            layers.environment(texts)?;
            self.set
                .iter()
                .chain(flags)
                .try_for_each(|it| layers.set(it))
        };
        add().map_err(Wrong)?;
        Ok(layers.build().map_err(Wrong)?)
    }
}

#[derive(Subcommand)]
enum Command {
    /// Creates or updates the schema `core`, the embedded queue, and the queues of the configured consumers. Safe to run
    /// twice, and from several places at once.
    Migrate {
        /// Creates this queue, too. May be repeated.
        #[arg(long, value_name = "NAME")]
        queue: Vec<harness::QueueName>,
    },
    /// Serves the API, sweeps, measures and alerts, until it is told to stop (SIGTERM, Ctrl-C). Several at once are safe.
    Serve(serve::Serve),
    /// Lists, shows, replays and discards dead letters.
    #[command(subcommand)]
    DeadLetters(dead_letters::DeadLetters),
    /// Puts jobs on a queue: all of them, or none.
    Enqueue(enqueue::Enqueue),
    /// Says everything that is wrong with the configuration, without connecting to anything.
    CheckConfig,
    /// Prints the configuration that is in force, and where each value comes from. Secrets are not shown.
    ShowConfig,
    /// Reads a token from standard input and prints the hash that token files have in its place.
    TokenHash,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { common, command } = Cli::parse();
    let done = match command {
        Command::Migrate { queue } => database::migrate(&common, queue).await,
        Command::Serve(serve) => serve.run(&common).await,
        Command::DeadLetters(command) => command.run(&common).await,
        Command::Enqueue(enqueue) => enqueue.run(&common).await,
        Command::CheckConfig => show::check(&common),
        Command::ShowConfig => show::show(&common),
        Command::TokenHash => hash(),
    };
    let Err(error) = done else {
        return ExitCode::SUCCESS;
    };
    // `head` closed the pipe: whoever read has enough.
    let closed = |it: &std::io::Error| it.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<std::io::Error>().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    // Standard error may be gone; there is nobody else to tell.
    let text = harness::error_text(error.as_ref());
    let _ = writeln!(std::io::stderr(), "job-harness: {text}");
    if error.is::<Wrong>() {
        ExitCode::from(WRONG)
    } else if error.is::<Partly>() {
        ExitCode::from(PARTLY)
    } else {
        ExitCode::from(FAILED)
    }
}

fn hash() -> anyhow::Result<()> {
    let mut token = String::new();
    std::io::stdin()
        .read_to_string(&mut token)
        .context("standard input")?;
    let token = token.trim();
    if token.len() < 20 {
        let text = format!(
            "the token has {} characters; a token must be random and have at least 20",
            token.len()
        );
        return Err(Wrong(text).into());
    }
    writeln!(std::io::stdout(), "{}", token_hash(token))?;
    Ok(())
}
