-- The gate: who may apply an effect, and who may say that it failed. Both sides take the fence key first, so that for
-- each (job, consumer, generation) exactly one of them wins.

-- Waits at most `wait` for a twin that holds the fence key (else 55P03). The handler's own statements are bounded by
-- `deadline` and wait for locks as the session is set up to.
CREATE FUNCTION core.fence(
    p_job_id uuid, p_consumer text, p_generation integer, p_tenant_id uuid,
    p_ttl interval, p_wait_ms bigint, p_deadline_ms bigint,
    OUT verdict text, OUT xact text)
LANGUAGE plpgsql AS $$
DECLARE
    session_lock_timeout text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', p_wait_ms::text, true);
    INSERT INTO core.processed_jobs (job_id, consumer, tenant_id, processed_at, expires_at)
    VALUES (p_job_id, p_consumer, p_tenant_id, clock_timestamp(), clock_timestamp() + p_ttl)
    ON CONFLICT (job_id, consumer) DO NOTHING;
    IF NOT FOUND THEN
        verdict := 'duplicate';
        RETURN;
    END IF;

    -- A new statement, hence a new snapshot: it sees what a dead-letter writer committed while we waited. A discard of
    -- the generation before is final also for a replay that was published but never recorded.
    PERFORM FROM core.dead_letters
    WHERE consumer = p_consumer AND job_id = p_job_id
      AND (generation = p_generation OR (generation = p_generation - 1 AND status = 'discarded'));
    IF FOUND THEN
        verdict := 'settled';
        RETURN;
    END IF;

    PERFORM set_config('lock_timeout', session_lock_timeout, true);
    PERFORM set_config('statement_timeout', p_deadline_ms::text, true);
    PERFORM set_config('idle_in_transaction_session_timeout', p_deadline_ms::text, true);
    verdict := 'acquired';
    xact := pg_current_xact_id()::text;
END
$$;

-- Takes the fence key without leaving a fence: true when this transaction holds it, false when the job was applied.
CREATE FUNCTION core.hold_fence_key(p_job_id uuid, p_consumer text, p_wait_ms bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', p_wait_ms::text, true);
    INSERT INTO core.processed_jobs (job_id, consumer, processed_at, expires_at)
    VALUES (p_job_id, p_consumer, clock_timestamp(), 'infinity')
    ON CONFLICT (job_id, consumer) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- A twin keeps waiting for this transaction, not for the row.
    DELETE FROM core.processed_jobs WHERE job_id = p_job_id AND consumer = p_consumer;
    PERFORM core.seal(pg_current_xact_id()::text);
    RETURN true;
END
$$;

CREATE FUNCTION core.record_dead_letter(
    p_id uuid, p_job_id uuid, p_consumer text, p_queue text, p_tenant_id uuid, p_correlation_id text,
    p_generation integer, p_reason text, p_error_class text, p_attempts bigint, p_last_error text,
    p_payload jsonb, p_body bytea, p_headers jsonb, p_wait_ms bigint)
RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT core.hold_fence_key(p_job_id, p_consumer, p_wait_ms) THEN
        RETURN 'applied';
    END IF;
    INSERT INTO core.dead_letters (
        id, job_id, consumer, queue, tenant_id, correlation_id, generation, reason, error_class, attempts,
        last_error, payload, body, headers)
    VALUES (
        p_id, p_job_id, p_consumer, p_queue, p_tenant_id, p_correlation_id, p_generation, p_reason, p_error_class,
        p_attempts, p_last_error, p_payload, p_body, p_headers)
    ON CONFLICT ON CONSTRAINT dead_letters_one_per_generation DO NOTHING;
    RETURN CASE WHEN FOUND THEN 'written' ELSE 'already' END;
END
$$;

-- Answers 'discarded', 'already' (discarded before), 'replayed', 'not_found', or 'applied' (the letter is pending, but
-- a replay of it that could not be recorded was applied).
CREATE FUNCTION core.discard_dead_letter(p_id uuid, p_reason text, p_by text, p_wait_ms bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    letter record;
BEGIN
    SELECT job_id, consumer, status INTO letter FROM core.dead_letters WHERE id = p_id;
    IF NOT FOUND THEN
        RETURN 'not_found';
    END IF;
    IF letter.status = 'pending_review' THEN
        IF NOT core.hold_fence_key(letter.job_id, letter.consumer, p_wait_ms) THEN
            RETURN 'applied';
        END IF;
        UPDATE core.dead_letters
        SET status = 'discarded', discard_reason = p_reason, reviewed_at = clock_timestamp(), reviewed_by = p_by
        WHERE id = p_id AND status = 'pending_review';
        IF FOUND THEN
            RETURN 'discarded';
        END IF;
        -- Somebody decided while we waited. A new statement sees what.
        SELECT status INTO letter.status FROM core.dead_letters WHERE id = p_id;
    END IF;
    RETURN CASE letter.status WHEN 'discarded' THEN 'already' ELSE letter.status END;
END
$$;

-- S10. `p_horizon` is the enqueue time of the oldest message that was still queued when `p_asked_at` was read from the
-- database's clock; a copy that is still queued may meet its fence, so no fence that expired after it goes.
-- A pending dead letter may still be replayed, and its job may be applied already: by an earlier replay that was published
-- and not recorded. So its fence stays, however old; and after the decision until no message of that time is queued any
-- more, and a day longer, because the queue's clock may not be the database's.
CREATE FUNCTION core.sweep_fences(
    p_consumer text, p_asked_at timestamptz, p_horizon timestamptz, p_retry_window interval, p_limit integer)
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    removed bigint;
BEGIN
    DELETE FROM core.processed_jobs
    WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM core.processed_jobs AS fence
        WHERE consumer = p_consumer
          AND expires_at <= least(p_asked_at, p_horizon)
          AND processed_at < clock_timestamp() - p_retry_window
          AND NOT EXISTS (
              SELECT FROM core.dead_letters AS letter
              WHERE letter.consumer = fence.consumer AND letter.job_id = fence.job_id
                AND (letter.status = 'pending_review'
                     OR letter.reviewed_at >= least(p_asked_at, p_horizon) - interval '1 day'))
        ORDER BY expires_at
        LIMIT p_limit
        FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END
$$;
