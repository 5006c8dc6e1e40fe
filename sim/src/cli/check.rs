//! `check`: a stored history before today's checks.

use std::fmt::Write as _;
use std::path::Path;

use sim::checkers;
use sim::history::Stored;

use super::{code_of, names, print};

pub(super) fn run(file: &Path) -> anyhow::Result<u8> {
    let stored = Stored::read(file)?;
    let violations = checkers::check(&stored.header.plan, &stored.entries)?;
    let (then, now) = (&stored.header.violated, names(&violations));
    let mut text = format!(
        "{} events, stored with commit {}\n",
        stored.entries.len(),
        stored.header.commit
    );
    for violation in &violations {
        let _ = writeln!(text, "VIOLATED {violation}");
        for n in &violation.proof {
            if let Some(entry) = stored.entries.get(*n) {
                let _ = writeln!(text, "  {n:>6} {}", entry.line());
            }
        }
    }
    if violations.is_empty() {
        text.push_str("all invariants hold\n");
    }
    for name in now.iter().filter(|name| !then.contains(name)) {
        let _ = writeln!(
            text,
            "changed: {name} was not broken when this was stored, now it is"
        );
    }
    for name in then.iter().filter(|name| !now.contains(name)) {
        let _ = writeln!(
            text,
            "changed: {name} was broken when this was stored, now it is not"
        );
    }
    if *then == now {
        text.push_str("no verdict changed\n");
    }
    print(&text)?;
    Ok(code_of(&violations))
}
