//! A private server from local binaries.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::binaries::{self, RunAs};
use crate::template;
use crate::watchdog::Watchdog;

/// How long a server may take to start or to stop, in steps of [`STEP`].
const PATIENCE_STEPS: u32 = 3_000;
const STEP: Duration = Duration::from_millis(10);

/// Settings of every private server: it holds nothing that must survive the machine.
const SETTINGS: [&str; 9] = [
    "fsync=off",
    "full_page_writes=off",
    "max_connections=500",
    "shared_buffers=128MB",
    "listen_addresses=127.0.0.1",
    "timezone=UTC",
    "jit=off",
    "max_wal_size=4GB",
    "log_line_prefix=%m [%p] %d ",
];

/// Why a local server could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Nothing to start.
    #[error("{0}")]
    NoBinaries(String),
    /// Root may not run it.
    #[error(
        "PostgreSQL refuses to run as root, and there is neither a user `postgres` nor `nobody`"
    )]
    NoUser,
    /// A file or a program could not be used.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {output}")]
    Failed {
        /// Which.
        program: String,
        /// What it said.
        output: String,
    },
    /// It did not start or stop in time.
    #[error("the server did not {what} in time; the end of its log:\n{log}")]
    TooSlow {
        /// What was waited for.
        what: &'static str,
        /// The last lines of its log.
        log: String,
    },
    /// Not a server that we may stop.
    #[error("this server was not started here, so it cannot be stopped or reconfigured")]
    NotOurs,
    /// The container does not do what it is told.
    #[error("{0}")]
    Container(String),
}

impl LocalError {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

/// Runs a program to its end; its output is in the error.
pub(crate) fn run(command: &mut Command) -> Result<(), LocalError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| LocalError::io(Path::new(&program), e))?;
    if output.status.success() {
        return Ok(());
    }
    let output = format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Err(LocalError::Failed { program, output })
}

/// Where a server's files are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Disk {
    /// In the temporary folder.
    Any,
    /// In the temporary folder, and everything that is committed is on it.
    Durable,
    /// On a file system of its own, of so many MB, that holds nothing else.
    OfMb(u32),
}

/// As a server is run whose data must survive the machine.
const DURABLE: [&str; 3] = ["fsync=on", "full_page_writes=on", "shared_buffers=512MB"];

/// What a small disk can bear: old changes are thrown away early.
const FRUGAL: [&str; 2] = ["max_wal_size=48MB", "min_wal_size=32MB"];

/// A private server. Fields are dropped in this order: the watchdog stops the server and removes the folder.
#[derive(Debug)]
pub(crate) struct LocalServer {
    _watchdog: Watchdog,
    process: Child,
    bin_dir: PathBuf,
    folder: PathBuf,
    log: PathBuf,
    port: u16,
    run_as: RunAs,
    more: &'static [&'static str],
}

impl LocalServer {
    pub(crate) fn start(disk: &Disk) -> Result<Self, LocalError> {
        Self::start_with(disk, template::fill)
    }

    /// A standby of this server: a copy of its data that goes on following it.
    pub(crate) fn standby(&self) -> Result<Self, LocalError> {
        let port = self.port.to_string();
        Self::start_with(&Disk::Any, |data, bin_dir, run_as| {
            let mut copy = Command::new(bin_dir.join("pg_basebackup"));
            copy.args(["--host", "127.0.0.1", "--username", "postgres", "--port"])
                .arg(&port)
                .args(["--checkpoint", "fast", "--wal-method", "stream"])
                .args(["--no-sync", "--write-recovery-conf", "--pgdata"])
                .arg(data)
                .current_dir("/");
            run_as.apply(&mut copy);
            run(&mut copy)
        })
    }

