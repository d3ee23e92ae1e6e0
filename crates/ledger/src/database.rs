//! Opens the database: options, check, migrations, and the decision whether a file is damaged.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection, SqlSafeStr};
use tracing::{debug, warn};

use super::directory::Files;
use super::error::is_damage_at_open;
use super::{LedgerError, Opened};

/// The files of `migrations/`, compiled in; append-only. Listed by hand: for `sqlx::migrate!` cargo builds SQLite and
/// most of sqlx a second time, for the macro.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    Migrator::with_migrations(vec![
        migration(1, "ledger", include_str!("../../../migrations/0001_ledger.sql")),
        migration(2, "terms", include_str!("../../../migrations/0002_terms.sql")),
        migration(3, "journal", include_str!("../../../migrations/0003_journal.sql")),
        migration(
            4,
            "rollout previous",
            include_str!("../../../migrations/0004_rollout_previous.sql"),
        ),
        migration(
            5,
            "management",
            include_str!("../../../migrations/0005_management.sql"),
        ),
        migration(
            6,
            "record attempts",
            include_str!("../../../migrations/0006_record_attempts.sql"),
        ),
        migration(
            7,
            "fields time",
            include_str!("../../../migrations/0007_fields_time.sql"),
        ),
        migration(
            8,
            "identity",
            include_str!("../../../migrations/0008_identity.sql"),
        ),
    ])
});

/// A step of the schema. Number and description are from its file name, and are stored in every ledger with the digest
/// of the text. A ledger with other values is not opened.
fn migration(version: i64, description: &'static str, sql: &'static str) -> Migration {
    Migration::new(
        version,
        description.into(),
        MigrationType::Simple,
        sql.into_sql_str(),
        false,
    )
}

/// How long a connection waits for the lock of another. Only a checkpoint and the recovery after a crash block other
/// connections, and both take far less.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// Connections for queries. Queries are rare and short: status pages, `starling why`, start-up.
const READERS: u32 = 3;

/// Opens the connection of the writer, also after a storage fault. The settings that change the file are made on the
/// open connection, and if they fail, the connection is closed before this function returns: on close, SQLite deletes
/// the log by name, and later another file may have that name.
pub(super) async fn connect_writer(files: &Files) -> Result<SqliteConnection, sqlx::Error> {
    let mut connection = SqliteConnectOptions::new()
        .filename(files.database())
        .create_if_missing(false)
        .foreign_keys(true)
        .busy_timeout(BUSY)
        .connect()
        .await?;
    match configure(&mut connection).await {
        Ok(()) => Ok(connection),
        Err(error) => {
            close(connection).await;
            Err(error)
        }
    }
}

/// Makes every commit wait for the disk. The log is truncated to 16 MiB after a checkpoint, so that a burst does not
/// use the volume forever.
async fn configure(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
        .fetch_one(&mut *connection)
        .await?;
    if mode != "wal" {
        return Err(sqlx::Error::Configuration(
            "the file system does not let SQLite keep a write-ahead log".into(),
        ));
    }
    sqlx::raw_sql("PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 16777216;")
        .execute(connection)
        .await?;
    Ok(())
}

/// Closes a connection and waits until its files are closed. Committed data is safe even if this fails.
pub(super) async fn close(connection: SqliteConnection) {
    if let Err(error) = connection.close().await {
        debug!(%error, "a connection of the ledger did not close cleanly");
    }
}

/// Creates a small pool of read-only connections.
pub(super) fn readers(files: &Files) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(files.database())
        .create_if_missing(false)
        .read_only(true)
        .busy_timeout(BUSY);
    SqlitePoolOptions::new()
        .max_connections(READERS)
        .connect_lazy_with(options)
}

/// Opens the ledger of a directory for writing. A ledger that is damaged, or written by a newer version, is moved aside
/// and replaced by an empty one.
pub(super) async fn open(files: &Files) -> Result<(SqliteConnection, Opened), LedgerError> {
    let found = if files.is_marked_damaged() {
        Some("damage was found while it was in use".to_owned())
    } else if files.has_orphaned_log() {
        Some("a write-ahead log without its database".to_owned())
    } else {
        None
    };
    let reason = match found {
        Some(reason) => reason,
        None => {
            let opened = if files.is_empty() {
                Opened::Fresh
            } else {
                Opened::Existing
            };
            match connect(files).await {
                Ok(connection) => return Ok((connection, opened)),
                Err(Refusal::Damaged(reason)) => reason,
                Err(Refusal::Failed(error)) => return Err(error),
            }
        }
    };
    let aside = files.move_aside(Timestamp::now())?;
    warn!(path = %aside.display(), reason, "the ledger was unusable and has been moved aside");
    match connect(files).await {
        Ok(connection) => Ok((connection, Opened::MovedAside(aside))),
        Err(Refusal::Damaged(reason)) => Err(LedgerError::Unusable {
            path: files.database(),
            reason,
        }),
        Err(Refusal::Failed(error)) => Err(error),
    }
}

/// Why a database was not opened.
enum Refusal {
    /// The file is damaged; it is moved aside.
    Damaged(String),
    /// Another cause; the file may be valid.
    Failed(LedgerError),
}

