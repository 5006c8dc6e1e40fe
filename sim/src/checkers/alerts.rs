//! S9: every dead letter is covered by a delivered alert, alerts are few, a letter that waits for too long is alerted once
//! more, and incidents are closed when they are over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::{AlertKind, DeadLetterId};
use uuid::Uuid;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

#[derive(Debug)]
struct Letter {
    fingerprint: String,
    written_at: Duration,
    place: usize,
    covered: bool,
    /// Where it was escalated.
    escalated: Option<usize>,
    pending: bool,
}

#[derive(Debug)]
struct Claimed {
    kind: AlertKind,
    fingerprint: String,
    /// Letters that such an incident was due for when it was claimed.
    letters: BTreeSet<DeadLetterId>,
    place: usize,
}

/// A letter is marked as covered only after an incident was accepted that was claimed when the letter was there; at the end
/// every letter is. A letter is escalated at most once, if it was overdue and pending when that was claimed; at the end every
/// pending one is that is old enough. Per fingerprint, kind and window, one incident is enough: a new one is claimed only
/// after the window that began with the last that is on record, and no claim is sent twice. An incident is closed only if no
/// letter of its fingerprint was pending when that was claimed.
pub(super) struct Alerted {
    windows: BTreeMap<AlertKind, Duration>,
    escalate_after: Duration,
    letters: BTreeMap<DeadLetterId, Letter>,
    claims: BTreeMap<Uuid, Claimed>,
    accepted: BTreeMap<Uuid, usize>,
    /// When the last incident was put on record.
    recorded: BTreeMap<(String, AlertKind), (Duration, usize)>,
    /// Incidents whose closing was claimed, and those that the service closed.
    closing: BTreeSet<Uuid>,
    closed: BTreeSet<Uuid>,
    now: Duration,
}

impl Alerted {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            windows: BTreeMap::from([
                (AlertKind::New, known.alert_window),
                (AlertKind::Overdue, known.escalate_window),
            ]),
            escalate_after: known.escalate_after,
            letters: BTreeMap::new(),
            claims: BTreeMap::new(),
            accepted: BTreeMap::new(),
            recorded: BTreeMap::new(),
            closing: BTreeSet::new(),
            closed: BTreeSet::new(),
            now: Duration::ZERO,
        }
    }

    fn window(&self, kind: AlertKind) -> Duration {
        self.windows.get(&kind).copied().unwrap_or_default()
    }

    /// Letters that an incident is due for now.
    fn due(&self, kind: AlertKind, fingerprint: &str) -> BTreeSet<DeadLetterId> {
        let letters = self.letters.iter();
        let due = letters.filter(|(_, it)| {
            it.fingerprint == fingerprint
                && match kind {
                    AlertKind::New => !it.covered,
                    AlertKind::Overdue => {
                        let overdue = it.written_at + self.escalate_after <= self.now;
                        it.covered && it.escalated.is_none() && it.pending && overdue
                    }
                }
        });
        due.map(|(id, _)| *id).collect()
    }

    fn decided(&mut self, id: DeadLetterId) {
        if let Some(letter) = self.letters.get_mut(&id) {
            letter.pending = false;
        }
    }

    fn claim(&mut self, n: usize, claim: Uuid, kind: AlertKind, fingerprint: &str) -> Vec<Found> {
        let mut found = Vec::new();
        let stream = (fingerprint.to_owned(), kind);
        if let Some((at, place)) = self.recorded.get(&stream)
            && self.now < *at + self.window(kind)
        {
            let window = self.window(kind);
            let what = format!("a second incident of {fingerprint} within {window:?}");
            found.push(Found::at([*place, n], what));
        }
        let claimed = Claimed {
            kind,
            fingerprint: fingerprint.to_owned(),
            letters: self.due(kind, fingerprint),
            place: n,
        };
        self.claims.insert(claim, claimed);
        found
    }

    fn accept(&mut self, n: usize, claim: Uuid, letters: u64) -> Option<Found> {
        if let Some(before) = self.accepted.insert(claim, n) {
            return Some(Found::at([before, n], "one claim, two incidents"));
        }
        let Some(claimed) = self.claims.get(&claim) else {
            return Some(Found::at([n], "an incident that nobody claimed"));
        };
        let due = claimed.letters.len() as u64;
        (due != letters).then(|| {
            let what = format!(
                "an incident of {} speaks of {letters} letters, there were {due}",
                claimed.fingerprint
            );
            Found::at([claimed.place, n], what)
        })
    }

    fn cover(&mut self, n: usize, claim: Uuid, letters: &[DeadLetterId]) -> Vec<Found> {
        let mut found = Vec::new();
        if !self.accepted.contains_key(&claim) {
            let what = "letters are marked as covered by an incident that was not accepted";
            found.push(Found::at([n], what));
        }
        let claimed = self.claims.get(&claim);
        let kind = claimed.map_or(AlertKind::New, |claimed| claimed.kind);
        for id in letters {
            if claimed.is_none_or(|claimed| !claimed.letters.contains(id)) {
                let what = format!(
                    "dead letter {id} is marked as covered by an incident that does not speak of it"
                );
                found.push(Found::at([n], what));
            }
            let Some(letter) = self.letters.get_mut(id) else {
                continue;
            };
            match kind {
                AlertKind::New => letter.covered = true,
                AlertKind::Overdue => {
                    if let Some(before) = letter.escalated.replace(n) {
                        let what = format!("dead letter {id} is escalated twice");
                        found.push(Found::at([before, n], what));
                    }
                }
            }
        }
        found
    }

    fn pending(&self, fingerprint: &str) -> Option<&Letter> {
        let mut letters = self.letters.values();
        letters.find(|it| it.pending && it.fingerprint == fingerprint)
    }
}

