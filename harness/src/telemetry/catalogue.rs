//! Every metric there is. The names of OpenTelemetry's messaging conventions where it has one, in Prometheus' spelling; the
//! labels are bounded by what is configured and by this code.

use std::fmt::Write as _;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// What a metric measures with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Seconds, in [`DURATION_BUCKETS`].
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    unit: Unit,
    pub(super) labels: &'static [&'static str],
    text: &'static str,
}

/// Which queue: OpenTelemetry's `messaging.destination.name`.
pub(super) const QUEUE: &str = "messaging_destination_name";
/// Which consumer: OpenTelemetry's `messaging.consumer.group.name`.
pub(super) const CONSUMER: &str = "messaging_consumer_group_name";
/// How a run failed: OpenTelemetry's `error.type`. Empty when it did not.
pub(super) const ERROR_TYPE: &str = "error_type";

/// Upper bounds, in seconds, of the buckets that durations are counted in: what OpenTelemetry advises, and a minute.
pub const DURATION_BUCKETS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 60.0,
];

macro_rules! catalogue {
    ($($id:ident = $kind:ident $name:literal, $unit:ident, [$($label:expr),*], $text:literal;)*) => {
        $(pub(super) const $id: &str = $name;)*

        /// All of them, in the order in which people look for them.
        pub(super) const METRICS: &[Metric] = &[
            $(Metric { name: $name, kind: Kind::$kind, unit: Unit::$unit, labels: &[$($label),*], text: $text },)*
        ];
    };
}

