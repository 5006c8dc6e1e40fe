-- Every filter of the list has an index that also gives its order, so that a page costs the same with a million rows.
-- Dead letters are rare: what the indexes cost when one is written does not matter.
CREATE INDEX dead_letters_by_status ON core.dead_letters (status, created_at, id);
CREATE INDEX dead_letters_by_queue ON core.dead_letters (queue, created_at, id);
CREATE INDEX dead_letters_by_consumer ON core.dead_letters (consumer, created_at, id);
CREATE INDEX dead_letters_by_reason ON core.dead_letters (reason, created_at, id);
CREATE INDEX dead_letters_by_tenant ON core.dead_letters (tenant_id, created_at, id) WHERE tenant_id IS NOT NULL;
CREATE INDEX dead_letters_by_correlation ON core.dead_letters (correlation_id, created_at, id);
CREATE INDEX dead_letters_by_fingerprint ON core.dead_letters (fingerprint, created_at, id);

-- Text in errors. The extension comes with PostgreSQL's contrib modules; where they are not installed, or may not be
-- created, such a search reads all rows of its time range. Without
-- `fastupdate` a row costs more when it is written, and a search never has a list of unsorted rows to read.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_trgm') THEN
        CREATE EXTENSION IF NOT EXISTS pg_trgm;
        EXECUTE (SELECT format('CREATE INDEX dead_letters_error_text ON core.dead_letters USING gin (last_error %I.gin_trgm_ops) WITH (fastupdate = off)', nspname)
                 FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'pg_trgm');
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'pg_trgm cannot be created: searches for text in errors read all rows';
END
$$;
