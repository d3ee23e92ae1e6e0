//! Reads and writes the inventory of one owner on the member. The order of writes is
//! [`starling_core::inventory::shards`]'s.
//!
//! Requests are made as the user of the kubeconfig: an account that a Sync impersonates needs no access to
//! `starling-system`, and must not be able to write the list of objects that are pruned (ADR 17).

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use starling_api::SYSTEM_NAMESPACE;
use starling_core::ids::{InstallationId, OwnerLabel};
use starling_core::inventory::Inventory;
use starling_core::inventory::format::{self, DATA_KEY, FormatError, REMOVALS_KEY};
use starling_core::inventory::shards::{ShardWrite, shard_writes};
use starling_core::object::ObjectId;
use starling_core::restore::WriteNumber;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, METADATA, Operation};
use super::error::MemberError;
use super::metadata::{ListMetadata, Partial};
use super::paths;
use super::stored::{Stored, Version};
use super::transport::Member;

/// Maximum number of shards that are read: 65,000 objects, three times the limit of a render. Bounds the reads from a
/// member that always returns one more shard.
const SHARDS_LIMIT: usize = 16;

/// ConfigMaps on one page of the list of inventories: most of them have some kilobytes, and a page must stay below the
/// limit of a response.
const MAPS_PAGE: usize = 100;
/// Pages of this list at most: as many inventories as a member is likely to have, and ten times more.
const MAPS_PAGES: usize = 20;

/// One shard, as read from the member.
struct ShardRead {
    version: Version,
    text: String,
    shard: format::Shard,
}

/// The key of the text of a mark.
const MARK_KEY: &str = "mark";

impl Member {
    /// Reads the inventory of an owner. Empty if the member has none.
    ///
    /// # Errors
    /// [`MemberError::Inventory`] if a shard is not readable; any other error of the requests.
    pub async fn read_inventory(
        &self,
        owner: &OwnerLabel,
        deadline: Instant,
    ) -> Result<Inventory, MemberError> {
        Ok(self
            .read_stored(owner, &Attempt::until(deadline))
            .await?
            .inventory)
    }

    /// Writes the inventory of an owner, unless it is unchanged. An empty inventory is deleted. Creates the namespace
    /// `starling-system` if it is missing.
    ///
    /// # Errors
    /// Those of reading; [`MemberError::Conflict`] after a concurrent write.
    pub async fn write_inventory(
        &self,
        owner: &OwnerLabel,
        inventory: &Inventory,
        deadline: Instant,
    ) -> Result<(), MemberError> {
        let attempt = Attempt::until(deadline);
        let mut stored = self.read_stored(owner, &attempt).await?;
        self.write_stored(owner, &mut stored, inventory, &attempt).await
    }

    pub(super) async fn read_stored(
        &self,
        owner: &OwnerLabel,
        attempt: &Attempt,
    ) -> Result<Stored, MemberError> {
        let (as_user, mut stored) = (self.as_kubeconfig_user(), Stored::default());
        loop {
            let name = format::shard_name(owner, stored.versions.len());
            let Some(ShardRead { version, text, shard }) = as_user.read_shard(&name, attempt).await? else {
                break;
            };
            if stored.versions.len() == SHARDS_LIMIT {
                // Without the remaining shards, owned objects would be forgotten.
                return Err(MemberError::Garbage {
                    request: Operation::object("read", &shard_key(&name)).to_string(),
                    problem: format!("the inventory has more than {SHARDS_LIMIT} ConfigMaps"),
                });
            }
            stored.inventory = stored.inventory.union(&shard.entries);
            stored.versions.push(version);
            if stored.versions.len() == 1 {
                stored.number = shard.hub;
                stored.first = text;
                if shard.shards == 1 {
                    break;
                }
            }
        }
        Ok(stored)
    }

