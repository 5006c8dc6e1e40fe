//! Lets time pass in a world: in steps while something is under way, in jumps when nothing is; begins and ends faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::anyhow;
use chrono::TimeDelta;
use turmoil::Sim;

use super::{Shared, TICK, config, generation, hosts, queue, review_until};
use crate::broker::Broker;
use crate::checkers::Checkers;
use crate::database::{Database, REPLAY_LATENESS};
use crate::history::{Fact, Log};
use crate::jobs::id_of;
use crate::plan::{FaultKind, Plan};
use crate::timeline::Timeline;

/// A world that takes more steps than this is stuck in a loop that costs no time.
const MAX_STEPS: u64 = 3_000_000;

/// A fault's beginning or its end.
#[derive(Debug, Clone, PartialEq)]
struct Turn {
    at: Duration,
    fault: usize,
    kind: FaultKind,
    begins: bool,
}

pub(super) struct Driver<'a> {
    sim: Sim<'a>,
    shared: Shared,
    database: Database,
    broker: Broker,
    log: Log,
    /// Latest first.
    turns: Vec<Turn>,
    /// Hosts that are down, and how many faults keep them so.
    down: BTreeMap<String, u32>,
    paused: BTreeSet<String>,
    steps: u64,
}

impl<'a> Driver<'a> {
    pub(super) fn new(sim: Sim<'a>, shared: Shared, database: Database, broker: Broker) -> Self {
        let mut turns = Vec::new();
        for (n, fault) in shared.plan.faults.iter().enumerate() {
            let turn = |at, begins| Turn {
                at: Duration::from_millis(at),
                fault: n,
                kind: fault.kind.clone(),
                begins,
            };
            turns.push(turn(fault.at_ms, true));
            turns.push(turn(fault.at_ms + fault.lasts_ms, false));
        }
        turns.sort_by_key(|turn| std::cmp::Reverse((turn.at, turn.fault, !turn.begins)));
        Self {
            log: shared.log("world"),
            sim,
            shared,
            database,
            broker,
            turns,
            down: BTreeMap::new(),
            paused: BTreeSet::new(),
            steps: 0,
        }
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    fn plan(&self) -> &Plan {
        &self.shared.plan
    }

    /// Safety phase with faults, then everything heals and must settle.
    pub(super) fn drive(&mut self, checkers: &mut Checkers) -> anyhow::Result<()> {
        let timeline = self.shared.timeline.clone();
        let end_of_plan = self.plan().ends_at();
        let (patience, review_until) = (patience(self.plan())?, review_until(self.plan())?);
        let mut settle_until = None;
        loop {
            let now = timeline.now();
            while self.turns.last().is_some_and(|turn| turn.at <= now) {
                if let Some(turn) = self.turns.pop() {
                    self.turn(&turn);
                }
            }
            if settle_until.is_none() && self.turns.is_empty() && now >= end_of_plan {
                self.heal();
                settle_until = Some(now.max(review_until) + patience);
            }
            if let Some(limit) = settle_until {
                let what = self.unsettled(now);
                if what.is_none() {
                    self.log.fact(Fact::Settled);
                } else if let Some(what) = what.filter(|_| now > limit) {
                    self.log.fact(Fact::Unsettled { what });
                } else if self.steps >= MAX_STEPS {
                    let what = format!("{MAX_STEPS} steps and no end");
                    self.log.fact(Fact::Unsettled { what });
                }
            }
            let ended = self
                .shared
                .history
                .look(checkers.seen(), |new| checkers.see(new));
            if ended {
                return Ok(());
            }
            timeline.advance(TICK);
            self.sim
                .step()
                .map_err(|error| anyhow!("a host failed: {error}"))?;
            self.steps += 1;
            for host in self.shared.post.take_exited() {
                self.sim.crash(host);
            }
            self.skip(end_of_plan);
        }
    }

    /// When nothing is under way, nothing happens before the next deadline.
    fn skip(&mut self, end_of_plan: Duration) {
        // What waits for a paused host is not under way.
        let waiting: Vec<std::net::IpAddr> = self
            .paused
            .iter()
            .map(|host| self.sim.lookup(host.as_str()))
            .collect();
        let mut under_way = false;
        self.sim.links(|links| {
            for mut link in links {
                let (one, other) = link.pair();
                if !waiting.contains(&one) && !waiting.contains(&other) {
                    under_way |= link.next().is_some();
                }
            }
        });
        if under_way {
            return;
        }
        let timeline = &self.shared.timeline;
        let now = timeline.now();
        let fault = self.turns.last().map(|turn| turn.at.saturating_sub(now));
        let end = Some(end_of_plan.saturating_sub(now)).filter(|end| !end.is_zero());
        let next = [timeline.until_next_deadline(), fault, end]
            .into_iter()
            .flatten()
            .min();
        // The step that follows is a tick long.
        if let Some(jump) = next
            .and_then(|next| next.checked_sub(TICK))
            .filter(|jump| *jump > TICK)
        {
            timeline.advance(jump);
            if jump > Duration::from_secs(60) {
                self.log.fact(Fact::Jumped { by: jump });
            }
        }
    }

    fn turn(&mut self, turn: &Turn) {
        let (fault, kind, begins) = (turn.fault, turn.kind.clone(), turn.begins);
        self.log.fact(if begins {
            Fact::FaultBegan { fault, kind }
        } else {
            Fact::FaultEnded { fault, kind }
        });
        match (&turn.kind, begins) {
            (FaultKind::Kill(host), true) => self.take_down(host, false),
            (FaultKind::PowerLoss(host), true) => self.take_down(host, true),
            (FaultKind::Kill(host) | FaultKind::PowerLoss(host), false) => self.bring_up(host),
            (FaultKind::Pause(host), true) => self.pause(host),
            (FaultKind::Pause(host), false) => self.resume(host),
            (FaultKind::Deploy(host), true) => {
                if let Some(shutdown) = self.shared.shutdown_of(host) {
                    shutdown.begin();
                }
            }
            (FaultKind::Deploy(host), false) => {
                // Killed, should it still be draining; not started, while another fault keeps it down.
                if !self.down.contains_key(host) {
                    self.sim.bounce(host.as_str());
                }
            }
            (FaultKind::Partition(a, b), true) => self.sim.partition(a.as_str(), b.as_str()),
            (FaultKind::Partition(a, b), false) => self.repair(a, b),
            (FaultKind::PartitionOneWay(a, b), true) => {
                self.sim.partition_oneway(a.as_str(), b.as_str());
            }
            (FaultKind::PartitionOneWay(a, b), false) => {
                self.sim.repair_oneway(a.as_str(), b.as_str());
            }
            (FaultKind::Cut { call, answer, nth }, true) => {
                self.shared.post.cut(fault, call, *answer, *nth);
            }
            (FaultKind::Cut { .. }, false) => self.shared.post.mend(fault),
            (FaultKind::Loss(per_mille), begins) => {
                #[allow(clippy::cast_precision_loss)]
                let rate = if begins {
                    *per_mille as f64 / 1_000.0
                } else {
                    0.0
                };
                self.sim.set_fail_rate(rate);
            }
            (FaultKind::Slow(millis), begins) => {
                let longest = if begins { *millis } else { 0 };
                self.shared.post.set_slow(Duration::from_millis(longest));
            }
            (FaultKind::ClockJump(host, seconds), true) => {
                if let Some(clock) = self.shared.clocks.get(host.as_str()) {
                    clock.jump(TimeDelta::seconds(*seconds));
                }
            }
            (FaultKind::ExpireFences, true) => self.expire_fences(),
            (FaultKind::ClockJump(..) | FaultKind::ExpireFences, false) => {}
        }
    }

    /// Of jobs that are not sent again: for the others no sweep could be right.
    fn expire_fences(&self) {
        let Ok(queue) = queue() else { return };
        let jobs = self.plan().jobs.iter();
        let resent: BTreeSet<_> = jobs
            .filter(|job| !job.resend_after_ms.is_empty())
            .map(|job| id_of(job, &queue))
            .collect();
        self.database.expire_fences(|key| !resent.contains(&key.0));
    }

    fn others(&self, host: &str) -> Vec<&'static str> {
        let everyone = hosts(self.plan()).into_iter();
        everyone.filter(|other| *other != host).collect()
    }

