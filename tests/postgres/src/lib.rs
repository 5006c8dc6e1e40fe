//! A PostgreSQL for tests and demos, taken in this order: the server that `DATABASE_URL` names, local server binaries,
//! Docker. A server that is started here is private, on a free loopback port, and goes away with its data: when its
//! owner drops it, and also when the owner panics or is killed (see [`watchdog`]).

mod binaries;
mod docker;
mod local;
mod template;
mod watchdog;

use std::path::Path;

pub use crate::local::LocalError;
use crate::local::LocalServer;

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
    // Held until dropped.
    Docker { _container: Box<docker::Container> },
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
        let local = match LocalServer::start() {
            Ok(server) => {
                return Ok(Self {
                    url: server.url(),
                    kind: Kind::Local(server),
                });
            }
            Err(error) => error.to_string(),
        };
        match docker::Container::start().await {
            Ok(container) => Ok(Self {
                url: container.url().to_owned(),
                kind: Kind::Docker {
                    _container: Box::new(container),
                },
            }),
            Err(docker) => Err(ObtainError {
                given: given.to_owned(),
                local,
                docker: docker.to_string(),
            }),
        }
    }

    /// URL of a superuser on the database `postgres`, or `DATABASE_URL` as given.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The server's log; only a server that was started from local binaries has one.
    pub fn log_path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Local(server) => Some(server.log_path()),
            Kind::Given | Kind::Docker { .. } => None,
        }
    }

    /// Kills the server (SIGKILL to all of its processes), as a power cut would.
    ///
    /// # Errors
    /// When this server was not started from local binaries, or is not running.
    pub fn kill(&mut self) -> Result<(), LocalError> {
        self.local()?.kill()
    }

    /// Stops the server like a crash (SIGQUIT), and waits until it is gone.
    ///
    /// # Errors
    /// When this server was not started from local binaries, or does not stop.
    pub fn stop(&mut self) -> Result<(), LocalError> {
        self.local()?.stop()
    }

    /// Starts a server that was stopped or killed, on the same port and data.
    ///
    /// # Errors
    /// When this server was not started from local binaries, or does not start.
    pub fn restart(&mut self) -> Result<(), LocalError> {
        self.local()?.restart()
    }

    /// Changes a setting and reloads the configuration.
    ///
    /// # Errors
    /// When this server was not started from local binaries, or its files cannot be written.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), LocalError> {
        self.local()?.set(key, value)
    }

    fn local(&mut self) -> Result<&mut LocalServer, LocalError> {
        match &mut self.kind {
            Kind::Local(server) => Ok(server),
            Kind::Given | Kind::Docker { .. } => Err(LocalError::NotLocal),
        }
    }
}
