//! Objects to apply or to print.

use std::time::Duration;

use anyhow::{Context, anyhow};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::Value;

use super::super::kube_errors;

/// Field manager of `starling cluster add`. Not that of the controller, which renews the token in the Secret and must
/// not own other fields.
pub(super) const MANAGER: &str = "starling-cluster-add";
/// Timeout of a request. kube has none.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The desired state of an object.
pub(super) struct Manifest {
    resource: ApiResource,
    body: Value,
}

impl Manifest {
    /// An object of kind `K`: `body` without `apiVersion` and `kind`.
    pub(super) fn of<K: Resource<DynamicType = ()>>(mut body: Value) -> Self {
        let resource = ApiResource::erase::<K>(&());
        body["apiVersion"] = resource.api_version.as_str().into();
        body["kind"] = resource.kind.as_str().into();
        Self { resource, body }
    }

    /// `kind.group/name`, as kubectl names objects.
    pub(super) fn name(&self) -> String {
        let kind = self.resource.kind.to_lowercase();
        let group = match self.resource.group.as_str() {
            "" => String::new(),
            group => format!(".{group}"),
        };
        format!("{kind}{group}/{}", self.object_name())
    }

    /// The object as YAML.
    pub(super) fn yaml(&self) -> anyhow::Result<String> {
        Ok(serde_saphyr::to_string(&self.body)?)
    }

    /// Applies the object. Returns `created`, `configured` or `unchanged`.
    pub(super) async fn apply(&self, client: &Client) -> anyhow::Result<&'static str> {
        let before = self.version(client).await?;
        let params = PatchParams::apply(MANAGER).force();
        let after = self.send(client, &params).await?;
        Ok(match before {
            None => "created",
            Some(before) if Some(&before) == after.as_ref() => "unchanged",
            Some(_) => "configured",
        })
    }

    /// Applies the object in a dry run.
    pub(super) async fn check(&self, client: &Client) -> anyhow::Result<()> {
        let params = PatchParams::apply(MANAGER).force().dry_run();
        self.send(client, &params).await.map(|_| ())
    }

    /// Deletes the object if it exists. Returns whether it existed.
    pub(super) async fn delete(&self, client: &Client) -> anyhow::Result<bool> {
        if self.version(client).await?.is_none() {
            return Ok(false);
        }
        let api = self.api(client);
        within(api.delete(self.object_name(), &Default::default()))
            .await
            .with_context(|| format!("delete {}", self.name()))?;
        Ok(true)
    }

    async fn send(&self, client: &Client, params: &PatchParams) -> anyhow::Result<Option<String>> {
        let api = self.api(client);
        let patch = Patch::Apply(&self.body);
        let written = within(api.patch_metadata(self.object_name(), params, &patch))
            .await
            .with_context(|| format!("apply {}", self.name()))?;
        Ok(written.metadata.resource_version)
    }

    async fn version(&self, client: &Client) -> anyhow::Result<Option<String>> {
        let found = within(self.api(client).get_metadata_opt(self.object_name()))
            .await
            .with_context(|| format!("read {}", self.name()))?;
        Ok(found.map(|found| found.metadata.resource_version.unwrap_or_default()))
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        match self.body["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }

    fn object_name(&self) -> &str {
        self.body["metadata"]["name"].as_str().unwrap_or_default()
    }
}

/// Waits for a request until the timeout, and words its error.
pub(super) async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(kube_errors::request),
        Err(_) => Err(anyhow!("no response within {} s", TIMEOUT.as_secs())),
    }
}
