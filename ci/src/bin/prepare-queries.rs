//! `cargo prepare-queries`: checks every query of the harness against a real PostgreSQL and writes what it found to
//! `harness/.sqlx`, which builds are checked against. With `--check`, says whether what is committed is up to date.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::Parser;
use embedded_pg::{Postgres, forget_cargo};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

/// Checks every query of the harness against a real PostgreSQL and writes harness/.sqlx.
#[derive(Parser)]
#[command(name = "prepare-queries")]
struct Args {
    /// Write nothing; exit with 1 if harness/.sqlx is not up to date.
    #[arg(long)]
    check: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "prepare-queries: harness/.sqlx is not up to date; run: cargo prepare-queries"
            );
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("prepare-queries: {error:#}");
            ExitCode::from(3)
        }
    }
}

async fn run(args: &Args) -> anyhow::Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("ci has no parent folder")?;
    let postgres = Postgres::own().await?;
    make_schema(postgres.url(), &root.join("harness/migrations")).await?;

    // A target folder of its own: the same sources built against the database are another build.
    let target = root.join("target/prepare-queries");
    let fresh = target.join("sqlx");
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh)?;
    }
    std::fs::create_dir_all(&fresh)?;
    // Queries are looked at while a crate is compiled: it must not be fresh already.
    let library = root.join("harness/src/lib.rs");
    std::fs::File::options()
        .append(true)
        .open(&library)?
        .set_modified(now())?;
    let mut command = Command::new(env!("CARGO"));
    forget_cargo(&mut command);
    let status = command
        .args(["check", "--quiet", "--package", "harness", "--target-dir"])
        .arg(&target)
        .env("SQLX_OFFLINE", "false")
        .env("SQLX_OFFLINE_DIR", &fresh)
        .env("DATABASE_URL", postgres.url())
        .current_dir(root)
        .status()?;
    if !status.success() {
        bail!("a query of the harness does not fit the schema");
    }

    let committed = root.join("harness/.sqlx");
    let (new, old) = (files(&fresh)?, files(&committed).unwrap_or_default());
    if new.is_empty() {
        bail!("no query was looked at");
    }
    if args.check {
        return Ok(new == old);
    }
    if committed.exists() {
        std::fs::remove_dir_all(&committed)?;
    }
    std::fs::create_dir_all(&committed)?;
    for (name, content) in &new {
        std::fs::write(committed.join(name), content)?;
    }
    Ok(true)
}

async fn make_schema(url: &str, migrations: &Path) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute("CREATE SCHEMA core").await?;
    for (name, sql) in files(migrations)? {
        connection
            .execute(sqlx::raw_sql(AssertSqlSafe(sql)))
            .await
            .with_context(|| name.clone())?;
    }
    Ok(())
}

fn files(folder: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        files.insert(
            entry.file_name().to_string_lossy().into_owned(),
            std::fs::read_to_string(entry.path())?,
        );
    }
    Ok(files)
}

/// A file's time stamp, not a decision: the compiler compares it with the machine's clock.
#[allow(clippy::disallowed_methods)]
fn now() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
