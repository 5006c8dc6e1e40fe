//! Who may use the API: static tokens from a file, signed ones, or both.

use std::path::PathBuf;

use harness::ops::{Access, Jwt, JwtConfig, JwtError, JwtKeys, JwtSecret, Token};

use super::{Config, Secrets};

/// None where no credentials are configured, or where something is wrong with them, which is added to `problems`.
pub(super) fn access(
    config: &Config,
    secrets: &Secrets,
    problems: &mut Vec<String>,
) -> Option<Access> {
    let file = config.access.tokens_file.as_ref();
    let built = match (tokens(file), jwt(config, secrets)) {
        (Ok(_), Ok(None)) if file.is_none() => return None,
        (Ok(tokens), Ok(jwt)) => Access::new(&tokens, jwt)
            .map_err(|problem| vec![format!("access.tokens_file: {problem}")]),
        (tokens, jwt) => Err(tokens.err().into_iter().chain(jwt.err()).collect()),
    };
    built.map_err(|wrong| problems.extend(wrong)).ok()
}

fn tokens(file: Option<&PathBuf>) -> Result<Vec<Token>, String> {
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let wrong = |problem: String| format!("access.tokens_file: {}: {problem}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}

fn jwt(config: &Config, secrets: &Secrets) -> Result<Option<Jwt>, String> {
    let it = &config.access.jwt;
    let secret = secrets.jwt_secret.as_ref();
    let Some(algorithm) = it.algorithm else {
        let said = it.issuer.is_some() || it.audience.is_some() || it.jwks_file.is_some();
        // A secret file that cannot be read is a problem of its own, and was told.
        return match said || secret.is_some() {
            true => Err(
                "access.jwt.algorithm: is not set, but there is more about signed tokens; say EdDSA, RS256 or HS256"
                    .to_owned(),
            ),
            false => Ok(None),
        };
    };
    let (from, keys) = match (&it.jwks_file, &it.secret_file, secret) {
        (Some(file), None, None) => ("access.jwt.jwks_file", JwtKeys::JwksFile(file.clone())),
        (None, Some(file), _) => ("access.jwt.secret_file", JwtKeys::SecretFile(file.clone())),
        (None, None, Some(secret)) => (
            "JOB_HARNESS_JWT_SECRET",
            JwtKeys::Secret(JwtSecret::new(secret.expose())),
        ),
        _ => {
            return Err(
                "access.jwt: needs jwks_file (EdDSA, RS256), or else secret_file or JOB_HARNESS_JWT_SECRET (HS256); one of them"
                    .to_owned(),
            );
        }
    };
    let named = |text: &Option<String>| text.clone().unwrap_or_default();
    let jwt = Jwt::new(JwtConfig {
        algorithm,
        issuer: named(&it.issuer),
        audience: named(&it.audience),
        leeway: it.leeway.0,
        keys,
    });
    let jwt = jwt.map_err(|error| match error {
        JwtError::Keys(problem) => format!("{from}: {problem}"),
        JwtError::Kind { algorithm, takes } => {
            format!("{from}: {} takes {takes}", algorithm.as_str())
        }
        other => format!("access.jwt.{other}"),
    })?;
    Ok(Some(jwt))
}
