//! The management cluster: the writes that the reconcilers make there.

mod error;
mod installation;
pub mod testing;

use std::collections::BTreeMap;
use std::fmt::Debug;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::{
    Cluster, DeletionPolicy, FIELD_MANAGER, FINALIZER, GROUP, GROUP_MANAGER, SyncGroup, SyncResource, VERSION,
};

use self::error::{is_conflict, is_not_found, present, within};
use super::object_key::ObjectKey;

pub use self::error::HubError;

/// A value of a Secret with its annotations. Has no `Debug`.
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
    /// it: otherwise users own the field, and an apply that names it would take it from them.
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

    /// Puts our finalizer on an object, or takes it off. That the object is gone already is no error where it was to be
    /// taken off: then it is returned as it was.
    ///
    /// # Errors
    /// [`HubError`]; a conflict where the object is not the one, or not as, it was seen.
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

    /// Sets what becomes of the objects of a Sync of a group, before the Sync is deleted.
    ///
    /// # Errors
    /// As for [`Self::set_finalizer`].
    pub async fn set_deletion_policy(
        &self,
        sync: &SyncResource,
        policy: DeletionPolicy,
    ) -> Result<SyncResource, HubError> {
        let metadata = finalizers(sync, policy == DeletionPolicy::Delete);
        let patch = json!({"metadata": metadata, "spec": {"deletionPolicy": policy}});
        self.merge("set the deletionPolicy of", sync, GROUP_MANAGER, &patch)
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

    /// An object as it is now, past the caches; `None` only if the API server says that it has none of this name.
    ///
    /// # Errors
    /// [`HubError`]; also where the kind itself is not served.
    pub async fn find<K: Kind>(&self, key: &ObjectKey) -> Result<Option<K>, HubError> {
        let api: Api<K> = self.namespaced(&key.namespace);
        present(within("read", key.clone(), api.get(&key.name)).await, &key.name)
    }

    /// What is being deleted on the management cluster and deletes our objects in this namespace with it: the
    /// namespace, or the definition of one of our kinds. `None`: nothing is.
    ///
    /// # Errors
    /// [`HubError`]: then it is not known.
    pub async fn leaving(&self, namespace: &str) -> Result<Option<String>, HubError> {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let key = ObjectKey::new("", namespace);
        let found = within("read Namespace", key, namespaces.get(namespace)).await;
        if goes(present(found, namespace)?.as_ref()) {
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
            if goes(present(found, name)?.as_ref()) {
                return Ok(Some(format!("CustomResourceDefinition {name}")));
            }
        }
        Ok(None)
    }

    /// Deletes an object if it is still the one that was observed. That it is gone is no error. `Some`: it waits for
    /// its finalizers.
    ///
    /// # Errors
    /// [`HubError`]; a conflict where another object has its name now.
    pub async fn delete<K: Kind>(&self, object: &K) -> Result<Option<K>, HubError> {
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
            Err(HubError::Request { source, .. }) if is_not_found(&source) => Ok(None),
            other => Ok(other?
                .left()
                .filter(|left| left.meta().deletion_timestamp.is_some() && !left.finalizers().is_empty())),
        }
    }

    /// Creates an object. That it exists is no error.
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

    /// Creates a Job, and refuses fields that the API server does not know. That a Job of its name exists is no error.
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

    /// The objects of a namespace that match.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn list<K: Kind>(&self, namespace: &str, params: &ListParams) -> Result<Vec<K>, HubError> {
        let api: Api<K> = self.namespaced(namespace);
        let key = ObjectKey::new(namespace, K::plural(&()));
        Ok(within("list", key, api.list(params)).await?.items)
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

    fn namespaced<K: Kind>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client(), namespace)
    }
}

/// The finalizers of an object with or without ours, and the version that this is true of.
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

/// Whether an object is gone or being deleted.
fn goes<K: Resource>(object: Option<&K>) -> bool {
    object.is_none_or(|object| object.meta().deletion_timestamp.is_some())
}
