//! `job-harness`: the operators' program.

mod serve;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use harness::ops::token_hash;
use harness::{PgStore, PgStoreConfig};

/// Something did not work; it may later.
const FAILED: u8 = 1;

/// Dead letters for operators: makes the schema, serves the API.
#[derive(Parser)]
#[command(
    name = "job-harness",
    version,
    after_help = "Examples:\n  \
        job-harness migrate\n  \
        head -c 32 /dev/urandom | base64 | tee token | job-harness token-hash\n  \
        job-harness serve --tokens tokens.json\n  \
        job-harness serve --no-tokens ada          # on a loopback address only\n\n\
        Exit codes: 0 done, 1 failed (the database is away, a port is taken), 2 bad arguments."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Creates or updates the schema `core`. Safe to run twice, and from several places at once.
    Migrate {
        #[command(flatten)]
        database: Database,
    },
    /// Serves the API until it is told to stop (SIGTERM, Ctrl-C). Several at once are safe.
    Serve(serve::Serve),
    /// Reads a token from standard input and prints the hash that `--tokens` files have in its place.
    TokenHash,
}

/// Which database.
#[derive(Args)]
struct Database {
    /// From the environment only: what is on a command line, everybody on the machine can read.
    #[arg(
        long,
        hide = true,
        env = "DATABASE_URL",
        hide_env_values = true,
        default_value = ""
    )]
    database_url: String,
}

impl Database {
    fn store(&self) -> anyhow::Result<PgStore> {
        anyhow::ensure!(
            !self.database_url.is_empty(),
            "DATABASE_URL: is not set; set it to postgres://user:password@host/database"
        );
        let is_postgres = ["postgres://", "postgresql://"];
        let is_postgres = is_postgres
            .iter()
            .any(|scheme| self.database_url.starts_with(scheme));
        let wrong =
            "DATABASE_URL: is no PostgreSQL URL such as postgres://user:password@host/database";
        anyhow::ensure!(is_postgres, wrong);
        PgStore::new(&self.database_url, PgStoreConfig::default()).context(wrong)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Migrate { database } => migrate(&database).await,
        Command::Serve(serve) => serve.run().await,
        Command::TokenHash => hash(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be gone; there is nobody else to tell.
            let _ = writeln!(std::io::stderr(), "job-harness: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

async fn migrate(database: &Database) -> anyhow::Result<()> {
    let migrated = database.store()?.migrate().await;
    migrated.context("the database that DATABASE_URL names cannot be reached, or cannot be used")
}

fn hash() -> anyhow::Result<()> {
    let mut token = String::new();
    std::io::stdin()
        .read_to_string(&mut token)
        .context("standard input")?;
    let token = token.trim();
    anyhow::ensure!(
        token.len() >= 20,
        "the token has {} characters; a token must be random and have at least 20",
        token.len()
    );
    writeln!(std::io::stdout(), "{}", token_hash(token))?;
    Ok(())
}
