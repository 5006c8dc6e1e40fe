//! S9: every dead letter is covered by a delivered alert, and alerts are few.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::DeadLetterId;
use uuid::Uuid;

use super::{Check, Found, Known};
use crate::history::{Entry, Fact, Said};

#[derive(Debug)]
struct Claimed {
    fingerprint: String,
    /// Letters of that kind that had no alert when it was claimed.
    letters: BTreeSet<DeadLetterId>,
    place: usize,
}

/// A letter is marked as covered only after an incident was accepted that was claimed when the letter was there; at the end
/// every letter is. Per fingerprint and window, one incident is enough: a new one is claimed only after the window that
/// began with the last that is on record, and no claim is sent twice.
pub(super) struct Alerted {
    window: Duration,
    letters: BTreeMap<DeadLetterId, (String, usize)>,
    uncovered: BTreeSet<DeadLetterId>,
    claims: BTreeMap<Uuid, Claimed>,
    accepted: BTreeMap<Uuid, usize>,
    /// By fingerprint: when the last incident was put on record.
    recorded: BTreeMap<String, (Duration, usize)>,
}

impl Alerted {
    pub(super) fn new(known: &Known) -> Self {
        Self {
            window: known.alert_window,
            letters: BTreeMap::new(),
            uncovered: BTreeSet::new(),
            claims: BTreeMap::new(),
            accepted: BTreeMap::new(),
            recorded: BTreeMap::new(),
        }
    }
}

impl Check for Alerted {
    fn see(&mut self, n: usize, entry: &Entry, found: &mut Vec<Found>) {
        let Said::World(fact) = &entry.said else {
            return;
        };
        match fact {
            Fact::LetterWritten {
                id, fingerprint, ..
            } => {
                self.letters.insert(*id, (fingerprint.clone(), n));
                self.uncovered.insert(*id);
            }
            Fact::AlertClaimed { claim, fingerprint } => {
                if let Some((at, place)) = self.recorded.get(fingerprint)
                    && entry.at < *at + self.window
                {
                    let what = format!(
                        "a second incident of {fingerprint} within {:?}",
                        self.window
                    );
                    found.push(Found::at([*place, n], what));
                }
                let letters = self.uncovered.iter().filter(|id| {
                    (self.letters.get(id)).is_some_and(|(theirs, _)| theirs == fingerprint)
                });
                let claimed = Claimed {
                    fingerprint: fingerprint.clone(),
                    letters: letters.copied().collect(),
                    place: n,
                };
                self.claims.insert(*claim, claimed);
            }
            Fact::IncidentAccepted { claim, letters, .. } => {
                if let Some(before) = self.accepted.insert(*claim, n) {
                    found.push(Found::at([before, n], "one claim, two incidents"));
                }
                match self.claims.get(claim) {
                    None => found.push(Found::at([n], "an incident that nobody claimed")),
                    Some(claimed) if claimed.letters.len() as u64 != *letters => {
                        let what = format!(
                            "an incident of {} speaks of {letters} letters, there were {}",
                            claimed.fingerprint,
                            claimed.letters.len()
                        );
                        found.push(Found::at([claimed.place, n], what));
                    }
                    Some(_) => {}
                }
            }
            Fact::LettersCovered {
                claim,
                fingerprint,
                letters,
            } => {
                self.recorded.insert(fingerprint.clone(), (entry.at, n));
                if !self.accepted.contains_key(claim) {
                    let what = "letters are marked as covered by an incident that was not accepted";
                    found.push(Found::at([n], what));
                }
                let claimed = self.claims.get(claim);
                for id in letters {
                    if claimed.is_none_or(|claimed| !claimed.letters.contains(id)) {
                        let what = format!(
                            "dead letter {id} is marked as covered by an incident that does not speak of it"
                        );
                        found.push(Found::at([n], what));
                    }
                    self.uncovered.remove(id);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, found: &mut Vec<Found>) {
        let places: Vec<usize> = (self.uncovered.iter())
            .filter_map(|id| self.letters.get(id).map(|(_, place)| *place))
            .collect();
        if !places.is_empty() {
            let what = format!("{} dead letters without a delivered alert", places.len());
            found.push(Found::at(places, what));
        }
    }
}
