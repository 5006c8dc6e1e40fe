//! The API described for machines (OpenAPI 3.1), from the same types and beside the same routes that answer.

use utoipa::openapi::header::{Header, HeaderBuilder};
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi, RefOr, Schema};
use utoipa::{Modify, OpenApi as _};

use super::routes;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "job-harness",
        description = "Dead letters for operators. Every answer carries `x-request-id`: the request's own, if it has one of 1 to \
                       128 visible ASCII characters. Every error is a problem document (RFC 9457).",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    servers((url = "/", description = "Where this description comes from.")),
    paths(
        routes::alive,
        routes::ready,
        routes::metrics,
        routes::described,
        routes::list,
        routes::replay,
        routes::discard,
    ),
    tags(
        (name = "dead letters", description = "Failures on record, and what is decided about them."),
        (name = "health", description = "Without a token."),
    ),
    modifiers(&Bearer, &ReasonPattern, &RequestId),
)]
struct Description;

/// The description of the API as JSON, as `/openapi.json` serves it.
pub fn openapi() -> String {
    let pretty = Description::openapi().to_pretty_json();
    pretty.unwrap_or_default() + "\n"
}

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, it: &mut OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some(
                "A static token, or a signed one (JWT). The permissions that each call needs are its `security`.",
            ));
        let components = it.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme.build()));
    }
}

/// The rule for reasons is a table elsewhere; here it is put in as a pattern.
struct ReasonPattern;

impl Modify for ReasonPattern {
    fn modify(&self, it: &mut OpenApi) {
        let schemas = it.components.as_mut().map(|it| &mut it.schemas);
        let discard = schemas.and_then(|schemas| schemas.get_mut("Discard"));
        if let Some(RefOr::T(Schema::Object(discard))) = discard
            && let Some(RefOr::T(Schema::Object(reason))) = discard.properties.get_mut("reason")
        {
            reason.pattern = Some(crate::decision::reason_pattern());
        }
    }
}

/// Every answer has one.
struct RequestId;

impl Modify for RequestId {
    fn modify(&self, it: &mut OpenApi) {
        for item in it.paths.paths.values_mut() {
            for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
                with_request_id(operation);
            }
        }
    }
}

fn with_request_id(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            let id = text_header("Names the request in the log.", "^[!-~]{1,128}$");
            response
                .headers
                .insert("x-request-id".to_owned(), id.into());
        }
    }
}

fn text_header(description: &str, pattern: &str) -> Header {
    let text = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(pattern));
    HeaderBuilder::new()
        .schema(Some(text.build()))
        .description(Some(description))
        .build()
}

/// The errors that several calls have in common.
pub(super) mod answers {
    use std::collections::BTreeMap;

    use utoipa::IntoResponses;
    use utoipa::openapi::{ContentBuilder, RefOr, Response, ResponseBuilder};

    use super::super::problem::Problem;
    use super::text_header;

    fn problem(description: &str, header: Option<(&str, &str, &str)>) -> RefOr<Response> {
        let schema = utoipa::openapi::Ref::from_schema_name(<Problem as utoipa::ToSchema>::name());
        let content = ContentBuilder::new().schema(Some(schema)).build();
        let mut response = ResponseBuilder::new()
            .description(description)
            .content("application/problem+json", content);
        if let Some((name, says, pattern)) = header {
            response = response.header(name, text_header(says, pattern));
        }
        response.build().into()
    }

    macro_rules! answers {
        ($($(#[$doc:meta])* $name:ident { $($status:literal $description:literal $header:expr,)* })*) => {$(
            $(#[$doc])*
            pub(in crate::ops) struct $name;

            impl IntoResponses for $name {
                fn responses() -> BTreeMap<String, RefOr<Response>> {
                    BTreeMap::from([$(($status.to_owned(), problem($description, $header)),)*])
                }
            }
        )*};
    }

    answers! {
        /// By `Access`.
        Refused {
            "401" "No token, or one that is not good; `detail` says what is wrong with it."
                Some(("WWW-Authenticate", "RFC 6750", r#"^Bearer( error="invalid_token")?$"#)),
            "403" "The token does not have the permission, or is a tenant's."
                Some(("WWW-Authenticate", "RFC 6750", r#"^Bearer error="insufficient_scope", scope="[a-z_.]+"$"#)),
        }
        /// Of this id.
        Unknown { "404" "There is no such dead letter." None, }
        /// Decided.
        Otherwise { "409" "It was decided otherwise; `current_status` says how." None, }
        /// The body.
        TooLarge { "413" "The body is too large." None, }
        /// Parameters and bodies.
        Invalid { "422" "`field` is not valid; `detail` says how it would be." None, }
        /// Everything behind us.
        Failed {
            "500" "It failed; the log has the cause under the request's id." None,
            "503" "The database or the queue is away, somebody else is deciding, or there are too many requests. Ask again: \
                   repeating a decision has no second effect."
                Some(("Retry-After", "Seconds.", "^[0-9]+$")),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn b6_the_description_in_the_repository_is_the_one_that_is_served() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/ops/openapi.json");
        let (is, due) = (std::fs::read_to_string(file), super::openapi());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(file, due).unwrap();
            return;
        }
        let how = "UPDATE=1 cargo test -p harness --features ops the_description_in_the_repository";
        assert!(
            is.is_ok_and(|is| is == due),
            "{file} is not what the code says; write it anew with: {how}"
        );
    }
}
