//! What is remembered of each object after it was applied: a cache that spares requests.
//!
//! Losing a record costs one request. A record never proves that an object is ours: the inventory on the member does.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use starling_core::apply::Record;
use starling_core::object::ObjectKey;

use super::{Ledger, LedgerError};

impl Ledger {
    /// What is remembered of an owner's objects on a cluster; empty if nothing is.
    ///
    /// # Errors
    /// If the query failed. A caller then goes on as if nothing was remembered.
    pub async fn load_records(
        &self,
        cluster_id: &str,
        owner: &str,
    ) -> Result<BTreeMap<ObjectKey, Record>, LedgerError> {
        let rows = sqlx::query(
            "SELECT obj_group, kind, namespace, name, digest, resource_version, fields_digest, uid
             FROM applied_objects WHERE cluster_id = ?1 AND owner = ?2",
        )
        .bind(cluster_id)
        .bind(owner)
        .try_map(|row| read(&row))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("records of {owner} on {cluster_id}"), source))?;
        Ok(rows.into_iter().collect())
    }

    /// Forgets the objects in `deletes`, then remembers those in `upserts`, in one transaction.
    ///
    /// # Errors
    /// If the change was not recorded; then nothing of it was.
    pub async fn save_records(
        &self,
        cluster_id: &str,
        owner: &str,
        upserts: &BTreeMap<ObjectKey, Record>,
        deletes: &BTreeSet<ObjectKey>,
    ) -> Result<(), LedgerError> {
        if upserts.is_empty() && deletes.is_empty() {
            return Ok(());
        }
        let subject = format!("save records of {owner} on {cluster_id}");
        let (cluster_id, owner) = (cluster_id.to_owned(), owner.to_owned());
        let (gone, kept) = (encode_keys(deletes)?, encode_records(upserts)?);
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "DELETE FROM applied_objects WHERE (cluster_id, owner, obj_group, kind, namespace, name) IN
                     (SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3))",
                )
                .bind(&cluster_id)
                .bind(&owner)
                .bind(gone)
                .execute(&mut *connection)
                .await?;
                sqlx::query(
                    "INSERT INTO applied_objects (cluster_id, owner, obj_group, kind, namespace, name,
                                                  digest, resource_version, fields_digest, uid)
                     SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3,
                            value ->> 4, value ->> 5, value ->> 6, value ->> 7
                     FROM json_each(?3) WHERE true
                     ON CONFLICT (cluster_id, owner, obj_group, kind, namespace, name) DO UPDATE SET
                         digest = excluded.digest, resource_version = excluded.resource_version,
                         fields_digest = excluded.fields_digest, uid = excluded.uid",
                )
                .bind(&cluster_id)
                .bind(&owner)
                .bind(kept)
                .execute(&mut *connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Forgets everything about an owner on a cluster: it has nothing there any more.
    ///
    /// # Errors
    /// If the change was not recorded.
    pub async fn drop_owner_records(&self, cluster_id: &str, owner: &str) -> Result<(), LedgerError> {
        let subject = format!("drop the records of {owner} on {cluster_id}");
        let (cluster_id, owner) = (cluster_id.to_owned(), owner.to_owned());
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM applied_objects WHERE cluster_id = ?1 AND owner = ?2")
                    .bind(cluster_id)
                    .bind(owner)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .await
    }

    /// Forgets everything about a cluster: it was removed, or its name now stands for another one.
    ///
    /// # Errors
    /// If the change was not recorded.
    pub async fn drop_cluster_records(&self, cluster_id: &str) -> Result<(), LedgerError> {
        let subject = format!("drop the records of cluster {cluster_id}");
        let cluster_id = cluster_id.to_owned();
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM applied_objects WHERE cluster_id = ?1")
                    .bind(cluster_id)
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .await
    }
}

/// Rows travel as one JSON text each call: one statement for two hundred objects, always the same, so it stays prepared.
fn encode_records(records: &BTreeMap<ObjectKey, Record>) -> Result<String, LedgerError> {
    let rows: Vec<[&str; 8]> = records
        .iter()
        .map(|(key, record)| {
            let ObjectKey {
                group,
                kind,
                namespace,
                name,
            } = key;
            let Record {
                digest,
                resource_version,
                fields_digest,
                uid,
            } = record;
            [
                group,
                kind,
                namespace,
                name,
                digest,
                resource_version,
                fields_digest,
                uid,
            ]
            .map(String::as_str)
        })
        .collect();
    serde_json::to_string(&rows).map_err(|source| LedgerError::Encode {
        subject: "object records",
        source,
    })
}

fn encode_keys(keys: &BTreeSet<ObjectKey>) -> Result<String, LedgerError> {
    let rows: Vec<[&str; 4]> = keys
        .iter()
        .map(
            |ObjectKey {
                 group,
                 kind,
                 namespace,
                 name,
             }| [group, kind, namespace, name].map(String::as_str),
        )
        .collect();
    serde_json::to_string(&rows).map_err(|source| LedgerError::Encode {
        subject: "object keys",
        source,
    })
}

fn read(row: &SqliteRow) -> Result<(ObjectKey, Record), sqlx::Error> {
    let key = ObjectKey {
        group: row.try_get(0)?,
        kind: row.try_get(1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
    };
    let record = Record {
        digest: row.try_get(4)?,
        resource_version: row.try_get(5)?,
        fields_digest: row.try_get(6)?,
        uid: row.try_get(7)?,
    };
    Ok((key, record))
}