catalogue! {
    DELIVERIES = Counter "messaging_client_consumed_messages_total", Count, [QUEUE, CONSUMER], "Deliveries received";
    RUN_DURATION = Histogram "messaging_process_duration_seconds", Seconds, [QUEUE, CONSUMER, ERROR_TYPE],
        "How long handlers ran, for one job or for one batch; error_type is empty for those that worked";
    BATCHES = Counter "job_harness_batches_total", Count, [QUEUE, CONSUMER, ERROR_TYPE],
        "Batches that handlers ran; error_type is empty for those that worked";
    LEFT_BATCHES = Counter "job_harness_left_batches_total", Count, [QUEUE, CONSUMER],
        "Deliveries whose batch was given up, and that went on alone";
    APPLIED = Counter "job_harness_jobs_applied_total", Count, [QUEUE, CONSUMER], "Jobs whose effect and fence were committed";
    DUPLICATES = Counter "job_harness_duplicates_skipped_total", Count, [QUEUE, CONSUMER],
        "Deliveries skipped because their job was applied before";
    SETTLED = Counter "job_harness_settled_skipped_total", Count, [QUEUE, CONSUMER],
        "Deliveries skipped because their job was dead-lettered before";
    NOT_ADDRESSED = Counter "job_harness_not_addressed_total", Count, [QUEUE, CONSUMER],
        "Replays that were for another consumer";
    BUSY = Counter "job_harness_busy_twins_total", Count, [QUEUE, CONSUMER], "Times that a twin was running";
    RETRIES = Counter "job_harness_retries_total", Count, [QUEUE, CONSUMER], "Deliveries given back, counted";
    DEFERRED = Counter "job_harness_deferred_total", Count, [QUEUE, CONSUMER, "reason"],
        "Deliveries given back, uncounted: busy, contention, store_away, shutdown, not_addressed";
    COMMITS_UNKNOWN = Counter "job_harness_commits_unknown_total", Count, [QUEUE, CONSUMER], "Commits that nobody answered";
    LEASES_LOST = Counter "job_harness_leases_lost_total", Count, [QUEUE, CONSUMER],
        "Leases lost while the delivery was held";
    FENCE_WAIT = Histogram "job_harness_fence_wait_seconds", Seconds, [QUEUE, CONSUMER],
        "How long the fence took to answer, waits for twins included";
    PAUSED = Gauge "job_harness_paused", Count, [QUEUE, CONSUMER], "1 while no new work is taken because the store is away";
    RETRY_POLICY = Gauge "job_harness_retry_policy_runs", Count, [QUEUE, CONSUMER, "rationale"],
        "Runs that a job gets, with the rationale if the policy is not the standard one";
    DEAD_LETTERS = Counter "job_harness_dead_letters_total", Count, [QUEUE, CONSUMER, "reason"],
        "Dead letters written: exhausted, hard, poison";
    PENDING = Gauge "job_harness_dead_letters_pending", Count, [QUEUE, CONSUMER],
        "Dead letters that wait for a decision; the oldest 10,000 are counted";
    PENDING_AGE = Gauge "job_harness_dead_letters_pending_oldest_age_seconds", Seconds, [QUEUE, CONSUMER],
        "For how long the oldest of them has waited";
    REPLAYED = Counter "job_harness_dead_letters_replayed_total", Count, [QUEUE, CONSUMER], "Dead letters replayed";
    DISCARDED = Counter "job_harness_dead_letters_discarded_total", Count, [], "Dead letters discarded";
    ALERTS_OWED = Gauge "job_harness_alerts_owed", Count, [],
        "Dead letters that no delivered incident covers yet; at most 10,000 are counted";
    ALERTED = Counter "job_harness_alerts_delivered_total", Count, [], "Incidents accepted by the alert service";
    ALERTS_FAILED = Counter "job_harness_alerts_failed_total", Count, [], "Incidents not accepted by the alert service";
    ESCALATED = Counter "job_harness_alerts_escalated_total", Count, [],
        "Incidents accepted for dead letters that wait for too long";
    RESOLVED = Counter "job_harness_incidents_resolved_total", Count, [],
        "Incidents closed because nothing of their kind is pending";
    RESOLVES_FAILED = Counter "job_harness_incident_resolves_failed_total", Count, [],
        "Incidents that the alert service did not close when asked";
    HEARTBEATS_FAILED = Counter "job_harness_alert_heartbeats_failed_total", Count, [],
        "Heartbeats of the alert pump that were not sent";
    SWEPT = Counter "job_harness_fences_swept_total", Count, [CONSUMER], "Fences removed by the sweep";
    FENCES_OVERDUE = Gauge "job_harness_fences_overdue_seconds", Seconds, [CONSUMER],
        "For how long the oldest expired fence has been expired; messages that are still queued hold fences back";
    QUEUE_MESSAGES = Gauge "job_harness_queue_messages", Count, [QUEUE],
        "Messages in the queue, leased and delayed ones included";
    QUEUE_AGE = Gauge "job_harness_queue_oldest_age_seconds", Seconds, [QUEUE],
        "For how long the oldest of them has been there";
    STORE_FAILURES = Counter "job_harness_store_failures_total", Count, [QUEUE, CONSUMER, "call"],
        "Failed calls to the store";
    QUEUE_FAILURES = Counter "job_harness_queue_failures_total", Count, [QUEUE, CONSUMER, "call"],
        "Failed calls to the queue";
}

/// Describes all metrics to the installed recorder. Call once, after installing it.
pub fn describe_metrics() {
    for metric in METRICS {
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, metric.unit, metric.text),
            Kind::Gauge => describe_gauge!(metric.name, metric.unit, metric.text),
            Kind::Histogram => describe_histogram!(metric.name, metric.unit, metric.text),
        }
    }
}

/// The list of all metrics, as `harness/ops/metrics.md` shows it.
pub fn metrics_table() -> String {
    let mut text = String::from(
        "# Metrics\n\nWritten by the program: `UPDATE_METRICS=1 cargo nextest run -p harness metrics`.\n\n\
         | name | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels = match metric.labels {
            [] => String::new(),
            labels => format!("`{}`", labels.join("`, `")),
        };
        let _ = writeln!(
            text,
            "| `{}` | {kind} | {labels} | {} |",
            metric.name, metric.text
        );
    }
    text
}
