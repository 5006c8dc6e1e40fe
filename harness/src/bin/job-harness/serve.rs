//! `serve`: the API, the sweep, the alert pump and the meter, in one process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use harness::ops::{Access, Api, ApiLimits, router};
use harness::{
    AlertPump, DURATION_BUCKETS, Env, Meter, Reviewer, Shutdown, Sweeper, describe_metrics,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::config::{Plan, Secrets};
use super::database::{Opened, open};
use super::{Common, Wrong};

/// How long answers that are under way may take once it is told to stop. Orchestrators kill after 30 s.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    job-harness serve --config job-harness.toml\n  \
    job-harness serve --tokens tokens.json --listen 127.0.0.1:8080\n  \
    job-harness serve --no-tokens ada          # on a loopback address only")]
pub(crate) struct Serve {
    /// Where to listen; the same as --set listen=ADDRESS.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Who may do what; the same as --set access.tokens_file=FILE. A JSON list of {"name", "sha256", "permissions"},
    /// permissions being core.dead_letters.read, .replay and .discard.
    #[arg(long, value_name = "FILE", conflicts_with = "no_tokens")]
    tokens: Option<PathBuf>,
    /// Everybody who can reach the address may do everything, and decisions are signed with this name. On a loopback address
    /// only.
    #[arg(long, value_name = "NAME")]
    no_tokens: Option<String>,
}

impl Serve {
    fn flags(&self) -> Vec<String> {
        let listen = self.listen.map(|it| format!("listen={it}"));
        let tokens =
            (self.tokens.as_ref()).map(|it| format!("access.tokens_file={}", it.display()));
        listen.into_iter().chain(tokens).collect()
    }

    fn access(&self, plan: &Plan, listen: SocketAddr) -> Result<Access, String> {
        match (&plan.access, &self.no_tokens) {
            (Some(_), Some(_)) => Err("--no-tokens: there are tokens (access.tokens_file, access.jwt); leave one of them out".to_owned()),
            (Some(access), None) => Ok(access.clone()),
            (None, Some(_)) if !listen.ip().is_loopback() => Err(format!(
                "--no-tokens: {listen} can be reached from elsewhere; listen on 127.0.0.1, or give --tokens"
            )),
            (None, Some(name)) => {
                let name = Reviewer::new(name).map_err(|error| format!("--no-tokens: {error}"))?;
                Ok(Access::everybody(name))
            }
            (None, None) => Err(
                "--tokens: nobody could do anything; give a file, or set access.jwt, or --no-tokens NAME on a loopback address".to_owned(),
            ),
        }
    }

    pub(crate) async fn run(&self, common: &Common) -> anyhow::Result<()> {
        let given = common.given(&self.flags())?;
        let config = &given.config;
        let mut problems = Vec::new();
        let secrets = Secrets::read(config, |name| std::env::var(name).ok(), &mut problems);
        let plan = Plan::of(config, &secrets, &mut problems);
        let access = match self.access(&plan, config.listen) {
            Ok(access) => Some(access),
            Err(problem) => {
                // A tokens file that cannot be read was told already.
                if problems.is_empty() {
                    problems.push(problem);
                }
                None
            }
        };
        let (Some(access), true) = (access, problems.is_empty()) else {
            return Err(Wrong(problems.join("\n")).into());
        };
        let opened = open(config, &secrets).await?;
        tracing_subscriber::fmt()
            .json()
            .with_writer(std::io::stderr)
            .init();
        for name in &given.strangers {
            tracing::warn!(name, "this variable is set, but there is no such key");
        }
        let listener = TcpListener::bind(config.listen)
            .await
            .with_context(|| format!("listen {}", config.listen))?;
        work(plan, opened, access, listener).await
    }
}

fn recorder() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets(&DURATION_BUCKETS)?
        .install_recorder()?;
    describe_metrics();
    Ok(handle)
}

async fn work(
    plan: Plan,
    opened: Opened,
    access: Access,
    listener: TcpListener,
) -> anyhow::Result<()> {
    let Opened { store, queue, .. } = opened;
    let env = Env::system()?;
    let metrics = recorder()?;
    let shutdown = Shutdown::new();
    let api = router(Api {
        store: store.clone(),
        publisher: queue.clone(),
        env: env.clone(),
        access,
        limits: ApiLimits::default(),
        metrics: Some(Arc::new(move || {
            metrics.run_upkeep();
            metrics.render()
        })),
    });
    tracing::info!(
        address = %listener.local_addr()?,
        consumers = plan.consumers.len(),
        alerts = plan.alerts.is_some(),
        "serving"
    );
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let told = shutdown.clone();
    let serving = async {
        let begun = {
            let told = shutdown.clone();
            async move { told.begun().await }
        };
        let served = axum::serve(listener, api).with_graceful_shutdown(begun);
        let late = async {
            shutdown.begun().await;
            env.clock.sleep(PATIENCE).await;
        };
        let ended = tokio::select! {
            ended = async { served.await } => ended.context("serving"),
            () = late => {
                tracing::warn!("some answers took too long, and are given up");
                Ok(())
            }
        };
        // Whatever ended it: the others have no reason to go on.
        shutdown.begin();
        ended
    };
    let stopping = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = told.begun() => {}
        }
        tracing::info!("stopping: no new requests, those that are here are answered");
        told.begin();
    };
    let sweeping = async {
        if !plan.sweeper.targets.is_empty() {
            Sweeper::new(plan.sweeper, store.clone(), queue.clone(), env.clone())
                .run(shutdown.clone())
                .await;
        }
    };
    let measuring = Meter::new(plan.meter, store.clone(), queue.clone(), env.clone());
    let alerting = async {
        if let Some(alerts) = plan.alerts {
            AlertPump::new(alerts.pump, store.clone(), alerts.service, env.clone())
                .run(shutdown.clone())
                .await;
        }
    };
    let measuring = measuring.run(shutdown.clone());
    let (served, (), (), (), ()) = tokio::join!(serving, stopping, sweeping, measuring, alerting);
    served
}
