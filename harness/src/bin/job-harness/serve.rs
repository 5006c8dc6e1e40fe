//! `serve`: the API.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use harness::ops::{Access, Api, ApiLimits, Token, router};
use harness::{Env, PgmqQueue, Reviewer};
use sqlx::postgres::PgPoolOptions;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::Database;

#[derive(clap::Args)]
pub(super) struct Serve {
    #[command(flatten)]
    database: Database,
    /// Where to listen.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "JOB_HARNESS_LISTEN",
        default_value = "127.0.0.1:8080"
    )]
    listen: SocketAddr,
    /// Who may do what: a JSON list of {"name", "sha256", "permissions"}, permissions being core.dead_letters.read, .replay
    /// and .discard.
    #[arg(
        long,
        value_name = "FILE",
        env = "JOB_HARNESS_TOKENS",
        conflicts_with = "no_tokens"
    )]
    tokens: Option<PathBuf>,
    /// Everybody who can reach the address may do everything, and decisions are signed with this name. On a loopback address
    /// only.
    #[arg(long, value_name = "NAME")]
    no_tokens: Option<String>,
}

impl Serve {
    fn access(&self) -> anyhow::Result<Access> {
        match (&self.tokens, &self.no_tokens) {
            (Some(file), _) => {
                let text = std::fs::read_to_string(file)
                    .with_context(|| format!("--tokens {}", file.display()))?;
                let tokens: Vec<Token> = serde_json::from_str(&text)
                    .with_context(|| format!("--tokens {}", file.display()))?;
                Access::tokens(&tokens).with_context(|| format!("--tokens {}", file.display()))
            }
            (None, Some(name)) => {
                anyhow::ensure!(
                    self.listen.ip().is_loopback(),
                    "--no-tokens: {} can be reached from elsewhere; listen on 127.0.0.1, or give --tokens",
                    self.listen
                );
                Ok(Access::everybody(
                    Reviewer::new(name).context("--no-tokens")?,
                ))
            }
            (None, None) => anyhow::bail!(
                "--tokens: nobody could do anything; give a file, or --no-tokens NAME on a loopback address"
            ),
        }
    }

    pub(super) async fn run(&self) -> anyhow::Result<()> {
        tracing_subscriber::fmt()
            .json()
            .with_writer(std::io::stderr)
            .init();
        let (access, store) = (self.access()?, self.database.store()?);
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .connect_lazy(&self.database.database_url)
            .context("DATABASE_URL")?;
        let api = router(Api {
            store,
            publisher: PgmqQueue::new(pool).await,
            env: Env::system()?,
            access,
            limits: ApiLimits::default(),
        });
        let listener = TcpListener::bind(self.listen)
            .await
            .with_context(|| format!("--listen {}", self.listen))?;
        tracing::info!(address = %listener.local_addr()?, "serving");
        let (mut terminate, mut interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping: no new requests, those that are here are answered");
        };
        axum::serve(listener, api)
            .with_graceful_shutdown(stop)
            .await
            .context("serving")
    }
}
