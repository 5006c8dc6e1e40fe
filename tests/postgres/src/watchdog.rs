//! Cleaning up after an owner, however it ends.
//!
//! The watchdog is a shell in a process group of its own (Ctrl-C does not reach it) that reads from a pipe. The only
//! write end is in the owner, and is closed by the kernel when the owner is gone: dropped, panicked, or killed. The shell
//! then stops the server by its pid file and removes the folder. Rust opens pipes close-on-exec, so no other child of the
//! owner keeps the pipe open.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = r#"
cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$pid" ]; then
    kill -INT "$pid" 2>/dev/null
    tries=0
    while kill -0 "$pid" 2>/dev/null && [ -e "$1/data/postmaster.pid" ]; do
        tries=$((tries + 1))
        [ "$tries" -gt 100 ] && kill -9 "$pid" 2>/dev/null
        sleep 0.05
        [ "$tries" -gt 200 ] && break
    done
fi
umount "$1" 2>/dev/null
rm -rf "$1"
"#;

/// A running watchdog. Dropping it makes it clean up, and waits until it has.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    /// Watches over `folder`.
    pub(crate) fn start(folder: &Path) -> std::io::Result<Self> {
        Command::new("sh")
            .args(["-c", SCRIPT, "watchdog"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0)
            .spawn()
            .map(Self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
