//! Alert bookkeeping of the simulated database.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::{AlertClaim, DeadLetterId, NewDeadLetter};
use uuid::Uuid;

use super::{Database, Tables};
use crate::history::Fact;

#[derive(Debug, Clone, Default)]
struct Stream {
    last_sent_at: Option<Duration>,
    next_attempt_at: Duration,
    failures: u32,
}

#[derive(Debug, Clone)]
struct Owed {
    fingerprint: String,
    claim: Option<Uuid>,
    covered: bool,
}

/// Which letter is covered by which incident.
#[derive(Debug, Default)]
pub struct Alerts {
    streams: BTreeMap<String, Stream>,
    owed: BTreeMap<DeadLetterId, Owed>,
}

impl Alerts {
    /// Answers the letter's fingerprint.
    pub(super) fn owe(&mut self, letter: &NewDeadLetter) -> String {
        let fingerprint = letter.fingerprint();
        self.streams.entry(fingerprint.clone()).or_default();
        self.owed.insert(
            letter.id,
            Owed {
                fingerprint: fingerprint.clone(),
                claim: None,
                covered: false,
            },
        );
        fingerprint
    }

    /// Letters without a delivered alert.
    pub fn uncovered(&self) -> Vec<DeadLetterId> {
        self.owed
            .iter()
            .filter(|(_, owed)| !owed.covered)
            .map(|(id, _)| *id)
            .collect()
    }
}

fn claim(
    tables: &mut Tables,
    now: Duration,
    claim_id: Uuid,
    window: Duration,
    lease: Duration,
) -> Option<AlertClaim> {
    let alerts = &mut tables.alerts;
    let mut due: Vec<(Duration, String)> = alerts
        .streams
        .iter()
        .filter(|(_, stream)| {
            stream.next_attempt_at <= now
                && stream.last_sent_at.is_none_or(|sent| sent + window <= now)
        })
        .filter(|(print, _)| {
            alerts
                .owed
                .values()
                .any(|owed| !owed.covered && owed.fingerprint == **print)
        })
        .map(|(print, stream)| (stream.next_attempt_at, print.clone()))
        .collect();
    due.sort();
    let (_, fingerprint) = due.into_iter().next()?;
    let stream = alerts.streams.get_mut(&fingerprint)?;
    stream.next_attempt_at = now + lease;
    let failures = stream.failures;
    let mut ids = Vec::new();
    for (id, owed) in &mut alerts.owed {
        if !owed.covered && owed.fingerprint == fingerprint {
            owed.claim = Some(claim_id);
            ids.push(*id);
        }
    }
    let letters: Vec<_> = ids.iter().filter_map(|id| tables.letters.get(id)).collect();
    let times = || letters.iter().map(|letter| letter.created_at);
    let (first_at, last_at): (DateTime<Utc>, DateTime<Utc>) = (times().min()?, times().max()?);
    let sample = letters
        .iter()
        .max_by_key(|letter| (letter.created_at, letter.letter.id))?;
    Some(AlertClaim {
        claim_id,
        fingerprint,
        letters: letters.len() as u64,
        failures,
        first_at,
        last_at,
        sample: (*sample).clone(),
    })
}

impl Database {
    pub(super) fn claim_alert(
        &self,
        claim_id: Uuid,
        window: Duration,
        lease: Duration,
    ) -> Option<AlertClaim> {
        let now = self.timeline.now();
        let claim = claim(&mut self.state().tables, now, claim_id, window, lease)?;
        self.fact(Fact::AlertClaimed {
            claim: claim_id,
            fingerprint: claim.fingerprint.clone(),
        });
        Some(claim)
    }

    pub(super) fn alert_delivered(&self, claim: &AlertClaim) -> u64 {
        let now = self.timeline.now();
        let letters = {
            let mut state = self.state();
            let alerts = &mut state.tables.alerts;
            let mut letters = Vec::new();
            for (id, owed) in &mut alerts.owed {
                if !owed.covered && owed.claim == Some(claim.claim_id) {
                    owed.covered = true;
                    letters.push(*id);
                }
            }
            if let Some(stream) = alerts.streams.get_mut(&claim.fingerprint) {
                *stream = Stream {
                    last_sent_at: Some(now),
                    ..Stream::default()
                };
            }
            letters
        };
        let covered = letters.len() as u64;
        self.fact(Fact::LettersCovered {
            claim: claim.claim_id,
            fingerprint: claim.fingerprint.clone(),
            letters,
        });
        covered
    }

    pub(super) fn alert_failed(&self, claim: &AlertClaim, retry_after: Duration) {
        let now = self.timeline.now();
        if let Some(stream) = self
            .state()
            .tables
            .alerts
            .streams
            .get_mut(&claim.fingerprint)
        {
            stream.next_attempt_at = now + retry_after;
            stream.failures += 1;
        }
    }
}
