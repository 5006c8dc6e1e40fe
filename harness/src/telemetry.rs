//! Metrics and traces, made from the stream of events. Labels are bounded: consumer and queue names, reasons and classes
//! of code, never ids or error texts. Log lines about a delivery carry its ids through the span that the gate opens. A success is a metric, not a row (B9); a duplicate is a counter and a debug line (B2).

use metrics::{Unit, counter, describe_counter, describe_histogram, gauge, histogram};
use tracing::{debug, error, info, warn};

use crate::event::{Event, Observer, RunResult, Step};
use crate::fence::FenceVerdict;

/// Sends every event to the installed `metrics` recorder and `tracing` subscriber.
#[derive(Debug, Clone, Copy, Default)]
pub struct Telemetry;

const DELIVERIES: &str = "job_harness_deliveries_total";
const APPLIED: &str = "job_harness_jobs_applied_total";
const DUPLICATES: &str = "job_harness_duplicates_skipped_total";
const SETTLED: &str = "job_harness_settled_skipped_total";
const NOT_ADDRESSED: &str = "job_harness_not_addressed_total";
const BUSY: &str = "job_harness_busy_twins_total";
const RUNS_FAILED: &str = "job_harness_runs_failed_total";
const RETRIES: &str = "job_harness_retries_total";
const DEFERRED: &str = "job_harness_deferred_total";
const COMMITS_UNKNOWN: &str = "job_harness_commits_unknown_total";
const LEASES_LOST: &str = "job_harness_leases_lost_total";
const DEAD_LETTERS: &str = "job_harness_dead_letters_total";
const REPLAYED: &str = "job_harness_dead_letters_replayed_total";
const DISCARDED: &str = "job_harness_dead_letters_discarded_total";
const SWEPT: &str = "job_harness_fences_swept_total";
const ALERTED: &str = "job_harness_alerts_delivered_total";
const ALERTS_FAILED: &str = "job_harness_alerts_failed_total";
const STORE_FAILURES: &str = "job_harness_store_failures_total";
const QUEUE_FAILURES: &str = "job_harness_queue_failures_total";
const RETRY_POLICY: &str = "job_harness_retry_policy_runs";
const PAUSED: &str = "job_harness_paused";
const RUN_DURATION: &str = "job_harness_run_duration_seconds";
const FENCE_WAIT: &str = "job_harness_fence_wait_seconds";

/// Describes all metrics to the installed recorder. Call once, after installing it.
pub fn describe_metrics() {
    let counters = [
        (DELIVERIES, "Deliveries received"),
        (APPLIED, "Jobs whose effect and fence were committed"),
        (
            DUPLICATES,
            "Deliveries skipped because their job was applied before",
        ),
        (
            SETTLED,
            "Deliveries skipped because their job was dead-lettered before",
        ),
        (
            NOT_ADDRESSED,
            "Replays on a fan-out queue that were for another consumer",
        ),
        (BUSY, "Deliveries deferred because a twin was running"),
        (RUNS_FAILED, "Handler runs that failed, by ending"),
        (RETRIES, "Deliveries given back, counted"),
        (DEFERRED, "Deliveries given back, uncounted, by reason"),
        (COMMITS_UNKNOWN, "Commits that nobody answered"),
        (LEASES_LOST, "Leases lost while the delivery was held"),
        (DEAD_LETTERS, "Dead letters written, by reason"),
        (REPLAYED, "Dead letters replayed"),
        (DISCARDED, "Dead letters discarded"),
        (SWEPT, "Fences removed by the sweep"),
        (ALERTED, "Incidents accepted by the alert service"),
        (ALERTS_FAILED, "Incidents not accepted by the alert service"),
        (STORE_FAILURES, "Failed calls to the store, by call"),
        (QUEUE_FAILURES, "Failed calls to the queue, by call"),
    ];
    for (name, text) in counters {
        describe_counter!(name, Unit::Count, text);
    }
    metrics::describe_gauge!(
        PAUSED,
        Unit::Count,
        "1 while no new work is taken because the store is away"
    );
    metrics::describe_gauge!(
        RETRY_POLICY,
        Unit::Count,
        "Runs that a job gets, with the rationale if the policy is not the standard one"
    );
    describe_histogram!(RUN_DURATION, Unit::Seconds, "How long handlers ran");
    describe_histogram!(
        FENCE_WAIT,
        Unit::Seconds,
        "How long the fence took to answer, waits for twins included"
    );
}

