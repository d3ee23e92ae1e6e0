//! The group that is previewed, with its Sources and clusters.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use kube::{Api, ResourceExt};
use starling_api::{Cluster, Source, SyncGroup};

use crate::cli::caller::Caller;
use crate::cli::{kube_errors, lists};
use crate::read_model::group::GroupObjects;
use crate::read_model::removals::PlannedRemoval;

/// A group, its Sources, and the clusters that it selects.
pub(super) struct GroupScope {
    /// The group.
    pub(super) group: SyncGroup,
    /// Its Sources, by name.
    pub(super) sources: BTreeMap<String, Source>,
    /// The clusters that it selects, by name.
    pub(super) clusters: BTreeMap<String, Cluster>,
}

impl GroupScope {
    /// Reads them with the permissions of the caller.
    pub(super) async fn read(caller: &Caller, group: &str) -> anyhow::Result<Self> {
        let namespace = caller.namespace.as_str();
        let group = lists::group(caller, group).await?;
        let mut sources = BTreeMap::new();
        let api: Api<Source> = Api::namespaced(caller.client.clone(), namespace);
        for entry in &group.spec.syncs {
            let name = &entry.template.source_ref.name;
            if !sources.contains_key(name) {
                let source = api
                    .get(name)
                    .await
                    .map_err(kube_errors::request)
                    .with_context(|| {
                        format!("spec.syncs[{}].sourceRef: Source {namespace}/{name}", entry.name)
                    })?;
                sources.insert(name.clone(), source);
            }
        }
        if group.spec.syncs.is_empty() {
            bail!("SyncGroup {namespace}/{}: spec.syncs is empty", group.name_any());
        }
        let clusters = lists::selected(caller, &group).await?;
        Ok(Self {
            group,
            sources,
            clusters,
        })
    }

    /// Finds the Syncs that the group no longer wants, on one cluster or on all.
    pub(super) async fn removals(
        &self,
        caller: &Caller,
        cluster: Option<&str>,
    ) -> anyhow::Result<Vec<PlannedRemoval>> {
        let mut objects = GroupObjects {
            syncs: lists::syncs(caller, &self.group).await?,
            group: self.group.clone(),
            clusters: self.clusters.clone(),
        };
        objects
            .syncs
            .retain(|(on, _), _| cluster.is_none_or(|cluster| cluster == on));
        Ok(objects.removals())
    }
}
