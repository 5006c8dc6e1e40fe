//! NATS servers of the tests' own, alone or as a cluster, each on free ports and with a folder of its own.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use harness::{Clock as _, JetStreamConfig, JetStreamQueue, SystemClock};
use tempfile::TempDir;

/// How long a server may take to start, in steps of [`STEP`].
const PATIENCE_STEPS: u32 = 1_000;
const STEP: Duration = Duration::from_millis(20);

/// Ends the server when its owner is gone, however that ended: the only write end of the pipe is in the owner.
const WATCHDOG: &str = r#"
cat >/dev/null
kill -9 "$(cat "$1/pid")" 2>/dev/null
rm -rf "$1"
"#;

/// One server.
#[derive(Debug)]
pub struct Nats {
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
    watchdog: Child,
}

/// Where a server of a cluster finds the others.
#[derive(Debug, Clone)]
struct Place {
    port: u16,
    routes: Vec<u16>,
    number: usize,
}

impl Nats {
    /// One server alone.
    ///
    /// # Errors
    /// When there is no `nats-server` (`ci/setup` installs it), or it does not start.
    pub async fn start() -> anyhow::Result<Self> {
        let mut server = Self::prepare(embedded_pg::free_port()?, None)?;
        server.restart().await?;
        Ok(server)
    }

    /// Several servers that know each other.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn cluster(servers: usize) -> anyhow::Result<Vec<Self>> {
        let routes = (0..servers)
            .map(|_| embedded_pg::free_port())
            .collect::<Result<Vec<_>, _>>()?;
        let mut cluster = Vec::new();
        for (number, port) in routes.iter().enumerate() {
            let place = Place {
                port: *port,
                routes: routes.clone(),
                number,
            };
            cluster.push(Self::prepare(embedded_pg::free_port()?, Some(place))?);
        }
        // Nobody is ready before there is a majority.
        for server in &mut cluster {
            server.spawn()?;
        }
        for server in &cluster {
            server.ready().await?;
        }
        Ok(cluster)
    }

    fn prepare(port: u16, place: Option<Place>) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("nats-")?.keep();
        std::fs::write(folder.join("server.conf"), settings(&folder, port, place))?;
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()?;
        Ok(Self {
            folder,
            port,
            child: None,
            watchdog,
        })
    }

    /// Where clients connect.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it, without a word.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts it again, on what it kept, at the same address.
    ///
    /// # Errors
    /// When it does not start; the end of its log is in the error.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        self.spawn()?;
        self.ready().await
    }

    fn spawn(&mut self) -> anyhow::Result<()> {
        let child = Command::new("nats-server")
            .arg("--config")
            .arg(self.folder.join("server.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start nats-server; ci/setup installs it")?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until JetStream answers.
    async fn ready(&self) -> anyhow::Result<()> {
        let clock = SystemClock::new();
        let mut last = String::new();
        for _ in 0..PATIENCE_STEPS {
            match self.asked().await {
                Ok(()) => return Ok(()),
                Err(error) => last = format!("{error:#}"),
            }
            clock.sleep(STEP).await;
        }
        let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let end = log.lines().rev().take(10).collect::<Vec<_>>();
        bail!("nats-server is not ready: {last}; the end of its log, newest first: {end:#?}")
    }

    async fn asked(&self) -> anyhow::Result<()> {
        let client = connect(&[self.url()]).await?;
        // As it comes: the client's own type for it wants what servers of 2.9 do not say.
        let context = async_nats::jetstream::new(client);
        let info: serde_json::Value = context.request("INFO", &()).await?;
        match info.get("error") {
            None => Ok(()),
            Some(error) => bail!("{error}"),
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.kill();
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}

fn settings(folder: &Path, port: u16, place: Option<Place>) -> String {
    let at = folder.display();
    let mut text = format!(
        "listen: \"127.0.0.1:{port}\"\n\
         pid_file: \"{at}/pid\"\n\
         log_file: \"{at}/log\"\n\
         max_payload: 8MB\n\
         jetstream {{ store_dir: \"{at}/store\", max_memory_store: 64MB, max_file_store: 4GB }}\n"
    );
    if let Some(Place {
        port,
        routes,
        number,
    }) = place
    {
        let routes: Vec<_> = routes
            .iter()
            .map(|port| format!("\"nats://127.0.0.1:{port}\""))
            .collect();
        text.push_str(&format!(
            "server_name: \"node-{number}\"\n\
             cluster {{ name: \"tests\", listen: \"127.0.0.1:{port}\", routes: [{}] }}\n",
            routes.join(", ")
        ));
    }
    text
}

/// A connection that gives up soon and tries again for ever.
///
/// # Errors
/// When nobody is there.
pub async fn connect(urls: &[String]) -> anyhow::Result<async_nats::Client> {
    let client = async_nats::ConnectOptions::new()
        .connection_timeout(Duration::from_secs(1))
        .request_timeout(Some(Duration::from_secs(2)))
        .reconnect_delay_callback(|_| Duration::from_millis(50))
        .connect(urls)
        .await?;
    Ok(client)
}

/// A client of its own connection.
///
/// # Errors
/// When nobody is there.
pub async fn queue(urls: &[String], replicas: usize) -> anyhow::Result<JetStreamQueue> {
    let config = JetStreamConfig {
        replicas,
        timeout: Duration::from_secs(2),
    };
    let clock = Arc::new(SystemClock::new());
    Ok(JetStreamQueue::new(connect(urls).await?, config, clock))
}
