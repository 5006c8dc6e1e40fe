//! What `jsonwebtoken` checks signatures with: ring, as TLS does, for the three algorithms that there are. Nothing is signed.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::{hmac, signature as rings};
use signature::{Error, Verifier};

static RING: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// For the process, once. A program that has one of its own keeps it: it knows these algorithms, too.
pub(super) fn install() {
    if CryptoProvider::try_get_default().is_none() {
        // Somebody else may have been quicker; then theirs is used.
        let _ = RING.install_default();
    }
}

fn signer(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

/// A key of another family than the algorithm's is refused here, whatever the callers do: a public key can never be taken
/// for a shared secret.
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    match (algorithm, key.family(), key.kind()) {
        (Algorithm::HS256, AlgorithmFamily::Hmac, DecodingKeyKind::SecretOrDer(secret)) => {
            Ok(Box::new(Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret))))
        }
        (Algorithm::EdDSA, AlgorithmFamily::Ed, DecodingKeyKind::SecretOrDer(x)) => {
            Ok(Box::new(EdDsa(x.clone())))
        }
        (Algorithm::RS256, AlgorithmFamily::Rsa, DecodingKeyKind::RsaModulusExponent { n, e }) => {
            let key = rings::RsaPublicKeyComponents {
                n: n.clone(),
                e: e.clone(),
            };
            Ok(Box::new(Rs256(key)))
        }
        _ => Err(new_error(ErrorKind::InvalidKeyFormat)),
    }
}

struct Hs256(hmac::Key);
struct EdDsa(Vec<u8>);
struct Rs256(rings::RsaPublicKeyComponents<Vec<u8>>);

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        // Takes the same time wherever they differ.
        hmac::verify(&self.0, message, signature).map_err(|_| Error::new())
    }
}

impl Verifier<Vec<u8>> for EdDsa {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let key = rings::UnparsedPublicKey::new(&rings::ED25519, &self.0);
        key.verify(message, signature).map_err(|_| Error::new())
    }
}

impl Verifier<Vec<u8>> for Rs256 {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let how = &rings::RSA_PKCS1_2048_8192_SHA256;
        let verified = self.0.verify(how, message, signature);
        verified.map_err(|_| Error::new())
    }
}

macro_rules! names {
    ($($verifier:ident: $algorithm:ident),*) => {$(
        impl JwtVerifier for $verifier {
            fn algorithm(&self) -> Algorithm {
                Algorithm::$algorithm
            }
        }
    )*};
}

names! { Hs256: HS256, EdDsa: EdDSA, Rs256: RS256 }
