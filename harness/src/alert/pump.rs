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
//! Several pumps may run at once. Consumers never wait for alerting: they only write the row.

use std::time::Duration;

use crate::consumer::Shutdown;
use crate::event::{Event, Step};
use crate::ports::alerter::{AlertError, Alerter, Incident};
use crate::ports::env::Env;
use crate::ports::store::{AlertClaim, AlertStore, StoreError};
use crate::time::{Backoff, within};

/// How to alert.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlertPumpConfig {
    /// The least time between two incidents of one fingerprint. Default 5 min.
    pub window: Duration,
    /// The longest that opening an incident may take. Default 10 s.
    pub timeout: Duration,
    /// How long a claim keeps other pumps away; longer than `timeout`. Default 60 s.
    pub lease: Duration,
    /// The first wait after an incident was not accepted; it doubles. Default 1 s.
    pub retry_first: Duration,
    /// The longest such wait. Default 30 s.
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
            timeout: Duration::from_secs(10),
            lease: Duration::from_secs(60),
            retry_first: Duration::from_secs(1),
            retry_cap: Duration::from_secs(30),
            poll_interval: Duration::from_secs(1),
            port_timeout: Duration::from_secs(10),
        }
    }
}

/// Sends alerts for dead letters that have none.
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
    Sent,
    NotAccepted,
    StoreFailed,
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
        while !shutdown.has_begun() {
            let wait = match self.turn().await {
                Turn::Sent | Turn::NotAccepted => {
                    store_backoff.reset();
                    continue;
                }
                Turn::NothingDue => {
                    store_backoff.reset();
                    self.config.poll_interval
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

    async fn turn(&self) -> Turn {
        let claim_id = self.env.new_id();
        let call = self
            .store
            .claim_alert(claim_id, self.config.window, self.claim_lease());
        let claim = match self.store_call("claim_alert", call).await {
            Some(Some(claim)) => claim,
            Some(None) => return Turn::NothingDue,
            None => return Turn::StoreFailed,
        };
        let incident = Incident {
            id: claim.claim_id,
            fingerprint: claim.fingerprint.clone(),
            letters: claim.letters,
            first_at: claim.first_at,
            last_at: claim.last_at,
            sample: claim.sample.clone(),
        };
        let opened = within(
            &*self.env.clock,
            self.config.timeout,
            self.alerter.open(&incident),
        )
        .await
        .unwrap_or_else(|elapsed| {
            Err(AlertError {
                message: elapsed.to_string(),
                retry_after: None,
            })
        });
        match opened {
            Ok(external_id) => {
                let call = self.store.alert_delivered(&claim, external_id.as_ref());
                let Some(letters) = self.store_call("alert_delivered", call).await else {
                    return Turn::StoreFailed;
                };
                self.emit(Step::Alerted {
                    letters,
                    fingerprint: claim.fingerprint,
                });
                Turn::Sent
            }
            Err(error) => self.not_accepted(claim, error).await,
        }
    }

    async fn not_accepted(&self, claim: AlertClaim, error: AlertError) -> Turn {
        let doubled = self
            .config
            .retry_first
            .saturating_mul(1 << claim.failures.min(16));
        let asked = error.retry_after.unwrap_or(Duration::ZERO);
        let wait = self
            .env
            .jittered(doubled.max(asked).min(self.config.retry_cap));
        let message = crate::error_text::storable(&error.message);
        let call = self.store.alert_failed(&claim, wait, &message);
        let noted = self.store_call("alert_failed", call).await;
        self.emit(Step::AlertFailed {
            fingerprint: claim.fingerprint,
            error: message,
        });
        match noted {
            Some(()) => Turn::NotAccepted,
            None => Turn::StoreFailed,
        }
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
