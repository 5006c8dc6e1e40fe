//! Alert bookkeeping of the simulated database.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use harness::{
    AlertClaim, AlertDue, AlertKind, DeadLetterId, ExternalId, NewDeadLetter, ResolveClaim, Status,
};
use uuid::Uuid;

use super::{Database, Tables};
use crate::history::Fact;

/// What a fingerprint owes: an incident of a kind, or, without one, the closing of its incidents.
pub(super) type Duty = Option<AlertKind>;

const RESOLVE: Duty = None;

#[derive(Debug, Clone, Default)]
pub(super) struct Stream {
    pub(super) last_sent_at: Option<Duration>,
    pub(super) next_attempt_at: Duration,
    pub(super) failures: u32,
    pub(super) claim: Option<Uuid>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub(super) claim: Option<Uuid>,
    pub(super) on_record: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Owed {
    pub(super) fingerprint: String,
    pub(super) written_at: Duration,
    pub(super) told: BTreeMap<AlertKind, Told>,
}

impl Owed {
    fn is_on_record(&self, kind: AlertKind) -> bool {
        self.told.get(&kind).is_some_and(|told| told.on_record)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Delivered {
    pub(super) fingerprint: String,
    pub(super) sent_at: Duration,
    /// The alert service's name for it; without one nobody can close it.
    external_id: Option<ExternalId>,
    resolved: bool,
}

impl Delivered {
    pub(super) fn is_open(&self) -> bool {
        !self.resolved && self.external_id.is_some()
    }
}

/// Which letter is covered by which incident, and what incidents there are.
#[derive(Debug, Default)]
pub struct Alerts {
    pub(super) streams: BTreeMap<(String, Duty), Stream>,
    pub(super) owed: BTreeMap<DeadLetterId, Owed>,
    pub(super) incidents: BTreeMap<Uuid, Delivered>,
}

impl Alerts {
    /// Answers the letter's fingerprint.
    pub(super) fn owe(&mut self, letter: &NewDeadLetter, now: Duration) -> String {
        let fingerprint = letter.fingerprint();
        for duty in [Some(AlertKind::New), Some(AlertKind::Overdue), RESOLVE] {
            let stream = (fingerprint.clone(), duty);
            self.streams.entry(stream).or_default();
        }
        self.owed.insert(
            letter.id,
            Owed {
                fingerprint: fingerprint.clone(),
                written_at: now,
                told: BTreeMap::new(),
            },
        );
        fingerprint
    }
}

impl Tables {
    /// How many letters have no delivered alert.
    pub fn uncovered(&self) -> usize {
        let owed = self.alerts.owed.values();
        owed.filter(|owed| !owed.is_on_record(AlertKind::New))
            .count()
    }

    /// How many letters wait for a decision and were not escalated.
    pub fn unescalated(&self) -> usize {
        let owed = self.alerts.owed.iter();
        owed.filter(|(id, owed)| !owed.is_on_record(AlertKind::Overdue) && self.is_pending(**id))
            .count()
    }

    /// How many incidents are open that nobody needs any more.
    pub fn unresolved(&self) -> usize {
        let pending = self.pending_fingerprints();
        let open = self.alerts.incidents.values();
        open.filter(|it| it.is_open() && !pending.contains(it.fingerprint.as_str()))
            .count()
    }

    fn is_pending(&self, id: DeadLetterId) -> bool {
        (self.letters.get(&id)).is_some_and(|it| it.status == Status::PendingReview)
    }

    fn pending_fingerprints(&self) -> BTreeSet<&str> {
        let owed = self.alerts.owed.iter();
        owed.filter(|(id, _)| self.is_pending(**id))
            .map(|(_, owed)| owed.fingerprint.as_str())
            .collect()
    }

    /// Letters that an incident of this kind is due for.
    fn due(
        &self,
        kind: AlertKind,
        written_before: Option<Duration>,
    ) -> BTreeMap<&str, Vec<DeadLetterId>> {
        let mut due: BTreeMap<&str, Vec<DeadLetterId>> = BTreeMap::new();
        for (id, owed) in &self.alerts.owed {
            let is_due = !owed.is_on_record(kind)
                && match kind {
                    AlertKind::New => true,
                    AlertKind::Overdue => {
                        written_before.is_some_and(|before| owed.written_at <= before)
                            && owed.is_on_record(AlertKind::New)
                            && self.is_pending(*id)
                    }
                };
            if is_due {
                due.entry(&owed.fingerprint).or_default().push(*id);
            }
        }
        due
    }

    /// Fingerprints with something open that nobody needs any more.
    fn resolvable(&self) -> BTreeSet<&str> {
        let pending = self.pending_fingerprints();
        let incidents = self.alerts.incidents.values();
        let open = incidents.filter(|it| it.is_open());
        open.map(|it| it.fingerprint.as_str())
            .filter(|print| !pending.contains(print))
            .collect()
    }

    /// Of these fingerprints, the one whose turn it is.
    fn turn<'a>(
        &self,
        duty: Duty,
        prints: impl Iterator<Item = &'a str>,
        window: Duration,
        now: Duration,
    ) -> Option<String> {
        let streams = prints.filter_map(|print| {
            let print = print.to_owned();
            let stream = self.alerts.streams.get(&(print.clone(), duty))?;
            let free = stream.next_attempt_at <= now
                && stream.last_sent_at.is_none_or(|sent| sent + window <= now);
            free.then_some((stream.next_attempt_at, print))
        });
        streams.min().map(|(_, print)| print)
    }

    fn lease(&mut self, fingerprint: &str, duty: Duty, claim: Uuid, until: Duration) -> u32 {
        let stream = self.alerts.streams.entry((fingerprint.to_owned(), duty));
        let stream = stream.or_default();
        (stream.next_attempt_at, stream.claim) = (until, Some(claim));
        stream.failures
    }

    fn claim_alert(
        &mut self,
        now: Duration,
        claim_id: Uuid,
        due: &AlertDue,
        lease: Duration,
    ) -> Option<AlertClaim> {
        let letters = self.due(due.kind, now.checked_sub(due.age));
        let prints = letters.keys().copied();
        let fingerprint = self.turn(Some(due.kind), prints, due.window, now)?;
        let ids = letters.get(fingerprint.as_str())?.clone();
        let failures = self.lease(&fingerprint, Some(due.kind), claim_id, now + lease);
        for id in &ids {
            if let Some(owed) = self.alerts.owed.get_mut(id) {
                owed.told.entry(due.kind).or_default().claim = Some(claim_id);
            }
        }
        let letters: Vec<_> = ids.iter().filter_map(|id| self.letters.get(id)).collect();
        let place = |letter: &&&harness::DeadLetter| (letter.created_at, letter.letter.id);
        let (oldest, newest) = (
            letters.iter().min_by_key(place)?,
            letters.iter().max_by_key(place)?,
        );
        let sample = match due.kind {
            AlertKind::New => newest,
            AlertKind::Overdue => oldest,
        };
        Some(AlertClaim {
            claim_id,
            kind: due.kind,
            fingerprint,
            letters: letters.len() as u64,
            failures,
            first_at: oldest.created_at,
            last_at: newest.created_at,
            sample: (*sample).clone(),
        })
    }

    fn claim_resolve(
        &mut self,
        now: Duration,
        claim_id: Uuid,
        lease: Duration,
    ) -> Option<ResolveClaim> {
        let prints = self.resolvable();
        let fingerprint = self.turn(RESOLVE, prints.into_iter(), Duration::ZERO, now)?;
        let incidents = self.alerts.incidents.iter();
        let (incident, open) = incidents
            .filter(|(_, it)| it.is_open() && it.fingerprint == fingerprint)
            .min_by_key(|(_, it)| it.sent_at)?;
        let (incident, external_id) = (*incident, open.external_id.clone()?);
        let failures = self.lease(&fingerprint, RESOLVE, claim_id, now + lease);
        Some(ResolveClaim {
            claim_id,
            incident,
            external_id,
            fingerprint,
            failures,
        })
    }

    /// The alert service did what was asked. The turn is over, if it is still this claim's.
    fn end_turn(&mut self, fingerprint: &str, duty: Duty, claim: Uuid, now: Duration) {
        if let Some(stream) = (self.alerts.streams).get_mut(&(fingerprint.to_owned(), duty)) {
            (stream.last_sent_at, stream.failures) = (Some(now), 0);
            if stream.claim == Some(claim) {
                stream.next_attempt_at = Duration::ZERO;
            }
        }
    }

    fn turn_failed(&mut self, fingerprint: &str, duty: Duty, claim: Uuid, until: Duration) {
        if let Some(stream) = (self.alerts.streams).get_mut(&(fingerprint.to_owned(), duty))
            && stream.claim == Some(claim)
        {
            stream.next_attempt_at = until;
            stream.failures += 1;
        }
    }

    fn failing(&self, written_before: Option<Duration>) -> bool {
        let streams = self.alerts.streams.iter();
        let mut failed = streams.filter(|(_, stream)| stream.failures > 0);
        failed.any(|((print, duty), _)| match duty {
            Some(kind) => self.due(*kind, written_before).contains_key(print.as_str()),
            None => self.resolvable().contains(print.as_str()),
        })
    }
}

impl Database {
    pub(super) fn claim_alert(
        &self,
        claim_id: Uuid,
        due: &AlertDue,
        lease: Duration,
    ) -> Option<AlertClaim> {
        let now = self.timeline.now();
        let claim = (self.state().tables).claim_alert(now, claim_id, due, lease)?;
        self.fact(Fact::AlertClaimed {
            claim: claim_id,
            kind: claim.kind,
            fingerprint: claim.fingerprint.clone(),
        });
        Some(claim)
    }