    /// Writes `desired` to the member. After an error, `stored` keeps the previous inventory.
    pub(super) async fn write_stored(
        &self,
        owner: &OwnerLabel,
        stored: &mut Stored,
        desired: &Inventory,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let as_user = self.as_kubeconfig_user();
        let writes = shard_writes(
            &stored.inventory,
            stored.versions.len(),
            desired,
            self.limits().shard_bytes,
        );
        for write in writes {
            match write {
                ShardWrite::Put { index, text } => {
                    if stored.versions.len() <= index {
                        stored.versions.resize(index + 1, Version::default());
                    }
                    let text = match &stored.number {
                        Some(number) if index == 0 => format::with_number(&text, number),
                        Some(_) | None => text,
                    };
                    let version = &mut stored.versions[index];
                    *version = as_user
                        .write_shard(&format::shard_name(owner, index), version, &text, attempt)
                        .await?;
                    if index == 0 {
                        stored.first = text;
                    }
                }
                ShardWrite::Remove { index } => {
                    let version = stored.versions.get(index).cloned().unwrap_or_default();
                    as_user
                        .delete_shard(&format::shard_name(owner, index), &version, attempt)
                        .await?;
                    stored.versions.truncate(index);
                }
            }
        }
        stored.inventory.clone_from(desired);
        Ok(())
    }

    async fn read_shard(&self, name: &str, attempt: &Attempt) -> Result<Option<ShardRead>, MemberError> {
        let Some((version, mut data)) = self.read_map(name, attempt).await? else {
            return Ok(None);
        };
        let text = data.remove(DATA_KEY).ok_or(FormatError::NoVersion);
        let (text, shard) = text
            .and_then(|text| format::parse(&text).map(|shard| (text, shard)))
            .map_err(|source| MemberError::Inventory {
                name: name.to_owned(),
                source,
            })?;
        Ok(Some(ShardRead { version, text, shard }))
    }

