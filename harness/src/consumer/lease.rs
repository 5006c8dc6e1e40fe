//! Keeping a lease while its delivery is held, from its arrival until its answer is given: also while it waits for a
//! permit, and while a dead letter waits for the store to come back.

use std::future::Future;

use super::Shared;
use crate::event::Step;
use crate::handler::Handler;
use crate::ports::queue::{QueueError, QueuePort, Receipt};
use crate::ports::store::Store;
use crate::time::within;

impl<S: Store, Q: QueuePort, H: Handler<S>> Shared<S, Q, H> {
    /// Runs `work`, extending the lease three times per lease period. A lease that is lost is reported and no longer
    /// extended; the work goes on, because the fence keeps it safe.
    pub(super) async fn keep_lease<T>(
        &self,
        receipt: &Receipt,
        work: impl Future<Output = T>,
    ) -> T {
        let extend = async {
            loop {
                self.env.clock.sleep(self.config.lease / 3).await;
                let call = self
                    .queue
                    .extend(&self.config.queue, receipt, self.config.lease);
                match within(&*self.env.clock, self.config.port_timeout, call).await {
                    Ok(Ok(())) => {}
                    Ok(Err(QueueError::LeaseLost)) => {
                        self.emit(None, Step::LeaseLost);
                        return std::future::pending::<()>().await;
                    }
                    Ok(Err(error)) => {
                        self.emit(
                            None,
                            Step::QueueFailed {
                                call: "extend".into(),
                                error: error.to_string(),
                            },
                        );
                    }
                    Err(elapsed) => {
                        self.emit(
                            None,
                            Step::QueueFailed {
                                call: "extend".into(),
                                error: elapsed.to_string(),
                            },
                        );
                    }
                }
            }
        };
        tokio::select! {
            biased;
            output = work => output,
            () = extend => unreachable!("extending a lease never ends by itself"),
        }
    }
}
