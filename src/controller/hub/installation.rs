//! The installation: its ID, and the count of its writes to members (ADR 40).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::{FIELD_MANAGER, INSTALLATION, SYSTEM_NAMESPACE};
use starling_core::account::AccountRules;
use starling_core::apply::budget::{read_kind, write_kind};
use starling_core::controlled_label::LabelRules;
use starling_core::ids::InstallationId;
use starling_core::object::GroupKind;
use starling_core::restore::{KnownWrites, RestoreFinding};

use super::error::{is_conflict, is_not_found, within};
use super::{Hub, HubError};
use crate::controller::object_key::ObjectKey;

/// The key with the numbers of writes.
const WRITES: &str = "writes";
/// The key with the kinds that an operator added to those whose deletion requires an approval.
const CONFIRMED: &str = "confirmDeletionOf";
/// The key with the rules for accounts of Syncs.
const ACCOUNT_RULES: &str = "accountRules";
/// The key with the labels that grant rights and that manifests may carry.
const CONTROLLED_LABELS: &str = "controlledLabels";
/// The key with the finding that the management cluster was set back.
const RESTORE_DETECTED: &str = "restoreDetected";

/// Returns the key of the ConfigMap.
#[must_use]
pub fn installation_key() -> ObjectKey {
    ObjectKey::new(SYSTEM_NAMESPACE, INSTALLATION)
}

/// The ConfigMap of the installation, as read.
#[derive(Clone, Debug)]
pub struct InstallationRecord {
    map: ConfigMap,
}

impl InstallationRecord {
    /// Returns the numbers that the management cluster knows; none if nothing was counted yet.
    ///
    /// # Errors
    /// [`HubError::Unreadable`].
    pub fn known(&self) -> Result<KnownWrites, HubError> {
        Ok(self.value(WRITES)?.unwrap_or_default())
    }

    /// Returns the finding that holds the installation.
    ///
    /// # Errors
    /// [`HubError::Unreadable`].
    pub fn finding(&self) -> Result<Option<RestoreFinding>, HubError> {
        self.value(RESTORE_DETECTED)
    }

    fn value<T: DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, HubError> {
        let text = self.map.data.as_ref().and_then(|data| data.get(key));
        let value = text.map(|text| serde_json::from_str(text)).transpose();
        value.map_err(|source| HubError::Unreadable {
            object: format!("ConfigMap {}", installation_key()),
            key,
            source,
        })
    }
}

/// Returns a value of the ConfigMap; null removes the key.
fn encoded<T: Serialize>(value: Option<&T>, key: &'static str) -> Result<Value, HubError> {
    let text = value.map(serde_json::to_string).transpose();
    let text = text.map_err(|source| HubError::Unreadable {
        object: format!("ConfigMap {}", installation_key()),
        key,
        source,
    })?;
    Ok(text.map_or(Value::Null, Value::String))
}

