//! Reads and writes the inventory of one owner on the member. The order of writes is
//! [`starling_core::inventory::shards`]'s.
//!
//! Always as the user of the kubeconfig: an account that a Sync impersonates needs no rights in `starling-system`, and
//! must not be able to write what is pruned (ADR 17).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use starling_api::SYSTEM_NAMESPACE;
use starling_core::inventory::Inventory;
use starling_core::inventory::format::{self, DATA_KEY, FormatError};
use starling_core::inventory::shards::{ShardWrite, shard_writes};
use starling_core::object::ObjectKey;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, METADATA, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;

/// Shards that are read at most: 65,000 objects, thrice what a render may have, and an end to a member that always has
/// one more.
const SHARDS_LIMIT: usize = 16;

/// An inventory and how it lies on the member.
#[derive(Debug, Default)]
pub(super) struct Stored {
    pub(super) inventory: Inventory,
    /// Each shard as it was read or written last.
    versions: Vec<Version>,
}

/// An object at a moment; both empty for one that is not there. Sent along with a write, so that the member
/// refuses to write over (`resourceVersion`) or to make again (`uid`) what another writer has changed or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    uid: String,
    resource_version: String,
}

/// One shard as the member has it.
struct ShardRead {
    version: Version,
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
        let (itself, mut stored) = (self.as_itself(), Stored::default());
        loop {
            let name = format::shard_name(owner, stored.versions.len());
            let Some(ShardRead { version, shard }) = itself.read_shard(&name, attempt).await? else {
                break;
            };
            if stored.versions.len() == SHARDS_LIMIT {
                // To go on without the rest would be to forget what is ours.
                return Err(MemberError::Garbage {
                    request: What::object("read", &shard_key(&name)).to_string(),
                    problem: format!("an inventory of more than {SHARDS_LIMIT} ConfigMaps"),
                });
            }
            stored.inventory = stored.inventory.union(&shard.entries);
            stored.versions.push(version);
            if stored.versions.len() == 1 && shard.shards == 1 {
                break;
            }
        }
        Ok(stored)
    }

    /// Makes the member hold `wanted`. After an error `stored` is what was there before.
    pub(super) async fn store_inventory(
        &self,
        owner: &str,
        stored: &mut Stored,
        wanted: &Inventory,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let itself = self.as_itself();
        let writes = shard_writes(
            &stored.inventory,
            stored.versions.len(),
            wanted,
            self.limits().shard_bytes,
        );
        for write in writes {
            match write {
                ShardWrite::Put { index, text } => {
                    if stored.versions.len() <= index {
                        stored.versions.resize(index + 1, Version::default());
                    }
                    let version = &mut stored.versions[index];
                    *version = itself
                        .write_shard(&format::shard_name(owner, index), version, &text, attempt)
                        .await?;
                }
                ShardWrite::Remove { index } => {
                    let version = stored.versions.get(index).cloned().unwrap_or_default();
                    itself
                        .delete_shard(&format::shard_name(owner, index), &version, attempt)
                        .await?;
                    stored.versions.truncate(index);
                }
            }
        }
        stored.inventory.clone_from(wanted);
        Ok(())
    }

    async fn read_shard(&self, name: &str, attempt: &Attempt) -> Result<Option<ShardRead>, MemberError> {
        #[derive(Deserialize)]
        struct ConfigMap {
            metadata: Version,
            #[serde(default)]
            data: BTreeMap<String, String>,
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
            version: map.metadata,
            shard,
        }))
    }

    /// Writes one shard on top of `version`. Returns the new one.
    async fn write_shard(
        &self,
        name: &str,
        version: &Version,
        text: &str,
        attempt: &Attempt,
    ) -> Result<Version, MemberError> {
        let mut metadata = json!({"name": name, "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/managed-by": "starling"}});
        if *version != Version::default() {
            metadata["uid"] = version.uid.as_str().into();
            metadata["resourceVersion"] = version.resource_version.as_str().into();
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
        let metadata = answer.parse::<Partial<'_>>(what)?.metadata;
        Ok(Version {
            uid: metadata.uid,
            resource_version: metadata.resource_version,
        })
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

    /// Deletes one shard if it is still at `version`.
    async fn delete_shard(
        &self,
        name: &str,
        version: &Version,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let key = shard_key(name);
        let what = What::object("delete", &key);
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if *version != Version::default() {
            options["preconditions"] =
                json!({"uid": version.uid, "resourceVersion": version.resource_version});
        }
        let call = Call::delete(what, shard_path(name), options.to_string().into());
        match self.send(call, attempt).await {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use starling_controlplane::{Assets, ControlPlanes, Options};
    use starling_core::inventory::Entry;

    use super::*;
    use crate::member::{MemberConfig, MemberLimits};

    fn inventory(name: &str) -> Inventory {
        let key = ObjectKey {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        [Entry {
            key,
            uid: String::new(),
        }]
        .into_iter()
        .collect()
    }

    /// Two replicas that both believe to be in charge: the one that read first must not undo what the other wrote.
    #[tokio::test]
    async fn a_stale_writer_is_refused() {
        let planes = ControlPlanes::start(&Assets::find().unwrap(), &["stale"], Options::default())
            .await
            .unwrap();
        let config = MemberConfig::from_kubeconfig(&planes.get("stale").unwrap().kubeconfig_yaml()).unwrap();
        let member = Member::connect(config, MemberLimits::default()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let attempt = Attempt::until(deadline);
        member
            .write_inventory("0f", &inventory("a"), deadline)
            .await
            .unwrap();
        let mut stale = member.load_inventory("0f", &attempt).await.unwrap();
        member
            .write_inventory("0f", &inventory("b"), deadline)
            .await
            .unwrap();
        let error = member
            .store_inventory("0f", &mut stale, &inventory("c"), &attempt)
            .await
            .unwrap_err();
        assert!(matches!(error, MemberError::Conflict { .. }), "{error:?}");
        assert_eq!(
            member.read_inventory("0f", deadline).await.unwrap(),
            inventory("b")
        );
        // A shard that was deleted meanwhile is not brought back by an old writer either.
        let mut stale = member.load_inventory("0f", &attempt).await.unwrap();
        member
            .write_inventory("0f", &Inventory::new(), deadline)
            .await
            .unwrap();
        let error = member
            .store_inventory("0f", &mut stale, &inventory("c"), &attempt)
            .await
            .unwrap_err();
        assert!(
            matches!(error, MemberError::Conflict { .. } | MemberError::NotFound { .. }),
            "{error:?}"
        );
        assert_eq!(
            member.read_inventory("0f", deadline).await.unwrap(),
            Inventory::new()
        );
    }
}
