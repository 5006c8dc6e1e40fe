//! The keys: read from their file, found by name, and read again when they may have changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use serde::Deserialize;

use super::{JwtAlgorithm, JwtError, JwtKeys};

/// A file is read again when what was read is older.
const FRESH: Duration = Duration::from_secs(60);
/// Strangers' tokens name keys that are not known: for those it is read again, but not more often.
const FRESH_FOR_UNKNOWN: Duration = Duration::from_secs(5);
const SECRET_MIN_BYTES: usize = 32;
/// What a modulus of 2048 bits has at least, and one of 8192 at most, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

#[derive(Debug, Clone)]
enum Keys {
    /// There is one secret, whatever a token calls it.
    Secret(Arc<DecodingKey>),
    Set {
        named: BTreeMap<String, Arc<DecodingKey>>,
        nameless: Vec<Arc<DecodingKey>>,
    },
}

impl Keys {
    fn find(&self, kid: Option<&str>) -> Option<Arc<DecodingKey>> {
        match (self, kid) {
            (Self::Secret(key), _) => Some(Arc::clone(key)),
            (Self::Set { named, .. }, Some(kid)) => named.get(kid).map(Arc::clone),
            // Which one it is must be clear.
            (Self::Set { named, nameless }, None) => {
                let mut all = named.values().chain(nameless);
                all.next().filter(|_| all.next().is_none()).map(Arc::clone)
            }
        }
    }
}

#[derive(Debug)]
struct Read {
    keys: Keys,
    /// When reading was last tried, by the clock's `elapsed`; none before the first token.
    tried: Option<Duration>,
}

/// All keys that there are.
#[derive(Debug)]
pub(super) struct Ring {
    algorithm: JwtAlgorithm,
    source: JwtKeys,
    read: Mutex<Read>,
}

impl Ring {
    pub(super) fn new(algorithm: JwtAlgorithm, source: JwtKeys) -> Result<Self, JwtError> {
        let takes = match (algorithm, &source) {
            (JwtAlgorithm::HS256, JwtKeys::JwksFile(_)) => {
                Some("a secret: give secret_file, or the secret itself")
            }
            (
                JwtAlgorithm::EdDSA | JwtAlgorithm::RS256,
                JwtKeys::Secret(_) | JwtKeys::SecretFile(_),
            ) => Some("public keys: give jwks_file"),
            _ => None,
        };
        if let Some(takes) = takes {
            return Err(JwtError::Kind { algorithm, takes });
        }
        let keys = read(algorithm, &source).map_err(JwtError::Keys)?;
        let read = Mutex::new(Read { keys, tried: None });
        Ok(Self {
            algorithm,
            source,
            read,
        })
    }

    /// The key of that name. `now` is the clock's `elapsed`.
    ///
    /// The file is small and near, and read at most once in some seconds: not worth a thread of its own.
    pub(super) fn key(&self, kid: Option<&str>, now: Duration) -> Option<Arc<DecodingKey>> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let age = read.tried.map(|tried| now.saturating_sub(tried));
        if age.is_none_or(|age| age >= FRESH) {
            self.read_again(&mut read, now);
        }
        let found = read.keys.find(kid);
        if found.is_none() && age.is_some_and(|age| (FRESH_FOR_UNKNOWN..FRESH).contains(&age)) {
            self.read_again(&mut read, now);
            return read.keys.find(kid);
        }
        found
    }

    /// A file that cannot be read, perhaps because it is just being written, leaves the keys that there are.
    fn read_again(&self, it: &mut Read, now: Duration) {
        it.tried = Some(now);
        match read(self.algorithm, &self.source) {
            Ok(keys) => it.keys = keys,
            Err(error) => tracing::warn!(error, "jwt keys cannot be read; the old ones stay"),
        }
    }
}

fn read(algorithm: JwtAlgorithm, source: &JwtKeys) -> Result<Keys, String> {
    let path = match source {
        JwtKeys::Secret(secret) => return of_secret(&secret.0),
        JwtKeys::SecretFile(path) | JwtKeys::JwksFile(path) => path,
    };
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let keys = text.and_then(|text| match source {
        JwtKeys::JwksFile(_) => of_jwks(algorithm, &text),
        _ => of_secret(text.trim_end_matches(['\r', '\n'])),
    });
    keys.map_err(|error| format!("{}: {error}", path.display()))
}

