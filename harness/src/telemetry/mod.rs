//! Metrics and traces, made from the stream of events. Labels are bounded: consumer and queue names, reasons and classes
//! of code, never ids or error texts. Log lines about a delivery carry its ids through the span that the gate opens. A success is a metric, not a row (B9); a duplicate is a counter and a debug line (B2).

mod catalogue;
#[cfg(test)]
mod tests;

use metrics::{Label, counter, gauge, histogram};
use tracing::{debug, error, info, warn};

use self::catalogue::{
    ALERTED, ALERTS_FAILED, ALERTS_OWED, APPLIED, BATCHES, BUSY, COMMITS_UNKNOWN, DEAD_LETTERS,
    DEFERRED, DELIVERIES, DISCARDED, DUPLICATES, ESCALATED, FENCE_WAIT, FENCES_OVERDUE,
    HEARTBEATS_FAILED, LEASES_LOST, LEFT_BATCHES, NOT_ADDRESSED, PAUSED, PENDING, PENDING_AGE,
    QUEUE_AGE, QUEUE_FAILURES, QUEUE_MESSAGES, REPLAYED, RESOLVED, RESOLVES_FAILED, RETRIES,
    RETRY_POLICY, RUN_DURATION, SETTLED, STORE_FAILURES, SWEPT,
};
pub use self::catalogue::{DURATION_BUCKETS, describe_metrics, metrics_table};
use crate::event::{Event, Observer, RunResult, Step};
use crate::fence::FenceVerdict;

/// Sends every event to the installed `metrics` recorder and `tracing` subscriber.
#[derive(Debug, Clone, Copy, Default)]
pub struct Telemetry;

/// The labels that every metric about a consumer's work has.
fn labels_of(event: &Event) -> Vec<Label> {
    let mut labels = Vec::new();
    if let Some(queue) = &event.queue {
        labels.push(Label::new(catalogue::QUEUE, queue.to_string()));
    }
    if let Some(consumer) = &event.consumer {
        labels.push(Label::new(catalogue::CONSUMER, consumer.to_string()));
    }
    labels
}

impl Observer for Telemetry {
    fn event(&self, event: &Event) {
        let labels = labels_of(event);
        let with = |key: &'static str, value: String| {
            let mut labels = labels.clone();
            labels.push(Label::new(key, value));
            labels
        };

