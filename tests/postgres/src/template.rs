//! A data folder, initialised once and copied ever after: `initdb` takes a second of CPU, a copy a tenth of that.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binaries::RunAs;
use crate::local::{LocalError, run};

const INITDB_ARGS: [&str; 7] = [
    "-U",
    "postgres",
    "-A",
    "trust",
    "-E",
    "UTF8",
    "--locale=C.UTF-8",
];

/// Fills `data` with a fresh cluster.
pub(crate) fn fill(data: &Path, bin_dir: &Path, run_as: RunAs) -> Result<(), LocalError> {
    let template = ready_template(bin_dir, run_as)?;
    run(Command::new("cp")
        .arg("-a")
        .arg("--reflink=auto")
        .arg(&template)
        .arg(data))
}

/// The template's folder. Parallel processes wait for the first one to make it; it gets its name when it is complete.
fn ready_template(bin_dir: &Path, run_as: RunAs) -> Result<PathBuf, LocalError> {
    let name = format!("embedded-pg-{}-{}", run_as.uid(), version(bin_dir)?);
    let template = std::env::temp_dir().join(&name);
    let lock_path = std::env::temp_dir().join(format!("{name}.lock"));
    let lock = File::create(&lock_path).map_err(|e| LocalError::io(&lock_path, e))?;
    lock.lock().map_err(|e| LocalError::io(&lock_path, e))?;
    if template.is_dir() {
        return Ok(template);
    }
    let making = std::env::temp_dir().join(format!("{name}.making"));
    if making.exists() {
        fs::remove_dir_all(&making).map_err(|e| LocalError::io(&making, e))?;
    }
    fs::create_dir(&making).map_err(|e| LocalError::io(&making, e))?;
    run_as
        .own(&making)
        .map_err(|e| LocalError::io(&making, e))?;
    let mut initdb = Command::new(bin_dir.join("initdb"));
    initdb
        .args(INITDB_ARGS)
        .arg("--no-sync")
        .arg("-D")
        .arg(&making)
        .current_dir("/");
    run_as.apply(&mut initdb);
    run(&mut initdb)?;
    fs::rename(&making, &template).map_err(|e| LocalError::io(&template, e))?;
    Ok(template)
}

/// Like `15.18`, so that another server never gets this one's files.
fn version(bin_dir: &Path) -> Result<String, LocalError> {
    let program = bin_dir.join("postgres");
    let output = Command::new(&program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| LocalError::io(&program, e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split_whitespace().nth(2).unwrap_or("unknown");
    Ok(version
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
        .collect())
}
