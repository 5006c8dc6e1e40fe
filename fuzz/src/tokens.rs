//! Signed tokens out of bytes: honest signatures over anything, and anything for a signature.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::Value;

use crate::api::{NOW, SECRET};

const LEEWAY: f64 = 30.0;

/// A token, and what is known about it.
pub(crate) struct Token {
    pub(crate) text: String,
    /// With the right secret.
    pub(crate) signed: bool,
    header: Vec<u8>,
    claims: Vec<u8>,
}

/// `raw: TOKEN`; or else a header, an empty line, and claims, which are then signed with the right secret.
pub(crate) fn token(bytes: &[u8]) -> Token {
    if let Some(raw) = bytes.strip_prefix(b"raw: ") {
        return Token {
            text: String::from_utf8_lossy(raw).into_owned(),
            signed: false,
            header: Vec::new(),
            claims: Vec::new(),
        };
    }
    let end = bytes.windows(2).position(|two| two == b"\n\n").unwrap_or(bytes.len());
    let (header, claims) = (&bytes[..end], bytes.get(end + 2..).unwrap_or_default());
    let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let signature = hmac::sign(&key, message.as_bytes());
    Token {
        text: format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)),
        signed: true,
        header: header.to_vec(),
        claims: claims.to_vec(),
    }
}

impl Token {
    /// Read loosely: what is false for this must not be let in.
    pub(crate) fn may_be_good(&self) -> bool {
        let header: Value = serde_json::from_slice(&self.header).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&self.claims).unwrap_or_default();
        let now = NOW as f64;
        let audience = match &claims["aud"] {
            Value::Array(all) => all.contains(&"audience".into()),
            one => one == "audience",
        };
        let read = "core.dead_letters.read";
        let scope = claims["scope"].as_str().is_some_and(|it| it.split(' ').any(|it| it == read));
        let listed = claims["permissions"].as_array().is_some_and(|it| it.contains(&read.into()));
        let tenants = ["tenant", "tenant_id"].iter().all(|it| matches!(claims[*it], Value::Null | Value::Bool(false)));
        self.signed
            && header["alg"] == "HS256"
            && claims["iss"] == "issuer"
            && audience
            && claims["exp"].as_f64().is_some_and(|exp| now < exp + LEEWAY)
            && claims["nbf"].as_f64().is_some_and(|nbf| now >= nbf - LEEWAY)
            && claims["sub"].as_str().is_some_and(|sub| !sub.trim().is_empty())
            && (scope || listed)
            && tenants
    }

    /// Read strictly: what is true for this must be let in. A plain header, and no claim but the ones that are looked at.
    pub(crate) fn must_be_good(&self) -> bool {
        let plain = self.header == br#"{"typ":"JWT","alg":"HS256"}"#;
        let claims: Value = serde_json::from_slice(&self.claims).unwrap_or_default();
        let sub = claims["sub"].as_str().is_some_and(|it| (1..=64).contains(&it.len()) && it.bytes().all(|b| b.is_ascii_alphanumeric()));
        let few = claims.as_object().is_some_and(|it| {
            let known = ["iss", "aud", "exp", "nbf", "sub", "scope"];
            it.keys().all(|key| known.contains(&key.as_str()))
        });
        let one = claims["aud"].is_string() && claims["scope"].is_string();
        plain && sub && few && one && self.text.len() < 8_000 && self.may_be_good()
    }
}
