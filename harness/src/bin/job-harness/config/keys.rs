//! Every key, once: what may be in the file, in the environment, and behind `--set`.

/// How a value is written outside of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As it is.
    Text,
    /// A whole number.
    Number,
    /// As in the file.
    Toml,
}

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) path: &'static str,
    pub(super) kind: Kind,
    pub(crate) help: &'static str,
}

const fn text(path: &'static str, help: &'static str) -> Key {
    let kind = Kind::Text;
    Key { path, kind, help }
}

const fn number(path: &'static str, help: &'static str) -> Key {
    let kind = Kind::Number;
    Key { path, kind, help }
}

/// All of them, in the order in which they are shown.
pub(crate) const KEYS: &[Key] = &[
    text("listen", "where the API listens, without TLS"),
    text(
        "database.url_file",
        "a file with the URL, in the place of DATABASE_URL",
    ),
    number(
        "database.max_connections",
        "connections of the store; its queue takes 4 more",
    ),
    text(
        "access.tokens_file",
        "a JSON list of tokens, by their hashes",
    ),
    text(
        "access.jwt.algorithm",
        "EdDSA, RS256 or HS256: signed tokens (JWT) are accepted, too",
    ),
    text("access.jwt.issuer", "what `iss` is in signed tokens"),
    text("access.jwt.audience", "what `aud` is in signed tokens"),
    text("access.jwt.leeway", "how far clocks may differ"),
    text(
        "access.jwt.jwks_file",
        "the public keys of EdDSA or RS256, read again when they may have changed",
    ),
    text(
        "access.jwt.secret_file",
        "a file with the secret of HS256, in the place of JOB_HARNESS_JWT_SECRET",
    ),
    text(
        "sweep.interval",
        "from the end of a sweep to the start of the next",
    ),
    number("sweep.batch", "fences per transaction"),
    text(
        "alerts.requester_email",
        "who opens incidents at Better Stack; without it nobody is alerted",
    ),
    text(
        "alerts.token_file",
        "a file with the API token, in the place of BETTER_STACK_TOKEN",
    ),
    text("alerts.base_url", "where Better Stack is"),
    text("alerts.policy_id", "the escalation policy of incidents"),
    text(
        "alerts.window",
        "the least time between two incidents of one kind",
    ),
    text(
        "alerts.escalate_after",
        "a dead letter that waits for longer is alerted once more",
    ),
    text(
        "alerts.escalate_window",
        "the least time between two such incidents of one kind",
    ),
    text(
        "alerts.escalation_policy_id",
        "the escalation policy of such incidents; alerts.policy_id without it",
    ),
    text(
        "alerts.heartbeat_url_file",
        "a file with the URL of a heartbeat, in the place of BETTER_STACK_HEARTBEAT_URL",
    ),
    text(
        "alerts.heartbeat_interval",
        "how often the heartbeat is told that alerting works",
    ),
    text(
        "alerts.timeout",
        "the longest that a call to Better Stack may take",
    ),
    text(
        "metrics.interval",
        "how often queues, letters and fences are measured",
    ),
    Key {
        path: "consumers",
        kind: Kind::Toml,
        help: "whose fences are swept: [{ name, queue, run_deadline, retry = { base, cap, retries, rationale }, fence = { ttl, broker_retention, resend_horizon, margin } }]",
    },
];

/// What is a secret, and where it belongs.
pub(super) const SECRETS: [(&str, &str, &str); 4] = [
    ("database.url", "DATABASE_URL", "database.url_file"),
    ("alerts.token", "BETTER_STACK_TOKEN", "alerts.token_file"),
    (
        "alerts.heartbeat_url",
        "BETTER_STACK_HEARTBEAT_URL",
        "alerts.heartbeat_url_file",
    ),
    (
        "access.jwt.secret",
        "JOB_HARNESS_JWT_SECRET",
        "access.jwt.secret_file",
    ),
];

/// Variables of ours that are no key.
pub(super) const OTHER_VARIABLES: [&str; 3] = [
    "JOB_HARNESS_CONFIG",
    "JOB_HARNESS_BY",
    "JOB_HARNESS_JWT_SECRET",
];

/// The variable of a key.
pub(crate) fn environment_name(path: &str) -> String {
    format!(
        "JOB_HARNESS_{}",
        path.replace('.', "_").to_ascii_uppercase()
    )
}
