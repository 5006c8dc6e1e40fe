//! Calls from one host to another over simulated TCP.
//!
//! The network carries frames with the number of a message; the message itself lies in a table beside it. So delay, loss,
//! order, cuts and partitions are the network's, and no type needs a wire format.
//!
//! TCP in the simulation never sends a lost segment again, so a stream may hang for ever. A call that is given up after it
//! waited for long (a time-out) therefore closes its connection, and everybody else who waits on it is told.

mod post;
mod server;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use turmoil::net::TcpStream;

use self::post::Label;
pub use self::post::{Named, Post};
pub use self::server::{Session, serve};
use crate::history::Log;

/// A call that is given up after so long is taken for a sign that its connection is dead.
const DEAD_AFTER: Duration = Duration::from_secs(1);

/// The port that every server listens on.
const PORT: u16 = 1;

/// The other side cannot be reached, or the connection is lost.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the connection is lost")]
pub struct Lost;

struct Connection<A> {
    outgoing: mpsc::UnboundedSender<u64>,
    pending: Arc<Mutex<BTreeMap<u64, oneshot::Sender<A>>>>,
    tasks: Vec<tokio::task::AbortHandle>,
}

impl<A> Drop for Connection<A> {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

struct LinkState<A> {
    /// Counts connections, so that a call knows whether its own is still there.
    epoch: u64,
    connection: Option<Connection<A>>,
    next_call: u64,
}

/// A client's side: one connection, made when needed, shared by all calls.
pub struct Link<Q, A> {
    server: &'static str,
    post: Post,
    log: Log,
    state: Arc<Mutex<LinkState<A>>>,
    connecting: Arc<tokio::sync::Mutex<()>>,
    questions: std::marker::PhantomData<fn(Q)>,
}

impl<Q, A> Clone for Link<Q, A> {
    fn clone(&self) -> Self {
        Self {
            server: self.server,
            post: self.post.clone(),
            log: self.log.clone(),
            state: Arc::clone(&self.state),
            connecting: Arc::clone(&self.connecting),
            questions: std::marker::PhantomData,
        }
    }
}

/// What a frame's number stands for.
struct Question<Q> {
    from: &'static str,
    call: u64,
    body: Q,
}

struct Answer<A> {
    call: u64,
    body: A,
}

/// Closes the connection of a call that is given up.
struct Unanswered<A: Send + 'static> {
    state: Arc<Mutex<LinkState<A>>>,
    post: Post,
    asked_at: Duration,
    epoch: u64,
    answered: bool,
}

impl<A: Send + 'static> Drop for Unanswered<A> {
    fn drop(&mut self) {
        if !self.answered && self.post.now() >= self.asked_at + DEAD_AFTER {
            let closed = {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.epoch == self.epoch {
                    state.connection.take()
                } else {
                    None
                }
            };
            drop(closed);
        }
    }
}

impl<Q: Named + Send + 'static, A: Send + 'static> Link<Q, A> {
    /// A link from the host of `log` to `server`; nothing is connected yet.
    pub fn new(server: &'static str, post: Post, log: Log) -> Self {
        let state = LinkState {
            epoch: 0,
            connection: None,
            next_call: 0,
        };
        Self {
            server,
            post,
            log,
            state: Arc::new(Mutex::new(state)),
            connecting: Arc::default(),
            questions: std::marker::PhantomData,
        }
    }

    fn state(&self) -> MutexGuard<'_, LinkState<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the current connection; what was begun on another one is lost.
    pub fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Asks, and waits for the answer for as long as the caller does. With `epoch`, only on that connection.
    pub async fn call(&self, question: Q, epoch: Option<u64>) -> Result<A, Lost> {
        let mut unanswered = Unanswered {
            state: Arc::clone(&self.state),
            post: self.post.clone(),
            asked_at: self.post.now(),
            epoch: 0,
            answered: false,
        };
        if epoch.is_none() {
            unanswered.answered = true;
            self.connect().await?;
            unanswered.answered = false;
        }
        let answer = {
            let mut state = self.state();
            state.next_call += 1;
            let call = state.next_call;
            if epoch.is_some_and(|epoch| epoch != state.epoch) {
                unanswered.answered = true;
                return Err(Lost);
            }
            unanswered.epoch = state.epoch;
            let Some(connection) = &state.connection else {
                unanswered.answered = true;
                return Err(Lost);
            };
            let (sender, answer) = oneshot::channel();
            connection
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(call, sender);
            let number = self.put(call, question);
            if connection.outgoing.send(number).is_err() {
                return Err(Lost);
            }
            answer
        };
        let answer = answer.await.map_err(|_| Lost)?;
        unanswered.answered = true;
        Ok(answer)
    }

    /// Sends something that needs no answer, if its connection is still there.
    pub fn tell(&self, question: Q, epoch: u64) {
        let state = self.state();
        if state.epoch == epoch
            && let Some(connection) = &state.connection
        {
            let number = self.put(0, question);
            let _ = connection.outgoing.send(number);
        }
    }

    fn put(&self, call: u64, body: Q) -> u64 {
        let label = Label {
            call: body.name(),
            job: body.job(),
            message: body.message(),
        };
        let question = Question {
            from: self.log.host(),
            call,
            body,
        };
        self.post.put(question, self.server, label, &self.log)
    }

    async fn connect(&self) -> Result<(), Lost> {
        let _one_at_a_time = self.connecting.lock().await;
        if self.state().connection.is_some() {
            return Ok(());
        }
        let stream = TcpStream::connect((self.server, PORT))
            .await
            .map_err(|_| Lost)?;
        let (mut reader, mut writer) = stream.into_split();
        let (outgoing, mut numbers) = mpsc::unbounded_channel::<u64>();
        let pending: Arc<Mutex<BTreeMap<u64, oneshot::Sender<A>>>> = Arc::default();
        let epoch = {
            let mut state = self.state();
            state.epoch += 1;
            state.epoch
        };
        let sending = self.post.clone();
        let writing = tokio::spawn(async move {
            while let Some(number) = numbers.recv().await {
                sending.wait_to_send().await;
                if writer.write_all(&number.to_be_bytes()).await.is_err() {
                    return;
                }
            }
        });
        let (post, log, waiting, state) = (
            self.post.clone(),
            self.log.clone(),
            Arc::clone(&pending),
            Arc::clone(&self.state),
        );
        let reading = tokio::spawn(async move {
            let mut frame = [0; 8];
            while reader.read_exact(&mut frame).await.is_ok() {
                let Some(answer) = post.take::<Answer<A>>(u64::from_be_bytes(frame), &log) else {
                    continue;
                };
                let sender = waiting
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .remove(&answer.call);
                if let Some(sender) = sender {
                    let _ = sender.send(answer.body);
                }
            }
            let closed = {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.epoch == epoch {
                    state.connection.take()
                } else {
                    None
                }
            };
            drop(closed);
        });
        let tasks = vec![writing.abort_handle(), reading.abort_handle()];
        self.state().connection = Some(Connection {
            outgoing,
            pending,
            tasks,
        });
        Ok(())
    }
}