    pub(super) fn alert_delivered(
        &self,
        claim: &AlertClaim,
        external_id: Option<ExternalId>,
    ) -> u64 {
        let now = self.timeline.now();
        let letters = {
            let mut state = self.state();
            let tables = &mut state.tables;
            let mut letters = Vec::new();
            for (id, owed) in &mut tables.alerts.owed {
                if let Some(told) = owed.told.get_mut(&claim.kind)
                    && told.claim == Some(claim.claim_id)
                    && !told.on_record
                {
                    told.on_record = true;
                    letters.push(*id);
                }
            }
            if !letters.is_empty() || external_id.is_some() {
                // Said twice, when the first answer was lost: the first has it right.
                let incidents = &mut tables.alerts.incidents;
                incidents.entry(claim.claim_id).or_insert(Delivered {
                    fingerprint: claim.fingerprint.clone(),
                    sent_at: now,
                    external_id,
                    resolved: false,
                });
            }
            tables.end_turn(&claim.fingerprint, Some(claim.kind), claim.claim_id, now);
            letters
        };
        let covered = letters.len() as u64;
        self.fact(Fact::LettersCovered {
            claim: claim.claim_id,
            kind: claim.kind,
            fingerprint: claim.fingerprint.clone(),
            letters,
        });
        covered
    }

