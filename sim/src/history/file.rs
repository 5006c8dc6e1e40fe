//! A stored history: a line of JSON that says where it comes from, then a line an entry.

use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::Entry;
use crate::plan::Plan;

/// Where a stored history comes from, and what was thought of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The commit that it was made with.
    pub commit: String,
    /// What it was made from.
    pub plan: Plan,
    /// Violated invariants, by name.
    pub violated: Vec<String>,
}

/// A stored history.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Where it comes from.
    pub header: Header,
    /// What happened.
    pub entries: Vec<Entry>,
}

impl Stored {
    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
        let mut file = BufWriter::new(file);
        serde_json::to_writer(&mut file, &self.header)?;
        for entry in &self.entries {
            file.write_all(b"\n")?;
            serde_json::to_writer(&mut file, entry)?;
        }
        file.write_all(b"\n")?;
        file.flush().with_context(|| path.display().to_string())
    }

    /// Reads it.
    ///
    /// # Errors
    /// When the file cannot be read or is no history; the error names the line.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let file = std::fs::File::open(path).with_context(|| name.to_string())?;
        let mut lines = BufReader::new(file).lines();
        let first = lines.next().with_context(|| {
            format!("{name} is empty, a history begins with a line about its plan")
        })??;
        let header = serde_json::from_str(&first)
            .with_context(|| format!("{name}, line 1: not the header of a history"))?;
        let mut entries = Vec::new();
        for (n, line) in lines.enumerate() {
            let entry = serde_json::from_str(&line?)
                .with_context(|| format!("{name}, line {}: not an entry of a history", n + 2))?;
            entries.push(entry);
        }
        Ok(Self { header, entries })
    }
}
