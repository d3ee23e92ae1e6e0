//! Opening the database: options, check, migrations, and the decision that a file is no ledger any more.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};
use tracing::{info, warn};

use super::error::is_damage_at_open;
use super::folder::Files;
use super::{LedgerError, Opened};

/// The schema, compiled in; append-only.
static MIGRATIONS: Migrator = sqlx::migrate!();

/// How long a connection waits for another's lock. Only a checkpoint or the recovery after a crash takes locks that
/// a neighbour meets, both far below this.
const BUSY: Duration = Duration::from_secs(5);

/// Connections for queries. Queries are rare and short: status pages, `starling why`, start-up.
const READERS: u32 = 3;

/// The write-ahead log is cut back to this after a checkpoint, in bytes. A burst must not occupy the volume forever.
const LOG_LIMIT: &str = "16777216";

/// How the writer connects.
pub(super) fn writer_options(files: &Files) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(files.database())
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
        .busy_timeout(BUSY)
        .pragma("journal_size_limit", LOG_LIMIT)
}

/// A small pool of connections that cannot write.
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

/// Opens the ledger of a folder for writing. What is damaged, or written by a newer version, is moved aside and
/// replaced by an empty ledger.
pub(super) async fn open(files: &Files) -> Result<(SqliteConnection, Opened), LedgerError> {
    let found = if files.is_marked_damaged() {
        Some("damage was met while it was in use".to_owned())
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
    /// The file is at fault; move it aside.
    Damaged(String),
    /// Something else is; the file may be sound.
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

/// Connects and lets [`prepare`] judge; a refused connection is closed, so that its file can be moved.
async fn connect(files: &Files) -> Result<SqliteConnection, Refusal> {
    files.ensure_database().map_err(Refusal::Failed)?;
    let options = writer_options(files);
    let mut connection = options
        .connect()
        .await
        .map_err(|error| Refusal::of(files.database(), error))?;
    match prepare(&mut connection, files).await {
        Ok(()) => Ok(connection),
        Err(refusal) => {
            if let Err(error) = connection.close().await {
                info!(%error, "the refused ledger did not close cleanly");
            }
            Err(refusal)
        }
    }
}

/// Checks the pages, brings the schema up to date, compares it with what this version wants, and proves that the
/// database can be written.
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
    if schema(connection).await.map_err(failed)? != wanted_schema(files).await? {
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

/// Every table and index with the statement that made it.
async fn schema(connection: &mut SqliteConnection) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as("SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY name")
        .fetch_all(connection)
        .await
}

/// The schema that the migrations make, from a database in memory. A flipped byte in a table's name passes the quick
/// check, and so does the database of another program.
async fn wanted_schema(files: &Files) -> Result<Vec<(String, String)>, Refusal> {
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

    /// `sqlx::migrate!` is expanded when this crate is compiled: a file added since would be missing.
    #[test]
    fn every_migration_in_the_folder_is_compiled_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let files = std::fs::read_dir(folder).unwrap().count();
        assert_eq!(MIGRATIONS.iter().count(), files);
    }
}