    fn take_down(&mut self, host: &str, silent: bool) {
        let down = self.down.entry(host.to_owned()).or_default();
        *down += 1;
        if *down > 1 {
            return;
        }
        self.resume(host);
        let others = self.others(host);
        if silent {
            // What the host says while it goes down is not heard.
            others
                .iter()
                .for_each(|other| self.sim.partition(host, *other));
        }
        self.sim.crash(host);
        if silent {
            others
                .iter()
                .for_each(|other| self.sim.repair(host, *other));
        }
        if host == "database" {
            self.database.crash();
        }
    }

    fn bring_up(&mut self, host: &str) {
        if let Some(down) = self.down.get_mut(host) {
            *down -= 1;
            if *down == 0 {
                self.down.remove(host);
                self.sim.bounce(host);
            }
        }
    }

    fn pause(&mut self, host: &str) {
        if self.down.contains_key(host) || !self.paused.insert(host.to_owned()) {
            return;
        }
        for other in self.others(host) {
            self.sim.hold(host, other);
        }
        if let Some(clock) = self.shared.clocks.get(host) {
            clock.set_paused(true);
        }
    }

    fn resume(&mut self, host: &str) {
        if !self.paused.remove(host) {
            return;
        }
        for other in self.others(host) {
            if !self.paused.contains(other) {
                self.sim.release(host, other);
            }
        }
        if let Some(clock) = self.shared.clocks.get(host) {
            clock.set_paused(false);
        }
    }

