//! Signed tokens (JWT, RFC 7519) as bearer tokens.
//!
//! One algorithm, pinned by configuration: what a token's header says never chooses how it is checked. Every claim that
//! limits a token must be there and of its own type; times are compared with the injected clock. What is wrong is said only
//! once the signature holds, so that nobody learns from guesses.

mod claims;
mod keys;
mod provider;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, Validation};
use serde::{Deserialize, Serialize};

use self::keys::Ring;
use super::access::Holder;
use super::problem::Problem;
use crate::ports::clock::Clock;

/// Longer ones are not looked at, in bytes.
const TOKEN_MAX_BYTES: usize = 8 * 1_024;
const LEEWAY_MAX: Duration = Duration::from_secs(600);

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JwtAlgorithm {
    /// Ed25519.
    EdDSA,
    /// RSA with PKCS #1 v1.5 and SHA-256, at least 2048 bits.
    RS256,
    /// HMAC with SHA-256 and a shared secret.
    HS256,
}

impl JwtAlgorithm {
    /// As tokens name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EdDSA => "EdDSA",
            Self::RS256 => "RS256",
            Self::HS256 => "HS256",
        }
    }

    const fn theirs(self) -> Algorithm {
        match self {
            Self::EdDSA => Algorithm::EdDSA,
            Self::RS256 => Algorithm::RS256,
            Self::HS256 => Algorithm::HS256,
        }
    }
}

/// A shared secret. It is never printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct JwtSecret(String);

impl JwtSecret {
    /// At least 32 bytes; that is checked where it is used.
    pub fn new(secret: &str) -> Self {
        Self(secret.to_owned())
    }
}

impl std::fmt::Debug for JwtSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JwtSecret")
    }
}

/// What signatures are checked with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JwtKeys {
    /// HS256: the secret itself.
    Secret(JwtSecret),
    /// HS256: a file with the secret; a line break at its end is not part of it.
    SecretFile(PathBuf),
    /// EdDSA and RS256: a file with a set of public keys (RFC 7517).
    JwksFile(PathBuf),
}

/// Which signed tokens are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// The only algorithm.
    pub algorithm: JwtAlgorithm,
    /// What `iss` must be.
    pub issuer: String,
    /// What `aud` must be, or have among others.
    pub audience: String,
    /// How far clocks may differ, at most 10 minutes. Default 30 s.
    pub leeway: Duration,
    /// What signatures are checked with. Files are read again every minute, and for a key that is not known.
    pub keys: JwtKeys,
}

impl JwtConfig {
    /// How far clocks may differ unless something else is said.
    pub const LEEWAY: Duration = Duration::from_secs(30);

    /// With the default leeway.
    pub fn new(algorithm: JwtAlgorithm, issuer: &str, audience: &str, keys: JwtKeys) -> Self {
        Self {
            algorithm,
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            leeway: Self::LEEWAY,
            keys,
        }
    }
}

/// Why signed tokens cannot be accepted as configured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// Tokens of anybody would do.
    #[error("issuer: is empty; give what `iss` is in the tokens")]
    Issuer,
    /// Tokens for anything would do.
    #[error("audience: is empty; give what `aud` is in the tokens")]
    Audience,
    /// Expired tokens would do.
    #[error("leeway: {0:?} is too long; at most {LEEWAY_MAX:?}")]
    Leeway(Duration),
    /// Keys of another kind.
    #[error("keys: {} takes {takes}", .algorithm.as_str())]
    Kind {
        /// What is configured.
        algorithm: JwtAlgorithm,
        /// What it needs.
        takes: &'static str,
    },
    /// No keys.
    #[error("keys: {0}")]
    Keys(String),
}

/// Checks signed tokens. Cloning shares the keys.
#[derive(Debug, Clone)]
pub struct Jwt {
    config: Arc<JwtConfig>,
    ring: Arc<Ring>,
}

/// Whose tokens, and how they are signed.
impl std::fmt::Display for Jwt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let JwtConfig {
            algorithm, issuer, ..
        } = &*self.config;
        write!(f, "those that {issuer} signs with {}", algorithm.as_str())
    }
}

impl Jwt {
    /// Reads the keys.
    ///
    /// # Errors
    /// When the configuration cannot be right or the keys cannot be read; the error names the field.
    pub fn new(config: JwtConfig) -> Result<Self, JwtError> {
        if config.issuer.is_empty() {
            return Err(JwtError::Issuer);
        }
        if config.audience.is_empty() {
            return Err(JwtError::Audience);
        }
        if config.leeway > LEEWAY_MAX {
            return Err(JwtError::Leeway(config.leeway));
        }
        provider::install();
        let ring = Ring::new(config.algorithm, config.keys.clone())?;
        Ok(Self {
            config: Arc::new(config),
            ring: Arc::new(ring),
        })
    }

    /// Whose token it is.
    pub(super) fn check(&self, token: &str, clock: &dyn Clock) -> Result<Holder, Problem> {
        let algorithm = self.config.algorithm;
        if token.len() > TOKEN_MAX_BYTES {
            let detail = format!("this token has more than {TOKEN_MAX_BYTES} bytes");
            return Err(Problem::invalid_token(&detail));
        }
        let kid = key_named_by(token, algorithm)?;
        let Some(key) = self.ring.key(kid.as_deref(), clock.elapsed()) else {
            return Err(Problem::invalid_token(match kid {
                Some(_) => "this token is signed with a key (kid) that is not known",
                None => "this token does not say which key (kid) it is signed with",
            }));
        };
        // Only the signature: the claims are checked below, with the injected clock.
        let mut validation = Validation::new(algorithm.theirs());
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.required_spec_claims.clear();
        let decoded = jsonwebtoken::decode::<claims::Claims>(token, &key, &validation);
        let claims = decoded.map_err(|error| {
            use jsonwebtoken::errors::ErrorKind;
            Problem::invalid_token(match error.kind() {
                ErrorKind::Json(_) => "the claims of this token are no JSON object",
                _ => "the signature of this token does not hold",
            })
        })?;
        claims::check(&claims.claims, &self.config, clock.now())
    }
}

/// The header, read strictly; nothing in it decides but the name of the key.
fn key_named_by(token: &str, algorithm: JwtAlgorithm) -> Result<Option<String>, Problem> {
    let ours = algorithm.as_str();
    let header = jsonwebtoken::decode_header(token).map_err(|_| {
        let detail = format!("the header of this token is not that of one signed with {ours}");
        Problem::invalid_token(&detail)
    })?;
    if header.alg != algorithm.theirs() {
        let detail = format!("this token is not signed with {ours}");
        return Err(Problem::invalid_token(&detail));
    }
    let extensions = [
        header.crit.is_some(),
        header.enc.is_some(),
        header.zip.is_some(),
    ];
    if extensions.contains(&true) || header.extras.inner().contains_key("b64") {
        let detail = "the header of this token asks for extensions (crit, enc, zip, b64), and there are none";
        return Err(Problem::invalid_token(detail));
    }
    let typ = header.typ.as_deref().unwrap_or("JWT");
    // RFC 7515, 4.1.9: a media type, whose `application/` may be left out.
    let typ = typ.strip_prefix("application/").unwrap_or(typ);
    if !typ.eq_ignore_ascii_case("JWT") && !typ.eq_ignore_ascii_case("at+jwt") {
        let detail = "the typ of this token must be JWT or at+jwt";
        return Err(Problem::invalid_token(detail));
    }
    Ok(header.kid)
}