        match &event.step {
            Step::Started { retry } => {
                let rationale = retry.rationale().unwrap_or("standard policy");
                let labels = with("rationale", rationale.to_owned());
                gauge!(RETRY_POLICY, labels).set(f64::from(retry.max_runs()));
                info!(?retry, "started");
            }
            Step::Received { runs_before } => {
                counter!(DELIVERIES, labels).increment(1);
                debug!(runs_before, "received");
            }
            Step::Poison { class, error } => debug!(%class, error, "poison"),
            Step::NotAddressed => {
                counter!(NOT_ADDRESSED, labels).increment(1);
                debug!("for another consumer");
            }
            Step::Fence { verdict, waited } => {
                histogram!(FENCE_WAIT, labels.clone()).record(*waited);
                match verdict {
                    FenceVerdict::Acquired => debug!("fence acquired"),
                    FenceVerdict::Duplicate => {
                        counter!(DUPLICATES, labels).increment(1);
                        debug!("duplicate, skipped");
                    }
                    FenceVerdict::Settled => {
                        counter!(SETTLED, labels).increment(1);
                        debug!("settled before, skipped");
                    }
                }
            }
            Step::Busy => {
                counter!(BUSY, labels).increment(1);
                debug!("a twin is running");
            }
            Step::RunStarted { run } => debug!(run, "run started"),
            Step::RunEnded { run, result, took } => {
                let labels = with(catalogue::ERROR_TYPE, error_type(result));
                histogram!(RUN_DURATION, labels).record(*took);
                match result {
                    RunResult::Worked => debug!(run, "run ended"),
                    RunResult::Failed {
                        ending,
                        class,
                        error,
                    } => warn!(run, ?ending, %class, error, "run failed"),
                }
            }
            Step::BatchStarted { jobs } => debug!(jobs, "batch started"),
            Step::BatchEnded { jobs, result, took } => {
                let error_type = error_type(result);
                let labels = with(catalogue::ERROR_TYPE, error_type);
                histogram!(RUN_DURATION, labels.clone()).record(*took);
                counter!(BATCHES, labels).increment(1);
                match result {
                    RunResult::Worked => debug!(jobs, "batch ended"),
                    RunResult::Failed { class, error, .. } => {
                        info!(jobs, %class, error, "batch failed; its jobs run one by one");
                    }
                }
            }
            Step::LeftBatch { error } => {
                counter!(LEFT_BATCHES, labels).increment(1);
                debug!(error, "its batch was given up; it goes on alone");
            }
            Step::Committed => {
                counter!(APPLIED, labels).increment(1);
                debug!("committed");
            }
            Step::CommitUnknown { error } => {
                counter!(COMMITS_UNKNOWN, labels).increment(1);
                warn!(
                    error,
                    "nobody answered the commit; the next delivery asks the fence"
                );
            }
            Step::Acked => debug!("acked"),
            Step::Retried { run, wait } => {
                counter!(RETRIES, labels).increment(1);
                info!(run, wait_ms = as_millis(*wait), "will be retried");
            }
            Step::Deferred { reason, wait } => {
                counter!(DEFERRED, with("reason", reason.as_str().to_owned())).increment(1);
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
                counter!(DEAD_LETTERS, with("reason", reason.to_string())).increment(1);
                error!(dead_letter = %id, %reason, %class, attempts, error, "dead letter");
            }
            Step::DeadLetterAlready => debug!("dead letter was on record already"),
            Step::DeadLetterApplied => {
                counter!(DUPLICATES, labels).increment(1);
                debug!("the job was applied: no dead letter");
            }
            Step::LeaseLost => {
                counter!(LEASES_LOST, labels).increment(1);
                info!("lease lost; somebody else answers for the message");
            }
            Step::StoreFailed { call, error } => {
                counter!(STORE_FAILURES, with("call", call.to_string())).increment(1);
                warn!(%call, error, "a call to the store failed");
            }
            Step::QueueFailed { call, error } => {
                counter!(QUEUE_FAILURES, with("call", call.to_string())).increment(1);
                warn!(%call, error, "a call to the queue failed");
            }
            Step::Paused => {
                gauge!(PAUSED, labels).set(1.0);
                warn!("paused: the store is away");
            }
            Step::Resumed => {
                gauge!(PAUSED, labels).set(0.0);
                info!("resumed: the store answers");
            }
            Step::Draining => info!("draining"),
            Step::Replayed { id } => {
                counter!(REPLAYED, labels).increment(1);
                info!(dead_letter = %id, "replayed");
            }
            Step::Discarded { id } => {
                counter!(DISCARDED, labels).increment(1);
                info!(dead_letter = %id, "discarded");
            }
            Step::Swept { rows } => {
                counter!(SWEPT, labels).increment(*rows);
                debug!(rows, "fences swept");
            }
            Step::QueueMeasured { messages, oldest } => {
                gauge!(QUEUE_MESSAGES, labels.clone()).set(gauged(*messages));
                gauge!(QUEUE_AGE, labels).set(oldest.as_secs_f64());
            }
            Step::LettersMeasured { pending, oldest } => {
                gauge!(PENDING, labels.clone()).set(gauged(*pending));
                gauge!(PENDING_AGE, labels).set(oldest.as_secs_f64());
            }
            Step::FencesMeasured { overdue } => {
                gauge!(FENCES_OVERDUE, labels).set(overdue.as_secs_f64());
            }
            Step::AlertsMeasured { owed } => gauge!(ALERTS_OWED, labels).set(gauged(*owed)),
            Step::Alerted {
                letters,
                fingerprint,
            } => {
                counter!(ALERTED, labels).increment(1);
                info!(letters, fingerprint, "alerted");
            }
            Step::Escalated {
                letters,
                fingerprint,
            } => {
                counter!(ESCALATED, labels).increment(1);
                info!(letters, fingerprint, "escalated");
            }
            Step::Resolved { fingerprint } => {
                counter!(RESOLVED, labels).increment(1);
                info!(fingerprint, "incident resolved");
            }
            Step::ResolveFailed { fingerprint, error } => {
                counter!(RESOLVES_FAILED, labels).increment(1);
                warn!(
                    fingerprint,
                    error, "incident not resolved; it will be tried again"
                );
            }
            Step::HeartbeatFailed { error } => {
                counter!(HEARTBEATS_FAILED, labels).increment(1);
                warn!(error, "the alert pump's heartbeat was not sent");
            }
            Step::AlertFailed { fingerprint, error } => {
                counter!(ALERTS_FAILED, labels).increment(1);
                warn!(
                    fingerprint,
                    error, "alert not accepted; it will be sent again"
                );
            }
        }
    }
}

/// Empty for what worked.
fn error_type(result: &RunResult) -> String {
    match result {
        RunResult::Worked => String::new(),
        RunResult::Failed { ending, .. } => format!("{ending:?}").to_ascii_lowercase(),
    }
}

/// Gauges are floats; 2^53 of anything is more than there is.
#[allow(clippy::cast_precision_loss)]
fn gauged(count: u64) -> f64 {
    count as f64
}

fn as_millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
