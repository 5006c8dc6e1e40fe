//! What is judged, on which machine, with which tools.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use harness::{Clock as _, SystemClock};

use crate::evidence::Layer;
use crate::report::About;
use crate::steps::Profile;

/// What a command says, in a line; nothing if it cannot be run.
fn said(root: &Path, program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(root)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Asks git and the tools.
pub fn about(root: &Path, profile: Profile, only: Option<Layer>) -> About {
    let commit = said(root, "git", &["rev-parse", "HEAD"]).unwrap_or_else(|| "0".to_owned());
    let changed = said(root, "git", &["status", "--porcelain"]).is_some();
    let mut versions = BTreeMap::new();
    let tools: [(&str, &str, &[&str]); 5] = [
        ("rustc", "rustc", &["--version"]),
        ("cargo-nextest", "cargo", &["nextest", "--version"]),
        (
            "PostgreSQL",
            "sh",
            &[
                "-c",
                "for it in postgres /usr/lib/postgresql/*/bin/postgres; do \"$it\" --version 2>/dev/null && break; done",
            ],
        ),
        ("system", "uname", &["-srm"]),
        (
            "processor",
            "sh",
            &["-c", "grep -m1 'model name' /proc/cpuinfo | cut -d: -f2"],
        ),
    ];
    for (name, program, arguments) in tools {
        let first =
            said(root, program, arguments).and_then(|text| text.lines().next().map(str::to_owned));
        versions.insert(
            name.to_owned(),
            first
                .unwrap_or_else(|| "unknown".to_owned())
                .trim()
                .to_owned(),
        );
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    versions.insert("cores".to_owned(), cores.to_string());
    About {
        commit,
        changed,
        profile,
        only,
        began: SystemClock::new().now().to_rfc3339(),
        versions,
    }
}
