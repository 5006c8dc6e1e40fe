//! A PostgreSQL for tests and demos, taken in this order: the server that `DATABASE_URL` names, local server binaries,
//! Docker (at once, if `POSTGRES_FROM` is `docker`). A server that is started here is private, on a free loopback port, and goes away with its data: when its
//! owner drops it, and also when the owner panics or is killed (see [`watchdog`]).

mod binaries;
mod cargo_env;
mod docker;
mod local;
mod probe;
mod template;
mod watchdog;

use std::path::Path;

use nix::sys::signal::Signal;

pub use crate::cargo_env::forget_cargo;
use crate::local::{Disk, LocalServer};
pub use crate::local::{LocalError, free_port};

/// A PostgreSQL server that accepts connections.
#[derive(Debug)]
pub struct Postgres {
    url: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Given,
    Local(LocalServer),
    Docker(Box<docker::Container>),
}

/// No PostgreSQL could be had. The text says what was tried, and how to provide one.
#[derive(Debug, thiserror::Error)]
#[error(
    "no PostgreSQL to be had. Provide one in one of three ways:\n  \
     1. DATABASE_URL: {given}\n  \
     2. local server binaries (Debian: apt-get install postgresql; or POSTGRES_BIN_DIR): {local}\n  \
     3. a Docker daemon with an image (POSTGRES_IMAGE, default {image}): {docker}",
    image = docker::DEFAULT_IMAGE
)]
pub struct ObtainError {
    given: String,
    local: String,
    docker: String,
}

impl Postgres {
    /// Takes the server that `DATABASE_URL` names if it is set, else starts a private one.
    ///
    /// # Errors
    /// When there is none; the error names all three ways and why each failed.
    pub async fn obtain() -> Result<Self, ObtainError> {
        match std::env::var("DATABASE_URL") {
            Ok(url) if !url.is_empty() => Ok(Self {
                url,
                kind: Kind::Given,
            }),
            _ => Self::start("not set").await,
        }
    }

    /// Starts a private server, which the caller may crash and reconfigure.
    ///
    /// # Errors
    /// When there is none; the error names all ways and why each failed.
    pub async fn own() -> Result<Self, ObtainError> {
        Self::start("not used, because this needs a server of its own").await
    }

    async fn start(given: &str) -> Result<Self, ObtainError> {
        let only_docker = std::env::var("POSTGRES_FROM").is_ok_and(|it| it == "docker");
        let local = if only_docker {
            Err("not wanted: POSTGRES_FROM is docker".to_owned())
        } else {
            LocalServer::start(&Disk::Any).map_err(|error| error.to_string())
        };
        let local = match local {
            Ok(server) => return Ok(Self::local_one(server)),
            Err(error) => error,
        };
        match docker::Container::start().await {
            Ok(container) => Ok(Self {
                url: container.url().to_owned(),
                kind: Kind::Docker(Box::new(container)),
            }),
            Err(docker) => Err(ObtainError {
                given: given.to_owned(),
                local,
                docker: docker.to_string(),
            }),
        }
    }

    fn local_one(server: LocalServer) -> Self {
        Self {
            url: server.url(),
            kind: Kind::Local(server),
        }
    }

    /// Starts a private server from local binaries, one that can have a standby.
    ///
    /// # Errors
    /// When there are no binaries, or it does not start.
    pub fn own_local() -> Result<Self, LocalError> {
        LocalServer::start(&Disk::Any).map(Self::local_one)
    }

    /// Starts a standby of this server: it follows by streaming replication until it is promoted (`pg_promote`), or until its
    /// `primary_conninfo` is taken away.
    ///
    /// # Errors
    /// When this server was not started from local binaries, or cannot be copied.
    pub fn standby(&self) -> Result<Self, LocalError> {
        match &self.kind {
            Kind::Local(server) => server.standby().map(Self::local_one),
            Kind::Given | Kind::Docker(_) => Err(LocalError::NotOurs),
        }
    }

    /// Starts a private server from local binaries that writes to its disk what it commits, as others do when it matters.
    ///
    /// # Errors
    /// When there are no binaries, or it does not start.
    pub fn own_durable() -> Result<Self, LocalError> {
        LocalServer::start(&Disk::Durable).map(Self::local_one)
    }

    /// Starts a private server from local binaries whose data is on a file system of its own, of so many MB. Needs the right
    /// to mount one.
    ///
    /// # Errors
    /// When there are no binaries, or nothing may be mounted.
    pub fn own_on_a_disk_of(mb: u32) -> Result<Self, LocalError> {
        LocalServer::start(&Disk::OfMb(mb)).map(Self::local_one)
    }

    /// URL of a superuser on the database `postgres`, or `DATABASE_URL` as given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's log; only a server that was started from local binaries has one.
    pub fn log_path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Local(server) => Some(server.log_path()),
            Kind::Given | Kind::Docker(_) => None,
        }
    }

    /// Kills the server (SIGKILL to all of its processes), as a power cut would.
    ///
    /// # Errors
    /// When this server was not started here, or is not running.
    pub fn kill(&mut self) -> Result<(), LocalError> {
        match &mut self.kind {
            Kind::Local(server) => server.kill(),
            Kind::Docker(container) => container.signal("SIGKILL"),
            Kind::Given => Err(LocalError::NotOurs),
        }
    }

    /// Stops the server like a crash (SIGQUIT), and waits until it is gone.
    ///
    /// # Errors
    /// When this server was not started here, or does not stop.
    pub fn stop(&mut self) -> Result<(), LocalError> {
        match &mut self.kind {
            Kind::Local(server) => server.stop(Signal::SIGQUIT),
            Kind::Docker(container) => container.signal("SIGQUIT"),
            Kind::Given => Err(LocalError::NotOurs),
        }
    }

    /// Shuts the server down in good order, but at once (SIGINT, "fast"): it ends its sessions, and tells them so.
    ///
    /// # Errors
    /// When this server was not started here, or does not stop.
    pub fn shut_down(&mut self) -> Result<(), LocalError> {
        match &mut self.kind {
            Kind::Local(server) => server.stop(Signal::SIGINT),
            Kind::Docker(container) => container.signal("SIGINT"),
            Kind::Given => Err(LocalError::NotOurs),
        }
    }

    /// Starts a server that was stopped or killed, on the same port and data.
    ///
    /// # Errors
    /// When this server was not started here, or does not start.
    pub fn restart(&mut self) -> Result<(), LocalError> {
        match &mut self.kind {
            Kind::Local(server) => server.restart(),
            Kind::Docker(container) => container.restart(),
            Kind::Given => Err(LocalError::NotOurs),
        }
    }

    /// Starts a server that ended by itself; one that did not is left alone. Says whether it had.
    ///
    /// # Errors
    /// When this server was not started from local binaries, or does not start.
    pub fn restart_if_ended(&mut self) -> Result<bool, LocalError> {
        match &mut self.kind {
            Kind::Local(server) => server.restart_if_ended(),
            Kind::Given | Kind::Docker(_) => Err(LocalError::NotOurs),
        }
    }

    /// Changes a setting and reloads the configuration.
    ///
    /// # Errors
    /// When this server was not started here, or its files cannot be written.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), LocalError> {
        match &mut self.kind {
            Kind::Local(server) => server.set(key, value),
            Kind::Docker(container) => container.set(key, value),
            Kind::Given => Err(LocalError::NotOurs),
        }
    }
}
