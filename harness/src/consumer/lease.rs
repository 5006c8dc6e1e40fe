//! Keeping a lease while its delivery is held, from its arrival until its answer is given: also while it waits for a
//! permit, and while a dead letter waits for the store to come back.

use std::future::{Future, pending};

use futures_util::future::join_all;

use super::Shared;
use crate::event::Step;
use crate::handler::Handler;
use crate::ports::queue::{Delivery, QueueError, QueuePort, Receipt};
use crate::ports::store::Store;
use crate::sync::CancellationToken;
use crate::time::within;

/// Something that we answer for among others.
pub(super) struct Leased<T> {
    pub(super) what: T,
    /// From then on nobody extends its lease.
    answered: CancellationToken,
}

impl<T> Leased<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Leased<U> {
        Leased {
            what: f(self.what),
            answered: self.answered,
        }
    }

    /// It was answered.
    pub(super) fn answered(self) {
        self.answered.cancel();
    }
}

impl Leased<Delivery> {
    pub(super) fn new(what: Delivery) -> Self {
        Self {
            what,
            answered: CancellationToken::new(),
        }
    }

    /// For those who keep the lease.
    pub(super) fn lease(&self) -> Lease {
        Lease {
            receipt: self.what.receipt.clone(),
            answered: self.answered.clone(),
        }
    }
}

/// A lease that is kept until its delivery is answered.
pub(super) struct Lease {
    receipt: Receipt,
    answered: CancellationToken,
}

impl<S: Store, Q: QueuePort, H: Handler<S>> Shared<S, Q, H> {
    /// Runs `work`, extending the lease three times per lease period. A lease that is lost is reported and no longer
    /// extended; the work goes on, because the fence keeps it safe.
    pub(super) async fn keep_lease<T>(
        &self,
        receipt: &Receipt,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            biased;
            output = work => output,
            () = self.extend_for_ever(receipt) => unreachable!("extending a lease never ends by itself"),
        }
    }

    /// The same for several deliveries, each until it is answered.
    pub(super) async fn keep_leases<T>(
        &self,
        leases: &[Lease],
        work: impl Future<Output = T>,
    ) -> T {
        let extend = async {
            join_all(leases.iter().map(|lease| async {
                tokio::select! {
                    biased;
                    () = lease.answered.cancelled() => {}
                    () = self.extend_for_ever(&lease.receipt) => {}
                }
            }))
            .await;
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            output = work => output,
            () = extend => unreachable!("it is the work that ends"),
        }
    }

    async fn extend_for_ever(&self, receipt: &Receipt) {
        loop {
            self.env.clock.sleep(self.config.lease / 3).await;
            let call = self
                .queue
                .extend(&self.config.queue, receipt, self.config.lease);
            let error = match within(&*self.env.clock, self.config.port_timeout, call).await {
                Ok(Ok(())) => continue,
                Ok(Err(QueueError::LeaseLost)) => {
                    self.emit(None, Step::LeaseLost);
                    return pending().await;
                }
                Ok(Err(error)) => error.to_string(),
                Err(elapsed) => elapsed.to_string(),
            };
            let call = "extend".into();
            self.emit(None, Step::QueueFailed { call, error });
        }
    }
}
