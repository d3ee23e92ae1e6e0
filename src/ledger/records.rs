//! What is remembered of each object after it was applied: a cache that spares requests.
//!
//! Losing a record costs one request. A record never proves that an object is ours: the inventory on the member does.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use starling_core::apply::{Record, Terms};
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
            "SELECT obj_group, kind, namespace, name, digest, resource_version, fields_digest, uid, terms
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

    /// The other owners that objects of a cluster are remembered for; objects without any are left out.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn other_owners(
        &self,
        cluster_id: &str,
        owner: &str,
        objects: &BTreeSet<ObjectKey>,
    ) -> Result<BTreeMap<ObjectKey, Vec<String>>, LedgerError> {
        let mut owners: BTreeMap<ObjectKey, Vec<String>> = BTreeMap::new();
        if objects.is_empty() {
            return Ok(owners);
        }
        let rows = sqlx::query(
            "SELECT obj_group, kind, namespace, name, owner FROM applied_objects
             WHERE cluster_id = ?1 AND owner <> ?2 AND (obj_group, kind, namespace, name) IN
                   (SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3))
             ORDER BY owner",
        )
        .bind(cluster_id)
        .bind(owner)
        .bind(encode_keys(objects)?)
        .try_map(|row| Ok((read_key(&row)?, row.try_get(4)?)))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("other owners on {cluster_id}"), source))?;
        for (key, owner) in rows {
            owners.entry(key).or_default().push(owner);
        }
        Ok(owners)
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
                                                  digest, resource_version, fields_digest, uid, terms)
                     SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3,
                            value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8
                     FROM json_each(?3) WHERE true
                     ON CONFLICT (cluster_id, owner, obj_group, kind, namespace, name) DO UPDATE SET
                         digest = excluded.digest, resource_version = excluded.resource_version,
                         fields_digest = excluded.fields_digest, uid = excluded.uid, terms = excluded.terms",
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
    let encode = |source| LedgerError::Encode {
        subject: "object records",
        source,
    };
    let rows = records
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
                terms,
            } = record;
            let terms = if *terms == Terms::default() {
                String::new()
            } else {
                serde_json::to_string(terms)?
            };
            let texts = [
                group,
                kind,
                namespace,
                name,
                digest,
                resource_version,
                fields_digest,
                uid,
            ];
            Ok(texts.into_iter().cloned().chain([terms]).collect())
        })
        .collect::<Result<Vec<Vec<String>>, serde_json::Error>>()
        .map_err(encode)?;
    serde_json::to_string(&rows).map_err(encode)
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

fn terms(text: &str) -> Result<Terms, sqlx::Error> {
    if text.is_empty() {
        return Ok(Terms::default());
    }
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn read(row: &SqliteRow) -> Result<(ObjectKey, Record), sqlx::Error> {
    let key = read_key(row)?;
    let record = Record {
        digest: row.try_get(4)?,
        resource_version: row.try_get(5)?,
        fields_digest: row.try_get(6)?,
        uid: row.try_get(7)?,
        terms: terms(row.try_get(8)?)?,
    };
    Ok((key, record))
}

fn read_key(row: &SqliteRow) -> Result<ObjectKey, sqlx::Error> {
    Ok(ObjectKey {
        group: row.try_get(0)?,
        kind: row.try_get(1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
    })
}
