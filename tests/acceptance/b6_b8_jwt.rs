//! Keys of signed tokens: each algorithm, keys that come and go, and configurations that cannot be right.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use acceptance::db::Db;
use acceptance::tokens::{Ahead, Signer, with};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use harness::Clock as _;
use harness::Env;
use harness::ops::{
    Access, Api, ApiLimits, Jwt, JwtAlgorithm, JwtConfig, JwtKeys, JwtSecret, router,
};
use serde_json::{Value, json};
use tower::ServiceExt as _;

struct Server {
    api: Router,
    clock: Arc<Ahead>,
}

impl Server {
    async fn start(db: &Db, algorithm: JwtAlgorithm, keys: JwtKeys) -> Self {
        let clock = Arc::new(Ahead::default());
        let env = Env {
            clock: clock.clone(),
            ..Env::system().unwrap()
        };
        let jwt = Jwt::new(JwtConfig::new(algorithm, "issuer", "audience", keys)).unwrap();
        let api = router(Api {
            store: db.store(),
            publisher: db.queue().await,
            env,
            access: Access::new(&[], Some(jwt)).unwrap(),
            limits: ApiLimits::default(),
            metrics: None,
        });
        Self { api, clock }
    }

    fn claims(&self) -> Value {
        let now = self.clock.now().timestamp();
        json!({"iss": "issuer", "aud": "audience", "sub": "ada", "nbf": now - 1, "exp": now + 60,
            "scope": "core.dead_letters.read"})
    }

    async fn status(&self, token: &str) -> u16 {
        let request = Request::get("/v1/core/dead-letters")
            .header("authorization", format!("Bearer {token}"))
            .body(Body::empty());
        let response = self.api.clone().oneshot(request.unwrap()).await.unwrap();
        response.status().as_u16()
    }

    async fn takes(&self, signer: &Signer, kid: &str) -> bool {
        match self.status(&signer.sign(kid, &self.claims())).await {
            200 => true,
            401 => false,
            other => panic!("{other}"),
        }
    }
}

fn write(path: &Path, keys: &[Value]) {
    std::fs::write(path, json!({"keys": keys, "more": 1}).to_string()).unwrap();
}

#[tokio::test]
async fn b6_b8_each_algorithm_takes_its_own_signatures_only() {
    let db = Db::fresh().await;
    let folder = tempfile::tempdir().unwrap();
    let (jwks, secret) = (folder.path().join("jwks"), folder.path().join("secret"));
    let shared = "0123456789abcdef0123456789abcdef";
    std::fs::write(&secret, format!("{shared}\r\n")).unwrap();
    let signers = [
        Signer::ed25519(1),
        Signer::rsa(),
        Signer::secret(shared.as_bytes()),
    ];
    let mut leading_zero = signers[1].jwk("z");
    {
        use base64::Engine as _;
        let coding = base64::engine::general_purpose::URL_SAFE_NO_PAD;
        let n = coding.decode(leading_zero["n"].as_str().unwrap()).unwrap();
        leading_zero["n"] = json!(coding.encode([&[0][..], &n].concat()));
    }
    write(
        &jwks,
        &[signers[0].jwk("one"), signers[1].jwk("one"), leading_zero],
    );
    let servers = [
        (JwtAlgorithm::EdDSA, JwtKeys::JwksFile(jwks.clone())),
        (JwtAlgorithm::RS256, JwtKeys::JwksFile(jwks)),
        (JwtAlgorithm::HS256, JwtKeys::SecretFile(secret)),
        (JwtAlgorithm::HS256, JwtKeys::Secret(JwtSecret::new(shared))),
    ];
    for (algorithm, keys) in servers {
        let server = Server::start(&db, algorithm, keys).await;
        for signer in &signers {
            let due = signer.alg() == algorithm.as_str();
            assert_eq!(
                server.takes(signer, "one").await,
                due,
                "{algorithm:?} {}",
                signer.alg()
            );
        }
        if algorithm == JwtAlgorithm::RS256 {
            assert!(server.takes(&signers[1], "z").await);
        }
    }
}

#[tokio::test]
async fn b6_b8_keys_come_and_go_while_it_runs() {
    let db = Db::fresh().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let (one, two) = (Signer::ed25519(1), Signer::ed25519(2));
    write(file.path(), &[one.jwk("one")]);
    let keys = JwtKeys::JwksFile(file.path().to_owned());
    let server = Server::start(&db, JwtAlgorithm::EdDSA, keys).await;
    assert!(server.takes(&one, "one").await);
    assert!(!server.takes(&two, "two").await);

    // A new key is found by its name, but strangers cannot make it read the file at will.
    write(file.path(), &[one.jwk("one"), two.jwk("two")]);
    assert!(!server.takes(&two, "two").await, "read again too soon");
    server.clock.skip(Duration::from_secs(6));
    assert!(server.takes(&two, "two").await);
    for signer in [&one, &two] {
        let nameless = signer.sign_as(&json!({"alg": "EdDSA"}), &server.claims());
        assert_eq!(server.status(&nameless).await, 401, "one of two");
    }

    // One that is taken away goes within a minute.
    write(file.path(), &[two.jwk("two")]);
    assert!(server.takes(&one, "one").await);
    server.clock.skip(Duration::from_secs(61));
    assert!(!server.takes(&one, "one").await);
    let nameless = two.sign_as(&json!({"alg": "EdDSA"}), &server.claims());
    assert_eq!(server.status(&nameless).await, 200, "the only one");

    // What cannot be read leaves what there is, until it can.
    for broken in ["", "{\"keys\": [", "{\"keys\": []}"] {
        std::fs::write(file.path(), broken).unwrap();
        server.clock.skip(Duration::from_secs(61));
        assert!(server.takes(&two, "two").await, "{broken}");
    }
    write(file.path(), &[one.jwk("one")]);
    server.clock.skip(Duration::from_secs(61));
    assert!(!server.takes(&two, "two").await);
    assert!(server.takes(&one, "one").await);
}

