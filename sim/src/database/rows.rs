//! What is committed, as text: the rows that PostgreSQL's tables would have.

use std::time::Duration;

use chrono::{DateTime, Utc};
use harness::AlertKind;

use super::{Tables, alerts::Told};
use crate::timeline::Timeline;

/// What is not there.
fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Milliseconds since the world began.
fn calendar(at: DateTime<Utc>) -> i64 {
    (at - Timeline::calendar(Duration::ZERO)).num_milliseconds()
}

impl Tables {
    /// One line per committed row, times in milliseconds since the world began. Bookkeeping of alerts included.
    pub fn rows(&self) -> Vec<String> {
        let mut rows = Vec::new();
        for ((job, consumer), fence) in &self.fences {
            let (processed, expires) =
                (fence.processed_at.as_millis(), fence.expires_at.as_millis());
            rows.push(format!(
                "fence {job} {consumer}: processed {processed}, expires {expires}"
            ));
        }
        for ((job, consumer), effects) in self.effects.iter().filter(|(_, effects)| **effects > 0) {
            rows.push(format!("effect {job} {consumer}: {effects}"));
        }
        for (id, row) in &self.letters {
            let letter = &row.letter;
            rows.push(format!(
                "letter {id}: {} {} generation {} {} {} because {}, created {}, reviewed {} by {}",
                letter.job_id,
                letter.consumer,
                letter.generation,
                letter.reason,
                row.status,
                or_dash(row.discard_reason.as_ref()),
                calendar(row.created_at),
                or_dash(row.reviewed_at.map(calendar)),
                or_dash(row.reviewed_by.as_ref()),
            ));
        }
        self.alert_rows(&mut rows);
        rows
    }

    fn alert_rows(&self, rows: &mut Vec<String>) {
        let told = |told: Option<&Told>| match told {
            Some(told) => format!("{} {}", or_dash(told.claim), told.on_record),
            None => "- false".to_owned(),
        };
        for (id, owed) in &self.alerts.owed {
            rows.push(format!(
                "owed {id}: {} written {}, new {}, overdue {}",
                owed.fingerprint,
                owed.written_at.as_millis(),
                told(owed.told.get(&AlertKind::New)),
                told(owed.told.get(&AlertKind::Overdue)),
            ));
        }
        for ((fingerprint, duty), stream) in &self.alerts.streams {
            let next = Some(stream.next_attempt_at).filter(|next| !next.is_zero());
            rows.push(format!(
                "stream {fingerprint} {}: sent {}, next {}, failures {}, claim {}",
                duty.map_or("resolve", AlertKind::as_str),
                or_dash(stream.last_sent_at.map(|at| at.as_millis())),
                or_dash(next.map(|at| at.as_millis())),
                stream.failures,
                or_dash(stream.claim),
            ));
        }
        let incidents = self.alerts.incidents.iter();
        for (id, incident) in incidents.filter(|(_, it)| it.is_open()) {
            rows.push(format!(
                "incident {id}: {} sent {}",
                incident.fingerprint,
                incident.sent_at.as_millis()
            ));
        }
    }
}
