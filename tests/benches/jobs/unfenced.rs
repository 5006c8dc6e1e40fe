//! A store that does everything but the fence: what a consumer costs that may apply a job twice.

use std::error::Error;
use std::time::Duration;

use harness::{
    CommitError, FenceKey, FenceVerdict, NewDeadLetter, Recorded, Store, StoreError, WorkTx,
};
use sqlx::pool::PoolConnection;
use sqlx::{Executor as _, PgConnection, PgPool, Postgres};

#[derive(Clone)]
pub(crate) struct Unfenced(pub(crate) PgPool);

pub(crate) struct Open(PoolConnection<Postgres>);

fn away(error: sqlx::Error) -> StoreError {
    StoreError::Away(error.into())
}

impl Store for Unfenced {
    type Tx = Open;

    async fn begin(&self) -> Result<Open, StoreError> {
        let mut connection = self.0.acquire().await.map_err(away)?;
        connection.execute("BEGIN").await.map_err(away)?;
        Ok(Open(connection))
    }

    async fn record_dead_letter(&self, _: &NewDeadLetter) -> Result<Recorded, StoreError> {
        Err(StoreError::Refused("no job fails here".into()))
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_contention(_: &(dyn Error + 'static)) -> bool {
        false
    }
}

impl WorkTx for Open {
    type Conn = PgConnection;

    async fn fence(
        &mut self,
        _: &FenceKey,
        _: Duration,
        _: Duration,
    ) -> Result<FenceVerdict, StoreError> {
        Ok(FenceVerdict::Acquired)
    }

    async fn fence_all(
        &mut self,
        keys: &[FenceKey],
        _: Duration,
        _: Duration,
    ) -> Result<Vec<FenceVerdict>, StoreError> {
        Ok(vec![FenceVerdict::Acquired; keys.len()])
    }

    fn connection(&mut self) -> &mut PgConnection {
        &mut self.0
    }

    async fn commit(mut self) -> Result<(), CommitError> {
        let committed = self.0.execute("COMMIT").await;
        committed
            .map(drop)
            .map_err(|error| CommitError::Unknown(error.into()))
    }

    async fn rollback(mut self) -> Result<(), StoreError> {
        self.0.execute("ROLLBACK").await.map(drop).map_err(away)
    }
}
