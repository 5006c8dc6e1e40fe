//! Alert bookkeeping.

use std::time::Duration;

use super::PgStore;
use super::tx::interval;
use crate::dead_letter::DeadLetterId;
use crate::ports::alerter::ExternalId;
use crate::ports::store::{
    AlertClaim, AlertDue, AlertStore, ResolveClaim, ReviewStore, StoreError,
};

/// The kind of turn in which incidents are closed; the others are those of `AlertKind`.
const RESOLVE: &str = "resolve";

impl PgStore {
    async fn turn_failed(
        &self,
        claim_id: uuid::Uuid,
        kind: &str,
        fingerprint: &str,
        retry_after: Duration,
        error: &str,
    ) -> Result<(), StoreError> {
        self.bookkeeping(async |connection| {
            sqlx::query!(
                "SELECT core.alert_failed($1, $2, $3, $4, $5) AS done",
                claim_id,
                kind,
                fingerprint,
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

impl AlertStore for PgStore {
    async fn claim_alert(
        &self,
        claim_id: uuid::Uuid,
        due: &AlertDue,
        lease: Duration,
    ) -> Result<Option<AlertClaim>, StoreError> {
        let claimed = self
            .bookkeeping(async |connection| {
                sqlx::query!(
                    r#"SELECT fingerprint AS "fingerprint!", letters AS "letters!", failures AS "failures!",
                        first_at AS "first_at!", last_at AS "last_at!", sample_id AS "sample_id!"
                    FROM core.claim_alert($1, $2, $3, $4, $5)"#,
                    claim_id,
                    due.kind.as_str(),
                    interval(due.age),
                    interval(due.window),
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
            kind: due.kind,
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
                    r#"SELECT core.alert_delivered($1, $2, $3, $4) AS "covered!""#,
                    claim.claim_id,
                    claim.kind.as_str(),
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
        self.turn_failed(
            claim.claim_id,
            claim.kind.as_str(),
            &claim.fingerprint,
            retry_after,
            error,
        )
        .await
    }

    async fn claim_resolve(
        &self,
        claim_id: uuid::Uuid,
        lease: Duration,
    ) -> Result<Option<ResolveClaim>, StoreError> {
        let claimed = self
            .bookkeeping(async |connection| {
                sqlx::query!(
                    r#"SELECT incident_id AS "incident_id!", fingerprint AS "fingerprint!",
                        external_id AS "external_id!", failures AS "failures!"
                    FROM core.claim_resolve($1, $2)"#,
                    claim_id,
                    interval(lease),
                )
                .fetch_optional(connection)
                .await
            })
            .await?;
        Ok(claimed.map(|claimed| ResolveClaim {
            claim_id,
            incident: claimed.incident_id,
            external_id: ExternalId(claimed.external_id),
            fingerprint: claimed.fingerprint,
            failures: u32::try_from(claimed.failures).unwrap_or(0),
        }))
    }

    async fn incident_resolved(&self, claim: &ResolveClaim) -> Result<(), StoreError> {
        self.bookkeeping(async |connection| {
            sqlx::query!(
                "SELECT core.incident_resolved($1, $2, $3) AS done",
                claim.claim_id,
                claim.incident,
                claim.fingerprint,
            )
            .fetch_one(connection)
            .await
            .map(|_| ())
        })
        .await
    }

    async fn resolve_failed(
        &self,
        claim: &ResolveClaim,
        retry_after: Duration,
        error: &str,
    ) -> Result<(), StoreError> {
        self.turn_failed(
            claim.claim_id,
            RESOLVE,
            &claim.fingerprint,
            retry_after,
            error,
        )
        .await
    }

    async fn alerts_failing(&self, escalate_after: Duration) -> Result<bool, StoreError> {
        self.bookkeeping(async |connection| {
            sqlx::query_scalar!(
                r#"SELECT core.alerts_failing($1) AS "failing!""#,
                interval(escalate_after),
            )
            .fetch_one(connection)
            .await
        })
        .await
    }
}
