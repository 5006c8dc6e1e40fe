//! `cargo gate`: runs every layer, and says which clause has which evidence.

mod planted;
mod self_test;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};
use gate::about::about;
use gate::evidence::Layer;
use gate::report::{Judgement, Report};
use gate::required::Required;
use gate::results::sweep;
use gate::run;
use gate::steps::{Profile, Settings, chosen};

/// Runs every layer of tests, and says which clause of the specification has which evidence.
///
/// Progress goes to standard error, the result to standard output. The report is kept as `report.json` and `report.html`.
#[derive(Parser)]
#[command(
    name = "gate",
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        cargo gate                      every change\n  \
        cargo gate --quick              before a commit; never green, for it leaves layers out\n  \
        cargo gate --only models        one layer\n  \
        cargo gate --shard 1/3          a third; then: cargo gate merge one.json two.json three.json\n\n\
        Exit codes: 0 green; 1 something failed or evidence is missing; 2 bad arguments; 3 the gate itself could not run;\n\
        4 nothing failed, but not all that is needed was run."
)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    wanted: Wanted,
    #[command(flatten)]
    output: Output,
}

#[derive(Subcommand)]
enum Command {
    /// Makes one report of the reports of all parts.
    Merge {
        /// The `report.json` of each part.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: Output,
    },
    /// Makes realistic mistakes in a scratch copy, one at a time, and says which layers notice.
    Planted {
        /// These only; all when left out.
        names: Vec<String>,
        /// These layers only.
        #[arg(long, value_name = "LAYER", value_parser = layer)]
        layer: Vec<Layer>,
        /// Part k of n, from 1.
        #[arg(long, value_name = "k/n", value_parser = shard, default_value = "1/1")]
        shard: (u64, u64),
        /// Only names them.
        #[arg(long)]
        list: bool,
        /// Also those that were hunted already.
        #[arg(long)]
        again: bool,
        /// Only writes the matrix anew, of what is known.
        #[arg(long, conflicts_with = "list")]
        write: bool,
    },
}

#[derive(clap::Args)]
struct Wanted {
    /// Less than 2 minutes: a few seeds, and the tests that are quick.
    #[arg(long)]
    quick: bool,
    /// As much as a night has time for.
    #[arg(long, conflicts_with = "quick")]
    deep: bool,
    /// One layer only.
    #[arg(long, value_name = "LAYER", value_parser = layer)]
    only: Option<Layer>,
    /// Breaks what each step looks at, one after the other, in a scratch copy: each must turn red. With --only, for one layer.
    #[arg(long, conflicts_with_all = ["quick", "deep", "shard"])]
    self_test: bool,
    /// Part k of n, from 1.
    #[arg(long, value_name = "k/n", value_parser = shard, default_value = "1/1")]
    shard: (u64, u64),
}

#[derive(clap::Args)]
struct Output {
    /// How to print the result.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Where the report is kept.
    #[arg(long, value_name = "DIR", default_value = "target/gate")]
    out: PathBuf,
    /// Adds annotations for GitHub's checks.
    #[arg(long)]
    github: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

fn layer(text: &str) -> Result<Layer, String> {
    let all = Layer::ALL.into_iter();
    all.clone().find(|it| it.as_str() == text).ok_or_else(|| {
        let names: Vec<_> = all.map(Layer::as_str).collect();
        format!("there is no such layer; there are {}", names.join(", "))
    })
}

fn shard(text: &str) -> Result<(u64, u64), String> {
    text.split_once('/')
        .and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)))
        .filter(|(k, n)| (1..=*n).contains(k))
        .ok_or_else(|| "give the part and the number of parts: 2/4".to_owned())
}

fn main() -> ExitCode {
    match judged(Args::parse()) {
        Ok(Judgement::Green) => ExitCode::SUCCESS,
        Ok(Judgement::Red) => ExitCode::from(1),
        Ok(Judgement::Incomplete) => ExitCode::from(4),
        Err(error) => {
            eprintln!("gate: {error:#}");
            ExitCode::from(3)
        }
    }
}

fn judged(args: Args) -> anyhow::Result<Judgement> {
    let required = Required::committed()?;
    let (report, output) = match args.command {
        Some(Command::Merge { files, output }) => {
            let parts: anyhow::Result<Vec<Report>> =
                files.iter().map(|it| Report::read(it)).collect();
            for file in &files {
                collect_pictures(file, &output.out)?;
            }
            (Report::merge(parts?)?, output)
        }
        Some(Command::Planted {
            names,
            layer,
            shard,
            list,
            again,
            write,
        }) => {
            let chosen = planted::Chosen {
                names,
                layers: layer,
                shard,
                again,
            };
            return planted::run(&chosen, list, write);
        }
        None if args.wanted.self_test => return self_test::run(args.wanted.only),
        None => (made(&args.wanted, &args.output)?, args.output),
    };
    keep(&report, &required, &output)?;
    Ok(report.judgement(&required))
}

fn root() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("ci has no parent folder")
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn made(wanted: &Wanted, output: &Output) -> anyhow::Result<Report> {
    let root = root()?;
    let profile = match (wanted.quick, wanted.deep) {
        (true, _) => Profile::Quick,
        (_, true) => Profile::Deep,
        _ => Profile::Change,
    };
    let about = about(root, profile, wanted.only);
    let settings = Settings {
        profile,
        shard: wanted.shard,
        commit: about.commit.clone(),
        only: wanted.only,
        out: below(root, &output.out)?,
        log: None,
    };
    // Pictures of an earlier run are not of this one.
    let pictures = root.join(&settings.out).join(sweep::PICTURES);
    if pictures.exists() {
        std::fs::remove_dir_all(&pictures).with_context(|| pictures.display().to_string())?;
    }
    let mut report = Report::new(about, wanted.shard);
    for step in chosen(&settings) {
        let (ran, results) = run::run(&step, &settings, root)?;
        report.add(ran, results);
    }
    Ok(report)
}

/// As seen from `root`, where steps are run.
fn below(root: &Path, path: &Path) -> anyhow::Result<PathBuf> {
    let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
    Ok(path.strip_prefix(root).unwrap_or(&path).to_owned())
}

/// The pictures beside a part's report go beside the whole one.
fn collect_pictures(part: &Path, out: &Path) -> anyhow::Result<()> {
    let from = part.parent().unwrap_or(Path::new("")).join(sweep::PICTURES);
    let to = out.join(sweep::PICTURES);
    if !from.exists() || from == to {
        return Ok(());
    }
    std::fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    for picture in std::fs::read_dir(&from).with_context(|| from.display().to_string())? {
        let picture = picture?;
        std::fs::copy(picture.path(), to.join(picture.file_name()))
            .with_context(|| picture.path().display().to_string())?;
    }
    Ok(())
}

fn keep(report: &Report, required: &Required, output: &Output) -> anyhow::Result<()> {
    let folder = &output.out;
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let json = serde_json::to_string_pretty(report)? + "\n";
    for (name, text) in [
        ("report.json", &json),
        ("report.html", &report.html(required)),
    ] {
        let file = folder.join(name);
        std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        eprintln!("{}", file.display());
    }
    let mut text = match output.format {
        Format::Text => report.text(required),
        Format::Json => json,
    };
    if output.github {
        text.push_str(&report.annotations());
    }
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}
