//! A group with everything around it, as a person can read it from the management cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;

use anyhow::Context;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::ListParams;
use kube::core::{Selector, SelectorExt as _};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use starling_api::{Cluster, GROUP_LABEL, SyncGroup, SyncResource};
use starling_core::expand;

use super::caller::Caller;
use super::explain;

/// A kind whose objects live in namespaces and can be read.
pub(super) trait Namespaced:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

impl<K> Namespaced for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

/// One group of the caller's namespace.
pub(super) async fn group(caller: &Caller, name: &str) -> anyhow::Result<SyncGroup> {
    one(caller, name).await
}

/// One object of the caller's namespace.
pub(super) async fn one<K: Namespaced>(caller: &Caller, name: &str) -> anyhow::Result<K> {
    let api: Api<K> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let found = api.get(name).await.map_err(explain::request);
    found.with_context(|| format!("{} {}/{name}", K::kind(&()), caller.namespace))
}

/// All objects of a kind in the caller's namespace.
pub(super) async fn all<K: Namespaced>(caller: &Caller) -> anyhow::Result<Vec<K>> {
    let api: Api<K> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let found = api.list(&ListParams::default()).await.map_err(explain::request);
    let found =
        found.with_context(|| format!("list {} of namespace {}", K::plural(&()), caller.namespace))?;
    Ok(found.items)
}

/// The clusters that a group selects, by name.
pub(super) async fn selected(
    caller: &Caller,
    group: &SyncGroup,
) -> anyhow::Result<BTreeMap<String, Cluster>> {
    let selector = selector(group)?;
    let all: Vec<Cluster> = all(caller).await?;
    Ok(all
        .into_iter()
        .filter(|cluster| is_selected(&selector, cluster))
        .map(|cluster| (cluster.name_any(), cluster))
        .collect())
}

/// What a group selects its clusters by.
pub(super) fn selector(group: &SyncGroup) -> anyhow::Result<Selector> {
    expand::selector(&group.spec.cluster_selector)
        .map_err(|problem| anyhow::anyhow!("spec.clusterSelector of {}: {problem}", group.name_any()))
}

/// Whether a group is about a cluster at all.
pub(super) fn is_selected(selector: &Selector, cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none() && selector.matches(cluster.labels())
}

/// The releases that are kept under the name of a group; those of a former one of that name may be among them.
pub(super) async fn releases(caller: &Caller, group: &SyncGroup) -> anyhow::Result<Vec<ControllerRevision>> {
    let api: Api<ControllerRevision> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let params = ListParams::default().labels(&format!("{GROUP_LABEL}={}", group.name_any()));
    Ok(api.list(&params).await.map_err(explain::request)?.items)
}

/// Whether a release is of this very group.
pub(super) fn is_of(group: &SyncGroup, release: &ControllerRevision) -> bool {
    let mut owners = release.owner_references().iter();
    owners.any(|owner| Some(&owner.uid) == group.metadata.uid.as_ref())
}

/// The Syncs of a group, by cluster and entry.
pub(super) async fn syncs(
    caller: &Caller,
    group: &SyncGroup,
) -> anyhow::Result<BTreeMap<(String, String), SyncResource>> {
    let name = group.name_any();
    let all: Vec<SyncResource> = all(caller).await?;
    Ok(all
        .into_iter()
        .filter_map(|sync| {
            let of = sync.spec.group_ref.as_ref().filter(|of| of.name == name)?;
            Some(((sync.spec.cluster_ref.name.clone(), of.entry.clone()), sync))
        })
        .collect())
}
