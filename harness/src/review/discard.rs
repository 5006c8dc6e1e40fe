//! Giving a dead letter up, with a reason (A7, B8).

use crate::dead_letter::DeadLetterId;
use crate::ports::store::StoreError;

/// Why a discard was refused.
#[derive(Debug, thiserror::Error)]
pub enum DiscardError {
    /// There is none of that id.
    #[error("there is no dead letter {0}")]
    NotFound(DeadLetterId),
    /// The decision was another one.
    #[error("dead letter {0} was replayed and can no longer be discarded")]
    WasReplayed(DeadLetterId),
    /// A replay was published but could not be recorded, and its job was applied.
    #[error(
        "dead letter {0} was replayed before (that could not be recorded), and its job was applied since: \
         replay it to close it, which has no second effect"
    )]
    WasApplied(DeadLetterId),
    /// Try again.
    #[error(transparent)]
    Store(#[from] StoreError),
}
