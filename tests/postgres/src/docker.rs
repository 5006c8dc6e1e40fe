//! A server in Docker.

use testcontainers::core::{IntoContainerPort as _, WaitFor};
use testcontainers::runners::AsyncRunner as _;
use testcontainers::{ContainerAsync, GenericImage, ImageExt as _, TestcontainersError};

/// The image, unless `POSTGRES_IMAGE` names another.
pub(crate) const DEFAULT_IMAGE: &str = "postgres:15";

/// A running container; removed when dropped.
#[derive(Debug)]
pub(crate) struct Container {
    url: String,
    _container: ContainerAsync<GenericImage>,
}

impl Container {
    pub(crate) async fn start() -> Result<Self, TestcontainersError> {
        let image = std::env::var("POSTGRES_IMAGE").unwrap_or_else(|_| DEFAULT_IMAGE.to_owned());
        let (name, tag) = image.rsplit_once(':').unwrap_or((&image, "latest"));
        let container = GenericImage::new(name, tag)
            .with_exposed_port(5432.tcp())
            // The image's entry point starts a first server to set things up, and stops it again.
            .with_wait_for(WaitFor::message_on_stdout("ready for start up"))
            .with_wait_for(WaitFor::message_on_stderr("ready to accept connections"))
            .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
            .with_cmd(["postgres", "-c", "fsync=off", "-c", "max_connections=500"])
            .start()
            .await?;
        let host = container.get_host().await?;
        let port = container.get_host_port_ipv4(5432.tcp()).await?;
        Ok(Self {
            url: format!("postgres://postgres@{host}:{port}/postgres"),
            _container: container,
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}
