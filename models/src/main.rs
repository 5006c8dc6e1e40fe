//! `cargo model`: checks the models, tells their counterexamples, prints the specification.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use harness::{Event, Step};
use models::book::{BOOK, Chapter, chapter};
use models::lifecycle;
use models::lifecycle::conform::Conformance;
use models::lifecycle::cover::{Script, counterexample};
use models::spec;
use serde::Deserialize as _;

/// All promises hold.
const OK: u8 = 0;
/// A promise is broken, a `sometimes` never came true, or a wrong design breaks nothing.
const BROKEN: u8 = 1;
/// Bad arguments.
const USAGE: u8 = 2;

/// The design as models: checked exhaustively, told as stories, printed as a specification.
#[derive(Parser)]
#[command(
    name = "model",
    after_help = "Exit codes: 0 all promises hold, 1 a promise is broken or a wrong design is not caught, 2 usage."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Names the models.
    List,
    /// Visits every state of a model, or of all.
    Check {
        /// Which; all when left out.
        name: Option<String>,
        /// Threads.
        #[arg(long, value_name = "N", default_value_t = 2)]
        threads: usize,
        /// How to print the result.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Prints the specification of a model, or of all.
    Spec {
        /// Which; all when left out.
        name: Option<String>,
        /// Writes the pages into a folder instead.
        #[arg(long, value_name = "DIR", conflicts_with = "name")]
        write: Option<PathBuf>,
    },
    /// Tells how each wrong design breaks a promise.
    Wrong {
        /// Of which model; all when left out.
        name: Option<String>,
        /// Writes those of `lifecycle` as scripts into a folder: `cargo sim replay` tries each on the real harness, which must
        /// not follow.
        #[arg(long, value_name = "DIR", conflicts_with = "name")]
        scripts: Option<PathBuf>,
    },
    /// Holds a stored history against the lifecycle model: one that `cargo sim run --save-history` wrote, or any file with an
    /// event a line.
    Conform {
        /// The file.
        file: PathBuf,
    },
    /// Serves a model to a browser: click through its states.
    Explore {
        /// Which.
        name: String,
        /// Where.
        #[arg(long, default_value = "127.0.0.1:3000")]
        addr: SocketAddr,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("model: {error:#}");
            ExitCode::from(USAGE)
        }
    }
}

fn run(command: Command) -> anyhow::Result<u8> {
    match command {
        Command::List => {
            for chapter in BOOK {
                print(&format!(
                    "{:<8} {} ({} wrong designs)\n",
                    chapter.name,
                    chapter.title,
                    chapter.wrong.len()
                ))?;
            }
            Ok(OK)
        }
        Command::Check {
            name,
            threads,
            format,
        } => check(name.as_deref(), threads.max(1), format),
        Command::Spec {
            write: Some(folder),
            ..
        } => {
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            for (name, text) in spec::pages()? {
                let file = folder.join(name);
                std::fs::write(&file, text).with_context(|| file.display().to_string())?;
            }
            Ok(OK)
        }
        Command::Spec { name, write: None } => {
            match name {
                Some(name) => print(&spec::page(chapter(&name)?)?)?,
                None => {
                    for (_, text) in spec::pages()? {
                        print(&format!("{text}\n"))?;
                    }
                }
            }
            Ok(OK)
        }
        Command::Wrong {
            scripts: Some(folder),
            ..
        } => scripts(&folder),
        Command::Wrong { name, .. } => wrong(name.as_deref()),
        Command::Conform { file } => conform(&file),
        Command::Explore { name, addr } => {
            let chapter = chapter(&name)?;
            eprintln!("model: http://{addr}/ shows {name}; stop with Ctrl-C");
            chapter.explore(addr);
            Ok(OK)
        }
    }
}

fn chosen(name: Option<&str>) -> anyhow::Result<Vec<&'static Chapter>> {
    match name {
        Some(name) => Ok(vec![chapter(name)?]),
        None => BOOK.iter().map(|it| chapter(it.name)).collect(),
    }
}

