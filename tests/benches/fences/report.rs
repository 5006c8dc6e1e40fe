//! What was measured, with what, as text and as raw data.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use crate::Args;
use crate::measured::{Phase, Sizes};
use crate::setting::Setting;

#[derive(Serialize)]
pub(crate) struct Report {
    settings: BTreeMap<String, String>,
    rows: u32,
    filled_per_second: f64,
    /// When it was full.
    full: Option<Sizes>,
    sweeps: Vec<Phase>,
    /// When it had been emptied, and was filled with as many rows again.
    full_again: Option<Sizes>,
}

/// Settings of the server that decide about size and speed.
const SERVER: [&str; 6] = [
    "server_version",
    "fsync",
    "full_page_writes",
    "shared_buffers",
    "maintenance_work_mem",
    "max_wal_size",
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
        let processors = std::thread::available_parallelism()?;
        settings.insert("processors".to_owned(), processors.to_string());
        settings.insert("ids".to_owned(), format!("{:?}", args.ids).to_lowercase());
        Ok(Self {
            settings,
            rows: 0,
            filled_per_second: f64::NAN,
            full: None,
            sweeps: Vec::new(),
            full_again: None,
        })
    }

    pub(crate) fn filled(&mut self, rows: u32, took: Duration, sizes: Sizes) {
        self.rows = rows;
        self.filled_per_second = f64::from(rows) / took.as_secs_f64();
        self.full = Some(sizes);
    }

    pub(crate) fn swept(&mut self, phase: Phase) {
        self.sweeps.push(phase);
    }

    pub(crate) fn refilled(&mut self, sizes: Sizes) {
        self.full_again = Some(sizes);
    }

    pub(crate) fn write(&self) -> anyhow::Result<()> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let file = folder.join("fences.json");
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
        text.push_str(&format!(
            "rows: {}, written at {:.0} rows/s\n\n| bytes per row | heap | key | expiry | all |\n|---|---|---|---|---|\n",
            self.rows, self.filled_per_second
        ));
        for (when, sizes) in [("full", self.full), ("full again", self.full_again)] {
            let Some(sizes) = sizes else { continue };
            let each = |bytes: i64| bytes as f64 / f64::from(self.rows);
            text.push_str(&format!(
                "| {when} | {:.1} | {:.1} | {:.1} | {:.1} |\n",
                each(sizes.heap),
                each(sizes.key),
                each(sizes.expiry),
                each(sizes.heap + sizes.key + sizes.expiry),
            ));
        }
        text.push_str(
            "\n| batch | rows | rows/s | first tenth | last tenth | dead, then | vacuum s | dead rows cleaned/s |\n\
             |---|---|---|---|---|---|---|---|\n",
        );
        for it in &self.sweeps {
            text.push_str(&format!(
                "| {} | {} | {:.0} | {:.0} | {:.0} | {}, {} | {:.2} | {:.0} |\n",
                it.batch,
                it.rows,
                it.rows_per_second,
                it.first_tenth_per_second,
                it.last_tenth_per_second,
                it.vacuum.dead_before,
                it.vacuum.dead_after,
                it.vacuum.seconds,
                f64::from(it.rows) / it.vacuum.seconds,
            ));
        }
        text
    }
}
