//! `cargo demo`.

use std::process::ExitCode;

use acceptance::demo::{AS_WORKER, BadInput, DemoArgs, run};
use acceptance::worker::{WorkerArgs, process};
use clap::Parser;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let outcome = if arguments.nth(1).is_some_and(|first| first == AS_WORKER) {
        let name = std::ffi::OsString::from("worker");
        process::run(WorkerArgs::parse_from(
            std::iter::once(name).chain(arguments),
        ))
        .await
        .map(|()| true)
    } else {
        let args = DemoArgs::parse();
        match std::env::current_exe() {
            Ok(program) => run(&args, &program).await,
            Err(error) => Err(error.into()),
        }
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::from(if error.is::<BadInput>() { 2 } else { 3 })
        }
    }
}