    /// Not where a pause holds the messages back.
    fn repair(&self, a: &str, b: &str) {
        if !self.paused.contains(a) && !self.paused.contains(b) {
            self.sim.repair(a, b);
        }
    }

    fn heal(&mut self) {
        for host in std::mem::take(&mut self.down).into_keys() {
            self.sim.bounce(host.as_str());
        }
        for host in self.paused.clone() {
            self.resume(&host);
        }
        let everyone = hosts(self.plan());
        for (n, a) in everyone.iter().enumerate() {
            for b in &everyone[n + 1..] {
                self.sim.repair(*a, *b);
            }
        }
        self.sim.set_fail_rate(0.0);
        self.shared.post.set_slow(Duration::ZERO);
        self.log.fact(Fact::Healed);
    }

    /// L1: what is not settled yet.
    fn unsettled(&self, now: Duration) -> Option<String> {
        if !self.shared.all_published.load(Ordering::Acquire) {
            return Some("the producer has jobs that the broker did not take".to_owned());
        }
        let queued = self.broker.queued();
        if queued > 0 {
            return Some(format!("{queued} messages are on the queue"));
        }
        let knobs = &self.plan().knobs;
        self.database.look(|tables| {
            let owed = [
                (tables.uncovered(), "dead letters have no delivered alert"),
                (
                    tables.unescalated(),
                    "pending dead letters are not escalated",
                ),
                (tables.unresolved(), "incidents are open that nobody needs"),
            ];
            if let Some((count, what)) = owed.into_iter().find(|(count, _)| *count > 0) {
                return Some(format!("{count} {what}"));
            }
            let slack = Duration::from_secs(knobs.sweep_interval_s * 2 + knobs.margin_s);
            // A fence stays while somebody may still decide to replay its job, and while a late replay may be on its way.
            let decided = Timeline::calendar(now.saturating_sub(slack + REPLAY_LATENESS));
            let fences = tables.fences.iter();
            let due = fences
                .filter(|(key, fence)| match fence.expires_at + slack < now {
                    true => !tables.decided_since(key, decided),
                    false => knobs.until_swept,
                })
                .count();
            (due > 0).then(|| format!("{due} fences are not swept"))
        })
    }
}

/// How long settling may take: every wait that the knobs allow, several times over.
fn patience(plan: &Plan) -> anyhow::Result<Duration> {
    let (knobs, config) = (&plan.knobs, config(plan)?);
    let waits = Duration::from_secs(
        10 * (6 * knobs.poll_interval_s + knobs.outage_backoff_cap_s + knobs.lease_s),
    );
    let escalation = Duration::from_secs(knobs.escalate_after_s + 2 * knobs.escalate_window_s);
    let mut patience = Duration::from_secs(4 * 3_600) + waits + generation(plan)? * 2 + escalation;
    if knobs.until_swept {
        patience +=
            config.fence.ttl + Duration::from_secs(knobs.sweep_interval_s * 4 + knobs.margin_s * 2);
        patience += REPLAY_LATENESS;
    }
    Ok(patience)
}
