//! What a token says, checked strictly: a claim that is missing or of another type is never taken for one that allows.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use super::JwtConfig;
use crate::decision::Reviewer;
use crate::ops::access::{Holder, Permission};
use crate::ops::problem::Problem;

pub(super) type Claims = Map<String, Value>;

/// Whose token it is, if it is good now.
pub(super) fn check(
    claims: &Claims,
    config: &JwtConfig,
    now: DateTime<Utc>,
) -> Result<Holder, Problem> {
    let (exp, nbf) = (number(claims, "exp")?, number(claims, "nbf")?);
    if text(claims, "iss")? != config.issuer {
        return Err(wrong("this token is from another issuer (iss)"));
    }
    if !audiences(claims)?.contains(&config.audience.as_str()) {
        return Err(wrong("this token is for another audience (aud)"));
    }
    // Whole microseconds of today fit a double with room to spare.
    let now = now.timestamp_micros() as f64 / 1e6;
    let leeway = config.leeway.as_secs_f64();
    if now >= exp + leeway {
        return Err(wrong("this token has expired (exp); get a new one"));
    }
    if now < nbf - leeway {
        return Err(wrong("this token is not good yet (nbf)"));
    }
    let who = "the claim sub of this token must name who has it, 1 to 200 characters";
    let reviewer = Reviewer::new(text(claims, "sub")?).map_err(|_| wrong(who))?;
    Ok(Holder {
        reviewer,
        permissions: permissions(claims)?,
        tenant: ["tenant_id", "tenant"].iter().any(|name| {
            !matches!(
                claims.get(*name),
                None | Some(Value::Null | Value::Bool(false))
            )
        }),
    })
}

fn wrong(detail: &str) -> Problem {
    Problem::invalid_token(detail)
}

fn not_a(name: &str, what: &str) -> Problem {
    wrong(&format!("the claim {name} of this token must be {what}"))
}

fn needed<'a>(claims: &'a Claims, name: &str) -> Result<&'a Value, Problem> {
    let missing = || wrong(&format!("this token has no claim {name}"));
    claims.get(name).ok_or_else(missing)
}

fn text<'a>(claims: &'a Claims, name: &str) -> Result<&'a str, Problem> {
    let value = needed(claims, name)?;
    value.as_str().ok_or_else(|| not_a(name, "a string"))
}

fn number(claims: &Claims, name: &str) -> Result<f64, Problem> {
    let value = needed(claims, name)?;
    value.as_f64().ok_or_else(|| not_a(name, "a number"))
}

fn strings<'a>(values: &'a [Value], name: &str) -> Result<Vec<&'a str>, Problem> {
    let texts: Option<Vec<_>> = values.iter().map(Value::as_str).collect();
    texts.ok_or_else(|| not_a(name, "a list of strings"))
}

fn audiences(claims: &Claims) -> Result<Vec<&str>, Problem> {
    match needed(claims, "aud")? {
        Value::String(one) => Ok(vec![one]),
        Value::Array(all) => strings(all, "aud"),
        _ => Err(not_a("aud", "a string or a list of strings")),
    }
}

/// From `permissions` and from `scope`; those of other services are none of ours.
fn permissions(claims: &Claims) -> Result<BTreeSet<Permission>, Problem> {
    let listed = match claims.get("permissions") {
        None => Vec::new(),
        Some(Value::Array(all)) => strings(all, "permissions")?,
        Some(_) => return Err(not_a("permissions", "a list of strings")),
    };
    let scope = match claims.get("scope") {
        None => "",
        Some(Value::String(scope)) => scope,
        Some(_) => return Err(not_a("scope", "a string, with spaces between permissions")),
    };
    let all = listed.into_iter().chain(scope.split(' '));
    Ok(all.filter_map(Permission::parse).collect())
}