fn of_secret(secret: &str) -> Result<Keys, String> {
    if secret.len() < SECRET_MIN_BYTES {
        let length = secret.len();
        return Err(format!(
            "the secret has {length} bytes, at least {SECRET_MIN_BYTES} are needed; make one with: head -c 32 /dev/urandom | base64"
        ));
    }
    let key = DecodingKey::from_secret(secret.as_bytes()).map_err(|error| error.to_string())?;
    Ok(Keys::Secret(Arc::new(key)))
}

/// Members that nobody knows are allowed (RFC 7517).
#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

fn of_jwks(algorithm: JwtAlgorithm, text: &str) -> Result<Keys, String> {
    let set: Set = serde_json::from_str(text).map_err(|error| {
        format!("is no JSON Web Key Set such as {{\"keys\": [{{\"kty\": …}}]}}: {error}")
    })?;
    let (mut named, mut nameless) = (BTreeMap::new(), Vec::new());
    let mut refused = Vec::new();
    for (n, key) in set.keys.into_iter().enumerate() {
        // One that is not for us, or that we do not know, does not spoil the others (RFC 7517, 5).
        let usable = serde_json::from_value::<Jwk>(key)
            .map_err(|error| error.to_string())
            .and_then(|jwk| Ok((usable(algorithm, &jwk)?, jwk.common.key_id)));
        match usable {
            Ok((key, Some(kid))) => {
                if named.insert(kid.clone(), Arc::new(key)).is_some() {
                    return Err(format!(
                        "two keys for {} have the kid {kid:?}",
                        algorithm.as_str()
                    ));
                }
            }
            Ok((key, None)) => nameless.push(Arc::new(key)),
            Err(why) => refused.push(format!("keys[{n}] {why}")),
        }
    }
    if named.is_empty() && nameless.is_empty() {
        let why = refused.join(", ");
        let algorithm = algorithm.as_str();
        return Err(format!("no key in it can be used for {algorithm}: {why}"));
    }
    Ok(Keys::Set { named, nameless })
}

/// The key, if it is meant and strong enough for the algorithm.
fn usable(algorithm: JwtAlgorithm, jwk: &Jwk) -> Result<DecodingKey, String> {
    let common = &jwk.common;
    if !matches!(common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return Err("is not for signatures (use)".to_owned());
    }
    let verify = |it: &Vec<KeyOperations>| it.contains(&KeyOperations::Verify);
    if !common.key_operations.as_ref().is_none_or(verify) {
        return Err("is not for verifying (key_ops)".to_owned());
    }
    let alg = match algorithm {
        JwtAlgorithm::EdDSA => KeyAlgorithm::EdDSA,
        JwtAlgorithm::RS256 => KeyAlgorithm::RS256,
        JwtAlgorithm::HS256 => KeyAlgorithm::HS256,
    };
    if common.key_algorithm.is_some_and(|it| it != alg) {
        return Err("is for another algorithm (alg)".to_owned());
    }
    let bytes = |name: &str, text: &str| {
        let bytes = URL_SAFE_NO_PAD.decode(text);
        bytes.map_err(|_| format!("has an {name} that is no base64url without padding"))
    };
    match (algorithm, &jwk.algorithm) {
        (JwtAlgorithm::EdDSA, AlgorithmParameters::OctetKeyPair(it)) => {
            let x = bytes("x", &it.x)?;
            if it.curve != EllipticCurve::Ed25519 || x.len() != 32 {
                return Err("is no Ed25519 key of 32 bytes".to_owned());
            }
            Ok(DecodingKey::from_ed_der(&x))
        }
        (JwtAlgorithm::RS256, AlgorithmParameters::RSA(it)) => {
            let (n, e) = (bytes("n", &it.n)?, bytes("e", &it.e)?);
            // Some write a zero in front, which the check of signatures refuses.
            let (n, e) = (without_zeros(&n), without_zeros(&e));
            let unused = n.first().map_or(0, |first| first.leading_zeros() as usize);
            let bits = n.len() * 8 - unused;
            if !RSA_BITS.contains(&bits) {
                let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
                return Err(format!(
                    "is an RSA key of {bits} bits, not {least} to {most}"
                ));
            }
            Ok(DecodingKey::from_rsa_raw_components(n, e))
        }
        _ => Err("is of another kind (kty)".to_owned()),
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let first = number.iter().position(|byte| *byte != 0);
    &number[first.unwrap_or(number.len())..]
}