#[tokio::test]
async fn b6_b8_a_token_is_good_for_its_time_by_the_injected_clock() {
    let db = Db::fresh().await;
    let keys = JwtKeys::Secret(JwtSecret::new(&"s".repeat(32)));
    let server = Server::start(&db, JwtAlgorithm::HS256, keys).await;
    let signer = Signer::secret("s".repeat(32).as_bytes());
    let token = signer.sign("", &server.claims());
    assert_eq!(server.status(&token).await, 200);
    // 60 s, and the leeway of 30 s.
    server.clock.skip(Duration::from_secs(80));
    assert_eq!(server.status(&token).await, 200);
    server.clock.skip(Duration::from_secs(12));
    assert_eq!(server.status(&token).await, 401);
    let fraction = with(&server.claims(), json!({"exp": 4_102_444_800.5}));
    assert_eq!(server.status(&signer.sign("", &fraction)).await, 200);
}

#[test]
fn b6_b8_keys_that_cannot_be_right_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let jwks = || JwtKeys::JwksFile(file.path().to_owned());
    let error = |algorithm, keys| {
        let config = JwtConfig::new(algorithm, "issuer", "audience", keys);
        Jwt::new(config).unwrap_err().to_string()
    };
    let refused = |algorithm, key: Value| {
        write(file.path(), &[key]);
        error(algorithm, jwks())
    };
    let (ed, rsa) = (Signer::ed25519(1).jwk("one"), Signer::rsa().jwk("one"));
    let n = &rsa["n"].as_str().unwrap()[..172];
    let cases = [
        (
            JwtAlgorithm::EdDSA,
            with(&rsa, json!({"alg": null})),
            "is of another kind",
        ),
        (JwtAlgorithm::RS256, ed.clone(), "is of another kind"),
        (
            JwtAlgorithm::EdDSA,
            with(&ed, json!({"use": "enc"})),
            "not for signatures (use)",
        ),
        (
            JwtAlgorithm::EdDSA,
            with(&ed, json!({"key_ops": ["sign"]})),
            "not for verifying (key_ops)",
        ),
        (
            JwtAlgorithm::EdDSA,
            with(&ed, json!({"alg": "ES256"})),
            "for another algorithm (alg)",
        ),
        (
            JwtAlgorithm::EdDSA,
            with(&ed, json!({"x": "AAAA"})),
            "no Ed25519 key of 32 bytes",
        ),
        (
            JwtAlgorithm::EdDSA,
            with(&ed, json!({"x": "+"})),
            "no base64url",
        ),
        (
            JwtAlgorithm::RS256,
            with(&rsa, json!({"n": n})),
            "an RSA key of 1032 bits",
        ),
        (
            JwtAlgorithm::RS256,
            with(&rsa, json!({"alg": "RS512"})),
            "for another algorithm (alg)",
        ),
    ];
    for (algorithm, key, text) in cases {
        let said = refused(algorithm, key);
        assert!(
            said.contains(text) && said.contains("keys[0]"),
            "{text}: {said}"
        );
    }
    write(file.path(), &[ed.clone(), ed]);
    assert!(error(JwtAlgorithm::EdDSA, jwks()).contains("have the kid \"one\""));
    std::fs::write(file.path(), "[]").unwrap();
    assert!(error(JwtAlgorithm::EdDSA, jwks()).contains("no JSON Web Key Set"));
    let secret = || JwtKeys::Secret(JwtSecret::new("a secret that is too short"));
    let said = error(JwtAlgorithm::HS256, secret());
    assert!(
        said.contains("26 bytes, at least 32") && !said.contains("a secret that"),
        "{said}"
    );
    assert!(error(JwtAlgorithm::HS256, jwks()).contains("secret_file"));
    assert!(error(JwtAlgorithm::RS256, secret()).contains("jwks_file"));
    assert!(
        error(JwtAlgorithm::EdDSA, JwtKeys::JwksFile("/nowhere".into())).contains("/nowhere: ")
    );
    assert!(!format!("{:?}", secret()).contains("too short"));

    let keys = || JwtKeys::Secret(JwtSecret::new(&"s".repeat(32)));
    let good = || JwtConfig::new(JwtAlgorithm::HS256, "issuer", "audience", keys());
    assert!(Jwt::new(good()).is_ok());
    let wrong = [
        (
            JwtConfig {
                issuer: String::new(),
                ..good()
            },
            "issuer: ",
        ),
        (
            JwtConfig {
                audience: String::new(),
                ..good()
            },
            "audience: ",
        ),
        (
            JwtConfig {
                leeway: Duration::from_secs(601),
                ..good()
            },
            "leeway: ",
        ),
    ];
    for (config, field) in wrong {
        let said = Jwt::new(config).unwrap_err().to_string();
        assert!(said.starts_with(field), "{said}");
    }
}
