//! `drive`: ways through the lifecycle model, driven through the harness.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use models::lifecycle::conform::Conformance;
use models::lifecycle::cover::{Grain, Way, cover, models};
use sim::script::{Deviation, Driven, Script, simulated};

use super::{OK, SAFETY, print};

/// Every way that is needed to go everywhere in the lifecycle model.
#[derive(clap::Args)]
pub(super) struct Drive {
    /// Where to write the script of the first way that the harness does not go.
    #[arg(long, value_name = "FILE", default_value = "deviation.json")]
    out: PathBuf,
}

impl Drive {
    pub(super) fn run(&self) -> anyhow::Result<u8> {
        let cover = cover(&models(), Grain::Turns);
        let (mut steps, mut refused, mut edges) = (0, 0, BTreeSet::new());
        for way in &cover.ways {
            match tried(way)? {
                Ok(driven) => {
                    steps += driven.steps;
                    refused += driven.refused;
                    edges.extend(driven.edges);
                }
                Err(deviation) => {
                    write(&self.out, &deviation.to_string(), way)?;
                    print(&format!(
                        "DEVIATES {deviation}\nreproduce: cargo sim replay {}\n",
                        self.out.display()
                    ))?;
                    return Ok(SAFETY);
                }
            }
        }
        print(&format!(
            "{} ways with every one of {} turns of the model: {steps} steps, and {refused} things tried that it does not allow\n",
            cover.ways.len(),
            cover.turns.len(),
        ))?;
        for never in Conformance::never_taken(&edges) {
            print(&format!("not a move of this world: {never}\n"))?;
        }
        Ok(OK)
    }
}

fn tried(way: &Way) -> anyhow::Result<Result<Driven, Deviation>> {
    match simulated::run(way) {
        Ok(driven) => Ok(Ok(driven)),
        Err(error) => error.downcast::<Deviation>().map(Err),
    }
}

fn write(file: &Path, about: &str, way: &Way) -> anyhow::Result<()> {
    let script = Script {
        about: about.to_owned(),
        script: way.clone(),
    };
    std::fs::write(file, script.text()?).with_context(|| file.display().to_string())
}

/// Drives the script of a file.
pub(super) fn replay(file: &Path, script: &Script) -> anyhow::Result<u8> {
    let name = file.display();
    match tried(&script.script)? {
        Ok(driven) => {
            print(&format!(
                "{name}: the harness goes all {} steps, and {} things that the model does not allow changed nothing\n",
                driven.steps, driven.refused
            ))?;
            Ok(OK)
        }
        Err(deviation) => {
            print(&format!("{name}: DEVIATES {deviation}\n"))?;
            Ok(SAFETY)
        }
    }
}
