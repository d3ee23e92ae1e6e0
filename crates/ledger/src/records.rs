//! Member records: what is stored about each applied object, a cache that saves requests.
//!
//! A lost record costs one request. A record never proves that Starling owns an object: the inventory on the member
//! does. The records of an owner belong to one attempt, by which the caller knows whether they are current.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use starling_core::apply::{ManagementState, Record, Recorded};
use starling_core::ids::{ClusterId, OwnerLabel};
use starling_core::object::ObjectId;

use super::column::{Micros, encode};
use super::{Ledger, LedgerError};

impl Ledger {
    /// Returns the records of an owner's objects on a cluster, and the attempt that they belong to; empty if there are
    /// none.
    ///
    /// # Errors
    /// If the query failed. The caller then continues as if there were no records.
    pub async fn load_records(
        &self,
        cluster_id: &ClusterId,
        owner: &OwnerLabel,
    ) -> Result<Recorded, LedgerError> {
        let rows = sqlx::query(
            "SELECT obj_group, kind, namespace, name, digest, resource_version, fields_digest, uid, management,
                    fields_time, (SELECT attempted_at FROM record_attempts WHERE cluster_id = ?1 AND owner = ?2)
             FROM applied_objects WHERE cluster_id = ?1 AND owner = ?2",
        )
        .bind(cluster_id.as_str())
        .bind(owner.as_str())
        .try_map(|row| Ok((row.try_get::<Option<Micros>, _>(10)?, read(&row)?)))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("records of {owner} on {cluster_id}"), source))?;
        let attempted_at = rows.first().and_then(|(at, _)| at.as_ref().map(|at| at.0));
        Ok(Recorded {
            attempted_at,
            objects: rows.into_iter().map(|(_, record)| record).collect(),
        })
    }

    /// Returns the other owners with records of these objects of a cluster. Objects without other owners are omitted.
    ///
    /// # Errors
    /// If the query failed.
    pub async fn other_owners(
        &self,
        cluster_id: &ClusterId,
        owner: &OwnerLabel,
        objects: &BTreeSet<ObjectId>,
    ) -> Result<BTreeMap<ObjectId, Vec<OwnerLabel>>, LedgerError> {
        let mut owners: BTreeMap<ObjectId, Vec<OwnerLabel>> = BTreeMap::new();
        if objects.is_empty() {
            return Ok(owners);
        }
        let rows = sqlx::query(
            "SELECT obj_group, kind, namespace, name, owner FROM applied_objects
             WHERE cluster_id = ?1 AND owner <> ?2 AND (obj_group, kind, namespace, name) IN
                   (SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3))
             ORDER BY owner",
        )
        .bind(cluster_id.as_str())
        .bind(owner.as_str())
        .bind(encode_keys(objects)?)
        .try_map(|row| Ok((read_key(&row)?, OwnerLabel::new(row.try_get::<String, _>(4)?))))
        .fetch_all(&self.readers)
        .await
        .map_err(|source| self.unread(format!("other owners on {cluster_id}"), source))?;
        for (key, owner) in rows {
            owners.entry(key).or_default().push(owner);
        }
        Ok(owners)
    }

    /// Deletes the records in `deletes`, then writes those in `upserts`, in one transaction.
    ///
    /// # Errors
    /// If the change was not recorded; then nothing is changed.
    pub async fn save_records(
        &self,
        cluster_id: &ClusterId,
        owner: &OwnerLabel,
        upserts: &BTreeMap<ObjectId, Record>,
        deletes: &BTreeSet<ObjectId>,
    ) -> Result<(), LedgerError> {
        if upserts.is_empty() && deletes.is_empty() {
            return Ok(());
        }
        let subject = format!("save records of {owner} on {cluster_id}");
        let (cluster_id, owner) = (cluster_id.clone(), owner.clone());
        let (deleted, upserted) = (encode_keys(deletes)?, encode_records(upserts)?);
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "DELETE FROM applied_objects WHERE (cluster_id, owner, obj_group, kind, namespace, name) IN
                     (SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?3))",
                )
                .bind(cluster_id.as_str())
                .bind(owner.as_str())
                .bind(deleted)
                .execute(&mut *connection)
                .await?;
                sqlx::query(
                    "INSERT INTO applied_objects (cluster_id, owner, obj_group, kind, namespace, name,
                                                  digest, resource_version, fields_digest, uid, fields_time,
                                                  management)
                     SELECT ?1, ?2, value ->> 0, value ->> 1, value ->> 2, value ->> 3,
                            value ->> 4, value ->> 5, value ->> 6, value ->> 7, value ->> 8, value ->> 9
                     FROM json_each(?3) WHERE true
                     ON CONFLICT (cluster_id, owner, obj_group, kind, namespace, name) DO UPDATE SET
                         digest = excluded.digest, resource_version = excluded.resource_version,
                         fields_digest = excluded.fields_digest, uid = excluded.uid,
                         fields_time = excluded.fields_time, management = excluded.management",
                )
                .bind(cluster_id.as_str())
                .bind(owner.as_str())
                .bind(upserted)
                .execute(&mut *connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Records the attempt that the records of an owner on a cluster belong to, by the time at which it began, which is
    /// kept to the microsecond.
    ///
    /// # Errors
    /// If the change was not recorded.
    pub async fn set_record_attempt(
        &self,
        cluster_id: &ClusterId,
        owner: &OwnerLabel,
        attempted_at: Timestamp,
    ) -> Result<(), LedgerError> {
        let subject = format!("set the attempt of the records of {owner} on {cluster_id}");
        let (cluster_id, owner) = (cluster_id.clone(), owner.clone());
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "INSERT INTO record_attempts (cluster_id, owner, attempted_at) VALUES (?1, ?2, ?3)
                     ON CONFLICT (cluster_id, owner) DO UPDATE SET attempted_at = excluded.attempted_at",
                )
                .bind(cluster_id.as_str())
                .bind(owner.as_str())
                .bind(Micros(attempted_at))
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Deletes all records of an owner on a cluster, when it has no objects there any more, or when they are not
    /// current.
    ///
    /// # Errors
    /// If the change was not recorded.
    pub async fn drop_owner_records(
        &self,
        cluster_id: &ClusterId,
        owner: &OwnerLabel,
    ) -> Result<(), LedgerError> {
        let subject = format!("drop the records of {owner} on {cluster_id}");
        let (cluster_id, owner) = (cluster_id.clone(), owner.clone());
        self.write(subject, move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM applied_objects WHERE cluster_id = ?1 AND owner = ?2")
                    .bind(cluster_id.as_str())
                    .bind(owner.as_str())
                    .execute(&mut *connection)
                    .await?;
                forget_attempts(connection, &cluster_id, &owner).await
            })
        })
        .await
    }
}

