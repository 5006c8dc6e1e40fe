//! The alert pump: driven by the table, not by memory.
//!
//! A dead letter and the duty to alert it are written in one transaction. The pump claims a fingerprint that has letters
//! without an alert, opens one incident for all of them, and marks them as covered once the alert service accepted it. So
//! every dead letter is covered by at least one delivered alert: a pump that dies between the two leaves the letters
//! uncovered, and after the claim's lease the next one sends again.
//!
//! A burst is grouped: per fingerprint there is at most one incident in a window. The first letter of a kind is alerted
//! at once; what comes within the window is counted by the next incident, at its end.
//!
//! In the same way a letter that still waits for a decision after `escalate_after` is alerted once more, and once only
//! (Q2). When the last letter of a fingerprint is decided, its incidents are resolved.
//!
//! While the pump can do its work, it says so: [`Alerter::alive`]. A pump that cannot reach the store, or whose alert
//! service refuses what is owed, is silent, so that somebody else can raise the alarm.
//!
//! Several pumps may run at once. Consumers never wait for alerting: they only write the row.

use std::time::Duration;

use crate::consumer::Shutdown;
use crate::event::{Event, Step};
use crate::ports::alerter::{AlertError, AlertKind, Alerter, Incident};
use crate::ports::env::Env;
use crate::ports::store::{AlertDue, AlertStore, StoreError};
use crate::time::{Backoff, within};

/// An alert service that asks us to wait for longer than this is asked again all the same.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// How to alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertPumpConfig {
    /// The least time between two incidents of one fingerprint. Default 5 min.
    pub window: Duration,
    /// A dead letter that is pending for longer is alerted once more (Q2). Default 3 days.
    pub escalate_after: Duration,
    /// The least time between two such incidents of one fingerprint. Default 6 h.
    pub escalate_window: Duration,
    /// How often to say that alerting works; a little later when alerts are being sent. Default 60 s.
    pub heartbeat_interval: Duration,
    /// The longest that one call to the alert service may take. Default 10 s.
    pub timeout: Duration,
    /// How long a claim keeps other pumps away; longer than `timeout`. Default 60 s.
    pub lease: Duration,
    /// The first wait after the alert service did not do what it was asked; it doubles. Default 1 s.
    pub retry_first: Duration,
    /// The longest such wait, unless the service asks for more (at most 10 min). Default 30 s.
    pub retry_cap: Duration,
    /// How long to wait when nothing is due. Default 1 s.
    pub poll_interval: Duration,
    /// The longest that one call to the store may take. Default 10 s.
    pub port_timeout: Duration,
}

impl Default for AlertPumpConfig {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(300),
            escalate_after: Duration::from_secs(3 * 24 * 3_600),
            escalate_window: Duration::from_secs(6 * 3_600),
            heartbeat_interval: Duration::from_secs(60),
            timeout: Duration::from_secs(10),
            lease: Duration::from_secs(60),
            retry_first: Duration::from_secs(1),
            retry_cap: Duration::from_secs(30),
            poll_interval: Duration::from_secs(1),
            port_timeout: Duration::from_secs(10),
        }
    }
}

/// Sends alerts for dead letters that have none or wait for too long, and closes what is done.
#[derive(Debug)]
pub struct AlertPump<S, A> {
    config: AlertPumpConfig,
    store: S,
    alerter: A,
    env: Env,
}

/// What one look at the table led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    NothingDue,
    Done,
    NotAccepted,
    StoreFailed,
}

/// When to say next that alerting works.
struct Heartbeat {
    next_at: Duration,
    backoff: Backoff,
}

impl<S: AlertStore, A: Alerter> AlertPump<S, A> {
    /// Alerts through `alerter`.
    pub fn new(config: AlertPumpConfig, store: S, alerter: A, env: Env) -> Self {
        Self {
            config,
            store,
            alerter,
            env,
        }
    }

    /// Pumps until `shutdown` begins. Survives a store or an alert service that is away, for as long as it takes.
    pub async fn run(&self, shutdown: Shutdown) {
        let mut store_backoff = Backoff::new(self.config.poll_interval, self.config.retry_cap);
        let mut heartbeat = Heartbeat {
            next_at: Duration::ZERO,
            backoff: Backoff::new(self.config.retry_first, self.config.heartbeat_interval),
        };
        while !shutdown.has_begun() {
            let turn = self.turn().await;
            if turn != Turn::StoreFailed {
                store_backoff.reset();
                self.beat(&mut heartbeat).await;
            }
            let wait = match turn {
                Turn::Done | Turn::NotAccepted => continue,
                Turn::NothingDue => {
                    let now = self.env.clock.elapsed();
                    (self.config.poll_interval).min(heartbeat.next_at.saturating_sub(now))
                }
                Turn::StoreFailed => self.env.jittered(store_backoff.next_wait()),
            };
            tokio::select! {
                biased;
                () = shutdown.begun() => {}
                () = self.env.clock.sleep(wait) => {}
            }
        }
    }

    /// What is most urgent comes first: a flood of incidents to close must not hold up the first word of a new failure.
    async fn turn(&self) -> Turn {
        for kind in AlertKind::ALL {
            match self.alert(kind).await {
                Turn::NothingDue => {}
                turn => return turn,
            }
        }
        self.resolve().await
    }

