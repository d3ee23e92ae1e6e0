//! The group that is previewed, with its Sources and clusters.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use kube::{Api, ResourceExt};
use starling_api::{Cluster, Source, SyncGroup};

use crate::cli::caller::Caller;
use crate::cli::{kube_errors, lists};

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
}