impl Refusal {
    fn of(path: PathBuf, error: sqlx::Error) -> Self {
        if is_damage_at_open(&error) {
            Self::Damaged(error.to_string())
        } else {
            Self::Failed(LedgerError::Open { path, source: error })
        }
    }
}

/// Connects and checks with [`prepare`]. On a refusal, the connection is closed, so that its file can be moved.
async fn connect(files: &Files) -> Result<SqliteConnection, Refusal> {
    files.ensure_database().map_err(Refusal::Failed)?;
    let mut connection = connect_writer(files)
        .await
        .map_err(|error| Refusal::of(files.database(), error))?;
    match prepare(&mut connection, files).await {
        Ok(()) => Ok(connection),
        Err(refusal) => {
            close(connection).await;
            Err(refusal)
        }
    }
}

/// Checks the pages, migrates the schema, compares it with the expected one, and checks that the database is writable.
async fn prepare(connection: &mut SqliteConnection, files: &Files) -> Result<(), Refusal> {
    let failed = |error| Refusal::of(files.database(), error);
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(&mut *connection)
        .await
        .map_err(failed)?;
    if verdict != "ok" {
        return Err(Refusal::Damaged(verdict));
    }
    migrate(connection, files).await?;
    if schema(connection).await.map_err(failed)? != expected_schema(files).await? {
        return Err(Refusal::Damaged(
            "its tables are not those of this version".to_owned(),
        ));
    }
    sqlx::query(
        "INSERT INTO meta (key, value) VALUES ('opened_at', ?1)
         ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )
    .bind(Timestamp::now().to_string())
    .execute(&mut *connection)
    .await
    .map_err(failed)?;
    Ok(())
}

async fn migrate(connection: &mut SqliteConnection, files: &Files) -> Result<(), Refusal> {
    MIGRATIONS.run(connection).await.map_err(|error| match error {
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
            Refusal::of(files.database(), source)
        }
        // A newer version wrote here, or the table of migrations itself is damaged.
        other => Refusal::Damaged(other.to_string()),
    })
}

/// Returns every table and index with its SQL statement.
async fn schema(connection: &mut SqliteConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as("SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY name")
        .fetch_all(connection)
        .await
}

