//! Reads a group and its objects from the management cluster, with the permissions of the caller.

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
use super::kube_errors;
use crate::read_model::group::{GroupObjects, Syncs};

/// A namespaced kind.
pub(super) trait Namespaced:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

impl<K> Namespaced for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
}

/// Reads a group of the selected namespace.
pub(super) async fn group(caller: &Caller, name: &str) -> anyhow::Result<SyncGroup> {
    one(caller, name).await
}

/// Reads an object of the selected namespace.
pub(super) async fn one<K: Namespaced>(caller: &Caller, name: &str) -> anyhow::Result<K> {
    let api: Api<K> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let found = api.get(name).await.map_err(kube_errors::request);
    found.with_context(|| format!("{} {}/{name}", K::kind(&()), caller.namespace))
}

/// Lists the objects of a kind in the selected namespace.
pub(super) async fn all<K: Namespaced>(caller: &Caller) -> anyhow::Result<Vec<K>> {
    let api: Api<K> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let found = api
        .list(&ListParams::default())
        .await
        .map_err(kube_errors::request);
    let found =
        found.with_context(|| format!("list {} of namespace {}", K::plural(&()), caller.namespace))?;
    Ok(found.items)
}

/// Lists the clusters that a group selects, by name.
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

/// The cluster selector of a group.
pub(super) fn selector(group: &SyncGroup) -> anyhow::Result<Selector> {
    expand::selector(&group.spec.cluster_selector)
        .map_err(|problem| anyhow::anyhow!("spec.clusterSelector of {}: {problem}", group.name_any()))
}

/// Whether a group selects a cluster.
pub(super) fn is_selected(selector: &Selector, cluster: &Cluster) -> bool {
    cluster.metadata.deletion_timestamp.is_none() && selector.matches(cluster.labels())
}

/// Lists the releases under the name of a group; those of a former group of that name may be among them.
pub(super) async fn releases(caller: &Caller, group: &SyncGroup) -> anyhow::Result<Vec<ControllerRevision>> {
    let api: Api<ControllerRevision> = Api::namespaced(caller.client.clone(), &caller.namespace);
    let params = ListParams::default().labels(&format!("{GROUP_LABEL}={}", group.name_any()));
    Ok(api.list(&params).await.map_err(kube_errors::request)?.items)
}

/// A group with its clusters and Syncs.
pub(super) async fn objects_of(caller: &Caller, group: SyncGroup) -> anyhow::Result<GroupObjects> {
    Ok(GroupObjects {
        clusters: selected(caller, &group).await?,
        syncs: syncs(caller, &group).await?,
        group,
    })
}

/// Lists the Syncs of a group.
pub(super) async fn syncs(caller: &Caller, group: &SyncGroup) -> anyhow::Result<Syncs> {
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
