//! The group that is previewed, and what it is about, as the caller can read them.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use kube::api::ListParams;
use kube::core::SelectorExt as _;
use kube::{Api, ResourceExt};
use starling_api::{Cluster, Source, SyncGroup};
use starling_core::expand;

use crate::cli::caller::Caller;
use crate::cli::explain;

/// A group, its Sources, and the clusters that it selects.
pub(super) struct Fleet {
    /// The group.
    pub(super) group: SyncGroup,
    /// Its Sources, by name.
    pub(super) sources: BTreeMap<String, Source>,
    /// The clusters that it selects, by name.
    pub(super) clusters: BTreeMap<String, Cluster>,
}

impl Fleet {
    /// Reads them.
    pub(super) async fn read(caller: &Caller, group: &str) -> anyhow::Result<Self> {
        let namespace = caller.namespace.as_str();
        let api: Api<SyncGroup> = Api::namespaced(caller.client.clone(), namespace);
        let group = api
            .get(group)
            .await
            .map_err(explain::request)
            .with_context(|| format!("SyncGroup {namespace}/{group}"))?;
        let mut sources = BTreeMap::new();
        let api: Api<Source> = Api::namespaced(caller.client.clone(), namespace);
        for entry in &group.spec.syncs {
            let name = &entry.template.source_ref.name;
            if !sources.contains_key(name) {
                let source = api.get(name).await.map_err(explain::request).with_context(|| {
                    format!("spec.syncs[{}].sourceRef: Source {namespace}/{name}", entry.name)
                })?;
                sources.insert(name.clone(), source);
            }
        }
        if group.spec.syncs.is_empty() {
            bail!(
                "SyncGroup {namespace}/{} has no entries in spec.syncs",
                group.name_any()
            );
        }
        let selector = expand::selector(&group.spec.cluster_selector)
            .map_err(|problem| anyhow::anyhow!("spec.clusterSelector: {problem}"))?;
        let api: Api<Cluster> = Api::namespaced(caller.client.clone(), namespace);
        let all = api
            .list(&ListParams::default())
            .await
            .map_err(explain::request)
            .with_context(|| format!("list the Clusters of {namespace}"))?;
        let clusters = all
            .items
            .into_iter()
            .filter(|cluster| {
                cluster.metadata.deletion_timestamp.is_none() && selector.matches(cluster.labels())
            })
            .map(|cluster| (cluster.name_any(), cluster))
            .collect();
        Ok(Self {
            group,
            sources,
            clusters,
        })
    }
}
