//! File, environment and command line, put on top of each other. What is wrong is told with the key and where it was said.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::Config;
use super::keys::{KEYS, Key, Kind, OTHER_VARIABLES, SECRETS, environment_name};

/// Where a value was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Environment(String),
    CommandLine,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// What was said, and where.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) config: Config,
    sources: BTreeMap<&'static str, Source>,
    /// Variables that look like ours and are not.
    pub(crate) strangers: Vec<String>,
}

impl Given {
    /// Where a key's value comes from.
    pub(crate) fn source(&self, key: &Key) -> &Source {
        self.sources.get(key.path).unwrap_or(&Source::Default)
    }
}

/// Layers, the later on top.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    values: BTreeMap<&'static str, Value>,
    sources: BTreeMap<&'static str, Source>,
    strangers: Vec<String>,
}

fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Why there is no such key.
fn unknown(path: &str) -> String {
    if let Some((_, variable, file)) = SECRETS.iter().find(|(secret, ..)| *secret == path) {
        return format!("{path}: secrets are not kept here; set {variable}, or {file}");
    }
    let section = path.rsplit_once('.').map_or("", |(section, _)| section);
    let near: Vec<&str> = (KEYS.iter().map(|key| key.path))
        .filter(|it| it.rsplit_once('.').map_or("", |(section, _)| section) == section)
        .collect();
    let near = if near.is_empty() {
        KEYS.iter().map(|key| key.path).collect()
    } else {
        near
    };
    format!(
        "{path}: there is no such key; there are {}",
        near.join(", ")
    )
}

impl Layers {
    /// # Errors
    /// When the file cannot be read, is no TOML, or has a key that does not exist.
    pub(crate) fn file(&mut self, path: &Path) -> Result<(), String> {
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        self.text(path, &text)
    }

    /// What a file says.
    ///
    /// # Errors
    /// When it is no TOML, or has a key that does not exist.
    pub(crate) fn text(&mut self, path: &Path, text: &str) -> Result<(), String> {
        let at = path.display();
        let table: Table =
            toml::from_str(text).map_err(|error| format!("{at}: {}", error.to_string().trim()))?;
        let mut leaves = Vec::new();
        flatten("", table, &mut leaves);
        for (path_of, value) in leaves {
            let key = key(&path_of).ok_or_else(|| format!("{at}: {}", unknown(&path_of)))?;
            self.put(key, value, Source::File(path.to_owned()));
        }
        Ok(())
    }

    /// # Errors
    /// When a value cannot be what its key needs.
    pub(crate) fn environment(
        &mut self,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), String> {
        let by_name: BTreeMap<String, &'static Key> = (KEYS.iter())
            .map(|key| (environment_name(key.path), key))
            .collect();
        for (name, text) in variables {
            match by_name.get(&name) {
                Some(key) => {
                    let value = read(key, &text).map_err(|error| format!("{name}: {error}"))?;
                    self.put(key, value, Source::Environment(name));
                }
                None if name.starts_with("JOB_HARNESS_")
                    && !OTHER_VARIABLES.contains(&name.as_str()) =>
                {
                    self.strangers.push(name);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// `KEY=VALUE`.
    ///
    /// # Errors
    /// When there is no such key, or the value cannot be what it needs.
    pub(crate) fn set(&mut self, assignment: &str) -> Result<(), String> {
        let (path, text) = assignment
            .split_once('=')
            .ok_or_else(|| format!("--set {assignment}: write it as KEY=VALUE"))?;
        let key = key(path.trim()).ok_or_else(|| format!("--set {}", unknown(path.trim())))?;
        let value = read(key, text.trim()).map_err(|error| format!("--set {path}: {error}"))?;
        self.put(key, value, Source::CommandLine);
        Ok(())
    }

    fn put(&mut self, key: &'static Key, value: Value, source: Source) {
        self.values.insert(key.path, value);
        self.sources.insert(key.path, source);
    }

    /// # Errors
    /// When a value is not of its key's type; the error names the key and where it was said.
    pub(crate) fn build(self) -> Result<Given, String> {
        let mut table = Table::new();
        for (path, value) in self.values {
            place(&mut table, path, value);
        }
        let config: Config =
            serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| {
                let path = error.path().to_string();
                let said = (self.sources.iter())
                    .find(|(key, _)| path.starts_with(**key))
                    .map_or_else(String::new, |(_, source)| format!(" ({source})"));
                let message = error.into_inner().to_string();
                format!("{path}{said}: {}", message.trim())
            })?;
        Ok(Given {
            config,
            sources: self.sources,
            strangers: self.strangers,
        })
    }
}

/// Dotted paths of everything that is no table.
fn flatten(prefix: &str, table: Table, leaves: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let path = match prefix {
            "" => name,
            prefix => format!("{prefix}.{name}"),
        };
        match value {
            Value::Table(inner) if key(&path).is_none() => flatten(&path, inner, leaves),
            value => leaves.push((path, value)),
        }
    }
}

fn place(table: &mut Table, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            table.insert(path.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                place(inner, rest, value);
            }
        }
    }
}

