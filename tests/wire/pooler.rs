//! PgBouncer between the harness and PostgreSQL. What the store relies on is set for a session when it connects; a pooler that
//! drops that, or hands sessions round, is refused before any work is done.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;

use acceptance::clock::eventually;
use acceptance::db::{Db, job_id, queue_name};
use acceptance::rig::{Running, awards};
use harness::{PgStore, PgStoreConfig, QueuePort as _, Store as _, StoreError};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};

use crate::every_message::{quick, quick_store};
use crate::ledger::{Kind, all_exact};

/// A PgBouncer of the test's own, which ends with it.
struct Pooler {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Pooler {
    /// In front of the database of `db`.
    async fn start(db: &Db, mode: &str, ignored: &str) -> Self {
        let server = PgConnectOptions::from_str(db.url()).unwrap();
        let port = embedded_pg::free_port().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let settings = format!(
            "[databases]\n* = host={} port={} user={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = {mode}\nignore_startup_parameters = extra_float_digits{ignored}\n",
            server.get_host(),
            server.get_port(),
            server.get_username(),
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let database = server.get_database().unwrap();
        let pooler = Self {
            process: started(&file),
            url: format!("postgres://anybody@127.0.0.1:{port}/{database}"),
            _folder: folder,
        };
        eventually("the pooler answers", async || {
            PgConnection::connect(&pooler.url)
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
        .await;
        pooler
    }

    fn store(&self) -> PgStore {
        PgStore::new(&self.url, PgStoreConfig::default()).unwrap()
    }
}

fn started(settings: &Path) -> Child {
    let mut command = Command::new("pgbouncer");
    if nix::unistd::Uid::effective().is_root() {
        // It refuses to serve as root, and reads its settings before it steps down.
        command.args(["-u", "nobody"]);
    }
    command
        .arg("-q")
        .arg(settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("pgbouncer; ci/setup installs it")
}

/// What an operator is told: what is wrong, and the way out.
async fn refused(store: &PgStore, says: &str) {
    let migrated = store.migrate().await.unwrap_err().to_string();
    let begun = match store.begin().await {
        Err(StoreError::Refused(error)) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a transaction through a pooler"),
    };
    for text in [migrated, begun] {
        assert!(text.contains(says), "{text}");
        assert!(text.contains("Connect to PostgreSQL itself"), "{text}");
    }
}

#[tokio::test]
async fn b1_a_pooler_that_drops_our_settings_is_refused() {
    let db = Db::fresh().await;
    for mode in ["transaction", "session"] {
        let pooler = Pooler::start(&db, mode, ",options").await;
        refused(&pooler.store(), "default_transaction_read_only is off").await;
    }
}

#[tokio::test]
async fn b1_a_pooler_that_refuses_our_settings_is_refused_in_words_that_help() {
    let db = Db::fresh().await;
    let pooler = Pooler::start(&db, "transaction", "").await;
    refused(&pooler.store(), "unsupported startup parameter").await;
}

#[tokio::test]
async fn b1_s3_no_job_is_run_through_a_pooler_and_none_is_lost() {
    let db = Db::fresh().await;
    let pooler = Pooler::start(&db, "transaction", ",options").await;
    let queue = db.queue().await;
    let mut jobs = Vec::new();
    for kind in [Kind::Well, Kind::FailsOnce, Kind::Hard, Kind::Well] {
        let envelope = kind.envelope(job_id());
        queue.publish(&queue_name(), &envelope).await.unwrap();
        jobs.push((envelope.job_id, kind));
    }
    let consumer = Running::start_on(quick(&db), quick_store(&pooler.url), queue, awards());
    let seen = consumer.seen.clone();
    eventually(
        "the harness says that it cannot work like this",
        async || match seen.count(|step| format!("{step:?}").contains("pool_mode=transaction")) {
            0 => Err(format!("{:?}", seen.events())),
            _ => Ok(()),
        },
    )
    .await;
    consumer.stop().await;
    assert_eq!(db.count("SELECT count(*) FROM ledger").await, 0);
    assert_eq!(db.queued().await, 4);

    // On PostgreSQL itself they are done, and no attempt was lost.
    let direct = Running::start_on(
        quick(&db),
        quick_store(db.url()),
        db.queue().await,
        awards(),
    );
    db.settled().await;
    direct.stop().await;
    all_exact(&db, &jobs).await;
}
