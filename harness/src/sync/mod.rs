//! What the harness's own concurrency is made of. These are std's and tokio's own types. For loom (`ci/loom`) the same
//! names stand for models that keep the same contracts, so that what is explored is the consumer's code as it is.

#[cfg(test)]
mod contract;
#[cfg(all(harness_loom, test))]
mod modelled;

#[cfg(all(harness_loom, test))]
pub(crate) use self::modelled::{
    AtomicBool, CancellationToken, JoinError, JoinSet, Mutex, Semaphore, SemaphorePermit, block_on,
};
#[cfg(not(all(harness_loom, test)))]
pub(crate) use {
    std::sync::{Mutex, atomic::AtomicBool},
    tokio::sync::{Semaphore, SemaphorePermit},
    tokio::task::{JoinError, JoinSet},
    tokio_util::sync::CancellationToken,
};