fn read(key: &Key, text: &str) -> Result<Value, String> {
    match key.kind {
        Kind::Text => Ok(Value::String(text.to_owned())),
        Kind::Number => {
            let number = text
                .parse()
                .map_err(|_| format!("{text:?} is no whole number"))?;
            Ok(Value::Integer(number))
        }
        Kind::Toml => {
            let table: Table = toml::from_str(&format!("value = {text}")).map_err(|_| {
                "must be written as in the file: [{ name = \"…\", queue = \"…\" }]".to_owned()
            })?;
            table
                .into_iter()
                .next()
                .map(|(_, value)| value)
                .ok_or_else(|| "is empty".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn built(file: &str, variables: &[(&str, &str)], set: &[&str]) -> Result<Given, String> {
        let mut layers = Layers::default();
        let mut at = tempfile::NamedTempFile::new().unwrap();
        at.write_all(file.as_bytes()).unwrap();
        layers.file(at.path())?;
        let variables = variables
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        layers.environment(variables)?;
        for it in set {
            layers.set(it)?;
        }
        layers.build()
    }

    #[test]
    fn the_later_layer_wins_and_the_source_is_known() {
        let file = "[alerts]\nwindow = '1min'\ntimeout = '2s'\n[database]\nmax_connections = 3\n";
        let variables = [
            ("JOB_HARNESS_ALERTS_WINDOW", "2min"),
            ("JOB_HARNESS_DATABASE_MAX_CONNECTIONS", "4"),
            ("JOB_HARNESS_SERVICE_HOST", "10.0.0.1"),
        ];
        let given = built(file, &variables, &["alerts.window=3min"]).unwrap();
        let minutes = given.config.alerts.window.0.as_secs() / 60;
        let seconds = given.config.alerts.timeout.0.as_secs();
        assert_eq!(
            (minutes, seconds, given.config.database.max_connections),
            (3, 2, 4)
        );
        let source = |path| given.source(key(path).unwrap()).to_string();
        assert_eq!(source("alerts.window"), "command line");
        assert_eq!(
            source("database.max_connections"),
            "JOB_HARNESS_DATABASE_MAX_CONNECTIONS"
        );
        assert_eq!(source("listen"), "default");
        assert_eq!(given.strangers, ["JOB_HARNESS_SERVICE_HOST"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key_and_where_it_was_said() {
        let wrong = |file: &str, variables: &[(&str, &str)], set: &[&str], parts: &[&str]| {
            let error = built(file, variables, set).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "{part:?} is not in: {error}");
            }
        };
        wrong(
            "[alerts]\nwindow = '5 parsecs'",
            &[],
            &[],
            &["alerts.window (", "5min"],
        );
        wrong(
            "[alerts]\nwindou = '5s'",
            &[],
            &[],
            &["alerts.windou: there is no such key", "alerts.window"],
        );
        wrong(
            "[nothing]\nat_all = 1",
            &[],
            &[],
            &["nothing.at_all", "listen"],
        );
        wrong(
            "[database]\nurl = 'postgres://x'",
            &[],
            &[],
            &["database.url: secrets are not kept here", "DATABASE_URL"],
        );
        wrong("listen = 5", &[], &[], &["listen ("]);
        wrong("a = [", &[], &[], &["line 1"]);
        wrong(
            "[[consumers]]\nname = 'a'",
            &[],
            &[],
            &["consumers[0]", "queue"],
        );
        wrong(
            "[[consumers]]\nname = 'a'\nqueue = 'q'\nfence = { ttl = 'long' }",
            &[],
            &[],
            &["consumers[0].fence.ttl", "7days"],
        );
        wrong(
            "",
            &[("JOB_HARNESS_SWEEP_BATCH", "many")],
            &[],
            &["JOB_HARNESS_SWEEP_BATCH", "whole number"],
        );
        wrong(
            "",
            &[("JOB_HARNESS_CONSUMERS", "awards")],
            &[],
            &["JOB_HARNESS_CONSUMERS", "as in the file"],
        );
        wrong("", &[], &["sweep.batch"], &["KEY=VALUE"]);
        wrong("", &[], &["sweep.badge=1"], &["sweep.badge", "sweep.batch"]);
        wrong("", &[], &["listen=here"], &["listen (command line)"]);
    }

    /// A key that is only in the table, or only in the type, could not be set.
    #[test]
    fn the_table_of_keys_is_the_type() {
        for key in KEYS {
            let value = match key.kind {
                Kind::Toml => read(key, "[{ name = \"a\", queue = \"q\" }]").unwrap(),
                Kind::Number => Value::Integer(1),
                Kind::Text if key.path == "listen" => "127.0.0.1:1".into(),
                Kind::Text if key.path == "access.jwt.algorithm" => "EdDSA".into(),
                // A duration is a text, too.
                Kind::Text => "1s".into(),
            };
            let mut layers = Layers::default();
            layers.put(key, value, Source::CommandLine);
            let config = layers.build().unwrap().config;
            assert_ne!(config, Config::default(), "{} changes nothing", key.path);
        }
        let mut leaves = Vec::new();
        flatten("", Table::try_from(Config::default()).unwrap(), &mut leaves);
        for (path, _) in leaves {
            assert!(key(&path).is_some(), "{path} is in no table");
        }
    }
}
