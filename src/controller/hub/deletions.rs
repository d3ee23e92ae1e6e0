//! The counts of deletions, which have a field manager of their own: the Sync loop counts the deletions of a group,
//! whose other status the SyncGroup loop writes.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use starling_api::{
    DELETIONS, DELETIONS_MANAGER, DeletionCount, Deletions, GROUP, SYSTEM_NAMESPACE, VERSION,
};

use super::error::within;
use super::{Hub, HubError, Kind};
use crate::controller::object_key::ObjectKey;

/// The key of the data of the ConfigMap.
const COUNTS: &str = "counts";

impl Hub {
    /// Writes the counts of deletions to the status of an object.
    ///
    /// # Errors
    /// [`HubError`]; a conflict if the object was deleted and created again.
    pub async fn write_deletions<K: Kind>(&self, of: &K, deletions: &Deletions) -> Result<K, HubError> {
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": K::kind(&()),
            // As for the whole status.
            "metadata": {"name": of.name_any(), "uid": of.uid()},
            "status": {"deletions": deletions},
        });
        let params = PatchParams::apply(DELETIONS_MANAGER).force();
        let api: Api<K> = self.namespaced(&of.namespace().unwrap_or_default());
        let (name, patch) = (of.name_any(), Patch::Apply(&body));
        within(
            "count the deletions of",
            ObjectKey::of(of),
            api.patch_status(&name, &params, &patch),
        )
        .await
    }

    /// Returns the counts of the deletions of the installation.
    ///
    /// # Errors
    /// [`HubError`]; also if the ConfigMap has other data.
    pub async fn deletion_counts(&self) -> Result<Vec<DeletionCount>, HubError> {
        let key = ObjectKey::new(SYSTEM_NAMESPACE, DELETIONS);
        let map: Option<ConfigMap> = self.find(&key).await?;
        let Some(text) = map.and_then(|map| map.data?.remove(COUNTS)) else {
            return Ok(Vec::new());
        };
        serde_json::from_str(&text).map_err(|error| HubError::Request {
            action: "read the counts of deletions in ConfigMap",
            object: key.to_string(),
            source: Box::new(kube::Error::SerdeError(error)),
        })
    }

    /// Writes the counts of the deletions of the installation.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn write_deletion_counts(&self, counts: &[DeletionCount]) -> Result<(), HubError> {
        let key = ObjectKey::new(SYSTEM_NAMESPACE, DELETIONS);
        let text = serde_json::to_string(counts).unwrap_or_default();
        let mut map = ConfigMap::default();
        map.metadata.name = Some(DELETIONS.to_owned());
        map.data = Some([(COUNTS.to_owned(), text)].into());
        let params = PatchParams::apply(DELETIONS_MANAGER).force();
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        within(
            "write ConfigMap",
            key,
            api.patch(DELETIONS, &params, &Patch::Apply(&map)),
        )
        .await
        .map(|_| ())
    }
}
