-- The gate for a batch: the fences of several jobs of one consumer in one statement. Verdicts are in the order of the jobs,
-- which must all be different ones.
--
-- Keys are taken in the order of their ids, so that two batches never wait for each other. The wait is for each twin.
-- Unlike core.fence, what is settled leaves no fence behind: the transaction may be committed for the others' sake.
CREATE FUNCTION core.fence_all(
    p_job_ids uuid[], p_consumer text, p_generations integer[], p_tenant_ids uuid[],
    p_ttl interval, p_wait_ms bigint, p_deadline_ms bigint,
    OUT verdicts text[], OUT xact text)
LANGUAGE plpgsql AS $$
DECLARE
    session_lock_timeout text := current_setting('lock_timeout');
    taken uuid[];
    settled uuid[];
BEGIN
    PERFORM set_config('lock_timeout', p_wait_ms::text, true);
    WITH inserted AS (
        INSERT INTO core.processed_jobs (job_id, consumer, tenant_id, processed_at, expires_at)
        SELECT job.id, p_consumer, job.tenant_id, clock_timestamp(), clock_timestamp() + p_ttl
        FROM unnest(p_job_ids, p_tenant_ids) AS job (id, tenant_id)
        ORDER BY job.id
        ON CONFLICT (job_id, consumer) DO NOTHING
        RETURNING job_id)
    SELECT coalesce(array_agg(job_id), '{}') INTO taken FROM inserted;

    -- A new statement, hence a new snapshot, as in core.fence. A twin keeps waiting for this transaction, not for the row.
    WITH removed AS (
        DELETE FROM core.processed_jobs AS fence
        USING unnest(p_job_ids, p_generations) AS job (id, generation), unnest(taken) AS mine (id)
        WHERE mine.id = job.id AND fence.job_id = job.id AND fence.consumer = p_consumer
          AND EXISTS (
              SELECT FROM core.dead_letters AS letter
              WHERE letter.consumer = p_consumer AND letter.job_id = job.id
                AND (letter.generation = job.generation
                     OR (letter.generation = job.generation - 1 AND letter.status = 'discarded')))
        RETURNING fence.job_id)
    SELECT coalesce(array_agg(job_id), '{}') INTO settled FROM removed;

    SELECT array_agg(
               CASE WHEN gone.id IS NOT NULL THEN 'settled' WHEN mine.id IS NOT NULL THEN 'acquired' ELSE 'duplicate' END
               ORDER BY job.place)
    INTO verdicts
    FROM unnest(p_job_ids) WITH ORDINALITY AS job (id, place)
    LEFT JOIN unnest(taken) AS mine (id) ON mine.id = job.id
    LEFT JOIN unnest(settled) AS gone (id) ON gone.id = job.id;

    PERFORM set_config('lock_timeout', session_lock_timeout, true);
    PERFORM set_config('statement_timeout', p_deadline_ms::text, true);
    PERFORM set_config('idle_in_transaction_session_timeout', p_deadline_ms::text, true);
    IF cardinality(taken) > cardinality(settled) THEN
        xact := pg_current_xact_id()::text;
    END IF;
END
$$;