    /// `fill` makes the data folder.
    fn start_with(
        disk: &Disk,
        fill: impl FnOnce(&Path, &Path, RunAs) -> Result<(), LocalError>,
    ) -> Result<Self, LocalError> {
        let bin_dir = binaries::find()?;
        let run_as = RunAs::allowed()?;
        let folder = new_folder(run_as)?;
        // From here on the folder is removed, whatever happens.
        let watchdog = Watchdog::start(&folder).map_err(|e| LocalError::io(&folder, e))?;
        let mut more: &'static [&'static str] = match disk {
            Disk::Durable => &DURABLE,
            Disk::Any | Disk::OfMb(_) => &[],
        };
        if let Disk::OfMb(mb) = disk {
            more = &FRUGAL;
            let options = format!("size={mb}m,mode=0755");
            run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
                .arg(&folder))?;
            run_as
                .own(&folder)
                .map_err(|e| LocalError::io(&folder, e))?;
        }
        fill(&folder.join("data"), &bin_dir, run_as)?;
        let log = folder.join("server.log");
        let mut last = None;
        // Somebody else may take the port between our asking and the server's binding.
        for _ in 0..5 {
            let port = free_port().map_err(|e| LocalError::io(&folder, e))?;
            let mut process = spawn(&bin_dir, &folder, &log, port, run_as, more)?;
            match wait_until_ready(&mut process, &folder, &log) {
                Ok(()) => {
                    return Ok(Self {
                        _watchdog: watchdog,
                        process,
                        bin_dir,
                        folder,
                        log,
                        port,
                        run_as,
                        more,
                    });
                }
                Err(error) => {
                    let _ = process.kill();
                    let _ = process.wait();
                    last = Some(error);
                }
            }
        }
        Err(last.unwrap_or(LocalError::TooSlow {
            what: "start",
            log: tail(&log),
        }))
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn log_path(&self) -> &Path {
        &self.log
    }

    /// The postmaster and all its children at once, as a power cut would: a child that outlives the postmaster for a
    /// moment could still commit something.
    pub(crate) fn kill(&mut self) -> Result<(), LocalError> {
        // Asked before, because orphans have another parent.
        let children = children_of(self.process.id());
        self.signal(Signal::SIGKILL);
        for child in &children {
            let _ = kill(Pid::from_raw(*child), Signal::SIGKILL);
        }
        self.wait()?;
        for _ in 0..PATIENCE_STEPS {
            if !children
                .iter()
                .any(|child| Path::new(&format!("/proc/{child}")).exists())
            {
                return Ok(());
            }
            pause();
        }
        Err(LocalError::TooSlow {
            what: "die",
            log: tail(&self.log),
        })
    }

    pub(crate) fn stop(&mut self, signal: Signal) -> Result<(), LocalError> {
        self.signal(signal);
        self.wait()
    }

    pub(crate) fn restart_if_ended(&mut self) -> Result<bool, LocalError> {
        // One that is ending by itself would be seen running: it is asked twice.
        for _ in 0..2 {
            let ended = self.process.try_wait();
            if ended
                .map_err(|e| LocalError::io(&self.folder, e))?
                .is_some()
            {
                return self.restart().map(|()| true);
            }
            (0..50).for_each(|_| pause());
        }
        Ok(false)
    }

    fn signal(&self, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.process.id()) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    fn wait(&mut self) -> Result<(), LocalError> {
        self.process
            .wait()
            .map_err(|e| LocalError::io(&self.folder, e))?;
        Ok(())
    }

    pub(crate) fn restart(&mut self) -> Result<(), LocalError> {
        let mut last = None;
        // Children of a killed postmaster may need a moment to notice; until then the data is still in use.
        for _ in 0..200 {
            let mut process = spawn(
                &self.bin_dir,
                &self.folder,
                &self.log,
                self.port,
                self.run_as,
                self.more,
            )?;
            match wait_until_ready(&mut process, &self.folder, &self.log) {
                Ok(()) => {
                    self.process = process;
                    return Ok(());
                }
                Err(error) => {
                    let _ = process.kill();
                    let _ = process.wait();
                    last = Some(error);
                    pause();
                }
            }
        }
        Err(last.unwrap_or(LocalError::TooSlow {
            what: "start",
            log: tail(&self.log),
        }))
    }

    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), LocalError> {
        let path = self.folder.join("data/postgresql.auto.conf");
        let mut settings = fs::read_to_string(&path).map_err(|e| LocalError::io(&path, e))?;
        settings.push_str(&format!("{key} = '{}'\n", value.replace('\'', "''")));
        fs::write(&path, settings).map_err(|e| LocalError::io(&path, e))?;
        self.signal(Signal::SIGHUP);
        Ok(())
    }
}

fn new_folder(run_as: RunAs) -> Result<PathBuf, LocalError> {
    // A name that is taken is tried again with the next number.
    for attempt in 0_u32.. {
        let name = format!("embedded-pg-run-{}-{attempt}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match fs::create_dir(&folder) {
            Ok(()) => {
                run_as
                    .own(&folder)
                    .map_err(|e| LocalError::io(&folder, e))?;
                return Ok(folder);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 10_000 => {
            }
            Err(error) => return Err(LocalError::io(&folder, error)),
        }
    }
    unreachable!("the loop returns")
}

/// A port of 127.0.0.1 that nobody had a moment ago.
///
/// # Errors
/// When there is none.
pub fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn spawn(
    bin_dir: &Path,
    folder: &Path,
    log: &Path,
    port: u16,
    run_as: RunAs,
    more: &[&str],
) -> Result<Child, LocalError> {
    use std::os::unix::process::CommandExt as _;
    let output = fs::File::options()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| LocalError::io(log, e))?;
    let errors = output.try_clone().map_err(|e| LocalError::io(log, e))?;
    let program = bin_dir.join("postgres");
    let mut command = Command::new(&program);
    command
        .arg("-D")
        .arg(folder.join("data"))
        .args(["-p", &port.to_string()])
        .arg("-k")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .current_dir("/")
        // Ctrl-C is for the owner; the watchdog stops the server.
        .process_group(0);
    // Of two settings of one name the last counts.
    for setting in SETTINGS.iter().chain(more) {
        command.args(["-c", setting]);
    }
    run_as.apply(&mut command);
    command.spawn().map_err(|e| LocalError::io(&program, e))
}

/// The server writes `ready` to its pid file when it accepts connections.
fn wait_until_ready(process: &mut Child, folder: &Path, log: &Path) -> Result<(), LocalError> {
    let pid = process.id().to_string();
    let pid_file = folder.join("data/postmaster.pid");
    for _ in 0..PATIENCE_STEPS {
        if let Ok(Some(status)) = process.try_wait() {
            return Err(LocalError::Failed {
                program: "postgres".to_owned(),
                output: format!("{status}\n{}", tail(log)),
            });
        }
        let content = fs::read_to_string(&pid_file).unwrap_or_default();
        let mut lines = content.lines();
        if lines.next() == Some(pid.as_str()) && lines.any(|line| line.trim() == "ready") {
            return Ok(());
        }
        pause();
    }
    Err(LocalError::TooSlow {
        what: "start",
        log: tail(log),
    })
}

/// Processes whose parent is `parent`, from `/proc`.
fn children_of(parent: u32) -> Vec<i32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(process.path().join("stat")).ok()?;
            // The name in parentheses may contain anything; state and parent follow it.
            let parent_of = stat
                .rsplit_once(')')?
                .1
                .split_whitespace()
                .nth(1)?
                .parse::<u32>()
                .ok()?;
            (parent_of == parent).then_some(pid)
        })
        .collect()
}

/// Here no runtime and no injected clock is needed: it is a step of a loop that waits for another program.
#[allow(clippy::disallowed_methods)]
fn pause() {
    std::thread::sleep(STEP);
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
