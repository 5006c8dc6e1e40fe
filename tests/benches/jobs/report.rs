//! What was measured, with what, as text and as raw data.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::Args;
use crate::measured::{Measured, median};
use crate::setting::Setting;

#[derive(Serialize)]
pub(crate) struct Report {
    settings: BTreeMap<String, String>,
    /// By clients, then by kind.
    rounds: BTreeMap<u32, BTreeMap<String, Vec<Measured>>>,
}

/// Settings of the server that decide how fast it is.
const SERVER: [&str; 8] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "shared_buffers",
    "max_wal_size",
    "wal_level",
    "jit",
];

impl Report {
    pub(crate) async fn new(args: &Args, setting: &Setting) -> anyhow::Result<Self> {
        let mut settings = BTreeMap::new();
        for name in SERVER {
            let value: String = sqlx::query_scalar("SELECT current_setting($1)")
                .bind(name)
                .fetch_one(setting.pool())
                .await?;
            settings.insert(name.to_owned(), value);
        }
        let processors = std::thread::available_parallelism()?.to_string();
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find_map(|it| it.strip_prefix("model name"));
        let cpu = cpu.map_or("unknown", |it| it.trim_start_matches([' ', '\t', ':']));
        settings.insert(
            "machine".to_owned(),
            format!("{processors} processors, {cpu}"),
        );
        settings.insert("jobs".to_owned(), args.jobs.to_string());
        settings.insert("rounds".to_owned(), args.rounds.to_string());
        Ok(Self {
            settings,
            rounds: BTreeMap::new(),
        })
    }

    pub(crate) fn add(&mut self, kind: String, clients: u32, measured: Measured) {
        let of_clients = self.rounds.entry(clients).or_default();
        of_clients.entry(kind).or_default().push(measured);
    }

    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let file = folder.join("jobs.json");
        std::fs::write(&file, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| file.display().to_string())?;
        std::io::stdout().lock().write_all(self.text().as_bytes())?;
        Ok(())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.settings {
            text.push_str(&format!("{name}: {value}\n"));
        }
        for (clients, kinds) in &self.rounds {
            text.push_str(&format!(
                "\n| {clients} at once | per second | of the faster pgbench | of the consumer | p50 ms | p99 ms |\n|---|---|---|---|---|---|\n"
            ));
            let speed = |of: &[Measured]| median(of.iter().map(|it| it.per_second).collect());
            // Batches are held against batches.
            let in_batches = |kind: &str| kind.contains("batches");
            let pgbench = |like: &str| {
                kinds
                    .iter()
                    .filter(|(kind, _)| {
                        kind.starts_with("pgbench") && in_batches(kind) == in_batches(like)
                    })
                    .map(|(_, of)| speed(of))
                    .fold(f64::NAN, f64::max)
            };
            let consumer = kinds.get("consumer").map_or(f64::NAN, |of| speed(of));
            for (kind, of) in kinds {
                let time = |of: Vec<Option<f64>>| match of.into_iter().collect::<Option<Vec<f64>>>()
                {
                    Some(times) => format!("{:.1}", median(times)),
                    None => "-".to_owned(),
                };
                text.push_str(&format!(
                    "| {kind} | {:.0} | {:.2} | {:.2} | {} | {} |\n",
                    speed(of),
                    speed(of) / pgbench(kind),
                    speed(of) / consumer,
                    time(of.iter().map(|it| it.p50_ms).collect()),
                    time(of.iter().map(|it| it.p99_ms).collect()),
                ));
            }
        }
        text
    }
}
