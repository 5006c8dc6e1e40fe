//! Files that people write: the program's configuration, and plans of the simulation.

use std::path::Path;

use sim::plan::Saved;

use crate::config::{Config, KEYS, Layers, Plan, Secrets, environment_name};

/// A file, then lines of variables (`NAME=VALUE`), then lines of `--set`, with `---` lines between them. What is wrong is
/// told with a key, a variable or a line; what is not wrong survives being written down.
pub fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut sections = text.split("\n---\n");
    let mut section = || sections.next().unwrap_or_default();
    let (file, variables, set) = (section(), section(), section());
    let mut layers = Layers::default();
    let mut add = || -> Result<(), String> {
        layers.text(Path::new("fuzz.toml"), file)?;
        let variables = variables.lines().filter_map(|line| line.split_once('='));
        layers.environment(variables.map(|(name, value)| (name.to_owned(), value.to_owned())))?;
        set.lines().try_for_each(|line| layers.set(line))
    };
    let built = add().and_then(|()| layers.build());
    let given = match built {
        Ok(given) => given,
        Err(error) => {
            let named = |key: &str| error.contains(key) || error.contains(&environment_name(key));
            let place = error.starts_with("fuzz.toml: ") || error.starts_with("--set ");
            assert!(place || KEYS.iter().any(|key| named(key.path)), "it names nothing: {error}");
            return;
        }
    };
    let mut config = given.config;
    let written = toml::to_string(&config).expect("every configuration can be written");
    let read: Config = toml::from_str(&written).unwrap_or_else(|error| panic!("{error}\n{written}"));
    assert_eq!(read, config, "{written}");
    // The fuzzer may not choose which files of this machine are read.
    config.access.tokens_file = None;
    config.access.jwt.jwks_file = None;
    config.access.jwt.secret_file = None;
    let mut problems = Vec::new();
    Plan::of(&config, &Secrets::default(), &mut problems);
    for problem in problems {
        let sections = ["access", "alerts", "consumers[", "database", "listen", "metrics", "sweep"];
        assert!(sections.iter().any(|it| problem.starts_with(it)), "it names no key: {problem}");
    }
}

/// A plan file: refused with a line or a field, or written down and read again as the same.
pub fn plan(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Saved::parse(&text) {
        Ok(saved) => {
            let written = saved.text().expect("every plan can be written");
            let read = Saved::parse(&written).unwrap_or_else(|error| panic!("{error:#}\n{written}"));
            assert_eq!(read, saved, "{written}");
            let _ = saved.plan.ends_at();
        }
        Err(error) => {
            let error = format!("{error:#}");
            let places = ["line ", "knobs", "jobs[", "faults["];
            assert!(places.iter().any(|it| error.contains(it)), "it names nothing: {error}");
        }
    }
}
