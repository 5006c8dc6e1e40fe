//! `check-config` and `show-config`.

use std::io::Write as _;
use std::time::Duration;

use harness::FencePolicy;
use toml::{Table, Value};

use super::config::{Config, KEYS, Plan, Secrets, environment_name};
use super::output::{Format, out};
use super::{Common, Wrong};

fn span(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

pub(crate) fn check(common: &Common) -> anyhow::Result<()> {
    let given = common.given(&[])?;
    let mut problems = Vec::new();
    let secrets = Secrets::read(
        &given.config,
        |name| std::env::var(name).ok(),
        &mut problems,
    );
    let plan = Plan::of(&given.config, &secrets, &mut problems);
    let mut out = out();
    for name in &given.strangers {
        writeln!(out, "note: {name} is set, but there is no such key")?;
    }
    if secrets.database_url.is_none() {
        writeln!(out, "note: DATABASE_URL is not set here")?;
    }
    for it in &plan.consumers {
        let window = FencePolicy::retry_window(&it.retry, it.run_deadline);
        writeln!(
            out,
            "{} on {}: {} runs within {}; fences live {}",
            it.consumer,
            it.queue,
            it.retry.max_runs(),
            span(window),
            span(it.fence.ttl),
        )?;
    }
    if plan.consumers.is_empty() {
        writeln!(out, "note: no consumers: nothing is swept or measured")?;
    }
    match &plan.alerts {
        Some(alerts) => writeln!(
            out,
            "alerts go to {}, once more after {}; {}",
            given.config.alerts.base_url,
            span(alerts.pump.escalate_after),
            match secrets.heartbeat_url {
                Some(_) => format!("a heartbeat every {}", span(alerts.pump.heartbeat_interval)),
                None => "no heartbeat".to_owned(),
            },
        )?,
        None => writeln!(out, "note: nobody is alerted")?,
    }
    match &plan.access {
        Some(access) => writeln!(out, "access {access}")?,
        None => writeln!(
            out,
            "note: no tokens: serve needs --no-tokens NAME and a loopback address"
        )?,
    }
    if problems.is_empty() {
        writeln!(out, "the configuration is good")?;
        return Ok(());
    }
    Err(Wrong(format!(
        "the configuration is wrong:\n  {}",
        problems.join("\n  ")
    ))
    .into())
}

fn find<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => table.get(path),
        Some((section, rest)) => find(table.get(section)?.as_table()?, rest),
    }
}

pub(crate) fn show(common: &Common) -> anyhow::Result<()> {
    let given = common.given(&[])?;
    let table: Table = Table::try_from(&given.config)?;
    let mut shown = serde_json::Map::new();
    let mut out = out();
    for key in KEYS {
        let (value, source) = (find(&table, key.path), given.source(key).to_string());
        match common.format {
            Format::Json => {
                let it = serde_json::json!({ "value": value, "source": source });
                shown.insert(key.path.to_owned(), it);
            }
            Format::Text => {
                let variable = environment_name(key.path);
                writeln!(out, "# {} ({variable})", key.help)?;
                match value {
                    Some(value) => writeln!(out, "{} = {value}   # {source}", key.path)?,
                    None => writeln!(out, "# {} is not set", key.path)?,
                }
            }
        }
    }
    if common.format == Format::Json {
        writeln!(out, "{}", serde_json::Value::Object(shown))?;
        return Ok(());
    }
    writeln!(
        out,
        "# Secrets are not shown. {}",
        secrets_line(&given.config)
    )?;
    Ok(())
}

fn secrets_line(config: &Config) -> String {
    let mut problems = Vec::new();
    let secrets = Secrets::read(config, |name| std::env::var(name).ok(), &mut problems);
    let is = |there: bool| if there { "there" } else { "missing" };
    format!(
        "The database's URL is {}, Better Stack's token is {}, its heartbeat's URL is {}, the secret of signed tokens is {}.",
        is(secrets.database_url.is_some()),
        is(secrets.better_stack_token.is_some()),
        is(secrets.heartbeat_url.is_some()),
        is(secrets.jwt_secret.is_some())
    )
}