    pub(super) fn alert_failed(&self, claim: &AlertClaim, retry_after: Duration) {
        let until = self.timeline.now() + retry_after;
        let (print, kind) = (&claim.fingerprint, Some(claim.kind));
        (self.state().tables).turn_failed(print, kind, claim.claim_id, until);
    }

    pub(super) fn claim_resolve(&self, claim_id: Uuid, lease: Duration) -> Option<ResolveClaim> {
        let now = self.timeline.now();
        let claim = (self.state().tables).claim_resolve(now, claim_id, lease)?;
        self.fact(Fact::ResolveClaimed {
            incident: claim.incident,
            fingerprint: claim.fingerprint.clone(),
        });
        Some(claim)
    }

    pub(super) fn incident_resolved(&self, claim: &ResolveClaim) {
        let now = self.timeline.now();
        let was_open = {
            let mut state = self.state();
            let tables = &mut state.tables;
            tables.end_turn(&claim.fingerprint, RESOLVE, claim.claim_id, now);
            let incident = tables.alerts.incidents.get_mut(&claim.incident);
            incident.is_some_and(|it| !std::mem::replace(&mut it.resolved, true))
        };
        if was_open {
            self.fact(Fact::IncidentResolved {
                incident: claim.incident,
            });
        }
    }

    pub(super) fn resolve_failed(&self, claim: &ResolveClaim, retry_after: Duration) {
        let until = self.timeline.now() + retry_after;
        (self.state().tables).turn_failed(&claim.fingerprint, RESOLVE, claim.claim_id, until);
    }

    pub(super) fn alerts_failing(&self, escalate_after: Duration) -> bool {
        let before = self.timeline.now().checked_sub(escalate_after);
        self.state().tables.failing(before)
    }
}