impl Observer for Telemetry {
    fn event(&self, event: &Event) {
        let consumer = event
            .consumer
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        let queue = event
            .queue
            .as_ref()
            .map_or_else(String::new, ToString::to_string);
        let labels = [("consumer", consumer), ("queue", queue)];
        let with =
            |key: &'static str, value: String| [labels[0].clone(), labels[1].clone(), (key, value)];

        match &event.step {
            Step::Started { retry } => {
                let labels = [
                    labels[0].clone(),
                    labels[1].clone(),
                    (
                        "rationale",
                        retry.rationale().unwrap_or("standard policy").to_owned(),
                    ),
                ];
                gauge!(RETRY_POLICY, &labels).set(f64::from(retry.max_runs()));
                info!(?retry, "started");
            }
            Step::Received { runs_before } => {
                counter!(DELIVERIES, &labels).increment(1);
                debug!(runs_before, "received");
            }
            Step::Poison { class, error } => debug!(%class, error, "poison"),
            Step::NotAddressed => {
                counter!(NOT_ADDRESSED, &labels).increment(1);
                debug!("for another consumer");
            }
            Step::Fence { verdict, waited } => {
                histogram!(FENCE_WAIT, &labels).record(*waited);
                match verdict {
                    FenceVerdict::Acquired => debug!("fence acquired"),
                    FenceVerdict::Duplicate => {
                        counter!(DUPLICATES, &labels).increment(1);
                        debug!("duplicate, skipped");
                    }
                    FenceVerdict::Settled => {
                        counter!(SETTLED, &labels).increment(1);
                        debug!("settled before, skipped");
                    }
                }
            }
            Step::Busy => {
                counter!(BUSY, &labels).increment(1);
                debug!("a twin is running");
            }
            Step::RunStarted { run } => debug!(run, "run started"),
            Step::RunEnded { run, result, took } => {
                histogram!(RUN_DURATION, &labels).record(*took);
                match result {
                    RunResult::Worked => debug!(run, "run ended"),
                    RunResult::Failed {
                        ending,
                        class,
                        error,
                    } => {
                        counter!(
                            RUNS_FAILED,
                            &with("ending", format!("{ending:?}").to_ascii_lowercase())
                        )
                        .increment(1);
                        warn!(run, ?ending, %class, error, "run failed");
                    }
                }
            }
            Step::Committed => {
                counter!(APPLIED, &labels).increment(1);
                debug!("committed");
            }
            Step::CommitUnknown { error } => {
                counter!(COMMITS_UNKNOWN, &labels).increment(1);
                warn!(
                    error,
                    "nobody answered the commit; the next delivery asks the fence"
                );
            }
            Step::Acked => debug!("acked"),
            Step::Retried { run, wait } => {
                counter!(RETRIES, &labels).increment(1);
                info!(run, wait_ms = as_millis(*wait), "will be retried");
            }
            Step::Deferred { reason, wait } => {
                counter!(DEFERRED, &with("reason", reason.as_str().to_owned())).increment(1);
                debug!(
                    reason = reason.as_str(),
                    wait_ms = as_millis(*wait),
                    "deferred, uncounted"
                );
            }
            Step::DeadLettered {
                id,
                reason,
                class,
                attempts,
                error,
            } => {
                counter!(DEAD_LETTERS, &with("reason", reason.to_string())).increment(1);
                error!(dead_letter = %id, %reason, %class, attempts, error, "dead letter");
            }
            Step::DeadLetterAlready => debug!("dead letter was on record already"),
            Step::DeadLetterApplied => {
                counter!(DUPLICATES, &labels).increment(1);
                debug!("the job was applied: no dead letter");
            }
            Step::LeaseLost => {
                counter!(LEASES_LOST, &labels).increment(1);
                info!("lease lost; somebody else answers for the message");
            }
            Step::StoreFailed { call, error } => {
                counter!(STORE_FAILURES, &with("call", call.to_string())).increment(1);
                warn!(%call, error, "a call to the store failed");
            }
            Step::QueueFailed { call, error } => {
                counter!(QUEUE_FAILURES, &with("call", call.to_string())).increment(1);
                warn!(%call, error, "a call to the queue failed");
            }
            Step::Paused => {
                gauge!(PAUSED, &labels).set(1.0);
                warn!("paused: the store is away");
            }
            Step::Resumed => {
                gauge!(PAUSED, &labels).set(0.0);
                info!("resumed: the store answers");
            }
            Step::Draining => info!("draining"),
            Step::Replayed { id } => {
                counter!(REPLAYED, &labels).increment(1);
                info!(dead_letter = %id, "replayed");
            }
            Step::Discarded { id } => {
                counter!(DISCARDED, &labels).increment(1);
                info!(dead_letter = %id, "discarded");
            }
            Step::Swept { rows } => {
                counter!(SWEPT, &labels).increment(*rows);
                debug!(rows, "fences swept");
            }
            Step::Alerted {
                letters,
                fingerprint,
            } => {
                counter!(ALERTED, &labels).increment(1);
                info!(letters, fingerprint, "alerted");
            }
            Step::AlertFailed { fingerprint, error } => {
                counter!(ALERTS_FAILED, &labels).increment(1);
                warn!(
                    fingerprint,
                    error, "alert not accepted; it will be sent again"
                );
            }
        }
    }
}

fn as_millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