impl Hub {
    /// Reads the ConfigMap of the installation; `None`: it does not exist.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn installation_record(&self) -> Result<Option<InstallationRecord>, HubError> {
        let map = self.find(&installation_key()).await?;
        Ok(map.map(|map| InstallationRecord { map }))
    }

    /// Writes the numbers and the finding, and returns what is stored; `None`: the ConfigMap has changed since it was
    /// read, or is gone, and nothing was written.
    ///
    /// # Errors
    /// [`HubError`]; then it is uncertain what is stored.
    pub async fn write_installation(
        &self,
        read: &InstallationRecord,
        known: &KnownWrites,
        finding: Option<&RestoreFinding>,
    ) -> Result<Option<InstallationRecord>, HubError> {
        let patch = json!({
            "metadata": {"uid": read.map.uid(), "resourceVersion": read.map.resource_version()},
            "data": {
                WRITES: encoded(Some(known), WRITES)?,
                RESTORE_DETECTED: encoded(finding, RESTORE_DETECTED)?,
            },
        });
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        let (params, patch) = (
            PatchParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PatchParams::default()
            },
            Patch::Merge(patch),
        );
        let written = within(
            "write",
            installation_key(),
            api.patch(INSTALLATION, &params, &patch),
        );
        match written.await {
            Ok(map) => Ok(Some(InstallationRecord { map })),
            Err(HubError::Request { source, .. }) if is_conflict(&source) || is_not_found(&source) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns a UID that nothing else has: the API server gives it to an object that a dry run creates.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn random_uid(&self) -> Result<String, HubError> {
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        let mut map = ConfigMap::default();
        map.metadata.generate_name = Some(format!("{INSTALLATION}-"));
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let key = ObjectKey::new(SYSTEM_NAMESPACE, INSTALLATION);
        let map = within("create in a dry run", key.clone(), api.create(&params, &map)).await?;
        map.uid()
            .filter(|uid| !uid.is_empty())
            .ok_or_else(|| HubError::contended("create in a dry run", &key))
    }

    /// Returns the installation ID, and creates it at the first start. The ID is part of every owner label, so it must
    /// survive the loss of the ledger and a move of the management cluster: it is stored in the management cluster, and
    /// its backups contain it.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn installation(&self) -> Result<InstallationId, HubError> {
        let key = ObjectKey::new(SYSTEM_NAMESPACE, INSTALLATION);
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        let id = |map: ConfigMap| map.data.and_then(|data| data.get("id").map(InstallationId::new));
        if let Some(id) = within("read", key.clone(), api.get_opt(INSTALLATION))
            .await?
            .and_then(id)
        {
            return Ok(id);
        }
        self.ensure_system_namespace().await?;
        // The UID of the namespace serves as ID: it is unique and random, so no generator is needed.
        let namespaces: Api<Namespace> = Api::all(self.client());
        let namespace = within("read Namespace", key.clone(), namespaces.get(SYSTEM_NAMESPACE)).await?;
        let new_id = InstallationId::new(namespace.uid().unwrap_or_default());
        self.create_installation(&new_id).await?;
        // Another replica may have been faster, and its ID counts.
        let map = within("read", key, api.get(INSTALLATION)).await?;
        Ok(id(map).unwrap_or_default())
    }

    /// Creates the ConfigMap of the installation with this ID, unless it exists.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn create_installation(&self, id: &InstallationId) -> Result<(), HubError> {
        self.ensure_system_namespace().await?;
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        let mut map = ConfigMap::default();
        map.metadata.name = Some(INSTALLATION.into());
        map.data = Some([("id".to_owned(), id.to_string())].into());
        let params = PostParams::default();
        let created = api.create(&params, &map);
        match within("create", installation_key(), created).await {
            Err(HubError::Request { source, .. }) if is_conflict(&source) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Returns the installation ID, if it exists. Creates nothing.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn known_installation(&self) -> Result<Option<InstallationId>, HubError> {
        let key = ObjectKey::new(SYSTEM_NAMESPACE, INSTALLATION);
        let map: Option<ConfigMap> = self.find(&key).await?;
        Ok(map.and_then(|map| map.data?.get("id").map(InstallationId::new)))
    }

    /// Publishes the kinds that the controller adds to those whose deletion requires an approval, for previews.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn publish_confirmed_kinds(&self, kinds: &BTreeSet<GroupKind>) -> Result<(), HubError> {
        let text: Vec<String> = kinds.iter().map(write_kind).collect();
        let text = text.join(",");
        self.publish(CONFIRMED, &text).await
    }

    /// Publishes the rules for accounts of Syncs, for previews.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn publish_account_rules(&self, rules: &AccountRules) -> Result<(), HubError> {
        let published = *rules != AccountRules::default();
        match encoded(published.then_some(rules), ACCOUNT_RULES)? {
            Value::String(text) => self.publish(ACCOUNT_RULES, &text).await,
            _ => self.publish(ACCOUNT_RULES, "").await,
        }
    }

    /// Returns the published rules for accounts of Syncs.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn known_account_rules(&self) -> Result<AccountRules, HubError> {
        let map: Option<ConfigMap> = self.find(&installation_key()).await?;
        let Some(map) = map.filter(|map| has_text(map, ACCOUNT_RULES)) else {
            return Ok(AccountRules::default());
        };
        let rules = InstallationRecord { map }.value(ACCOUNT_RULES)?;
        Ok(rules.unwrap_or_default())
    }

    /// Publishes which labels that grant rights manifests may carry, for previews.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn publish_label_rules(&self, rules: &LabelRules) -> Result<(), HubError> {
        let LabelRules::Listed(lists) = rules else {
            return self.publish(CONTROLLED_LABELS, "").await;
        };
        match encoded(Some(lists), CONTROLLED_LABELS)? {
            Value::String(text) => self.publish(CONTROLLED_LABELS, &text).await,
            _ => Ok(()),
        }
    }

    /// Returns the published lists; [`LabelRules::Any`] if the controller published none.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn known_label_rules(&self) -> Result<LabelRules, HubError> {
        let map: Option<ConfigMap> = self.find(&installation_key()).await?;
        let Some(map) = map.filter(|map| has_text(map, CONTROLLED_LABELS)) else {
            return Ok(LabelRules::Any);
        };
        let lists = InstallationRecord { map }.value(CONTROLLED_LABELS)?;
        Ok(lists.map_or(LabelRules::Any, LabelRules::Listed))
    }

    async fn publish(&self, name: &'static str, text: &str) -> Result<(), HubError> {
        let key = installation_key();
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        let known = within("read", key.clone(), api.get(INSTALLATION)).await?;
        let known = known
            .data
            .and_then(|mut data| data.remove(name))
            .unwrap_or_default();
        if known == text {
            return Ok(());
        }
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(json!({"data": {name: text}}));
        within("write", key, api.patch(INSTALLATION, &params, &patch)).await?;
        Ok(())
    }

    /// Returns the published kinds; none if the controller published none. A text that is no kind is left out.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn known_confirmed_kinds(&self) -> Result<BTreeSet<GroupKind>, HubError> {
        let map: Option<ConfigMap> = self.find(&installation_key()).await?;
        let text = map
            .and_then(|map| map.data?.remove(CONFIRMED))
            .unwrap_or_default();
        Ok(text.split(',').filter_map(|kind| read_kind(kind).ok()).collect())
    }

    async fn ensure_system_namespace(&self) -> Result<(), HubError> {
        let api: Api<Namespace> = Api::all(self.client());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(SYSTEM_NAMESPACE.into());
        let key = ObjectKey::new("", SYSTEM_NAMESPACE);
        match within(
            "create Namespace",
            key,
            api.create(&PostParams::default(), &namespace),
        )
        .await
        {
            Err(HubError::Request { source, .. }) if is_conflict(&source) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

fn has_text(map: &ConfigMap, key: &str) -> bool {
    let text = map.data.as_ref().and_then(|data| data.get(key));
    text.is_some_and(|text| !text.is_empty())
}
