//! The management cluster: the writes that the reconcilers make there.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use starling_api::{
    FIELD_MANAGER, GROUP, GROUP_MANAGER, INSTALLATION, SYSTEM_NAMESPACE, SyncResource, VERSION,
};

use super::cache::ObjectKey;

/// Limit of one request to the management cluster. kube has none of its own.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a request to the management cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It answered with an error, or not in a way that can be read.
    #[error("{action} {object} on the management cluster")]
    Request {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// What came back.
        #[source]
        source: Box<kube::Error>,
    },
    /// It did not answer in time.
    #[error("{action} {object} on the management cluster: no answer within {TIMEOUT:?}")]
    Timeout {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
    },
}

/// A value of a Secret, and what is said about it. Has no `Debug`.
pub struct SecretValue<'a> {
    /// The key under `data`.
    pub key: &'a str,
    /// The value, not encoded.
    pub value: &'a str,
    /// Annotations that go with it.
    pub annotations: BTreeMap<String, String>,
}

/// A kind of ours: namespaced, with default dynamic type.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

/// The management cluster.
#[derive(Clone)]
pub struct Hub {
    client: Client,
}

impl Hub {
    /// The management cluster behind `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The client, for watches.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Writes the status of one object: our fields of it, all of them, and nothing else.
    ///
    /// # Errors
    /// [`HubError`]; a conflict where the object was deleted and made anew meanwhile.
    pub async fn write_status<K: Kind>(&self, of: &K, status: &impl Serialize) -> Result<K, HubError> {
        let body = serde_json::json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": K::kind(&()),
            // The UID makes the answer a conflict, and not a new object, where this one is gone.
            "metadata": {"name": of.name_any(), "uid": of.uid()},
            "status": status,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let api: Api<K> = self.namespaced(&of.namespace().unwrap_or_default());
        let name = of.name_any();
        let patch = Patch::Apply(&body);
        within(
            "write the status of",
            ObjectKey::of(of),
            api.patch_status(&name, &params, &patch),
        )
        .await
    }

    /// Admits a Sync of a group: the whole spec in one apply. `suspend` goes along only where the group's entry sets
    /// it: otherwise it belongs to people, and an apply that names it would take it from them.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn apply_sync(&self, sync: &SyncResource) -> Result<SyncResource, HubError> {
        let mut body = serde_json::to_value(sync).unwrap_or_default();
        if let (false, Some(spec)) = (sync.spec.template.suspend, body["spec"].as_object_mut()) {
            spec.remove("suspend");
        }
        let params = PatchParams::apply(GROUP_MANAGER).force();
        let api: Api<SyncResource> = self.namespaced(&sync.namespace().unwrap_or_default());
        let name = sync.name_any();
        within(
            "admit",
            ObjectKey::of(sync),
            api.patch(&name, &params, &Patch::Apply(&body)),
        )
        .await
    }

    /// Deletes an object if it is still the one that was seen. That it is gone already is no error.
    ///
    /// # Errors
    /// [`HubError`]; a conflict where another object has its name now.
    pub async fn delete<K: Kind>(&self, object: &K) -> Result<(), HubError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        let api: Api<K> = self.namespaced(&object.namespace().unwrap_or_default());
        let name = object.name_any();
        match within("delete", ObjectKey::of(object), api.delete(&name, &params)).await {
            Err(HubError::Request { source, .. }) if is_not_found(&source) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// A Secret; `None` if there is none.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn secret(&self, key: &ObjectKey) -> Result<Option<Secret>, HubError> {
        let api: Api<Secret> = self.namespaced(&key.namespace);
        within("read Secret", key.clone(), api.get_opt(&key.name)).await
    }

    /// Writes one value of a Secret, if it is still the one that was read.
    ///
    /// # Errors
    /// [`HubError`]; a conflict where it was changed or made anew meanwhile.
    pub async fn write_secret(
        &self,
        read: &Secret,
        SecretValue {
            key,
            value,
            annotations,
        }: SecretValue<'_>,
    ) -> Result<(), HubError> {
        let body = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": read.name_any(),
                "uid": read.uid(),
                "resourceVersion": read.resource_version(),
                "annotations": annotations,
            },
            "data": {key: BASE64.encode(value)},
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let api: Api<Secret> = self.namespaced(&read.namespace().unwrap_or_default());
        let name = read.name_any();
        within(
            "write Secret",
            ObjectKey::of(read),
            api.patch_metadata(&name, &params, &Patch::Apply(&body)),
        )
        .await
        .map(|_| ())
    }

    /// The installation ID, made at the first start. It goes into every owner label, so it must survive the
    /// loss of the ledger and a move of the hub: it lives in the management API and in backups of it.
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
        // The namespace's UID is random and was given by the API server: unique, and no generator needed here.
        let namespaces: Api<Namespace> = Api::all(self.client());
        let namespace = within("read Namespace", key.clone(), namespaces.get(SYSTEM_NAMESPACE)).await?;
        let mut map = ConfigMap::default();
        map.metadata.name = Some(INSTALLATION.into());
        map.data = Some([("id".to_owned(), namespace.uid().unwrap_or_default())].into());
        match within("make", key.clone(), api.create(&PostParams::default(), &map)).await {
            // Another replica was faster: its ID counts.
            Err(HubError::Request { source, .. }) if is_conflict(&source) => {}
            other => drop(other?),
        }
        let map = within("read", key, api.get(INSTALLATION)).await?;
        Ok(id(map).unwrap_or_default())
    }

    async fn ensure_system_namespace(&self) -> Result<(), HubError> {
        let api: Api<Namespace> = Api::all(self.client());
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(SYSTEM_NAMESPACE.into());
        let key = ObjectKey::new("", SYSTEM_NAMESPACE);
        match within(
            "make Namespace",
            key,
            api.create(&PostParams::default(), &namespace),
        )
        .await
        {
            Err(HubError::Request { source, .. }) if is_conflict(&source) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    fn namespaced<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client(), namespace)
    }
}

async fn within<T>(
    action: &'static str,
    object: ObjectKey,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, HubError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(HubError::Request {
            action,
            object: object.to_string(),
            source: Box::new(source),
        }),
        Err(_) => Err(HubError::Timeout {
            action,
            object: object.to_string(),
        }),
    }
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}
