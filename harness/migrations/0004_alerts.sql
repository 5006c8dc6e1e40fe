-- Alert bookkeeping, beside `dead_letters` so that that table stays append-only. A dead letter and the duty to alert it
-- are written in one transaction, so no crash can separate them (S9).

CREATE TABLE core.alert_streams (
    fingerprint     text        PRIMARY KEY,
    -- When an incident of this fingerprint was last delivered; the next one waits for the window to pass.
    last_sent_at    timestamptz,
    next_attempt_at timestamptz NOT NULL DEFAULT '-infinity',
    failures        integer     NOT NULL DEFAULT 0,
    last_error      text
);

CREATE TABLE core.alert_incidents (
    id          uuid        PRIMARY KEY,
    fingerprint text        NOT NULL REFERENCES core.alert_streams,
    letters     bigint      NOT NULL CHECK (letters > 0),
    sent_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The alert service's own name for it.
    external_id text
);

CREATE TABLE core.dead_letter_alerts (
    dead_letter_id uuid PRIMARY KEY REFERENCES core.dead_letters,
    fingerprint    text NOT NULL REFERENCES core.alert_streams,
    -- The incident that carries it, also while that one is still being sent.
    claim_id       uuid,
    covered_at     timestamptz
);

CREATE INDEX dead_letter_alerts_uncovered ON core.dead_letter_alerts (fingerprint) WHERE covered_at IS NULL;
CREATE INDEX dead_letter_alerts_claim ON core.dead_letter_alerts (claim_id);

CREATE FUNCTION core.owe_alert() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stored_fingerprint text := NEW.fingerprint;
BEGIN
    -- Looked up first: an INSERT that conflicts would burn a speculative token on every letter of a burst.
    PERFORM FROM core.alert_streams WHERE fingerprint = stored_fingerprint;
    IF NOT FOUND THEN
        INSERT INTO core.alert_streams (fingerprint) VALUES (stored_fingerprint) ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO core.dead_letter_alerts (dead_letter_id, fingerprint) VALUES (NEW.id, stored_fingerprint);
    RETURN NULL;
END
$$;

CREATE TRIGGER dead_letters_owe_alert
    AFTER INSERT ON core.dead_letters
    FOR EACH ROW EXECUTE FUNCTION core.owe_alert();

-- Claims one fingerprint that is due: its uncovered letters are tied to `p_claim_id`, and no other pump touches it for
-- `p_lease`. A pump that dies leaves the letters uncovered; after the lease the next pump claims them again.
CREATE FUNCTION core.claim_alert(p_claim_id uuid, p_window interval, p_lease interval,
    OUT fingerprint text, OUT letters bigint, OUT failures integer,
    OUT first_at timestamptz, OUT last_at timestamptz, OUT sample_id uuid)
RETURNS SETOF record
LANGUAGE plpgsql AS $$
DECLARE
    stream record;
BEGIN
    SELECT s.fingerprint, s.failures INTO stream
    FROM core.alert_streams s
    WHERE s.next_attempt_at <= clock_timestamp()
      AND (s.last_sent_at IS NULL OR s.last_sent_at + p_window <= clock_timestamp())
      AND EXISTS (SELECT FROM core.dead_letter_alerts a
                  WHERE a.fingerprint = s.fingerprint AND a.covered_at IS NULL)
    ORDER BY s.next_attempt_at, s.fingerprint
    LIMIT 1
    FOR NO KEY UPDATE OF s SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    UPDATE core.alert_streams s SET next_attempt_at = clock_timestamp() + p_lease
    WHERE s.fingerprint = stream.fingerprint;
    UPDATE core.dead_letter_alerts a SET claim_id = p_claim_id
    WHERE a.fingerprint = stream.fingerprint AND a.covered_at IS NULL;
    RETURN QUERY
        SELECT stream.fingerprint, count(*), stream.failures, min(d.created_at), max(d.created_at),
               (array_agg(d.id ORDER BY d.created_at DESC, d.id DESC))[1]
        FROM core.dead_letter_alerts a JOIN core.dead_letters d ON d.id = a.dead_letter_id
        WHERE a.claim_id = p_claim_id AND a.covered_at IS NULL
        HAVING count(*) > 0;
END
$$;

-- After the alert service accepted the incident. A pump whose claim was taken over meanwhile covers nothing: those
-- letters belong to the newer incident.
CREATE FUNCTION core.alert_delivered(p_claim_id uuid, p_fingerprint text, p_external_id text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    covered bigint;
BEGIN
    UPDATE core.dead_letter_alerts SET covered_at = clock_timestamp()
    WHERE claim_id = p_claim_id AND covered_at IS NULL;
    GET DIAGNOSTICS covered = ROW_COUNT;
    IF covered > 0 THEN
        INSERT INTO core.alert_incidents (id, fingerprint, letters, external_id)
        VALUES (p_claim_id, p_fingerprint, covered, p_external_id);
    END IF;
    UPDATE core.alert_streams
    SET last_sent_at = clock_timestamp(), next_attempt_at = '-infinity', failures = 0, last_error = NULL
    WHERE fingerprint = p_fingerprint;
    RETURN covered;
END
$$;

CREATE FUNCTION core.alert_failed(p_fingerprint text, p_retry_after interval, p_error text) RETURNS void
LANGUAGE sql AS $$
    UPDATE core.alert_streams
    SET next_attempt_at = clock_timestamp() + p_retry_after, failures = failures + 1, last_error = p_error
    WHERE fingerprint = p_fingerprint;
$$;