    async fn alert(&self, kind: AlertKind) -> Turn {
        let due = match kind {
            AlertKind::New => AlertDue {
                kind,
                age: Duration::ZERO,
                window: self.config.window,
            },
            AlertKind::Overdue => AlertDue {
                kind,
                age: self.config.escalate_after,
                window: self.config.escalate_window,
            },
        };
        let claim_id = self.env.new_id();
        let call = (self.store).claim_alert(claim_id, &due, self.claim_lease());
        let claim = match self.store_call("claim_alert", call).await {
            Some(Some(claim)) => claim,
            Some(None) => return Turn::NothingDue,
            None => return Turn::StoreFailed,
        };
        let incident = Incident {
            id: claim.claim_id,
            kind,
            fingerprint: claim.fingerprint.clone(),
            letters: claim.letters,
            first_at: claim.first_at,
            last_at: claim.last_at,
            sample: claim.sample.clone(),
        };
        match self.service_call(self.alerter.open(&incident)).await {
            Ok(external_id) => {
                let call = self.store.alert_delivered(&claim, external_id.as_ref());
                let Some(letters) = self.store_call("alert_delivered", call).await else {
                    return Turn::StoreFailed;
                };
                let fingerprint = claim.fingerprint;
                self.emit(match kind {
                    AlertKind::New => Step::Alerted {
                        letters,
                        fingerprint,
                    },
                    AlertKind::Overdue => Step::Escalated {
                        letters,
                        fingerprint,
                    },
                });
                Turn::Done
            }
            Err(error) => {
                let (wait, error) = self.refused(claim.failures, &error);
                let call = self.store.alert_failed(&claim, wait, &error);
                let noted = self.store_call("alert_failed", call).await;
                self.emit(Step::AlertFailed {
                    fingerprint: claim.fingerprint,
                    error,
                });
                noted.map_or(Turn::StoreFailed, |()| Turn::NotAccepted)
            }
        }
    }

    async fn resolve(&self) -> Turn {
        let claim_id = self.env.new_id();
        let call = self.store.claim_resolve(claim_id, self.claim_lease());
        let claim = match self.store_call("claim_resolve", call).await {
            Some(Some(claim)) => claim,
            Some(None) => return Turn::NothingDue,
            None => return Turn::StoreFailed,
        };
        match (self.service_call(self.alerter.resolve(&claim.external_id))).await {
            Ok(()) => {
                let call = self.store.incident_resolved(&claim);
                if self.store_call("incident_resolved", call).await.is_none() {
                    return Turn::StoreFailed;
                }
                self.emit(Step::Resolved {
                    fingerprint: claim.fingerprint,
                });
                Turn::Done
            }
            Err(error) => {
                let (wait, error) = self.refused(claim.failures, &error);
                let call = self.store.resolve_failed(&claim, wait, &error);
                let noted = self.store_call("resolve_failed", call).await;
                self.emit(Step::ResolveFailed {
                    fingerprint: claim.fingerprint,
                    error,
                });
                noted.map_or(Turn::StoreFailed, |()| Turn::NotAccepted)
            }
        }
    }

    /// Says that alerting works, if it is time and if it does. That the service refuses something is asked of the store:
    /// another pump may have met it, or may have made good for it.
    async fn beat(&self, heartbeat: &mut Heartbeat) {
        if self.env.clock.elapsed() < heartbeat.next_at {
            return;
        }
        let call = self.store.alerts_failing(self.config.escalate_after);
        let works = self.store_call("alerts_failing", call).await == Some(false);
        let wait = if !works {
            self.config.poll_interval
        } else if let Err(error) = self.service_call(self.alerter.alive()).await {
            let error = crate::error_text::storable(&error.message);
            self.emit(Step::HeartbeatFailed { error });
            heartbeat.backoff.next_wait()
        } else {
            heartbeat.backoff.reset();
            self.config.heartbeat_interval
        };
        heartbeat.next_at = self.env.clock.elapsed() + wait;
    }

    async fn service_call<T>(
        &self,
        call: impl Future<Output = Result<T, AlertError>>,
    ) -> Result<T, AlertError> {
        within(&*self.env.clock, self.config.timeout, call)
            .await
            .unwrap_or_else(|elapsed| {
                Err(AlertError {
                    message: elapsed.to_string(),
                    retry_after: None,
                })
            })
    }

    /// How long to wait after so many failures and this one, and what to write down.
    fn refused(&self, failures: u32, error: &AlertError) -> (Duration, String) {
        let config = &self.config;
        let doubled = config.retry_first.saturating_mul(1 << failures.min(16));
        let asked = error.retry_after.unwrap_or(Duration::ZERO);
        let wait = doubled
            .min(config.retry_cap)
            .max(asked.min(RETRY_AFTER_MAX));
        let text = crate::error_text::storable(&error.message);
        (self.env.jittered(wait), text)
    }

    /// A claim must outlive the call that it is made for.
    fn claim_lease(&self) -> Duration {
        self.config.lease.max(self.config.timeout.saturating_mul(2))
    }

    async fn store_call<T>(
        &self,
        call: &'static str,
        future: impl Future<Output = Result<T, StoreError>>,
    ) -> Option<T> {
        let error = match within(&*self.env.clock, self.config.port_timeout, future).await {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => crate::error_text::error_text(&error),
            Err(elapsed) => elapsed.to_string(),
        };
        self.emit(Step::StoreFailed {
            call: call.into(),
            error,
        });
        None
    }

    fn emit(&self, step: Step) {
        self.env.emit(Event {
            consumer: None,
            queue: None,
            job: None,
            step,
        });
    }
}
