-- Escalation of letters that wait too long, and closing of incidents that nobody needs any more. Both are found in the
-- bookkeeping alone, by indexes that hold nothing but what is open: `core.dead_letters` is not read.

-- What a fingerprint may owe: an incident for new letters, one for overdue letters, the resolving of its incidents. Each has
-- its own claim, window and backoff.
ALTER TABLE core.dead_letter_alerts DROP CONSTRAINT dead_letter_alerts_fingerprint_fkey;
ALTER TABLE core.alert_incidents DROP CONSTRAINT alert_incidents_fingerprint_fkey;
ALTER TABLE core.alert_streams
    ADD COLUMN kind text NOT NULL DEFAULT 'new' CHECK (kind IN ('new', 'overdue', 'resolve')),
    -- Whose turn it is; whoever comes late must not cut somebody else's turn short.
    ADD COLUMN claim_id uuid,
    DROP CONSTRAINT alert_streams_pkey,
    ADD PRIMARY KEY (fingerprint, kind);
ALTER TABLE core.alert_streams ALTER COLUMN kind DROP DEFAULT;
INSERT INTO core.alert_streams (fingerprint, kind)
    SELECT fingerprint, other.kind FROM core.alert_streams, (VALUES ('overdue'), ('resolve')) AS other (kind);

ALTER TABLE core.alert_incidents
    ADD COLUMN kind text NOT NULL DEFAULT 'new' CHECK (kind IN ('new', 'overdue')),
    ADD COLUMN resolved_at timestamptz,
    -- An incident whose letters were all taken over by a newer one is still open at the alert service.
    DROP CONSTRAINT alert_incidents_letters_check,
    ADD CHECK (letters >= 0);
ALTER TABLE core.alert_incidents ALTER COLUMN kind DROP DEFAULT;
CREATE INDEX alert_incidents_open ON core.alert_incidents (fingerprint, sent_at)
    WHERE resolved_at IS NULL AND external_id IS NOT NULL;

ALTER TABLE core.dead_letter_alerts
    -- Copies from the letter, so that the letter need not be read.
    ADD COLUMN written_at timestamptz,
    ADD COLUMN decided_at timestamptz,
    -- The incident that says that it is overdue, also while that one is still being sent.
    ADD COLUMN escalation_id uuid,
    ADD COLUMN escalated_at timestamptz;
UPDATE core.dead_letter_alerts a SET written_at = d.created_at, decided_at = d.reviewed_at
    FROM core.dead_letters d WHERE d.id = a.dead_letter_id;
ALTER TABLE core.dead_letter_alerts ALTER COLUMN written_at SET NOT NULL;
CREATE INDEX dead_letter_alerts_pending ON core.dead_letter_alerts (fingerprint) WHERE decided_at IS NULL;
-- "Once more": only a letter that was alerted can be overdue.
CREATE INDEX dead_letter_alerts_overdue ON core.dead_letter_alerts (fingerprint, written_at)
    WHERE decided_at IS NULL AND escalated_at IS NULL AND covered_at IS NOT NULL;
CREATE INDEX dead_letter_alerts_escalation ON core.dead_letter_alerts (escalation_id) WHERE escalation_id IS NOT NULL;

CREATE OR REPLACE FUNCTION core.owe_alert() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    stored_fingerprint text := NEW.fingerprint;
BEGIN
    -- Looked up first: an INSERT that conflicts would burn a speculative token on every letter of a burst.
    PERFORM FROM core.alert_streams WHERE fingerprint = stored_fingerprint AND kind = 'new';
    IF NOT FOUND THEN
        INSERT INTO core.alert_streams (fingerprint, kind)
            SELECT stored_fingerprint, kinds.kind FROM (VALUES ('new'), ('overdue'), ('resolve')) AS kinds (kind)
            ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO core.dead_letter_alerts (dead_letter_id, fingerprint, written_at)
        VALUES (NEW.id, stored_fingerprint, NEW.created_at);
    RETURN NULL;
END
$$;

CREATE FUNCTION core.note_decision() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE core.dead_letter_alerts SET decided_at = NEW.reviewed_at WHERE dead_letter_id = NEW.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER dead_letters_note_decision
    AFTER UPDATE ON core.dead_letters
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status)
    EXECUTE FUNCTION core.note_decision();

-- Pumps of the version before cannot work on these tables; without their functions they say so and wait to be replaced.
DROP FUNCTION core.claim_alert(uuid, interval, interval);
DROP FUNCTION core.alert_delivered(uuid, text, text);
DROP FUNCTION core.alert_failed(text, interval, text);

