//! pgbench with the statements that the consumer sends for a job, one after the other, as many clients at once as the consumer
//! has handlers: what PostgreSQL can do if nobody has to decide anything in between.

use std::process::Stdio;
use std::str::FromStr as _;

use anyhow::Context as _;
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;

use crate::measured::Measured;
use crate::setting::{CONSUMER, Setting};

/// With prepared statements, and without. Statements that the consumer sends in one round trip can be sent in one only in the
/// second; whichever is faster is the one to be compared with.
pub(crate) const PROTOCOLS: [&str; 2] = ["prepared", "simple"];

fn script(protocol: &str) -> String {
    // The consumer sends these pairs in one round trip.
    let and = if protocol == "simple" {
        " \\;\n"
    } else {
        ";\n"
    };
    format!(
        "SELECT msg_id, read_ct, last_read_at, enqueued_at, message::text FROM pgmq.read('points', 60, 1) \\gset m_\n\
         BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE{and}\
         SELECT current_setting('default_transaction_read_only'), current_setting('idle_in_transaction_session_timeout');\n\
         SELECT verdict, xact FROM core.fence(gen_random_uuid(), '{CONSUMER}', 1, NULL, interval '7 days', 20, 60000) \\gset f_\n\
         INSERT INTO ledger (job_id, consumer, account, points) VALUES (gen_random_uuid(), '{CONSUMER}', 'a1', 7);\n\
         SELECT core.seal(:f_xact::text){and}COMMIT;\n\
         SELECT * FROM pgmq.delete('points', :m_msg_id);\n"
    )
}

/// What the consumer sends for a batch. Messages come to the client, as they come to the consumer.
fn script_of_a_batch(batch: u32) -> String {
    format!(
        "SELECT array_agg(msg_id)::text AS ids, string_agg(message::text, ' ') AS texts FROM pgmq.read('points', 60, {batch}) \\gset m_\n\
         BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE \\;\n\
         SELECT current_setting('default_transaction_read_only'), current_setting('idle_in_transaction_session_timeout');\n\
         SELECT verdicts[1] AS verdict, xact FROM core.fence_all(ARRAY(SELECT gen_random_uuid() FROM generate_series(1, {batch})), \
         '{CONSUMER}', array_fill(0, ARRAY[{batch}]), array_fill(NULL::uuid, ARRAY[{batch}]), interval '7 days', 20, 60000) \\gset f_\n\
         INSERT INTO ledger (job_id, consumer, account, points) SELECT gen_random_uuid(), '{CONSUMER}', 'a1', 7 FROM generate_series(1, {batch});\n\
         SELECT core.seal(:f_xact::text) \\;\nCOMMIT;\n\
         SELECT count(*) FROM pgmq.delete('points', ':m_ids'::bigint[]);\n"
    )
}

/// With batches, in the protocol that sends in one round trip what the consumer does.
pub(crate) async fn measure_batches(
    setting: &Setting,
    batch: u32,
    clients: u32,
    messages: u32,
) -> anyhow::Result<Measured> {
    let script = script_of_a_batch(batch);
    let measured = run(setting, "simple", &script, clients, messages / batch).await?;
    Ok(Measured {
        per_second: measured.per_second * f64::from(batch),
        ..measured
    })
}

pub(crate) async fn measure(
    setting: &Setting,
    protocol: &str,
    clients: u32,
    messages: u32,
) -> anyhow::Result<Measured> {
    run(setting, protocol, &script(protocol), clients, messages).await
}

async fn run(
    setting: &Setting,
    protocol: &str,
    script: &str,
    clients: u32,
    transactions: u32,
) -> anyhow::Result<Measured> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("job.sql");
    std::fs::write(&file, script)?;
    let server = PgConnectOptions::from_str(setting.url())?;
    let output = Command::new("pgbench")
        .args(["--no-vacuum", "--protocol", protocol, "--client"])
        .arg(clients.to_string())
        .args(["--jobs", &clients.min(2).to_string(), "--transactions"])
        .arg((transactions / clients).to_string())
        .arg("--file")
        .arg(&file)
        .args([
            "--host",
            server.get_host(),
            "--username",
            server.get_username(),
        ])
        .args(["--port", &server.get_port().to_string()])
        .arg(server.get_database().context("a database")?)
        .stdin(Stdio::null())
        .output()
        .await
        .context("pgbench, which is part of PostgreSQL's package")?;
    let said = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(
        output.status.success() && said.contains("failed transactions: 0 "),
        "pgbench: {}\n{said}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let per_second = said
        .lines()
        .find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
        .with_context(|| format!("pgbench says no tps:\n{said}"))?;
    Ok(Measured {
        per_second,
        p50_ms: None,
        p99_ms: None,
    })
}