/// Returns the schema after all migrations, from a database in memory. A flipped byte in a table name passes the quick
/// check, and so does the database of another program.
async fn expected_schema(files: &Files) -> Result<Vec<(String, String)>, Refusal> {
    let failed = |source| {
        Refusal::Failed(LedgerError::Open {
            path: files.database(),
            source,
        })
    };
    let mut model = SqliteConnectOptions::new()
        .in_memory(true)
        .connect()
        .await
        .map_err(failed)?;
    MIGRATIONS
        .run(&mut model)
        .await
        .map_err(|error| failed(sqlx::Error::Migrate(Box::new(error))))?;
    schema(&mut model).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the directory as `sqlx::migrate!` does, which created ledgers before the list was maintained by hand.
    #[tokio::test]
    async fn the_list_matches_the_directory() {
        let directory = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations"));
        let found = Migrator::new(directory).await.unwrap();
        assert_eq!(
            found.iter().count(),
            std::fs::read_dir(directory).unwrap().count()
        );
        assert_eq!(
            MIGRATIONS.iter().map(columns).collect::<Vec<_>>(),
            found.iter().map(columns).collect::<Vec<_>>()
        );
    }

    /// A ledger has the same migrations as one that `sqlx::migrate!` created. Also guards against a change of a
    /// released file, which would move every ledger aside.
    #[tokio::test]
    async fn ledgers_of_the_macro_are_accepted() {
        let directory = tempfile::TempDir::new().unwrap();
        let (files, _lock) = Files::claim(directory.path()).await.unwrap();
        let mut connection = connect(&files).await.ok().unwrap();
        let rows: Vec<(i64, String, String)> = sqlx::query_as(
            "SELECT version, description, hex(checksum) FROM _sqlx_migrations ORDER BY version",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        let released = [
            (
                1,
                "ledger",
                "E6AA727B04CFDBB580BA087A1279C853809879DD02E8DD4CACFB24294421365DDEDBB61084F6327BF1F0EE0632A65A99",
            ),
            (
                2,
                "terms",
                "AC43F083F4D3220614DF4EA7F05FBC1750C00FBA83894F4BE55B94CCD06400335B42992138D33B5D2A5FE6FE0783350E",
            ),
        ];
        for (row, (version, description, checksum)) in rows.iter().zip(released) {
            assert_eq!(*row, (version, description.to_owned(), checksum.to_owned()));
        }
        assert!(rows.len() >= released.len(), "{rows:?}");
    }

    /// Creates a ledger as it was before a migration.
    async fn created_before(files: &Files, version: i64) -> SqliteConnection {
        let mut before = SqliteConnectOptions::new()
            .filename(files.database())
            .create_if_missing(true)
            .connect()
            .await
            .unwrap();
        let old = MIGRATIONS.iter().filter(|migration| migration.version < version);
        Migrator::with_migrations(old.cloned().collect())
            .run(&mut before)
            .await
            .unwrap();
        before
    }

    /// Guards against the loss of management states: an object that Starling must not write would be written.
    #[tokio::test]
    async fn management_states_survive_the_new_name_of_their_column() {
        let directory = tempfile::TempDir::new().unwrap();
        let (files, _lock) = Files::claim(directory.path()).await.unwrap();
        let mut before = created_before(&files, 5).await;
        sqlx::query("INSERT INTO applied_objects VALUES ('c', 'o', '', 'ConfigMap', 'n', 'a', 'd', '1', 'f', 'u', ?1)")
            .bind(r#"{"leftAlone":true}"#)
            .execute(&mut before)
            .await
            .unwrap();
        close(before).await;
        let mut after = connect(&files).await.ok().unwrap();
        let state: String = sqlx::query_scalar("SELECT management FROM applied_objects")
            .fetch_one(&mut after)
            .await
            .unwrap();
        assert_eq!(state, r#"{"leftAlone":true}"#);
    }

    /// A ledger that knows groups by their UIDs is opened: its journal stays readable, and nothing in it stays open.
    #[tokio::test]
    async fn a_ledger_with_uids_is_opened_and_nothing_in_it_is_open() {
        let directory = tempfile::TempDir::new().unwrap();
        let (files, _lock) = Files::claim(directory.path()).await.unwrap();
        let mut before = created_before(&files, 8).await;
        for row in [
            "INSERT INTO rollouts (group_uid, id, namespace, name, release, revisions, started_at) \
             VALUES ('u', '1', 'n', 'g', 'r', '{}', 5)",
            "INSERT INTO admissions (group_uid, rollout, entry, cluster, target, sync_namespace, sync_name, revision, \
             admitted_at) VALUES ('u', '1', 'e', 'c', 't', 'n', 's', 'r', 5)",
            "INSERT INTO journal (group_uid, seq, namespace, name, rollout, at, entry, hash) \
             VALUES ('u', 1, 'n', 'g', 1, 5, '{}', 'h')",
        ] {
            sqlx::query(row).execute(&mut before).await.unwrap();
        }
        close(before).await;
        let mut after = connect(&files).await.ok().unwrap();
        let open = "SELECT (SELECT count(*) FROM rollouts WHERE outcome IS NULL) \
                    + (SELECT count(*) FROM admissions WHERE outcome IS NULL)";
        let open: i64 = sqlx::query_scalar(open).fetch_one(&mut after).await.unwrap();
        assert_eq!(open, 0);
        let journal: String = sqlx::query_scalar("SELECT group_id FROM journal")
            .fetch_one(&mut after)
            .await
            .unwrap();
        assert_eq!(journal, "u");
    }

    /// Returns all fields of a migration.
    fn columns(migration: &Migration) -> (i64, &str, MigrationType, &str, &[u8], bool) {
        let Migration {
            version,
            description,
            migration_type,
            sql,
            checksum,
            no_tx,
        } = migration;
        (
            *version,
            description,
            *migration_type,
            sql.as_str(),
            checksum,
            *no_tx,
        )
    }

    /// A killed process does not test this: the page cache survives a kill, but not a power failure.
    #[tokio::test]
    async fn every_commit_waits_for_the_disk() {
        let directory = tempfile::TempDir::new().unwrap();
        let (files, _lock) = Files::claim(directory.path()).await.unwrap();
        let mut connection = connect(&files).await.ok().unwrap();
        for (query, wanted) in [
            ("SELECT journal_mode FROM pragma_journal_mode", "wal"),
            ("SELECT CAST(synchronous AS TEXT) FROM pragma_synchronous", "2"),
            ("SELECT CAST(foreign_keys AS TEXT) FROM pragma_foreign_keys", "1"),
            ("SELECT CAST(timeout AS TEXT) FROM pragma_busy_timeout", "5000"),
        ] {
            let found: String = sqlx::query_scalar(query)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(found, wanted, "{query}");
        }
    }

    /// Guards against the loss of the new ledger's log: a connection that is open after its file was moved aside
    /// deletes the log of the new file with that name.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_refused_database_is_closed_before_it_can_be_moved() {
        let directory = tempfile::TempDir::new().unwrap();
        let (files, _lock) = Files::claim(directory.path()).await.unwrap();
        close(connect(&files).await.ok().unwrap()).await;
        let valid = std::fs::read(files.database()).unwrap();
        for position in [0, 18, 100, 4096].repeat(10) {
            let mut bytes = valid.clone();
            bytes[position..position + 8].fill(0xee);
            std::fs::write(files.database(), bytes).unwrap();
            assert!(
                matches!(connect(&files).await, Err(Refusal::Damaged(_))),
                "{position}"
            );
            assert_eq!(open_files(directory.path()), ["lock"], "{position}");
        }
    }

    /// The files below a directory that this process has open.
    #[cfg(target_os = "linux")]
    fn open_files(directory: &std::path::Path) -> Vec<String> {
        std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|file| Some(file.strip_prefix(directory).ok()?.display().to_string()))
            .collect()
    }
}
