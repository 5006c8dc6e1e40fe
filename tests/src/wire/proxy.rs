//! The proxy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

use super::frames::Frame;

/// Where a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Way {
    ToServer,
    ToClient,
}

/// What happens to the connection at a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// It is cut; the message does not arrive.
    CutBefore,
    /// It is cut when the message has arrived. A server works on what it got, and cannot say so any more.
    CutAfter,
    /// It is cut in the middle of the message.
    CutInside,
    /// It falls silent, in both directions: a host that vanished, or a firewall that forgot. The client is never told; the
    /// server is, after [`SILENCE`], as its keepalive would.
    Stall,
    /// The message, and what comes behind it, is late.
    Delay(Duration),
}

/// A message that passes.
#[derive(Debug, Clone)]
pub struct Seen {
    /// In which direction.
    pub way: Way,
    /// The how manieth in this direction, over all connections, from 1.
    pub nth: u64,
    /// The connection, from 1.
    pub connection: u64,
    /// Its type, and what can be read of it.
    pub told: String,
}

/// How long a server believes in a client that says nothing. The harness asks for half a minute; the tests do not wait.
pub const SILENCE: Duration = Duration::from_millis(1_500);

/// Decides at every message.
pub type Plan = Box<dyn FnMut(&Seen) -> Option<Harm> + Send>;

struct State {
    /// Where new connections go.
    server: String,
    plan: Plan,
    passed: [u64; 2],
    connections: u64,
    harmed: Vec<(Seen, Harm)>,
    tasks: Vec<AbortHandle>,
}

/// A proxy in front of one server. Everything that goes through it ends when it is dropped.
pub struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
    accepting: AbortHandle,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Proxy({})", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.close_all();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// In front of the server at `url`, harmless.
    ///
    /// # Errors
    /// When `url` names no host, or no port is free.
    pub async fn start(url: &str) -> anyhow::Result<Self> {
        let server = address(url)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(Mutex::new(State {
            server,
            plan: Box::new(|_| None),
            passed: [0; 2],
            connections: 0,
            harmed: Vec::new(),
            tasks: Vec::new(),
        }));
        let shared = Arc::clone(&state);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                let server = lock(&state).server.clone();
                let task = tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect(server).await {
                        connection(client, server, &state).await;
                    }
                });
                lock(&shared).tasks.push(task.abort_handle());
            }
        });
        Ok(Self {
            port,
            state,
            accepting: accepting.abort_handle(),
        })
    }

    /// `url`, through the proxy.
    ///
    /// # Errors
    /// When `url` names no host.
    pub fn url(&self, url: &str) -> anyhow::Result<String> {
        let through = format!("127.0.0.1:{}", self.port);
        Ok(url.replacen(authority(url)?, &through, 1))
    }

    /// New connections go to the server at `url` from now on, as an address does that moves with the primary; old ones are
    /// closed.
    ///
    /// # Errors
    /// When `url` names no host.
    pub fn switch_to(&self, url: &str) -> anyhow::Result<()> {
        lock(&self.state).server = address(url)?;
        self.close_all();
        Ok(())
    }

    /// What happens from now on. Messages are counted from here.
    pub fn set_plan(&self, plan: impl FnMut(&Seen) -> Option<Harm> + Send + 'static) {
        let mut state = lock(&self.state);
        state.plan = Box::new(plan);
        state.passed = [0; 2];
        state.harmed.clear();
    }

    /// Nothing happens any more; what stalled is closed.
    pub fn heal(&self) {
        lock(&self.state).plan = Box::new(|_| None);
        self.close_all();
    }

    fn close_all(&self) {
        let tasks = std::mem::take(&mut lock(&self.state).tasks);
        tasks.iter().for_each(AbortHandle::abort);
    }

    /// Which messages met harm since the plan was set.
    pub fn harmed(&self) -> Vec<(Seen, Harm)> {
        lock(&self.state).harmed.clone()
    }
}

/// `host:port` in a URL.
fn address(url: &str) -> anyhow::Result<String> {
    let authority = authority(url)?;
    Ok(if authority.contains(':') {
        authority.to_owned()
    } else {
        format!("{authority}:5432")
    })
}

/// `host:port`, or the host alone, in a URL.
fn authority(url: &str) -> anyhow::Result<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let address = authority.rsplit_once('@').map_or(authority, |(_, it)| it);
    anyhow::ensure!(
        !address.is_empty(),
        "the URL names no host that could be put behind a proxy"
    );
    Ok(address)
}

enum End {
    /// One side closed.
    Closed,
    Cut,
    Stalled,
}

async fn connection(client: TcpStream, server: TcpStream, state: &Mutex<State>) {
    // A message is one write here, and waits for no other.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let number = {
        let mut state = lock(state);
        state.connections += 1;
        state.connections
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let Ok(Some(startup)) = startup(&mut from_client, &mut to_client).await else {
        return;
    };
    let end = {
        let (up, down) = (Some(startup), None);
        let up = forward(
            up,
            &mut from_client,
            &mut to_server,
            (Way::ToServer, number),
            state,
        );
        let down = forward(
            down,
            &mut from_server,
            &mut to_client,
            (Way::ToClient, number),
            state,
        );
        tokio::select! { end = up => end, end = down => end }
    };
    // Held until the proxy heals, if the client is not to know.
    let silent = if matches!(end, Ok(End::Stalled)) {
        SystemClock::new().sleep(SILENCE).await;
        Some((from_client, to_client))
    } else {
        drop((from_client, to_client));
        None
    };
    // The server sees the end of the stream behind what it got, and may take its time.
    let _ = to_server.shutdown().await;
    let mut rest = [0; 4_096];
    while matches!(from_server.read(&mut rest).await, Ok(read) if read > 0) {}
    if silent.is_some() {
        std::future::pending::<()>().await;
    }
}

/// What a client says first. A wish for encryption is refused here: then everything can be read.
async fn startup(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
) -> std::io::Result<Option<Frame>> {
    loop {
        match Frame::read(from, false).await? {
            Some(frame) if frame.asks_for_encryption() => to.write_all(b"N").await?,
            other => return Ok(other),
        }
    }
}

/// Passes messages on until something happens.
async fn forward(
    first: Option<Frame>,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    (way, connection): (Way, u64),
    state: &Mutex<State>,
) -> std::io::Result<End> {
    let mut first = first;
    loop {
        let frame = match first.take() {
            Some(frame) => frame,
            None => match Frame::read(from, true).await? {
                Some(frame) => frame,
                None => return Ok(End::Closed),
            },
        };
        let harm = {
            let mut state = lock(state);
            let passed = &mut state.passed[usize::from(way == Way::ToClient)];
            *passed += 1;
            let seen = Seen {
                way,
                nth: *passed,
                connection,
                told: frame.told(),
            };
            let harm = (state.plan)(&seen);
            if let Some(harm) = harm {
                state.harmed.push((seen, harm));
            }
            harm
        };
        match harm {
            None => to.write_all(&frame.bytes).await?,
            Some(Harm::Delay(by)) => {
                SystemClock::new().sleep(by).await;
                to.write_all(&frame.bytes).await?;
            }
            Some(Harm::CutBefore) => return Ok(End::Cut),
            Some(Harm::CutAfter) => {
                to.write_all(&frame.bytes).await?;
                return Ok(End::Cut);
            }
            Some(Harm::CutInside) => {
                to.write_all(&frame.bytes[..frame.bytes.len() / 2]).await?;
                return Ok(End::Cut);
            }
            Some(Harm::Stall) => return Ok(End::Stalled),
        }
    }
}
