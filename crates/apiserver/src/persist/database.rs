//! The SQLite database: opening and checking it, reading all clusters, writing batches.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use thiserror::Error;

use super::directory::Directory;
use super::outbox::{Change, Counters, Record};
use super::{Identity, PersistError, StoredCluster, Unusable};
use crate::store::Stored;

/// The SQLite application ID of the file: "stAs".
const APPLICATION: i32 = 0x7374_4173;
/// The schema version that this program writes.
const VERSION: i32 = 1;
const SCHEMA: &str = include_str!("schema.sql");
/// The prefix of the keys of the table `meta` with the numbers of removed clusters.
const REMOVALS: &str = "removed/";
/// How long a connection waits for the lock of another reader of the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The open database.
pub(super) struct Database {
    path: PathBuf,
    /// `None` after a failure: the next transaction opens a new connection.
    connection: Option<SqliteConnection>,
    is_new: bool,
}

impl Database {
    /// Opens the database of a directory and checks it.
    pub(super) async fn open(directory: &Directory) -> Result<Self, PersistError> {
        let mut database = Self {
            path: directory.database(),
            connection: None,
            is_new: false,
        };
        let checked = match database.connection().await {
            Ok(connection) => check(connection).await,
            Err(error) => Err(error.into()),
        };
        match checked {
            Ok(Found::New) => database.is_new = true,
            Ok(Found::Ours) => {}
            Err(error) => return Err(database.error(error)),
        }
        Ok(database)
    }

    /// Returns whether the database has no tables yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Creates the tables and stores the identity of the server.
    pub(super) async fn create(&mut self, identity: &Identity) -> Result<(), PersistError> {
        let created = async {
            let connection = self.connection().await?;
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            sqlx::raw_sql(SCHEMA).execute(&mut *transaction).await?;
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
                "PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            )))
            .execute(&mut *transaction)
            .await?;
            for (key, value) in [
                ("secret", identity.secret.to_vec()),
                ("seed", identity.seed.to_string().into_bytes()),
                ("certificate", identity.certificate.clone().into_bytes()),
                ("key", identity.key.clone().into_bytes()),
            ] {
                set(&mut transaction, key, value).await?;
            }
            transaction.commit().await
        };
        created
            .await
            .map_err(|error| self.error(ReadError::Sqlite(error)))
    }

    /// Returns the identity of the server.
    pub(super) async fn identity(&mut self) -> Result<Identity, PersistError> {
        let mut meta = self.meta().await?;
        read_identity(&mut meta).map_err(|why| self.error(why.into()))
    }

    /// Returns the address that the server last listened on.
    pub(super) async fn address(&mut self) -> Result<Option<SocketAddr>, PersistError> {
        let Some(value) = self.meta().await?.remove("address") else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&value);
        match text.parse() {
            Ok(address) => Ok(Some(address)),
            Err(_) => {
                let address = text.into_owned();
                Err(self.error(Unusable::Address { address }.into()))
            }
        }
    }

    /// Returns the number of removed clusters of each name.
    pub(super) async fn removals(&mut self) -> Result<BTreeMap<Box<str>, u64>, PersistError> {
        let mut removals = BTreeMap::new();
        for (key, value) in self.meta().await? {
            let Some(name) = key.strip_prefix(REMOVALS) else {
                continue;
            };
            let Ok(count) = String::from_utf8_lossy(&value).parse() else {
                return Err(self.error(Unusable::Meta { key }.into()));
            };
            removals.insert(name.into(), count);
        }
        Ok(removals)
    }

    async fn meta(&mut self) -> Result<BTreeMap<String, Vec<u8>>, PersistError> {
        let read = async {
            let connection = self.connection().await?;
            sqlx::query_as::<_, (String, Vec<u8>)>("SELECT key, value FROM meta")
                .fetch_all(connection)
                .await
        };
        let rows = read.await.map_err(|error| self.error(ReadError::Sqlite(error)))?;
        Ok(rows.into_iter().collect())
    }

    /// Returns all clusters with their objects, and the number of the next cluster.
    pub(super) async fn clusters(&mut self) -> Result<(Vec<StoredCluster>, u64), PersistError> {
        let read = match self.connection().await {
            Ok(connection) => read_clusters(connection).await,
            Err(error) => Err(error.into()),
        };
        read.map_err(|error| self.error(error))
    }

    /// Writes a batch in one transaction. A repeated write has no further effect.
    pub(super) async fn write(&mut self, records: &[Record]) -> Result<(), sqlx::Error> {
        let written = async {
            let connection = self.connection().await?;
            let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
            Batch::of(records).write(&mut transaction).await?;
            transaction.commit().await
        };
        let written = written.await;
        if written.is_err() {
            self.disconnect().await;
        }
        written
    }

    /// Closes the database. Committed data is safe even if closing fails.
    pub(super) async fn close(mut self) {
        self.disconnect().await;
    }

    async fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take()
            && let Err(error) = connection.close().await
        {
            tracing::debug!(%error, "the file of the embedded API server did not close cleanly");
        }
    }

    async fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.path).await?,
        };
        Ok(self.connection.insert(connection))
    }

    /// Adds the path of the file to an error.
    fn error(&self, error: ReadError) -> PersistError {
        let path = self.path.clone();
        match error {
            ReadError::Sqlite(source) => PersistError::Read { path, source },
            ReadError::Unusable(why) => PersistError::Unusable { path, why },
        }
    }
}