-- Whether a fingerprint owes something: a probe of an index or two, however many letters there are. A function, so that the
-- planner cannot turn many probes into one reading of all letters.
CREATE FUNCTION core.alert_is_owed(p_fingerprint text, p_kind text, p_written_before timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    CASE p_kind
        WHEN 'new' THEN
            RETURN EXISTS (SELECT FROM core.dead_letter_alerts
                           WHERE fingerprint = p_fingerprint AND covered_at IS NULL);
        WHEN 'overdue' THEN
            RETURN EXISTS (SELECT FROM core.dead_letter_alerts
                           WHERE fingerprint = p_fingerprint AND written_at <= p_written_before
                             AND decided_at IS NULL AND escalated_at IS NULL AND covered_at IS NOT NULL);
        WHEN 'resolve' THEN
            RETURN EXISTS (SELECT FROM core.alert_incidents
                           WHERE fingerprint = p_fingerprint AND resolved_at IS NULL AND external_id IS NOT NULL)
               AND NOT EXISTS (SELECT FROM core.dead_letter_alerts
                               WHERE fingerprint = p_fingerprint AND decided_at IS NULL);
    END CASE;
END
$$;

-- Locks a fingerprint whose turn it is to be alerted or resolved.
CREATE FUNCTION core.lock_alert_stream(p_kind text, p_written_before timestamptz, p_window interval,
    OUT fingerprint text, OUT failures integer)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT s.fingerprint, s.failures INTO fingerprint, failures
    FROM core.alert_streams s
    WHERE s.kind = p_kind AND s.next_attempt_at <= clock_timestamp()
      AND (s.last_sent_at IS NULL OR s.last_sent_at + p_window <= clock_timestamp())
      AND core.alert_is_owed(s.fingerprint, p_kind, p_written_before)
    ORDER BY s.next_attempt_at, s.fingerprint
    LIMIT 1
    FOR NO KEY UPDATE OF s SKIP LOCKED;
END
$$;

-- Claims one fingerprint that is due: its letters are tied to `p_claim_id`, and no other pump alerts it for `p_lease`. A pump
-- that dies leaves the letters as they were; after the lease the next pump claims them again. `p_age` is how old a letter
-- must be.
CREATE FUNCTION core.claim_alert(p_claim_id uuid, p_kind text, p_age interval, p_window interval, p_lease interval,
    OUT fingerprint text, OUT letters bigint, OUT failures integer,
    OUT first_at timestamptz, OUT last_at timestamptz, OUT sample_id uuid)
RETURNS SETOF record
LANGUAGE plpgsql AS $$
DECLARE
    stream record;
    written_before timestamptz := clock_timestamp() - p_age;
BEGIN
    SELECT * INTO stream FROM core.lock_alert_stream(p_kind, written_before, p_window);
    IF stream.fingerprint IS NULL THEN
        RETURN;
    END IF;
    fingerprint := stream.fingerprint;
    failures := stream.failures;
    CASE p_kind
        WHEN 'new' THEN
            WITH claimed AS (
                UPDATE core.dead_letter_alerts a SET claim_id = p_claim_id
                WHERE a.fingerprint = stream.fingerprint AND a.covered_at IS NULL
                RETURNING a.dead_letter_id, a.written_at)
            SELECT count(*), min(c.written_at), max(c.written_at),
                   (array_agg(c.dead_letter_id ORDER BY c.written_at DESC, c.dead_letter_id DESC))[1]
            INTO letters, first_at, last_at, sample_id FROM claimed c;
        WHEN 'overdue' THEN
            WITH claimed AS (
                UPDATE core.dead_letter_alerts a SET escalation_id = p_claim_id
                WHERE a.fingerprint = stream.fingerprint AND a.written_at <= written_before
                  AND a.decided_at IS NULL AND a.escalated_at IS NULL AND a.covered_at IS NOT NULL
                RETURNING a.dead_letter_id, a.written_at)
            SELECT count(*), min(c.written_at), max(c.written_at),
                   (array_agg(c.dead_letter_id ORDER BY c.written_at, c.dead_letter_id))[1]
            INTO letters, first_at, last_at, sample_id FROM claimed c;
    END CASE;
    IF letters = 0 THEN
        RETURN;
    END IF;
    UPDATE core.alert_streams s SET next_attempt_at = clock_timestamp() + p_lease, claim_id = p_claim_id
    WHERE s.fingerprint = stream.fingerprint AND s.kind = p_kind;
    RETURN NEXT;
END
$$;

-- Claims one incident to resolve: the oldest of a fingerprint that has no pending letter.
CREATE FUNCTION core.claim_resolve(p_claim_id uuid, p_lease interval,
    OUT incident_id uuid, OUT fingerprint text, OUT external_id text, OUT failures integer)
RETURNS SETOF record
LANGUAGE plpgsql AS $$
DECLARE
    stream record;
BEGIN
    SELECT * INTO stream FROM core.lock_alert_stream('resolve', NULL, interval '0');
    IF stream.fingerprint IS NULL THEN
        RETURN;
    END IF;
    -- Looked at again: what was seen before the lock may be over.
    SELECT i.id, i.external_id INTO incident_id, external_id
    FROM core.alert_incidents i
    WHERE i.fingerprint = stream.fingerprint AND i.resolved_at IS NULL AND i.external_id IS NOT NULL
      AND core.alert_is_owed(stream.fingerprint, 'resolve', NULL)
    ORDER BY i.sent_at
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    fingerprint := stream.fingerprint;
    failures := stream.failures;
    UPDATE core.alert_streams s SET next_attempt_at = clock_timestamp() + p_lease, claim_id = p_claim_id
    WHERE s.fingerprint = stream.fingerprint AND s.kind = 'resolve';
    RETURN NEXT;
END
$$;

-- The alert service did what was asked. The turn is over, if it is still this claim's.
CREATE FUNCTION core.end_alert_turn(p_claim_id uuid, p_fingerprint text, p_kind text) RETURNS void
LANGUAGE sql AS $$
    UPDATE core.alert_streams
    SET last_sent_at = clock_timestamp(), failures = 0, last_error = NULL,
        next_attempt_at = CASE WHEN claim_id = p_claim_id THEN '-infinity' ELSE next_attempt_at END
    WHERE fingerprint = p_fingerprint AND kind = p_kind;
$$;

-- After the alert service accepted the incident. A pump whose claim was taken over meanwhile covers nothing: those
-- letters belong to the newer incident. What is open at the service is on record all the same, so that it is resolved.
CREATE FUNCTION core.alert_delivered(p_claim_id uuid, p_kind text, p_fingerprint text, p_external_id text)
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    covered bigint;
BEGIN
    IF p_kind = 'overdue' THEN
        UPDATE core.dead_letter_alerts SET escalated_at = clock_timestamp()
        WHERE escalation_id = p_claim_id AND escalated_at IS NULL;
    ELSE
        UPDATE core.dead_letter_alerts SET covered_at = clock_timestamp()
        WHERE claim_id = p_claim_id AND covered_at IS NULL;
    END IF;
    GET DIAGNOSTICS covered = ROW_COUNT;
    IF covered > 0 OR p_external_id IS NOT NULL THEN
        -- Said twice, when the first answer was lost: the first has it right.
        INSERT INTO core.alert_incidents (id, kind, fingerprint, letters, external_id)
        VALUES (p_claim_id, p_kind, p_fingerprint, covered, p_external_id)
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM core.end_alert_turn(p_claim_id, p_fingerprint, p_kind);
    RETURN covered;
END
$$;

CREATE FUNCTION core.incident_resolved(p_claim_id uuid, p_incident_id uuid, p_fingerprint text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE core.alert_incidents SET resolved_at = clock_timestamp()
    WHERE id = p_incident_id AND resolved_at IS NULL;
    PERFORM core.end_alert_turn(p_claim_id, p_fingerprint, 'resolve');
END
$$;

-- The alert service did not do what was asked.
CREATE FUNCTION core.alert_failed(p_claim_id uuid, p_kind text, p_fingerprint text, p_retry_after interval, p_error text)
RETURNS void
LANGUAGE sql AS $$
    UPDATE core.alert_streams
    SET next_attempt_at = clock_timestamp() + p_retry_after, failures = failures + 1, last_error = p_error
    WHERE fingerprint = p_fingerprint AND kind = p_kind AND claim_id = p_claim_id;
$$;

-- Whether the alert service refused what is still owed. What nobody owes any more is no sign of trouble.
CREATE FUNCTION core.alerts_failing(p_escalate_after interval) RETURNS boolean
LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM core.alert_streams s
        WHERE s.failures > 0 AND core.alert_is_owed(s.fingerprint, s.kind, clock_timestamp() - p_escalate_after));
$$;
