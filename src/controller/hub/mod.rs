//! The client of the management cluster, with the writes of the reconcilers.

mod deletions;
mod error;
mod installation;
pub mod testing;

use std::collections::BTreeMap;
use std::fmt::Debug;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::{
    Cluster, DeletionPolicy, FIELD_MANAGER, FINALIZER, GROUP, GROUP_MANAGER, SyncGroup, SyncResource, VERSION,
};

use self::error::{is_conflict, is_not_found, present, within};
use crate::controller::object_key::ObjectKey;

pub use self::error::HubError;
pub use self::installation::{InstallationRecord, installation_key};

/// A value of a Secret with its annotations. Has no `Debug`.
pub struct SecretValue<'a> {
    /// The key under `data`.
    pub key: &'a str,
    /// The value, not encoded.
    pub value: &'a str,
    /// Annotations that are written with the value.
    pub annotations: BTreeMap<String, String>,
}

/// A kind of namespaced objects with a static type.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

/// The client of the management cluster.
#[derive(Clone)]
pub struct Hub {
    client: Client,
}

impl Hub {
    /// Creates a client of the management cluster behind `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Returns the client, for watches.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Writes the status of an object: all fields of status that Starling owns, and no others.
    ///
    /// # Errors
    /// [`HubError`]; a conflict if the object was deleted and created again.
    pub async fn write_status<K: Kind>(&self, of: &K, status: &impl Serialize) -> Result<K, HubError> {
        let mut status = serde_json::to_value(status).unwrap_or_default();
        // Another field manager writes the counts, possibly since they were read.
        if let Some(fields) = status.as_object_mut() {
            fields.remove("deletions");
        }
        let body = serde_json::json!({
            "apiVersion": format!("{GROUP}/{VERSION}"),
            "kind": K::kind(&()),
            // The UID turns the response into a conflict if the object was deleted. Without it the apply would create
            // an object.
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

    /// Admits a Sync of a group: applies the whole spec. `suspend` is only applied if the entry of the group sets it:
    /// otherwise users own the field, and an apply that contains the field would take the ownership.
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

    /// Adds the finalizer of Starling to an object, or removes it. A removal from a deleted object succeeds and returns
    /// the object unchanged.
    ///
    /// # Errors
    /// [`HubError`]; a conflict if the object was replaced or changed after it was read.
    pub async fn set_finalizer<K: Kind>(&self, of: &K, wanted: bool) -> Result<K, HubError> {
        let patch = json!({"metadata": finalizers(of, wanted)});
        match self
            .merge("set the finalizer of", of, FIELD_MANAGER, &patch)
            .await
        {
            Err(HubError::Request { source, .. }) if !wanted && is_not_found(&source) => Ok(of.clone()),
            other => other,
        }
    }

    /// Sets the deletion policy of a Sync of a group, before the Sync is deleted.
    ///
    /// # Errors
    /// As for [`Self::set_finalizer`].
    pub async fn set_deletion_policy(
        &self,
        sync: &SyncResource,
        policy: DeletionPolicy,
        finalizer: bool,
    ) -> Result<SyncResource, HubError> {
        let metadata = finalizers(sync, finalizer);
        let patch = json!({"metadata": metadata, "spec": {"deletionPolicy": policy}});
        self.merge("set the deletionPolicy of", sync, GROUP_MANAGER, &patch)
            .await
    }

    /// Adds annotations to an object.
    ///
    /// # Errors
    /// As for [`Self::set_finalizer`].
    pub async fn annotate<K: Kind>(
        &self,
        of: &K,
        annotations: &BTreeMap<String, String>,
    ) -> Result<K, HubError> {
        let metadata = json!({
            "uid": of.uid(), "annotations": annotations,
        });
        self.merge("annotate", of, FIELD_MANAGER, &json!({"metadata": metadata}))
            .await
    }

    /// Makes a group an owner of an object, in the place of other groups.
    ///
    /// # Errors
    /// As for [`Self::set_finalizer`].
    pub async fn set_owner<K: Kind>(&self, of: &K, group: &SyncGroup) -> Result<K, HubError> {
        let mut owners = of.owner_references().to_vec();
        owners.retain(|owner| owner.kind != SyncGroup::kind(&()));
        owners.extend(group.controller_owner_ref(&()));
        let metadata = json!({"uid": of.uid(), "ownerReferences": owners});
        self.merge(
            "set the owner of",
            of,
            GROUP_MANAGER,
            &json!({"metadata": metadata}),
        )
        .await
    }

    async fn merge<K: Kind>(
        &self,
        action: &'static str,
        of: &K,
        manager: &str,
        patch: &Value,
    ) -> Result<K, HubError> {
        let params = PatchParams {
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let api: Api<K> = self.namespaced(&of.namespace().unwrap_or_default());
        let name = of.name_any();
        within(
            action,
            ObjectKey::of(of),
            api.patch(&name, &params, &Patch::Merge(patch)),
        )
        .await
    }

    /// Reads an object from the API server, not from a cache. Returns `None` only if the API server reports that no
    /// object has this name.
    ///
    /// # Errors
    /// [`HubError`]; also if the kind is not served.
    pub async fn find<K: Kind>(&self, key: &ObjectKey) -> Result<Option<K>, HubError> {
        let api: Api<K> = self.namespaced(&key.namespace);
        present(within("read", key.clone(), api.get(&key.name)).await, &key.name)
    }

    /// Reads an object without a namespace; see [`Self::find`].
    ///
    /// # Errors
    /// As for [`Self::find`].
    pub async fn find_in_cluster<K>(&self, name: &str) -> Result<Option<K>, HubError>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client());
        present(
            within("read", ObjectKey::new("", name), api.get(name)).await,
            name,
        )
    }

    /// Returns the namespace or the CustomResourceDefinition of Starling that is being deleted, which also deletes the
    /// objects of Starling in this namespace; `None` if none is being deleted.
    ///
    /// # Errors
    /// [`HubError`]: the answer is unknown.
    pub async fn deleting_parent(&self, namespace: &str) -> Result<Option<String>, HubError> {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let key = ObjectKey::new("", namespace);
        let found = within("read Namespace", key, namespaces.get(namespace)).await;
        if is_deleting(present(found, namespace)?.as_ref()) {
            return Ok(Some(format!("namespace {namespace}")));
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        for name in [
            SyncResource::crd_name(),
            SyncGroup::crd_name(),
            Cluster::crd_name(),
        ] {
            let key = ObjectKey::new("", name);
            let found = within("read CustomResourceDefinition", key, definitions.get(name)).await;
            if is_deleting(present(found, name)?.as_ref()) {
                return Ok(Some(format!("CustomResourceDefinition {name}")));
            }
        }
        Ok(None)
    }

    /// Deletes an object, if it is still the one that was observed. Succeeds if the object is already deleted. Returns
    /// the object if it waits for its finalizers.
    ///
    /// # Errors
    /// [`HubError`]; a conflict if another object has the name.
    pub async fn delete<K: Kind>(&self, object: &K) -> Result<Option<K>, HubError> {
        self.delete_if(object, None).await
    }

    /// The same, if the object is also unchanged since it was observed.
    ///
    /// # Errors
    /// [`HubError`]; a conflict if another object has the name, or the object has changed.
    pub async fn delete_unchanged<K: Kind>(&self, object: &K) -> Result<Option<K>, HubError> {
        self.delete_if(object, object.resource_version()).await
    }

    async fn delete_if<K: Kind>(
        &self,
        object: &K,
        resource_version: Option<String>,
    ) -> Result<Option<K>, HubError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: object.uid(),
                resource_version,
            }),
            ..DeleteParams::background()
        };
        let api: Api<K> = self.namespaced(&object.namespace().unwrap_or_default());
        let name = object.name_any();
        match within("delete", ObjectKey::of(object), api.delete(&name, &params)).await {
            Err(HubError::Request { source, .. }) if is_not_found(&source) => Ok(None),
            other => Ok(other?
                .left()
                .filter(|left| left.meta().deletion_timestamp.is_some() && !left.finalizers().is_empty())),
        }
    }

    /// Creates an object. Succeeds if the object exists.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn create<K: Kind + Serialize>(&self, object: &K) -> Result<(), HubError> {
        let api: Api<K> = self.namespaced(&object.namespace().unwrap_or_default());
        match within(
            "create",
            ObjectKey::of(object),
            api.create(&PostParams::default(), object),
        )
        .await
        {
            Err(HubError::Request { source, .. }) if is_conflict(&source) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Creates a Job, and rejects fields that the API server does not know. Succeeds if a Job with this name exists.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn create_job(&self, key: &ObjectKey, job: &Value) -> Result<(), HubError> {
        let path = format!(
            "/apis/batch/v1/namespaces/{}/jobs?fieldManager={FIELD_MANAGER}&fieldValidation=Strict",
            key.namespace
        );
        let made = async {
            let request = http::Request::post(path)
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(job.to_string().into_bytes());
            let request = request.map_err(kube::Error::HttpError)?;
            self.client.request::<Value>(request).await
        };
        match within("create Job", key.clone(), made).await {
            Err(HubError::Request { source, .. }) if is_conflict(&source) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Lists the objects of a namespace that match.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn list<K: Kind>(&self, namespace: &str, params: &ListParams) -> Result<Vec<K>, HubError> {
        let api: Api<K> = self.namespaced(namespace);
        let key = ObjectKey::new(namespace, K::plural(&()));
        Ok(within("list", key, api.list(params)).await?.items)
    }

    /// Returns a Secret; `None` if it does not exist.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn secret(&self, key: &ObjectKey) -> Result<Option<Secret>, HubError> {
        let api: Api<Secret> = self.namespaced(&key.namespace);
        within("read Secret", key.clone(), api.get_opt(&key.name)).await
    }

    /// Writes one value of a Secret, if the Secret has not changed since it was read.
    ///
    /// # Errors
    /// [`HubError`]; a conflict if the Secret was changed or created again.
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

    fn namespaced<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client(), namespace)
    }
}

/// Returns metadata with the finalizers of an object, with or without the finalizer of Starling, and with the version
/// that was read.
fn finalizers<K: Kind>(of: &K, wanted: bool) -> Value {
    let mut finalizers: Vec<&str> = of
        .finalizers()
        .iter()
        .map(String::as_str)
        .filter(|finalizer| *finalizer != FINALIZER)
        .collect();
    if wanted {
        finalizers.push(FINALIZER);
    }
    json!({"uid": of.uid(), "resourceVersion": of.resource_version(), "finalizers": finalizers})
}

/// Returns whether an object is deleted or being deleted.
fn is_deleting<K: Resource>(object: Option<&K>) -> bool {
    object.is_none_or(|object| object.meta().deletion_timestamp.is_some())
}
