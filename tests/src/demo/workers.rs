//! The demo's worker processes, and what they report.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;

use crate::worker::{Worker, WorkerArgs};

/// How often each step was made, by all workers together.
pub(super) type Steps = BTreeMap<String, u64>;

/// Running worker processes.
pub(super) struct Workers {
    args: WorkerArgs,
    program: PathBuf,
    running: Vec<Worker>,
    readers: JoinSet<()>,
    steps: Arc<Mutex<Steps>>,
}

impl Workers {
    pub(super) fn start(args: &WorkerArgs, program: &Path, count: u32) -> anyhow::Result<Self> {
        let mut workers = Self {
            args: args.clone(),
            program: program.to_owned(),
            running: Vec::new(),
            readers: JoinSet::new(),
            steps: Arc::default(),
        };
        for _ in 0..count {
            let worker = workers.spawn()?;
            workers.running.push(worker);
        }
        Ok(workers)
    }

    fn spawn(&mut self) -> anyhow::Result<Worker> {
        let mut worker = self
            .args
            .spawn(&self.program, &[super::AS_WORKER])
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        if let Some(report) = worker.take_report() {
            let steps = Arc::clone(&self.steps);
            self.readers.spawn(async move {
                let mut lines = BufReader::new(report).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    *steps
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .entry(line)
                        .or_default() += 1;
                }
            });
        }
        Ok(worker)
    }

    /// SIGKILL to the first one; another takes its place.
    pub(super) async fn kill_one(&mut self) -> anyhow::Result<()> {
        self.running[0].kill().await?;
        self.running[0] = self.spawn()?;
        Ok(())
    }

    /// Starts those again that have ended by themselves.
    pub(super) fn revive(&mut self) -> anyhow::Result<()> {
        for at in 0..self.running.len() {
            if self.running[at].has_ended()? {
                self.running[at] = self.spawn()?;
            }
        }
        Ok(())
    }

    /// Shuts all of them down, and answers what they reported.
    pub(super) async fn stop(mut self) -> anyhow::Result<Steps> {
        for worker in &mut self.running {
            worker.stop().await?;
        }
        while self.readers.join_next().await.is_some() {}
        let steps = self
            .steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        Ok(steps)
    }
}
