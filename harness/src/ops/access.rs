//! Who may do what. Tokens are kept as hashes: whoever reads the configuration cannot use them. Signed tokens are in
//! [`jwt`](super::jwt).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::jwt::Jwt;
use super::problem::Problem;
use crate::decision::Reviewer;
use crate::ports::clock::Clock;

/// What somebody may do; one for each endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Permission {
    /// P1: list dead letters.
    #[serde(rename = "core.dead_letters.read")]
    Read,
    /// P2: replay one.
    #[serde(rename = "core.dead_letters.replay")]
    Replay,
    /// P3: discard one.
    #[serde(rename = "core.dead_letters.discard")]
    Discard,
}

impl Permission {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Read, Self::Replay, Self::Discard];

    /// From its name in tokens.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == name)
    }

    /// As it is written in tokens.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "core.dead_letters.read",
            Self::Replay => "core.dead_letters.replay",
            Self::Discard => "core.dead_letters.discard",
        }
    }
}

/// A token as it is configured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// Who has it: signs the decisions that are made with it.
    pub name: String,
    /// [`token_hash`] of the token.
    pub sha256: String,
    /// What may be done with it.
    pub permissions: Vec<Permission>,
    /// A tenant's: nothing may be done with it here.
    #[serde(default)]
    pub tenant: bool,
}

/// Why tokens were not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Nobody could do anything.
    #[error("tokens: none is configured; add one, or serve without on a loopback address")]
    NoTokens,
    /// Decisions are signed with it.
    #[error("tokens[{0}].name: give the name of who has it, 1 to 200 characters")]
    Name(usize),
    /// No hash.
    #[error(
        "tokens[{0}].sha256: must be 64 hexadecimal digits, as `job-harness token-hash` prints them"
    )]
    Hash(usize),
    /// Whose is it?
    #[error("tokens[{0}].sha256: is the same as an earlier one's")]
    Twice(usize),
}

/// Who has a token.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) reviewer: Reviewer,
    pub(super) permissions: BTreeSet<Permission>,
    pub(super) tenant: bool,
}

/// Who may do what.
#[derive(Debug, Clone)]
pub struct Access {
    by_hash: BTreeMap<String, Holder>,
    jwt: Option<Jwt>,
    /// Who everybody is where no token is needed.
    everybody: Option<Reviewer>,
}

/// What is configured in the place of a token: the SHA-256 of it, in hexadecimal digits. Tokens must be long and random.
pub fn token_hash(token: &str) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(token.as_bytes()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// By how many tokens, and by whose signed ones.
impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.by_hash.len();
        match (&self.everybody, &self.jwt) {
            (Some(name), _) => write!(f, "by everybody here, as {name}"),
            (None, None) => write!(f, "by {tokens} static tokens"),
            (None, Some(jwt)) => write!(f, "by {tokens} static tokens, and by {jwt}"),
        }
    }
}

impl Access {
    /// Everybody with one of these tokens may do what it allows.
    ///
    /// # Errors
    /// When a token cannot be right; the error names it.
    pub fn tokens(tokens: &[Token]) -> Result<Self, AccessError> {
        Self::new(tokens, None)
    }

    /// Everybody with one of these tokens, or with one that is signed, may do what it allows.
    ///
    /// # Errors
    /// When a token cannot be right, the error names it; or when nobody could do anything.
    pub fn new(tokens: &[Token], jwt: Option<Jwt>) -> Result<Self, AccessError> {
        let mut by_hash = BTreeMap::new();
        for (n, token) in tokens.iter().enumerate() {
            let hash = token.sha256.to_ascii_lowercase();
            if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(AccessError::Hash(n));
            }
            let holder = Holder {
                reviewer: Reviewer::new(&token.name).map_err(|_| AccessError::Name(n))?,
                permissions: token.permissions.iter().copied().collect(),
                tenant: token.tenant,
            };
            if by_hash.insert(hash, holder).is_some() {
                return Err(AccessError::Twice(n));
            }
        }
        if by_hash.is_empty() && jwt.is_none() {
            return Err(AccessError::NoTokens);
        }
        Ok(Self {
            by_hash,
            jwt,
            everybody: None,
        })
    }

    /// Everybody may do everything, in this name. Only for a server that nobody else can reach.
    pub fn everybody(name: Reviewer) -> Self {
        Self {
            by_hash: BTreeMap::new(),
            jwt: None,
            everybody: Some(name),
        }
    }

    /// Who asks, if they may.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        needed: Permission,
        clock: &dyn Clock,
    ) -> Result<Reviewer, Problem> {
        if let Some(everybody) = &self.everybody {
            not_for_browsers(headers)?;
            return Ok(everybody.clone());
        }
        let holder = self.holder(bearer(headers)?, clock)?;
        if holder.tenant {
            let detail = "dead letters are for operators; this token is a tenant's";
            return Err(Problem::forbidden(detail, needed));
        }
        if !holder.permissions.contains(&needed) {
            let detail = format!(
                "this token does not have the permission {}",
                needed.as_str()
            );
            return Err(Problem::forbidden(&detail, needed));
        }
        Ok(holder.reviewer)
    }

    fn holder(&self, token: &str, clock: &dyn Clock) -> Result<Holder, Problem> {
        // Looked up by its hash: how long that takes says nothing about the tokens.
        if let Some(holder) = self.by_hash.get(&token_hash(token)) {
            return Ok(holder.clone());
        }
        match &self.jwt {
            // What has three parts is meant to be a signed one, and is told what is wrong with it.
            Some(jwt) if token.split('.').count() == 3 => jwt.check(token, clock),
            _ => Err(Problem::invalid_token("this token is not known")),
        }
    }
}

/// Where nobody shows a token, a web page that is open on the same machine could decide in the name of whoever sits there:
/// directly, or under a name of its own that leads to 127.0.0.1 (DNS rebinding). Browsers say that it is they.
fn not_for_browsers(headers: &HeaderMap) -> Result<(), Problem> {
    let site = headers.get("sec-fetch-site");
    if headers.contains_key(header::ORIGIN) || site.is_some_and(|site| site != "none") {
        let detail = "without tokens the API is not for web pages; start it with tokens, or call it from a program";
        return Err(Problem::not_from_here(detail));
    }
    let host = headers.get(header::HOST);
    if host.is_some_and(|host| !host.to_str().is_ok_and(is_loopback)) {
        let detail = "without tokens the API is called by the name localhost or a loopback address, and by no other";
        return Err(Problem::not_from_here(detail));
    }
    Ok(())
}

/// Whether a `Host` header names this machine and nothing else.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || (address.parse()).is_ok_and(|address: IpAddr| address.is_loopback())
}

/// The token. One header, or nobody can tell which is meant.
fn bearer(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let token = match (all.next(), all.next()) {
        (Some(one), None) => one.to_str().ok().and_then(|header| {
            let (scheme, token) = header.split_once(' ')?;
            let token = token.trim();
            (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
        }),
        _ => None,
    };
    token.ok_or_else(|| Problem::unauthorized("send Authorization: Bearer <token>, once"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_this_machine_only_under_names_that_nobody_else_can_have() {
        for here in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.0.0.9:80",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in [
            "",
            ":80",
            "localhost.example",
            "127.0.0.1.example:80",
            "10.0.0.1",
            "[::2]:80",
            "localhost:x",
            "example",
        ] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }
}
