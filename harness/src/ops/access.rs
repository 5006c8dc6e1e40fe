//! Who may do what. Tokens are kept as hashes: whoever reads the configuration cannot use them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::problem::Problem;
use crate::decision::Reviewer;

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

#[derive(Debug, Clone)]
struct Holder {
    reviewer: Reviewer,
    permissions: Vec<Permission>,
    tenant: bool,
}

/// Who may do what.
#[derive(Debug, Clone)]
pub struct Access {
    by_hash: BTreeMap<String, Holder>,
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

impl Access {
    /// Everybody with one of these tokens may do what it allows.
    ///
    /// # Errors
    /// When a token cannot be right; the error names it.
    pub fn tokens(tokens: &[Token]) -> Result<Self, AccessError> {
        let mut by_hash = BTreeMap::new();
        for (n, token) in tokens.iter().enumerate() {
            let hash = token.sha256.to_ascii_lowercase();
            if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(AccessError::Hash(n));
            }
            let holder = Holder {
                reviewer: Reviewer::new(&token.name).map_err(|_| AccessError::Name(n))?,
                permissions: token.permissions.clone(),
                tenant: token.tenant,
            };
            if by_hash.insert(hash, holder).is_some() {
                return Err(AccessError::Twice(n));
            }
        }
        if by_hash.is_empty() {
            return Err(AccessError::NoTokens);
        }
        Ok(Self {
            by_hash,
            everybody: None,
        })
    }

    /// Everybody may do everything, in this name. Only for a server that nobody else can reach.
    pub fn everybody(name: Reviewer) -> Self {
        Self {
            by_hash: BTreeMap::new(),
            everybody: Some(name),
        }
    }

    /// Who asks, if they may.
    pub(super) fn check(
        &self,
        authorization: Option<&str>,
        needed: Permission,
    ) -> Result<Reviewer, Problem> {
        if let Some(everybody) = &self.everybody {
            return Ok(everybody.clone());
        }
        let token = authorization.and_then(|header| {
            let (scheme, token) = header.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            return Err(Problem::unauthorized("send Authorization: Bearer <token>"));
        };
        // Looked up by its hash: how long that takes says nothing about the tokens.
        let Some(holder) = self.by_hash.get(&token_hash(token)) else {
            return Err(Problem::unauthorized("this token is not known"));
        };
        if holder.tenant {
            return Err(Problem::forbidden(
                "dead letters are for operators; this token is a tenant's",
            ));
        }
        if !holder.permissions.contains(&needed) {
            let detail = format!(
                "this token does not have the permission {}",
                needed.as_str()
            );
            return Err(Problem::forbidden(&detail));
        }
        Ok(holder.reviewer.clone())
    }
}
