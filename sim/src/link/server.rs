//! The serving side of a link.

use std::future::Future;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use turmoil::net::{TcpListener, TcpStream};

use super::post::{Label, Named, Post};
use super::{Answer, PORT, Question};
use crate::history::{Fact, Log};

/// A server's side of one connection.
pub trait Session<Q, A>: Clone + Send + Sync + 'static {
    /// Answers one question; may take its time, others are answered meanwhile.
    fn answer(&self, question: Q) -> impl Future<Output = A> + Send;

    /// The client is gone.
    fn closed(&self);
}

/// Serves every connection in a session of its own.
///
/// # Errors
/// When the port cannot be bound.
pub async fn serve<Q, A, S>(post: Post, log: Log, open: impl Fn() -> S) -> std::io::Result<()>
where
    Q: Named + Send + 'static,
    A: Send + 'static,
    S: Session<Q, A>,
{
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let (post, log, session) = (post.clone(), log.clone(), open());
        tokio::spawn(async move {
            session_loop(stream, post, log, &session).await;
            session.closed();
        });
    }
}

async fn session_loop<Q, A, S>(stream: TcpStream, post: Post, log: Log, session: &S)
where
    Q: Named + Send + 'static,
    A: Send + 'static,
    S: Session<Q, A>,
{
    let (mut reader, mut writer) = stream.into_split();
    let (answers, mut outgoing) = mpsc::unbounded_channel::<u64>();
    let sending = post.clone();
    let writing = tokio::spawn(async move {
        while let Some(frame) = outgoing.recv().await {
            sending.wait_to_send().await;
            if writer.write_all(&frame.to_be_bytes()).await.is_err() {
                return;
            }
        }
    });
    let cut = Arc::new(Notify::new());
    let mut answering = tokio::task::JoinSet::new();
    let mut frame = [0; 8];
    loop {
        tokio::select! {
            biased;
            () = cut.notified() => break,
            read = reader.read_exact(&mut frame) => if read.is_err() { break },
        }
        let Some(question) = post.take::<Question<Q>>(u64::from_be_bytes(frame), &log) else {
            continue;
        };
        let label = Label {
            call: question.body.name(),
            job: question.body.job(),
            message: question.body.message(),
        };
        if post.is_cut(label.call, false) {
            log.fact(Fact::CallCut {
                call: label.call.to_owned(),
                answer: false,
            });
            break;
        }
        let (post, log, session, answers, cut) = (
            post.clone(),
            log.clone(),
            session.clone(),
            answers.clone(),
            Arc::clone(&cut),
        );
        answering.spawn(async move {
            let body = session.answer(question.body).await;
            if post.is_cut(label.call, true) {
                log.fact(Fact::CallCut {
                    call: label.call.to_owned(),
                    answer: true,
                });
                cut.notify_one();
                return;
            }
            let answer = Answer {
                call: question.call,
                body,
            };
            let _ = answers.send(post.put(answer, question.from, label, &log));
        });
        while answering.try_join_next().is_some() {}
    }
    answering.abort_all();
    writing.abort();
}
