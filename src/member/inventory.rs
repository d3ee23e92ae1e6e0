//! Reads and writes the inventory of one owner on the member.
//!
//! Most have one shard. Several are not written at once, so the order of writes is chosen such that a reader in between (or
//! after a crash) sees each key at least once: entries move to later shards when an inventory grows and to earlier ones
//! when it shrinks. A change that does both is written in two steps.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use starling_api::SYSTEM_NAMESPACE;
use starling_core::inventory::Inventory;
use starling_core::inventory::format::{self, DATA_KEY, FormatError};
use starling_core::object::ObjectKey;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, METADATA, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// Shards that are read at most: a quarter of a million objects, and an end to a member that always has one more.
const SHARDS_LIMIT: usize = 64;

/// An inventory and how it lies on the member.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) inventory: Inventory,
    /// `resourceVersion` of each shard: a write on top of another writer's is refused by the member.
    versions: Vec<String>,
}

/// Which end of the shards is written first.
#[derive(Clone, Copy)]
enum Order {
    /// Entries move to later shards.
    LastFirst,
    /// Entries move to earlier shards.
    FirstFirst,
}

/// One shard as the member has it.
struct ShardRead {
    version: String,
    shard: format::Shard,
}

impl Member {
    /// Reads the inventory of an owner. Without one on the member it is empty.
    ///
    /// # Errors
    /// [`MemberError::Inventory`] if a shard is not readable; any other if the member does not answer as it should.
    pub async fn read_inventory(&self, owner: &str, deadline: Instant) -> Result<Inventory, MemberError> {
        Ok(self
            .load_inventory(owner, &Attempt::until(deadline))
            .await?
            .inventory)
    }

    /// Writes the inventory of an owner, unless the member has it already. An empty one is removed. The namespace
    /// `starling-system` is made if it is missing.
    ///
    /// # Errors
    /// Those of reading; [`MemberError::Conflict`] if somebody else wrote at the same time.
    pub async fn write_inventory(
        &self,
        owner: &str,
        inventory: &Inventory,
        deadline: Instant,
    ) -> Result<(), MemberError> {
        let attempt = Attempt::until(deadline);
        let mut stored = self.load_inventory(owner, &attempt).await?;
        self.store_inventory(owner, &mut stored, inventory, &attempt)
            .await
    }

    pub(super) async fn load_inventory(&self, owner: &str, attempt: &Attempt) -> Result<Stored, MemberError> {
        let mut stored = Stored::default();
        while stored.versions.len() < SHARDS_LIMIT {
            let name = format::shard_name(owner, stored.versions.len());
            let Some(ShardRead { version, shard }) = self.read_shard(&name, attempt).await? else {
                break;
            };
            stored.inventory = stored.inventory.union(&shard.entries);
            stored.versions.push(version);
            // A crash while growing leaves more shards than the first one tells, so they are counted by reading. One shard
            // is written in one request, and what may lie behind it is from before.
            if stored.versions.len() == 1 && shard.shards == 1 {
                break;
            }
        }
        Ok(stored)
    }

    /// Makes the member hold `wanted`; after an error, `stored` tells what is there as far as it is known.
    pub(super) async fn store_inventory(
        &self,
        owner: &str,
        stored: &mut Stored,
        wanted: &Inventory,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        if stored.inventory == *wanted {
            return Ok(());
        }
        let limit = self.limits().shard_bytes;
        let mut texts = if wanted.is_empty() {
            Vec::new()
        } else {
            format::encode(wanted, limit)
        };
        if texts.len() > 1 || stored.versions.len() > 1 {
            let both = stored.inventory.union(wanted);
            if both != stored.inventory {
                let grown = format::encode(&both, limit);
                self.write_shards(owner, stored, &grown, Order::LastFirst, attempt)
                    .await?;
                stored.inventory = both;
            }
            if stored.inventory == *wanted {
                texts.clear();
                return Ok(());
            }
        }
        self.write_shards(owner, stored, &texts, Order::FirstFirst, attempt)
            .await?;
        while stored.versions.len() > texts.len() {
            self.delete_shard(&format::shard_name(owner, stored.versions.len() - 1), attempt)
                .await?;
            stored.versions.pop();
        }
        stored.inventory = wanted.clone();
        Ok(())
    }

