//! The installation ID.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use starling_api::{INSTALLATION, SYSTEM_NAMESPACE};

use super::super::object_key::ObjectKey;
use super::error::{is_conflict, within};
use super::{Hub, HubError};

impl Hub {
    /// Returns the installation ID, and creates it at the first start. The ID is part of every owner label, so it must
    /// survive the loss of the ledger and a move of the management cluster: it is stored in the management cluster, and
    /// its backups contain it.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn installation(&self) -> Result<String, HubError> {
        let key = ObjectKey::new(SYSTEM_NAMESPACE, INSTALLATION);
        let api: Api<ConfigMap> = self.namespaced(SYSTEM_NAMESPACE);
        let id = |map: ConfigMap| map.data.and_then(|data| data.get("id").cloned());
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
        let mut map = ConfigMap::default();
        map.metadata.name = Some(INSTALLATION.into());
        map.data = Some([("id".to_owned(), namespace.uid().unwrap_or_default())].into());
        match within("create", key.clone(), api.create(&PostParams::default(), &map)).await {
            // Another replica was faster, and its ID counts.
            Err(HubError::Request { source, .. }) if is_conflict(&source) => {}
            other => drop(other?),
        }
        let map = within("read", key, api.get(INSTALLATION)).await?;
        Ok(id(map).unwrap_or_default())
    }

    /// Returns the installation ID, if it exists. Creates nothing.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn known_installation(&self) -> Result<Option<String>, HubError> {
        let key = ObjectKey::new(SYSTEM_NAMESPACE, INSTALLATION);
        let map: Option<ConfigMap> = self.find(&key).await?;
        Ok(map.and_then(|map| map.data?.get("id").cloned()))
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
