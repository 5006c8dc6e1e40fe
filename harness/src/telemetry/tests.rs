//! The list of metrics is what the code makes, and what is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};

use super::catalogue::{Kind, METRICS};
use super::*;
use crate::dead_letter::{DeadLetterId, Reason};
use crate::disposition::Ending;
use crate::event::DeferReason;
use crate::failure::ErrorClass;
use crate::names::{ConsumerName, QueueName};
use crate::retry::RetryPolicy;

/// Whose step it is: of a queue, of a consumer.
type Of = (bool, bool);

const BOTH: Of = (true, true);

/// A step for every metric, with what it is about, as the harness emits it.
fn steps() -> Vec<(Of, Step)> {
    let second = Duration::from_secs(1);
    let id = DeadLetterId(uuid::Uuid::from_u128(1));
    let text = || "secret error text".to_owned();
    let class = || ErrorClass::of("class");
    let fence = |verdict| Step::Fence {
        verdict,
        waited: second,
    };
    let ended = |result| Step::RunEnded {
        run: 1,
        result,
        took: second,
    };
    let failed = RunResult::Failed {
        ending: Ending::Transient,
        class: class(),
        error: text(),
    };
    let retry = RetryPolicy::default();
    let both = [
        Step::Started { retry },
        Step::Received { runs_before: 0 },
        Step::NotAddressed,
        fence(FenceVerdict::Acquired),
        fence(FenceVerdict::Duplicate),
        fence(FenceVerdict::Settled),
        Step::Busy,
        ended(RunResult::Worked),
        ended(failed),
        Step::BatchEnded {
            jobs: 2,
            result: RunResult::Worked,
            took: second,
        },
        Step::LeftBatch { error: text() },
        Step::Committed,
        Step::CommitUnknown { error: text() },
        Step::Retried {
            run: 1,
            wait: second,
        },
        Step::Deferred {
            reason: DeferReason::Busy,
            wait: second,
        },
        Step::DeadLettered {
            id,
            reason: Reason::Hard,
            class: class(),
            attempts: 1,
            error: text(),
        },
        Step::DeadLetterApplied,
        Step::LeaseLost,
        Step::StoreFailed {
            call: "begin".into(),
            error: text(),
        },
        Step::QueueFailed {
            call: "receive".into(),
            error: text(),
        },
        Step::Paused,
        Step::Replayed { id },
        Step::LettersMeasured {
            pending: 7,
            oldest: second,
        },
    ];
    let mut all: Vec<_> = both.into_iter().map(|step| (BOTH, step)).collect();
    let fingerprint = || "points/awards/hard/class".to_owned();
    all.extend([
        ((false, false), Step::Discarded { id }),
        ((false, true), Step::Swept { rows: 3 }),
        ((false, true), Step::FencesMeasured { overdue: second }),
        (
            (true, false),
            Step::QueueMeasured {
                messages: 5,
                oldest: second,
            },
        ),
        ((false, false), Step::AlertsMeasured { owed: 2 }),
        (
            (false, false),
            Step::Alerted {
                letters: 1,
                fingerprint: fingerprint(),
            },
        ),
        (
            (false, false),
            Step::Escalated {
                letters: 1,
                fingerprint: fingerprint(),
            },
        ),
        (
            (false, false),
            Step::Resolved {
                fingerprint: fingerprint(),
            },
        ),
        (
            (false, false),
            Step::ResolveFailed {
                fingerprint: fingerprint(),
                error: text(),
            },
        ),
        ((false, false), Step::HeartbeatFailed { error: text() }),
        (
            (false, false),
            Step::AlertFailed {
                fingerprint: fingerprint(),
                error: text(),
            },
        ),
    ]);
    all
}

#[test]
fn b9_every_metric_is_made_with_the_labels_that_are_listed_and_no_others() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        describe_metrics();
        for ((queue, consumer), step) in steps() {
            Telemetry.event(&Event {
                consumer: consumer.then(|| ConsumerName::new("awards").unwrap()),
                queue: queue.then(|| QueueName::new("points").unwrap()),
                job: None,
                step,
            });
        }
    });
    let mut made: BTreeMap<String, (Kind, BTreeSet<String>)> = BTreeMap::new();
    for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        assert!(
            unit.is_some() && description.is_some(),
            "{key} is described"
        );
        let kind = match value {
            DebugValue::Counter(_) => Kind::Counter,
            DebugValue::Gauge(_) => Kind::Gauge,
            DebugValue::Histogram(_) => Kind::Histogram,
        };
        let labels = key.labels().map(|label| {
            for part in ["secret", &uuid::Uuid::from_u128(1).to_string(), "class"] {
                assert!(!label.value().contains(part), "{key} has no id and no text");
            }
            label.key().to_owned()
        });
        made.insert(key.name().to_owned(), (kind, labels.collect()));
    }
    let listed = METRICS.iter().map(|metric| {
        let labels = metric.labels.iter().map(|label| (*label).to_owned());
        (metric.name.to_owned(), (metric.kind, labels.collect()))
    });
    assert_eq!(made, listed.collect());
}

#[test]
fn b9_the_list_of_metrics_is_the_committed_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/ops/metrics.md");
    let table = metrics_table();
    if std::env::var_os("UPDATE_METRICS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(
        committed, table,
        "harness/ops/metrics.md: run this test with UPDATE_METRICS=1 and commit what changes"
    );
}

/// Names of ours in a text, without what Prometheus adds to histograms.
fn named(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_name(c));
    let ours = words.filter(|word| {
        let label = *word == super::catalogue::QUEUE || *word == super::catalogue::CONSUMER;
        (word.starts_with("job_harness_") || word.starts_with("messaging_")) && !label
    });
    ours.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
        .collect()
}

/// A panel or a rule about a metric that does not exist would be silent for ever.
#[test]
fn b9_dashboard_and_rules_speak_of_metrics_that_exist() {
    let listed: BTreeSet<String> = METRICS.iter().map(|it| it.name.to_owned()).collect();
    let dashboard = include_str!("../../ops/dashboard.json");
    let rules = include_str!("../../ops/alerts.rules.yml");
    for (what, text) in [("dashboard.json", dashboard), ("alerts.rules.yml", rules)] {
        let named = named(text);
        assert!(named.len() > 5, "{what} speaks of {named:?}");
        let unknown: Vec<_> = named.difference(&listed).collect();
        assert!(unknown.is_empty(), "{what}: there is no {unknown:?}");
    }
    serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
}
