//! A server in Docker.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use testcontainers::bollard::exec::{CreateExecOptions, StartExecOptions};
use testcontainers::bollard::query_parameters::KillContainerOptionsBuilder;
use testcontainers::bollard::{self, Docker};
use testcontainers::core::{IntoContainerPort as _, WaitFor};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _, TestcontainersError};

use crate::local::LocalError;
use crate::probe::lets_in;

/// The image, unless `POSTGRES_IMAGE` names another.
pub(crate) const DEFAULT_IMAGE: &str = "postgres:15";

/// How long a container may take to do what it is told, in steps of [`STEP`].
const PATIENCE_STEPS: u32 = 1_200;
const STEP: Duration = Duration::from_millis(50);

/// A running container; removed when dropped.
#[derive(Debug)]
pub(crate) struct Container {
    url: String,
    address: SocketAddr,
    container: ContainerAsync<GenericImage>,
}

impl Container {
    pub(crate) async fn start() -> Result<Self, TestcontainersError> {
        let image = std::env::var("POSTGRES_IMAGE").unwrap_or_else(|_| DEFAULT_IMAGE.to_owned());
        let (name, tag) = image.rsplit_once(':').unwrap_or((&image, "latest"));
        // Chosen here, because Docker would choose another one when the container is started again.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(TestcontainersError::other)?
            .port();
        let container = GenericImage::new(name, tag)
            // The image's entry point may start a first server to set things up, and stop it again.
            .with_wait_for(WaitFor::message_on_stdout("ready for start up"))
            .with_wait_for(WaitFor::message_on_stderr("ready to accept connections"))
            .with_mapped_port(port, 5432.tcp())
            .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
            .with_cmd(["postgres", "-c", "fsync=off", "-c", "max_connections=500"])
            .start()
            .await?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let started = Self {
            url: format!("postgres://postgres@{address}/postgres"),
            address,
            container,
        };
        started
            .until("lets nobody in", || lets_in(address))
            .map_err(TestcontainersError::other)?;
        Ok(started)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a signal to the server, which is the container's first process, and waits until it is gone.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), LocalError> {
        let (id, signal) = (self.container.id().to_owned(), signal.to_owned());
        ask(async move |docker| {
            let options = KillContainerOptionsBuilder::new().signal(&signal).build();
            docker.kill_container(&id, Some(options)).await
        })?;
        self.until("does not end", || {
            let id = self.container.id().to_owned();
            let state = ask(async move |docker| docker.inspect_container(&id, None).await);
            let running = state.map(|it| it.state.and_then(|state| state.running));
            matches!(running, Ok(Some(false)))
        })
    }

    pub(crate) fn restart(&self) -> Result<(), LocalError> {
        let id = self.container.id().to_owned();
        ask(async move |docker| docker.start_container(&id, None).await)?;
        self.until("lets nobody in", || lets_in(self.address))
    }

    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), LocalError> {
        let id = self.container.id().to_owned();
        let value = value.replace('\'', "''");
        let set = format!("ALTER SYSTEM SET {key} = '{value}'");
        let psql = [
            "psql",
            "-U",
            "postgres",
            "-c",
            &set,
            "-c",
            "SELECT pg_reload_conf()",
        ];
        let options = CreateExecOptions {
            cmd: Some(psql.map(str::to_owned).to_vec()),
            ..CreateExecOptions::default()
        };
        let code = ask(async move |docker| {
            let exec = docker.create_exec(&id, options).await?.id;
            let detached = StartExecOptions {
                detach: true,
                ..StartExecOptions::default()
            };
            docker.start_exec(&exec, Some(detached)).await?;
            loop {
                let state = docker.inspect_exec(&exec).await?;
                if state.running != Some(true) {
                    return Ok(state.exit_code);
                }
                pause();
            }
        })?;
        match code {
            Some(0) => Ok(()),
            other => Err(LocalError::Container(format!("{set}: psql says {other:?}"))),
        }
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) -> Result<(), LocalError> {
        for _ in 0..PATIENCE_STEPS {
            if done() {
                return Ok(());
            }
            pause();
        }
        Err(LocalError::Container(format!("the container {what}")))
    }
}

/// Asks the daemon, in a thread and a runtime of its own: whoever wants to kill a server may be inside of one.
fn ask<T: Send + 'static>(
    question: impl AsyncFnOnce(Docker) -> Result<T, bollard::errors::Error> + Send + 'static,
) -> Result<T, LocalError> {
    let asking = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let asked = async { question(Docker::connect_with_defaults()?).await };
        runtime.block_on(asked).map_err(|error| error.to_string())
    });
    let answer = asking.join().unwrap_or_else(|_| Err("panicked".to_owned()));
    answer.map_err(|error| LocalError::Container(format!("Docker: {error}")))
}

/// Here no injected clock is needed: it is a step of a loop that waits for another program.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(STEP);
}
