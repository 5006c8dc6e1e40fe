//! A trace in the Trace Event format: a process per host, a track per job, arrows for messages.

use std::collections::BTreeMap;

use harness::{JobId, Step};
use serde_json::{Value, json};

use crate::history::{Entry, Fact, Said};

/// Writes a history as a JSON array of trace events; times are simulated microseconds.
///
/// # Errors
/// Never for a history of a run.
pub fn chrome_trace(entries: &[Entry]) -> anyhow::Result<String> {
    let mut tracks = Tracks::default();
    let mut events = Vec::new();
    // Runs that started and did not end yet, by host and job.
    let mut runs: BTreeMap<(String, Option<JobId>), u128> = BTreeMap::new();
    for entry in entries {
        let at = entry.at.as_micros();
        let host = entry.host.to_string();
        match &entry.said {
            Said::World(Fact::Sent {
                frame, call, job, ..
            }) => {
                let (pid, tid) = tracks.of(&host, *job);
                // A flow needs a slice to begin in.
                events.push(
                    json!({"ph": "X", "name": call, "pid": pid, "tid": tid, "ts": at, "dur": 1}),
                );
                events.push(json!({"ph": "s", "name": call, "cat": "message", "id": frame, "pid": pid, "tid": tid, "ts": at}));
            }
            Said::World(Fact::Arrived { frame }) => {
                let (pid, tid) = tracks.of(&host, None);
                events.push(json!({"ph": "X", "name": "arrived", "pid": pid, "tid": tid, "ts": at, "dur": 1}));
                events.push(json!({"ph": "f", "bp": "e", "name": "message", "cat": "message", "id": frame, "pid": pid, "tid": tid, "ts": at}));
            }
            Said::World(fact) if fact.is_detail() => {}
            Said::World(fact) => {
                let (pid, tid) = tracks.of(&host, fact.job());
                let text = format!("{fact:?}");
                events.push(instant(&text, pid, tid, at));
            }
            Said::Harness(event) => {
                let job = event.job.as_ref().map(|job| job.id);
                let (pid, tid) = tracks.of(&host, job);
                match &event.step {
                    Step::RunStarted { .. } => {
                        runs.insert((host, job), at);
                    }
                    Step::RunEnded { run, result, .. } => {
                        let began = runs.remove(&(host, job)).unwrap_or(at);
                        events.push(json!({
                            "ph": "X", "name": format!("run {run}"), "pid": pid, "tid": tid, "ts": began,
                            "dur": at.saturating_sub(began), "args": {"result": format!("{result:?}")},
                        }));
                    }
                    step => events.push(instant(&format!("{step:?}"), pid, tid, at)),
                }
            }
        }
    }
    events.extend(tracks.names());
    Ok(serde_json::to_string(&events)? + "\n")
}

fn instant(text: &str, pid: usize, tid: usize, at: u128) -> Value {
    let name: String = text
        .chars()
        .take_while(|c| c.is_ascii_alphabetic())
        .collect();
    json!({"ph": "i", "s": "t", "name": name, "pid": pid, "tid": tid, "ts": at, "args": {"what": text}})
}

/// Numbers for hosts and for jobs, in the order of their first event.
#[derive(Default)]
struct Tracks {
    hosts: Vec<String>,
    jobs: Vec<JobId>,
    used: std::collections::BTreeSet<(usize, usize)>,
}

impl Tracks {
    fn of(&mut self, host: &str, job: Option<JobId>) -> (usize, usize) {
        let pid = position(&mut self.hosts, &host.to_owned());
        // Track 0 is for what is about no job.
        let tid = job.map_or(0, |job| position(&mut self.jobs, &job) + 1);
        self.used.insert((pid, tid));
        (pid, tid)
    }

    fn names(&self) -> Vec<Value> {
        let hosts = self.hosts.iter().enumerate();
        let mut names: Vec<Value> = hosts
            .map(|(pid, host)| json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": host}}))
            .collect();
        for (pid, tid) in &self.used {
            let name = match tid.checked_sub(1).and_then(|n| self.jobs.get(n)) {
                Some(job) => format!("job {job}"),
                None => "all jobs".to_owned(),
            };
            names.push(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}));
        }
        names
    }
}

fn position<T: PartialEq + Clone>(list: &mut Vec<T>, item: &T) -> usize {
    list.iter().position(|it| it == item).unwrap_or_else(|| {
        list.push(item.clone());
        list.len() - 1
    })
}