/// Why a file cannot be read.
#[derive(Debug, Error)]
enum ReadError {
    #[error(transparent)]
    Sqlite(#[from] sqlx::Error),
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Connects in a mode in which every commit waits for the disk.
async fn connect(path: &std::path::Path) -> Result<SqliteConnection, sqlx::Error> {
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .foreign_keys(true)
        .busy_timeout(BUSY_TIMEOUT)
        .connect()
        .await?;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode = WAL")
        .fetch_one(&mut connection)
        .await?;
    if mode != "wal" {
        return Err(sqlx::Error::Configuration(
            "the file system does not let SQLite keep a write-ahead log".into(),
        ));
    }
    // A deleted Secret is overwritten, not only unlinked from the file.
    sqlx::raw_sql(
        "PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 16777216; PRAGMA secure_delete = ON;",
    )
    .execute(&mut connection)
    .await?;
    Ok(connection)
}

/// The state of a file that was opened.
enum Found {
    New,
    Ours,
}

async fn check(connection: &mut SqliteConnection) -> Result<Found, ReadError> {
    let tables = number(connection, "SELECT count(*) FROM sqlite_schema").await?;
    let application = number(connection, "PRAGMA application_id").await?;
    let version = number(connection, "PRAGMA user_version").await?;
    match (tables, application, version) {
        (0, 0, 0) => return Ok(Found::New),
        (_, APPLICATION, VERSION) => {}
        (_, APPLICATION, version) if version > VERSION => {
            return Err(ReadError::Unusable(Unusable::Newer {
                found: version,
                known: VERSION,
            }));
        }
        _ => return Err(Unusable::Foreign.into()),
    }
    let verdict: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(&mut *connection)
        .await?;
    if verdict != "ok" {
        return Err(Unusable::Damaged { verdict }.into());
    }
    Ok(Found::Ours)
}

async fn number(connection: &mut SqliteConnection, query: &'static str) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar(query).fetch_one(connection).await
}

/// Takes the identity of the server out of the rows of the table `meta`.
fn read_identity(meta: &mut BTreeMap<String, Vec<u8>>) -> Result<Identity, Unusable> {
    let mut text = |key: &'static str| {
        meta.remove(key)
            .and_then(|value| String::from_utf8(value).ok())
            .ok_or_else(|| Unusable::Meta { key: key.to_owned() })
    };
    let seed = text("seed")?;
    let Ok(seed) = seed.parse() else {
        return Err(Unusable::Seed { seed });
    };
    let (certificate, key) = (text("certificate")?, text("key")?);
    let secret = meta.remove("secret").and_then(|value| value.try_into().ok());
    Ok(Identity {
        secret: secret.ok_or(Unusable::Secret)?,
        seed,
        certificate,
        key,
    })
}

/// Reads all clusters, and the number of the next one.
async fn read_clusters(connection: &mut SqliteConnection) -> Result<(Vec<StoredCluster>, u64), ReadError> {
    let last: Option<i64> = sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'clusters'")
        .fetch_optional(&mut *connection)
        .await?;
    let mut clusters = BTreeMap::new();
    let mut rows = sqlx::query_as::<_, (i64, String, i64, i64, u32, u32)>(
        "SELECT id, name, revision, random, addresses, ports FROM clusters",
    )
    .fetch(&mut *connection);
    while let Some((id, name, revision, random, addresses, ports)) = rows.try_next().await? {
        let stored_cluster = StoredCluster {
            id: id.cast_unsigned(),
            name: name.into(),
            counters: Counters {
                revision: revision.cast_unsigned(),
                random: random.cast_unsigned(),
                addresses,
                ports,
            },
            objects: Vec::new(),
        };
        clusters.insert(id, stored_cluster);
    }
    drop(rows);
    let mut rows = sqlx::query_as::<_, (i64, String, String, i64, Vec<u8>)>(
        "SELECT cluster, resource, key, revision, body FROM objects",
    )
    .fetch(&mut *connection);
    while let Some((cluster, resource, key, revision, body)) = rows.try_next().await? {
        let revision = revision.cast_unsigned();
        let stored_cluster = clusters.get_mut(&cluster);
        let stored = Stored::restored(Bytes::from(body), revision);
        match (stored_cluster, stored) {
            (Some(stored_cluster), Some(stored))
                if *stored.head.key() == *key && revision <= stored_cluster.counters.revision =>
            {
                stored_cluster.objects.push((resource.into(), stored));
            }
            _ => {
                return Err(ReadError::Unusable(Unusable::Object {
                    cluster,
                    resource,
                    key,
                }));
            }
        }
    }
    drop(rows);
    let next = last.unwrap_or_default().cast_unsigned() + 1;
    Ok((clusters.into_values().collect(), next))
}

/// The net effect of a number of records: of several writes to an object, only the last remains.
struct Batch<'a> {
    created: Vec<(u64, &'a str)>,
    removed: Vec<u64>,
    /// The number of removed clusters of each name.
    removals: BTreeMap<&'a str, u64>,
    counters: BTreeMap<u64, Counters>,
    changes: Vec<(u64, &'a Change)>,
    address: Option<SocketAddr>,
}

impl<'a> Batch<'a> {
    fn of(records: &'a [Record]) -> Self {
        let mut batch = Self {
            created: Vec::new(),
            removed: Vec::new(),
            removals: BTreeMap::new(),
            counters: BTreeMap::new(),
            changes: Vec::new(),
            address: None,
        };
        let mut places = HashMap::new();
        for record in records {
            match record {
                Record::Created {
                    cluster,
                    name,
                    counters,
                } => {
                    batch.created.push((*cluster, name));
                    batch.counters.insert(*cluster, *counters);
                }
                Record::Changed {
                    cluster,
                    change,
                    counters,
                } => {
                    batch.counters.insert(*cluster, *counters);
                    let head = &change.object.head;
                    let key = (*cluster, &*change.table, &*head.namespace, &*head.name);
                    let next = batch.changes.len();
                    match places.entry(key) {
                        std::collections::hash_map::Entry::Vacant(entry) => {
                            entry.insert(next);
                            batch.changes.push((*cluster, change));
                        }
                        std::collections::hash_map::Entry::Occupied(entry) => {
                            if let Some(place) = batch.changes.get_mut(*entry.get()) {
                                place.1 = change;
                            }
                        }
                    }
                }
                Record::Removed {
                    cluster,
                    name,
                    removals,
                } => {
                    batch.removed.push(*cluster);
                    batch.removals.insert(name, *removals);
                }
                Record::Address(address) => batch.address = Some(*address),
            }
        }
        batch
    }

    async fn write(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        // Removals come first, since a cluster may be removed and another of its name created in one batch.
        self.remove(connection).await?;
        for (cluster, name) in &self.created {
            if self.removed.contains(cluster) {
                continue;
            }
            sqlx::query(
                "INSERT INTO clusters (id, name, revision, random, addresses, ports) VALUES (?1, ?2, 0, 0, 0, 0)
                 ON CONFLICT (id) DO NOTHING",
            )
            .bind(cluster.cast_signed())
            .bind(*name)
            .execute(&mut *connection)
            .await?;
        }
        for (cluster, change) in &self.changes {
            if !self.removed.contains(cluster) {
                apply(connection, *cluster, change).await?;
            }
        }
        for (cluster, counters) in &self.counters {
            sqlx::query(
                "UPDATE clusters SET revision = ?2, random = ?3, addresses = ?4, ports = ?5 WHERE id = ?1",
            )
            .bind(cluster.cast_signed())
            .bind(counters.revision.cast_signed())
            .bind(counters.random.cast_signed())
            .bind(counters.addresses)
            .bind(counters.ports)
            .execute(&mut *connection)
            .await?;
        }
        if let Some(address) = self.address {
            set(connection, "address", address.to_string().into_bytes()).await?;
        }
        Ok(())
    }

    async fn remove(&self, connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        for cluster in &self.removed {
            // The foreign key deletes the cluster's objects.
            sqlx::query("DELETE FROM clusters WHERE id = ?1")
                .bind(cluster.cast_signed())
                .execute(&mut *connection)
                .await?;
        }
        for (name, removals) in &self.removals {
            set(
                connection,
                &format!("{REMOVALS}{name}"),
                removals.to_string().into_bytes(),
            )
            .await?;
        }
        Ok(())
    }
}

async fn apply(connection: &mut SqliteConnection, cluster: u64, change: &Change) -> Result<(), sqlx::Error> {
    let stored = &change.object;
    let key = stored.head.key();
    let query = if change.removed {
        sqlx::query("DELETE FROM objects WHERE cluster = ?1 AND resource = ?2 AND key = ?3")
            .bind(cluster.cast_signed())
            .bind(&*change.table)
            .bind(&*key)
    } else {
        sqlx::query(
            "INSERT INTO objects (cluster, resource, key, revision, body) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (cluster, resource, key) DO UPDATE SET revision = excluded.revision, body = excluded.body",
        )
        .bind(cluster.cast_signed())
        .bind(&*change.table)
        .bind(&*key)
        .bind(stored.revision.cast_signed())
        .bind(&**stored.body())
    };
    query.execute(connection).await.map(|_| ())
}

async fn set(connection: &mut SqliteConnection, key: &str, value: Vec<u8>) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
    )
    .bind(key)
    .bind(value)
    .execute(connection)
    .await
    .map(|_| ())
}
