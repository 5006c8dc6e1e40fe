//! The operators' side: dead letters over HTTP (P1..P3), for those who may.
//!
//! [`router`] serves any store and queue that the harness works with. Who may do what is declared beside each route, and
//! checked before anything else is looked at. Every error is a problem document (RFC 9457) that says what to do, and nothing
//! about the inside.

mod access;
mod cursor;
mod jwt;
mod list;
mod openapi;
mod problem;
mod routes;

pub use self::access::{Access, AccessError, Permission, Token, token_hash};
pub use self::jwt::{Jwt, JwtAlgorithm, JwtConfig, JwtError, JwtKeys, JwtSecret};
pub use self::list::letter_json;
pub use self::openapi::openapi;
pub use self::routes::{Api, ApiLimits, Metrics, router};
