//! Signed tokens as an identity provider makes them, and as attackers do.

use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use harness::{Clock, SystemClock};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use ring::{hmac, signature};
use serde_json::{Value, json};

/// For tests only, and therefore no secret.
const RSA_2048: &[u8] = include_bytes!("tokens.rsa2048.der");

/// Signs tokens.
#[derive(Debug)]
pub enum Signer {
    /// EdDSA.
    Ed25519(Ed25519KeyPair),
    /// RS256.
    Rsa(RsaKeyPair),
    /// HS256.
    Secret(Vec<u8>),
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Signer {
    /// The key pair that `seed` makes.
    pub fn ed25519(seed: u8) -> Self {
        Self::Ed25519(Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).expect("32 bytes"))
    }

    /// An RSA key of 2048 bits.
    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::from_pkcs8(RSA_2048).expect("a key"))
    }

    /// With a shared secret.
    pub fn secret(secret: &[u8]) -> Self {
        Self::Secret(secret.to_vec())
    }

    /// The algorithm, as tokens name it.
    pub fn alg(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "EdDSA",
            Self::Rsa(_) => "RS256",
            Self::Secret(_) => "HS256",
        }
    }

    /// What everybody may know of it: the `x` of an Ed25519 key.
    pub fn public(&self) -> Vec<u8> {
        match self {
            Self::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
            Self::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            Self::Secret(_) => panic!("a secret has no public part"),
        }
    }

    /// As a JSON Web Key.
    pub fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Ed25519(_) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": encoded(self.public())})
            }
            Self::Rsa(pair) => {
                let parts = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                let (n, e) = (encoded(parts.n), encoded(parts.e));
                json!({"kty": "RSA", "kid": kid, "use": "sig", "alg": "RS256", "n": n, "e": e})
            }
            Self::Secret(_) => panic!("a secret is in no set of public keys"),
        }
    }

    /// A token with exactly this header, which may be a lie.
    pub fn sign_as(&self, header: &Value, claims: &Value) -> String {
        let message = format!(
            "{}.{}",
            encoded(header.to_string()),
            encoded(claims.to_string())
        );
        let signature = match self {
            Self::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                let (how, random) = (&RSA_PKCS1_SHA256, SystemRandom::new());
                pair.sign(how, &random, message.as_bytes(), &mut signature)
                    .expect("signs");
                signature
            }
            Self::Secret(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::sign(&key, message.as_bytes()).as_ref().to_vec()
            }
        };
        format!("{message}.{}", encoded(signature))
    }

    /// An honest token.
    pub fn sign(&self, kid: &str, claims: &Value) -> String {
        let header = json!({"typ": "JWT", "alg": self.alg(), "kid": kid});
        self.sign_as(&header, claims)
    }
}

/// `base` with `changes` over it; null takes a member away.
pub fn with(base: &Value, changes: Value) -> Value {
    let mut changed = base.clone();
    let members = changed.as_object_mut().expect("an object");
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => members.remove(name),
            _ => members.insert(name.clone(), value.clone()),
        };
    }
    changed
}

/// The machine's clock, which a test can put forward.
#[derive(Debug, Default)]
pub struct Ahead {
    clock: SystemClock,
    by: Mutex<Duration>,
}

impl Ahead {
    /// Goes forward.
    pub fn skip(&self, by: Duration) {
        *self.by.lock().expect("nobody panicked") += by;
    }

    fn by(&self) -> Duration {
        *self.by.lock().expect("nobody panicked")
    }
}

impl Clock for Ahead {
    fn now(&self) -> DateTime<Utc> {
        self.clock.now() + self.by()
    }

    fn elapsed(&self) -> Duration {
        self.clock.elapsed() + self.by()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.clock.sleep(duration)
    }
}