    async fn write_shards(
        &self,
        owner: &str,
        stored: &mut Stored,
        texts: &[String],
        order: Order,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let known = stored.versions.len();
        stored.versions.resize(known.max(texts.len()), String::new());
        let indexes: Vec<usize> = match order {
            Order::LastFirst => (0..texts.len()).rev().collect(),
            Order::FirstFirst => (0..texts.len()).collect(),
        };
        for index in indexes {
            let name = format::shard_name(owner, index);
            stored.versions[index] = self
                .write_shard(&name, &stored.versions[index], &texts[index], attempt)
                .await?;
        }
        Ok(())
    }

    async fn read_shard(&self, name: &str, attempt: &Attempt) -> Result<Option<ShardRead>, MemberError> {
        #[derive(Deserialize)]
        struct ConfigMap {
            metadata: Metadata,
            #[serde(default)]
            data: BTreeMap<String, String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            resource_version: String,
        }
        let key = shard_key(name);
        let what = What::object("read", &key);
        let answer = match self.send(Call::get(what, shard_path(name), JSON), attempt).await {
            Ok(answer) => answer,
            Err(MemberError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut map: ConfigMap = answer.parse(what)?;
        let text = map.data.remove(DATA_KEY).ok_or(FormatError::NoVersion);
        let shard = text
            .and_then(|text| format::parse(&text))
            .map_err(|source| MemberError::Inventory {
                name: name.to_owned(),
                source,
            })?;
        Ok(Some(ShardRead {
            version: map.metadata.resource_version,
            shard,
        }))
    }

    /// Writes one shard; `version` is empty for one that is not there yet. Returns its new `resourceVersion`.
    async fn write_shard(
        &self,
        name: &str,
        version: &str,
        text: &str,
        attempt: &Attempt,
    ) -> Result<String, MemberError> {
        let mut metadata = json!({"name": name, "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": "starling"}});
        if !version.is_empty() {
            metadata["resourceVersion"] = version.into();
        }
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {DATA_KEY: text}});
        let body = Bytes::from(map.to_string());
        let key = shard_key(name);
        let what = What::object("write", &key);
        let path = shard_path(name) + &paths::apply_query(true, false);
        let answer = match self
            .send(Call::apply(what, path.clone(), METADATA, body.clone()), attempt)
            .await
        {
            // Only the namespace can be missing, since an apply makes the object itself.
            Err(MemberError::NotFound { .. }) => {
                self.create_system_namespace(attempt).await?;
                self.send(Call::apply(what, path, METADATA, body), attempt)
                    .await?
            }
            other => other?,
        };
        Ok(answer.parse::<Partial<'_>>(what)?.metadata.resource_version)
    }

    async fn create_system_namespace(&self, attempt: &Attempt) -> Result<(), MemberError> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}});
        let path = format!(
            "/api/v1/namespaces/{SYSTEM_NAMESPACE}{}",
            paths::apply_query(true, false)
        );
        let what = What::named("create Namespace", SYSTEM_NAMESPACE);
        self.send(
            Call::apply(what, path, METADATA, body.to_string().into()),
            attempt,
        )
        .await?;
        Ok(())
    }

    async fn delete_shard(&self, name: &str, attempt: &Attempt) -> Result<(), MemberError> {
        let key = shard_key(name);
        match self
            .send(
                Call::delete(What::object("delete", &key), shard_path(name), Bytes::new()),
                attempt,
            )
            .await
        {
            Ok(_) | Err(MemberError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn shard_key(name: &str) -> ObjectKey {
    ObjectKey {
        group: String::new(),
        kind: "ConfigMap".into(),
        namespace: SYSTEM_NAMESPACE.into(),
        name: name.to_owned(),
    }
}

fn shard_path(name: &str) -> String {
    format!(
        "/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{}",
        paths::escaped(name)
    )
}