impl Check for Alerted {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::World(fact) = &entry.said else {
            return;
        };
        self.now = entry.at;
        match fact {
            Fact::LetterWritten {
                id, fingerprint, ..
            } => {
                let letter = Letter {
                    fingerprint: fingerprint.clone(),
                    written_at: entry.at,
                    place: n,
                    covered: false,
                    escalated: None,
                    pending: true,
                };
                self.letters.insert(*id, letter);
            }
            Fact::LetterReplayed { id } | Fact::LetterDiscarded { id, .. } => self.decided(*id),
            Fact::AlertClaimed {
                claim,
                kind,
                fingerprint,
            } => found.extend(self.claim(n, *claim, *kind, fingerprint)),
            Fact::IncidentAccepted { claim, letters, .. } => {
                found.extend(self.accept(n, *claim, *letters));
            }
            Fact::LettersCovered {
                claim,
                kind,
                fingerprint,
                letters,
            } => {
                let stream = (fingerprint.clone(), *kind);
                self.recorded.insert(stream, (entry.at, n));
                found.extend(self.cover(n, *claim, letters));
            }
            Fact::ResolveClaimed {
                incident,
                fingerprint,
            } => {
                self.closing.insert(*incident);
                if let Some(letter) = self.pending(fingerprint) {
                    let what = format!(
                        "an incident of {fingerprint} is to be closed while a letter is pending"
                    );
                    found.push(Found::at([letter.place, n], what));
                }
            }
            Fact::IncidentClosed { incident } => {
                if !self.closing.contains(incident) || !self.accepted.contains_key(incident) {
                    let what = "an incident is closed that nobody claimed, or that was never open";
                    found.push(Found::at([n], what));
                }
                self.closed.insert(*incident);
            }
            Fact::IncidentResolved { incident } if !self.closed.contains(incident) => {
                let what = "an incident is on record as closed, the alert service has it open";
                found.push(Found::at([n], what));
            }
            _ => {}
        }
    }

    fn end(&mut self, found: &mut Vec<Found>) {
        let of = |missing: &dyn Fn(&Letter) -> bool| -> Vec<usize> {
            let letters = self.letters.values().filter(|letter| missing(letter));
            letters.map(|letter| letter.place).collect()
        };
        let uncovered = of(&|letter| !letter.covered);
        if !uncovered.is_empty() {
            let what = format!("{} dead letters without a delivered alert", uncovered.len());
            found.push(Found::at(uncovered, what));
        }
        let patience = self.escalate_after + self.window(AlertKind::Overdue);
        let forgotten = of(&|letter| {
            letter.pending && letter.escalated.is_none() && letter.written_at + patience < self.now
        });
        if !forgotten.is_empty() {
            let what = format!(
                "{} dead letters wait and were not escalated",
                forgotten.len()
            );
            found.push(Found::at(forgotten, what));
        }
    }
}
