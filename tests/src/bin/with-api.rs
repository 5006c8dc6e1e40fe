//! Runs a command with `API_URL` and `API_TOKEN` set to an API over dead letters of every status, on a database of its own.

use std::process::ExitCode;

use acceptance::db::{Db, consumer_name, job_id, queue_name, random_id};
use anyhow::Context as _;
use harness::ops::{Access, Api, ApiLimits, Permission, Token, router, token_hash};
use harness::{
    CorrelationId, DeadLetterId, DiscardReason, Env, ErrorClass, NewDeadLetter, Reason, Review,
    Reviewer, Store as _, TenantId,
};

/// So many of each reason.
const LETTERS: u32 = 25;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: with-api COMMAND [ARGUMENT]…");
        return ExitCode::from(2);
    };
    let mut command = tokio::process::Command::new(program);
    command.args(arguments);
    match run(command).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("with-api: {error:#}");
            ExitCode::from(125)
        }
    }
}

async fn run(mut command: tokio::process::Command) -> anyhow::Result<u8> {
    let db = Db::try_fresh().await?;
    letters(&db).await?;
    let secret = random_id().to_string();
    let token = Token {
        name: "ada".to_owned(),
        sha256: token_hash(&secret),
        permissions: Permission::ALL.to_vec(),
        tenant: false,
    };
    let api = router(Api {
        store: db.store(),
        publisher: db.queue().await,
        env: Env::system()?,
        access: Access::tokens(&[token])?,
        limits: ApiLimits::default(),
        metrics: Some(std::sync::Arc::new(|| "jobs_total 7\n".to_owned())),
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let child = command.env("API_URL", url).env("API_TOKEN", secret);
    // Killed when this ends early: nobody would be left to answer it.
    let mut child = child.kill_on_drop(true).spawn().context("the command")?;
    let status = tokio::select! {
        status = child.wait() => status?,
        served = async { axum::serve(listener, api).await } => {
            served?;
            anyhow::bail!("the API ended before the command");
        }
    };
    Ok(status
        .code()
        .and_then(|it| u8::try_from(it).ok())
        .unwrap_or(1))
}

/// Of every reason and status, with payloads of every kind that JSONB holds.
async fn letters(db: &Db) -> anyhow::Result<()> {
    let store = db.store();
    let review = Review::new(store.clone(), db.queue().await, Env::system()?);
    let by = Reviewer::new("grace")?;
    let payloads = [r#"{"points": 10}"#, "[]", "null", "7", r#""text""#];
    for reason in [Reason::Exhausted, Reason::Hard, Reason::Poison] {
        for (n, payload) in (0..LETTERS).zip(payloads.into_iter().cycle()) {
            let (job, id) = (job_id(), DeadLetterId(random_id()));
            let letter = NewDeadLetter {
                id,
                job_id: job,
                consumer: consumer_name(),
                queue: queue_name(),
                tenant_id: (n % 2 == 0)
                    .then(|| TenantId::new(random_id()))
                    .transpose()?,
                correlation_id: CorrelationId::from(job),
                generation: n % 3,
                reason,
                error_class: ErrorClass::of("timeout"),
                attempts: 6,
                last_error: "timeout: the bank did not answer".to_owned(),
                payload: payload.to_owned(),
                body: payload.as_bytes().to_vec(),
                headers:
                    r#"{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}"#
                        .to_owned(),
            };
            store.record_dead_letter(&letter).await?;
            match n {
                0..3 => drop(review.replay(id, &by).await?),
                3..6 => drop(
                    review
                        .discard(id, &DiscardReason::new("known bug")?, &by)
                        .await?,
                ),
                _ => {}
            }
        }
    }
    Ok(())
}