fn check(name: Option<&str>, threads: usize, format: Format) -> anyhow::Result<u8> {
    let (mut code, mut total, mut report) = (OK, 0, Vec::new());
    for chapter in chosen(name)? {
        // How long it took is for people; nothing is decided by it.
        #[allow(clippy::disallowed_methods)]
        let started = Instant::now();
        let checked = chapter.check(threads);
        let seconds = started.elapsed().as_secs_f64();
        total += checked.states;
        let complete = checked.broken.is_empty() && checked.never.is_empty();
        if !complete {
            code = BROKEN;
        }
        match format {
            Format::Text => {
                let verdict = if complete { "holds" } else { "BROKEN" };
                print(&format!(
                    "{:<8} {verdict}: {} promises, {} states, depth {}, {seconds:.1} s\n",
                    chapter.name,
                    chapter.promises.len(),
                    checked.states,
                    checked.depth
                ))?;
                for story in &checked.broken {
                    print(&format!("{story}\n"))?;
                }
                for never in &checked.never {
                    print(&format!("never came true: {never}\n"))?;
                }
            }
            Format::Json => {
                let broken: Vec<_> = (checked.broken.iter())
                    .map(|story| serde_json::json!({ "promise": story.breaks, "story": story.to_string() }))
                    .collect();
                let promises: Vec<_> = (chapter.promises.iter())
                    .map(|it| serde_json::json!({ "property": it.property, "clauses": it.clauses }))
                    .collect();
                report.push(serde_json::json!({
                    "model": chapter.name,
                    "promises": promises,
                    "states": checked.states,
                    "depth": checked.depth,
                    "seconds": seconds,
                    "broken": broken,
                    "never": checked.never,
                }));
            }
        }
    }
    match format {
        Format::Text => print(&format!("{total} states in all\n"))?,
        Format::Json => print(&(serde_json::to_string_pretty(&report)? + "\n"))?,
    }
    Ok(code)
}

fn wrong(name: Option<&str>) -> anyhow::Result<u8> {
    let mut code = OK;
    for chapter in chosen(name)? {
        for wrong in chapter.wrong {
            match chapter.counterexample(wrong.name) {
                Ok(story) => print(&format!(
                    "{} {}: {}\n{story}\n",
                    chapter.name, wrong.name, wrong.what
                ))?,
                Err(error) => {
                    eprintln!("model: {error:#}");
                    code = BROKEN;
                }
            }
        }
    }
    Ok(code)
}

/// The counterexamples of the lifecycle model, each as a script.
fn scripts(folder: &std::path::Path) -> anyhow::Result<u8> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let wrong = chapter("lifecycle")?.wrong.iter();
    for (design, wrong) in lifecycle::Design::WRONG.into_iter().zip(wrong) {
        let way = counterexample(design, wrong.breaks)
            .with_context(|| format!("{} breaks nothing", wrong.name))?;
        let script = Script {
            about: wrong.what.to_owned(),
            script: way,
        };
        let file = folder.join(format!("{}.json", wrong.name));
        std::fs::write(&file, script.text()?).with_context(|| file.display().to_string())?;
        print(&format!("{}\n", file.display()))?;
    }
    Ok(OK)
}

/// A line of a history: an entry of the simulation, or an event alone.
fn parse(line: &str) -> anyhow::Result<Option<(String, Event)>> {
    let value: serde_json::Value = serde_json::from_str(line)?;
    if let Some(said) = value.get("said") {
        let host = value
            .get("host")
            .and_then(|host| host.as_str())
            .unwrap_or_default();
        return match said.get("harness") {
            Some(event) => Ok(Some((host.to_owned(), Event::deserialize(event)?))),
            None => Ok(None),
        };
    }
    // The first line of a stored simulation says where it comes from.
    if value.get("plan").is_some() {
        return Ok(None);
    }
    Ok(Some((String::new(), Event::deserialize(value)?)))
}

fn conform(file: &std::path::Path) -> anyhow::Result<u8> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let (mut model, mut refused) = (Conformance::new(), 0);
    for (n, line) in text.lines().enumerate() {
        let place = || format!("{}, line {}", file.display(), n + 1);
        let Some((host, event)) =
            parse(line).with_context(|| format!("{}: not an event", place()))?
        else {
            continue;
        };
        if matches!(event.step, Step::Started { .. }) {
            model.ended(&host);
        }
        if let Err(refusal) = model.see(&host, &event) {
            refused += 1;
            print(&format!("{}: REFUSED {refusal}\n", place()))?;
        }
    }
    for never in Conformance::never_taken(model.taken()) {
        print(&format!("never taken: {never}\n"))?;
    }
    for open in model.unanswered() {
        print(&format!("not answered at the end: {open}\n"))?;
    }
    print(&format!("{} events, {refused} refused\n", model.events()))?;
    Ok(if refused == 0 { OK } else { BROKEN })
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
