-- D2: failures that an operator can find, understand and replay.

-- A reason must have something to read in it. The same ranges are in `INVISIBLE` (harness/src/decision.rs):
-- controls, white space of every kind, soft hyphen, fillers, joiners, marks of direction, byte order mark.
CREATE FUNCTION core.has_visible_character(value text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(
        value,
        E'[\\u0001-\\u0020\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f-\\u1160\\u1680\\u17b4-\\u17b5\\u180b-\\u180f\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff9-\\ufffb\\U000e0000-\\U000e0fff]',
        '', 'g') <> ''
$$;

CREATE TABLE core.dead_letters (
    id             uuid        PRIMARY KEY,
    job_id         uuid        NOT NULL,
    consumer       text        NOT NULL,
    queue          text        NOT NULL,
    tenant_id      uuid,
    correlation_id text        NOT NULL,
    generation     integer     NOT NULL CHECK (generation >= 0),
    reason         text        NOT NULL CHECK (reason IN ('exhausted', 'hard', 'poison')),
    error_class    text        NOT NULL CHECK (error_class <> ''),
    attempts       bigint      NOT NULL CHECK (attempts >= 1),
    last_error     text        NOT NULL,
    -- For people. `body` is what a replay publishes.
    payload        jsonb       NOT NULL,
    body           bytea       NOT NULL,
    headers        jsonb       NOT NULL CHECK (jsonb_typeof(headers) = 'object'),
    status         text        NOT NULL DEFAULT 'pending_review'
                               CHECK (status IN ('pending_review', 'replayed', 'discarded')),
    discard_reason text,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    reviewed_at    timestamptz,
    reviewed_by    text,
    -- "Same kind of failure", for grouping alerts. Every part has a bounded alphabet without '/'.
    fingerprint    text        NOT NULL GENERATED ALWAYS AS
                               (queue || '/' || consumer || '/' || reason || '/' || error_class) STORED,
    CONSTRAINT dead_letters_one_per_generation UNIQUE (consumer, job_id, generation),
    CONSTRAINT dead_letters_discard_has_reason CHECK (
        CASE status
            WHEN 'discarded' THEN discard_reason IS NOT NULL AND core.has_visible_character(discard_reason)
            ELSE discard_reason IS NULL
        END),
    CONSTRAINT dead_letters_review_is_signed CHECK (
        CASE status
            WHEN 'pending_review' THEN reviewed_at IS NULL AND reviewed_by IS NULL
            ELSE reviewed_at IS NOT NULL AND reviewed_by IS NOT NULL AND core.has_visible_character(reviewed_by)
        END)
);

CREATE INDEX dead_letters_newest ON core.dead_letters (created_at DESC, id DESC);
CREATE INDEX dead_letters_pending ON core.dead_letters (created_at, id) WHERE status = 'pending_review';
CREATE INDEX dead_letters_job ON core.dead_letters (job_id);

CREATE FUNCTION core.dead_letters_append_only() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'UPDATE' THEN
        RAISE EXCEPTION 'core.dead_letters is append-only: % refused', TG_OP USING ERRCODE = 'JH003';
    END IF;
    IF OLD.status <> 'pending_review' OR NEW.status NOT IN ('replayed', 'discarded') THEN
        RAISE EXCEPTION 'core.dead_letters is append-only: % -> % refused', OLD.status, NEW.status
            USING ERRCODE = 'JH003';
    END IF;
    -- `fingerprint` is generated after BEFORE triggers run, so it is left out; its sources are compared.
    IF to_jsonb(OLD) - '{status,discard_reason,reviewed_at,reviewed_by,fingerprint}'::text[]
       IS DISTINCT FROM to_jsonb(NEW) - '{status,discard_reason,reviewed_at,reviewed_by,fingerprint}'::text[] THEN
        RAISE EXCEPTION 'core.dead_letters is append-only: only the review columns may change'
            USING ERRCODE = 'JH003';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER dead_letters_append_only
    BEFORE UPDATE OR DELETE ON core.dead_letters
    FOR EACH ROW EXECUTE FUNCTION core.dead_letters_append_only();
CREATE TRIGGER dead_letters_no_truncate
    BEFORE TRUNCATE ON core.dead_letters
    FOR EACH STATEMENT EXECUTE FUNCTION core.dead_letters_append_only();
