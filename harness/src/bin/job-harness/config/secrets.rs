//! Secrets: from the environment or from files, and on no screen.

use std::fmt;
use std::path::Path;

use super::Config;

/// What nobody may see.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Secrets {
    pub(crate) database_url: Option<Secret>,
    pub(crate) better_stack_token: Option<Secret>,
    pub(crate) heartbeat_url: Option<Secret>,
    pub(crate) jwt_secret: Option<Secret>,
}

impl Secrets {
    /// Reads them, and adds what is wrong to `problems`.
    pub(crate) fn read(
        config: &Config,
        variable: impl Fn(&str) -> Option<String>,
        problems: &mut Vec<String>,
    ) -> Self {
        let mut read = |name: &str, key: &str, file: Option<&Path>| {
            let said = variable(name).filter(|text| !text.is_empty());
            let Some(file) = file else {
                return said.map(Secret);
            };
            if said.is_some() {
                problems.push(format!("{key}: {name} is set, too; leave one of them out"));
            }
            match std::fs::read_to_string(file) {
                // Files end with a line break; secrets do not.
                Ok(text) if !text.trim().is_empty() => Some(Secret(text.trim().to_owned())),
                Ok(_) => {
                    problems.push(format!("{key}: {} is empty", file.display()));
                    None
                }
                Err(error) => {
                    problems.push(format!("{key}: {}: {error}", file.display()));
                    None
                }
            }
        };
        let alerts = &config.alerts;
        Self {
            database_url: read(
                "DATABASE_URL",
                "database.url_file",
                config.database.url_file.as_deref(),
            ),
            better_stack_token: read(
                "BETTER_STACK_TOKEN",
                "alerts.token_file",
                alerts.token_file.as_deref(),
            ),
            heartbeat_url: read(
                "BETTER_STACK_HEARTBEAT_URL",
                "alerts.heartbeat_url_file",
                alerts.heartbeat_url_file.as_deref(),
            ),
            jwt_secret: read(
                "JOB_HARNESS_JWT_SECRET",
                "access.jwt.secret_file",
                config.access.jwt.secret_file.as_deref(),
            ),
        }
    }
}
