-- D1: the dedupe fence. One row per (job, consumer) whose effect has been applied.

CREATE TABLE core.processed_jobs (
    job_id       uuid        NOT NULL,
    consumer     text        NOT NULL,
    tenant_id    uuid,
    processed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (job_id, consumer),
    CONSTRAINT processed_jobs_expiry_follows_processing CHECK (expires_at > processed_at)
);

-- The sweep walks one consumer's fences in the order of their expiry.
CREATE INDEX processed_jobs_expiry ON core.processed_jobs (consumer, expires_at);

COMMENT ON TABLE core.processed_jobs IS
    'Dedupe fence: a row exists exactly when the effect of (job_id, consumer) is committed.';

-- A fence may become durable only through the harness's own COMMIT. The harness seals the transaction in the same
-- round trip in which it commits; a COMMIT that a handler sends by itself finds the seal missing, fails, and takes
-- the half-done effect with it.
CREATE FUNCTION core.seal(expected_xact text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_current_xact_id_if_assigned()::text IS DISTINCT FROM expected_xact THEN
        RAISE EXCEPTION 'this is not the transaction that holds the fence'
            USING ERRCODE = 'JH001',
                  DETAIL = format('expected transaction %s, found %s', expected_xact,
                                  coalesce(pg_current_xact_id_if_assigned()::text, 'none'));
    END IF;
    PERFORM set_config('core.sealed_xact', expected_xact, true);
END
$$;

CREATE FUNCTION core.require_seal() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('core.sealed_xact', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        RAISE EXCEPTION 'a fence is committed by the harness only'
            USING ERRCODE = 'JH002',
                  HINT = 'A handler must not end the transaction that it was given.';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER processed_jobs_sealed
    AFTER INSERT ON core.processed_jobs
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION core.require_seal();
