//! The way to the database without a network: for tests that decide themselves which statement comes next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;

use super::Database;
use super::server::{DatabaseSession, Outcome, Statement};
use crate::link::{Link, Lost, Session as _};

/// A connection that is neither slow nor shared.
#[derive(Clone)]
pub(super) struct Direct {
    database: Database,
    lock_wait: Duration,
    session: Arc<Mutex<DatabaseSession>>,
}

impl Direct {
    pub(super) fn new(database: &Database, lock_wait: Duration) -> Self {
        let session = DatabaseSession::new(database, lock_wait);
        Self {
            database: database.clone(),
            lock_wait,
            session: Arc::new(Mutex::new(session)),
        }
    }

    fn session(&self) -> MutexGuard<'_, DatabaseSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next statement finds a new session.
    pub(super) fn lose(&self) {
        let new = DatabaseSession::new(&self.database, self.lock_wait);
        let old = std::mem::replace(&mut *self.session(), new);
        old.closed();
    }
}

/// How statements get to the database.
#[derive(Clone)]
pub(super) enum Way {
    Network(Link<Statement, Outcome>),
    Direct(Direct),
}

impl Way {
    /// Names the connection that is there now.
    pub(super) fn epoch(&self) -> u64 {
        match self {
            Self::Network(link) => link.epoch(),
            Self::Direct(direct) => direct.session().id(),
        }
    }

    /// Asks, and waits for the answer. With `epoch`, only on that connection.
    pub(super) async fn call(
        &self,
        statement: Statement,
        epoch: Option<u64>,
    ) -> Result<Outcome, Lost> {
        match self {
            Self::Network(link) => link.call(statement, epoch).await,
            Self::Direct(direct) => {
                let session = direct.session().clone();
                if epoch.is_some_and(|epoch| epoch != session.id()) {
                    return Err(Lost);
                }
                Ok(session.answer(statement).await)
            }
        }
    }

    /// Says something that nobody waits for.
    pub(super) fn tell(&self, statement: Statement, epoch: u64) {
        match self {
            Self::Network(link) => link.tell(statement, epoch),
            Self::Direct(direct) => {
                let session = direct.session().clone();
                if epoch == session.id() {
                    // Ending a transaction never waits.
                    let _ = session.answer(statement).now_or_never();
                }
            }
        }
    }
}
