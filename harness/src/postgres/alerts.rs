//! Alert bookkeeping.

use std::time::Duration;

use super::PgStore;
use super::tx::interval;
use crate::dead_letter::DeadLetterId;
use crate::ports::alerter::ExternalId;
use crate::ports::store::{AlertClaim, AlertStore, ReviewStore, StoreError};

impl AlertStore for PgStore {
    async fn claim_alert(
        &self,
        claim_id: uuid::Uuid,
        window: Duration,
        lease: Duration,
    ) -> Result<Option<AlertClaim>, StoreError> {
        let claimed = self
            .bookkeeping(async |connection| {
                sqlx::query!(
                    r#"SELECT fingerprint AS "fingerprint!", letters AS "letters!", failures AS "failures!",
                        first_at AS "first_at!", last_at AS "last_at!", sample_id AS "sample_id!"
                    FROM core.claim_alert($1, $2, $3)"#,
                    claim_id,
                    interval(window),
                    interval(lease),
                )
                .fetch_optional(connection)
                .await
            })
            .await?;
        let Some(claimed) = claimed else {
            return Ok(None);
        };
        let sample = self
            .dead_letter(DeadLetterId(claimed.sample_id))
            .await?
            .ok_or_else(|| StoreError::Refused("an alerted dead letter is gone".into()))?;
        Ok(Some(AlertClaim {
            claim_id,
            fingerprint: claimed.fingerprint,
            letters: u64::try_from(claimed.letters).unwrap_or(0),
            failures: u32::try_from(claimed.failures).unwrap_or(0),
            first_at: claimed.first_at,
            last_at: claimed.last_at,
            sample,
        }))
    }

    async fn alert_delivered(
        &self,
        claim: &AlertClaim,
        external_id: Option<&ExternalId>,
    ) -> Result<u64, StoreError> {
        let covered = self
            .bookkeeping(async |connection| {
                sqlx::query_scalar!(
                    r#"SELECT core.alert_delivered($1, $2, $3) AS "covered!""#,
                    claim.claim_id,
                    claim.fingerprint,
                    external_id.map(|id| id.0.as_str()),
                )
                .fetch_one(connection)
                .await
            })
            .await?;
        Ok(u64::try_from(covered).unwrap_or(0))
    }

    async fn alert_failed(
        &self,
        claim: &AlertClaim,
        retry_after: Duration,
        error: &str,
    ) -> Result<(), StoreError> {
        self.bookkeeping(async |connection| {
            sqlx::query!(
                "SELECT core.alert_failed($1, $2, $3) AS done",
                claim.fingerprint,
                interval(retry_after),
                error,
            )
            .fetch_one(connection)
            .await
            .map(|_| ())
        })
        .await
    }
}