/// Deletes the attempt of the records of an owner on a cluster.
async fn forget_attempts(
    connection: &mut SqliteConnection,
    cluster_id: &ClusterId,
    owner: &OwnerLabel,
) -> Result<(), sqlx::Error> {
    sqlx::query("DELETE FROM record_attempts WHERE cluster_id = ?1 AND owner = ?2")
        .bind(cluster_id.as_str())
        .bind(owner.as_str())
        .execute(connection)
        .await?;
    Ok(())
}

/// Encodes the rows as one JSON text for each call: one statement for any number of objects, which stays prepared.
fn encode_records(records: &BTreeMap<ObjectId, Record>) -> Result<String, LedgerError> {
    const SUBJECT: &str = "object records";
    let rows = records
        .iter()
        .map(|(key, record)| {
            let ObjectId {
                group,
                kind,
                namespace,
                name,
            } = key;
            let Record {
                digest,
                resource_version,
                fields_digest,
                fields_time,
                uid,
                management,
            } = record;
            let management = if *management == ManagementState::default() {
                String::new()
            } else {
                encode(SUBJECT, management)?
            };
            let texts = [
                group,
                kind,
                namespace,
                name,
                digest,
                resource_version,
                fields_digest,
                uid.as_str(),
                fields_time,
            ];
            Ok(texts.into_iter().map(str::to_owned).chain([management]).collect())
        })
        .collect::<Result<Vec<Vec<String>>, LedgerError>>()?;
    encode(SUBJECT, &rows)
}

fn encode_keys(keys: &BTreeSet<ObjectId>) -> Result<String, LedgerError> {
    let rows: Vec<[&str; 4]> = keys
        .iter()
        .map(
            |ObjectId {
                 group,
                 kind,
                 namespace,
                 name,
             }| [group, kind, namespace, name].map(String::as_str),
        )
        .collect();
    encode("object keys", &rows)
}

fn management(text: &str) -> Result<ManagementState, sqlx::Error> {
    if text.is_empty() {
        return Ok(ManagementState::default());
    }
    serde_json::from_str(text).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn read(row: &SqliteRow) -> Result<(ObjectId, Record), sqlx::Error> {
    let key = read_key(row)?;
    let record = Record {
        digest: row.try_get(4)?,
        resource_version: row.try_get(5)?,
        fields_digest: row.try_get(6)?,
        uid: row.try_get::<String, _>(7)?.into(),
        management: management(row.try_get(8)?)?,
        fields_time: row.try_get(9)?,
    };
    Ok((key, record))
}

fn read_key(row: &SqliteRow) -> Result<ObjectId, sqlx::Error> {
    Ok(ObjectId {
        group: row.try_get(0)?,
        kind: row.try_get(1)?,
        namespace: row.try_get(2)?,
        name: row.try_get(3)?,
    })
}