    /// Reads the version and the data of a ConfigMap; `None` if it does not exist.
    async fn read_map(
        &self,
        name: &str,
        attempt: &Attempt,
    ) -> Result<Option<(Version, BTreeMap<String, String>)>, MemberError> {
        #[derive(Deserialize)]
        struct ConfigMap {
            metadata: Version,
            #[serde(default)]
            data: BTreeMap<String, String>,
        }
        let key = shard_key(name);
        let operation = Operation::object("read", &key);
        let response = match self
            .send(Call::get(operation, shard_path(name), JSON), attempt)
            .await
        {
            Ok(response) => response,
            Err(MemberError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let map: ConfigMap = response.parse(operation)?;
        Ok(Some((map.metadata, map.data)))
    }

    /// Writes one shard that replaces `version`. Returns the new version.
    pub(super) async fn write_shard(
        &self,
        name: &str,
        version: &Version,
        text: &str,
        attempt: &Attempt,
    ) -> Result<Version, MemberError> {
        self.write_map(name, version, json!({DATA_KEY: text}), attempt)
            .await
    }

    /// Writes one ConfigMap that replaces `version`; any version, if it is empty. Returns the new version.
    async fn write_map(
        &self,
        name: &str,
        version: &Version,
        data: Value,
        attempt: &Attempt,
    ) -> Result<Version, MemberError> {
        let mut metadata = map_metadata(name);
        if *version != Version::default() {
            metadata["uid"] = version.uid.as_str().into();
            metadata["resourceVersion"] = version.resource_version.as_str().into();
        }
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        let body = Bytes::from(map.to_string());
        let key = shard_key(name);
        let operation = Operation::object("write", &key);
        let path = shard_path(name) + &paths::apply_query(true, false);
        let response = match self
            .send_inventory(
                Call::apply(operation, path.clone(), METADATA, body.clone()),
                attempt,
            )
            .await
        {
            // Only the namespace can be missing, because an apply creates the object itself.
            Err(MemberError::NotFound { .. }) => {
                self.create_system_namespace(attempt).await?;
                self.send_inventory(Call::apply(operation, path, METADATA, body), attempt)
                    .await?
            }
            other => other?,
        };
        let metadata = response.parse::<Partial<'_>>(operation)?.metadata;
        Ok(Version {
            uid: metadata.uid,
            resource_version: metadata.resource_version,
        })
    }

    pub(super) async fn read_removal(
        &self,
        installation: &InstallationId,
        attempt: &Attempt,
    ) -> Result<Option<WriteNumber>, MemberError> {
        let found = self.read_removal_versioned(installation, attempt).await?;
        Ok(found.map(|(_, number)| number))
    }

    /// Reads the number of the last removal, and the version of the ConfigMap that has it.
    pub(super) async fn read_removal_versioned(
        &self,
        installation: &InstallationId,
        attempt: &Attempt,
    ) -> Result<Option<(Version, WriteNumber)>, MemberError> {
        let name = format::removals_name(installation);
        let read = self.as_kubeconfig_user().read_map(&name, attempt).await?;
        let Some((version, mut data)) = read else {
            return Ok(None);
        };
        let number = data.remove(REMOVALS_KEY).ok_or(FormatError::WriteNumber);
        let number = number.and_then(|text| text.parse().map_err(|_| FormatError::WriteNumber));
        number
            .map(|number| Some((version, number)))
            .map_err(|source| MemberError::Inventory { name, source })
    }

    /// Writes the number of a removal, which replaces `version`; `None`: there is none, and the write fails with
    /// [`MemberError::Conflict`] if there is one now.
    pub(super) async fn write_removal(
        &self,
        installation: &InstallationId,
        version: Option<&Version>,
        number: &WriteNumber,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let name = format::removals_name(installation);
        let data = json!({REMOVALS_KEY: number.to_string()});
        let as_user = self.as_kubeconfig_user();
        match version {
            Some(version) => as_user.write_map(&name, version, data, attempt).await.map(drop),
            None => as_user.create_map(&name, data, attempt).await,
        }
    }

    /// Lists the ConfigMaps of all inventories, and returns each name with its data.
    pub(super) async fn list_maps(
        &self,
        attempt: &Attempt,
    ) -> Result<Vec<(String, BTreeMap<String, String>)>, MemberError> {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        #[derive(Deserialize)]
        struct ConfigMap {
            metadata: Named,
            #[serde(default)]
            data: BTreeMap<String, String>,
        }
        #[derive(Deserialize)]
        struct List {
            #[serde(default)]
            metadata: ListMetadata,
            #[serde(default)]
            items: Vec<ConfigMap>,
        }
        let operation = Operation::kind("list", "ConfigMap");
        let selector = paths::escaped("app.kubernetes.io/managed-by=starling");
        let first = format!(
            "/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps?limit={MAPS_PAGE}&labelSelector={selector}"
        );
        let (mut maps, mut next) = (Vec::new(), String::new());
        for _ in 0..MAPS_PAGES {
            let path = if next.is_empty() {
                first.clone()
            } else {
                format!("{first}&continue={}", paths::escaped(&next))
            };
            let response = self
                .as_kubeconfig_user()
                .send(Call::get(operation, path, JSON), attempt)
                .await?;
            let page: List = response.parse(operation)?;
            maps.extend(page.items.into_iter().map(|map| (map.metadata.name, map.data)));
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(maps);
            }
        }
        Err(MemberError::Garbage {
            request: operation.to_string(),
            problem: format!("the list has more than {MAPS_PAGES} pages"),
        })
    }

    /// Writes the text of a mark.
    pub(super) async fn write_mark(
        &self,
        name: &str,
        text: &str,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let data = json!({MARK_KEY: text});
        self.write_map(name, &Version::default(), data, attempt)
            .await
            .map(drop)
    }

    /// Returns the text of a mark; `None` if there is none.
    pub(super) async fn mark(&self, name: &str, attempt: &Attempt) -> Result<Option<String>, MemberError> {
        let read = self.read_map(name, attempt).await?;
        Ok(read.and_then(|(_, mut data)| data.remove(MARK_KEY)))
    }

    /// Deletes a mark, whatever it says.
    pub(super) async fn delete_mark(&self, name: &str, attempt: &Attempt) -> Result<(), MemberError> {
        self.delete_shard(name, &Version::default(), attempt).await
    }

    /// Creates one ConfigMap. An apply cannot require that there is none.
    async fn create_map(&self, name: &str, data: Value, attempt: &Attempt) -> Result<(), MemberError> {
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": map_metadata(name), "data": data});
        let body = Bytes::from(map.to_string());
        let key = shard_key(name);
        let operation = Operation::object("create", &key);
        let path = format!(
            "/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps{}",
            paths::apply_query(false, false)
        );
        let create = || Call::create(operation, path.clone(), body.clone());
        match self.send_inventory(create(), attempt).await {
            Err(MemberError::NotFound { .. }) => {
                self.create_system_namespace(attempt).await?;
                self.send_inventory(create(), attempt).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    async fn create_system_namespace(&self, attempt: &Attempt) -> Result<(), MemberError> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}});
        let path = format!(
            "/api/v1/namespaces/{SYSTEM_NAMESPACE}{}",
            paths::apply_query(true, false)
        );
        let operation = Operation::named("create Namespace", SYSTEM_NAMESPACE);
        self.send_inventory(
            Call::apply(operation, path, METADATA, body.to_string().into()),
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
        let operation = Operation::object("delete", &key);
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if *version != Version::default() {
            options["preconditions"] =
                json!({"uid": version.uid, "resourceVersion": version.resource_version});
        }
        let call = Call::delete(operation, shard_path(name), options.to_string().into());
        match self.send_inventory(call, attempt).await {
            Ok(_) | Err(MemberError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn map_metadata(name: &str) -> Value {
    json!({"name": name, "namespace": SYSTEM_NAMESPACE, "labels": {"app.kubernetes.io/managed-by": "starling"}})
}

fn shard_key(name: &str) -> ObjectId {
    ObjectId {
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
    use starling_core::inventory::InventoryEntry;

    use super::*;
    use crate::{MemberConfig, MemberLimits};

    fn inventory(name: &str) -> Inventory {
        let key = ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        [InventoryEntry::new(key, "")].into_iter().collect()
    }

    /// Two replicas may both act as leader: a stale read must not overwrite a later write.
    #[tokio::test]
    async fn a_stale_writer_is_refused() {
        let planes = ControlPlanes::start(&Assets::find().unwrap(), &["stale"], Options::default())
            .await
            .unwrap();
        let config = MemberConfig::from_kubeconfig(&planes.get("stale").unwrap().kubeconfig_yaml()).unwrap();
        let member = Member::connect(config, MemberLimits::default()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let attempt = Attempt::until(deadline);
        let owner = OwnerLabel::new("0f");
        member
            .write_inventory(&owner, &inventory("a"), deadline)
            .await
            .unwrap();
        let mut stale = member.read_stored(&owner, &attempt).await.unwrap();
        member
            .write_inventory(&owner, &inventory("b"), deadline)
            .await
            .unwrap();
        let error = member
            .write_stored(&owner, &mut stale, &inventory("c"), &attempt)
            .await
            .unwrap_err();
        assert!(matches!(error, MemberError::Conflict { .. }), "{error:?}");
        assert_eq!(
            member.read_inventory(&owner, deadline).await.unwrap(),
            inventory("b")
        );
        // A stale writer does not recreate a deleted shard either.
        let mut stale = member.read_stored(&owner, &attempt).await.unwrap();
        member
            .write_inventory(&owner, &Inventory::new(), deadline)
            .await
            .unwrap();
        let error = member
            .write_stored(&owner, &mut stale, &inventory("c"), &attempt)
            .await
            .unwrap_err();
        assert!(
            matches!(error, MemberError::Conflict { .. } | MemberError::NotFound { .. }),
            "{error:?}"
        );
        assert_eq!(
            member.read_inventory(&owner, deadline).await.unwrap(),
            Inventory::new()
        );
    }
}
