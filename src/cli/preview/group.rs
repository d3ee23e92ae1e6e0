//! The group that is previewed, with its Sources and clusters.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use kube::{Api, ResourceExt};
use starling_api::{Cluster, DeletionApproval, DeletionApprovalSpec, Source, SyncGroup, SyncResource};
use starling_core::deletion_approval::{Approval, Approvals};
use starling_core::deletion_subject::{ApprovalScope, ApprovalSubject, DeletionCause};

use crate::cli::caller::Caller;
use crate::cli::{kube_errors, lists};
use crate::read_model::group::{GroupObjects, Syncs};
use crate::read_model::removals::PlannedRemoval;

/// A group, its Sources, and the clusters that it selects.
pub(super) struct GroupScope {
    /// The group.
    pub(super) group: SyncGroup,
    /// Its Sources, by name.
    pub(super) sources: BTreeMap<String, Source>,
    /// The clusters that it selects, by name.
    pub(super) clusters: BTreeMap<String, Cluster>,
    /// Its Syncs.
    pub(super) syncs: Syncs,
    /// The approvals of deletions in the namespace; none if the caller may not list them.
    deletion_approvals: Vec<DeletionApproval>,
    /// Why these approvals are not known.
    pub(super) unknown_approvals: Option<String>,
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
        let syncs = lists::syncs(caller, &group).await?;
        let (deletion_approvals, unknown_approvals) = match lists::all(caller).await {
            Ok(found) => (found, None),
            Err(error) => (Vec::new(), Some(crate::chain(error.as_ref()))),
        };
        Ok(Self {
            group,
            sources,
            clusters,
            syncs,
            deletion_approvals,
            unknown_approvals,
        })
    }

    /// Returns what an approval of deletions of an entry is of, in a release of the group.
    pub(super) fn subject<'a>(&'a self, entry: &'a str, release: &'a str) -> ApprovalSubject<'a> {
        let metadata = &self.group.metadata;
        let scope = ApprovalScope {
            namespace: metadata.namespace.as_deref().unwrap_or_default(),
            group: metadata.name.as_deref().unwrap_or_default(),
            name: entry,
        };
        ApprovalSubject::new(scope, DeletionCause::Prune, release, "")
    }

    /// Returns the approvals that apply to a Sync of the group, as the controller does; `None`: it does not exist yet.
    pub(super) fn approvals(&self, sync: Option<&SyncResource>) -> Approvals {
        let name = sync.map(ResourceExt::name_any);
        let is_of = |approval: &&DeletionApproval| {
            let DeletionApprovalSpec { group, sync, .. } = &approval.spec;
            group.as_ref() == self.group.metadata.name.as_ref() && group.is_some()
                || sync.is_some() && *sync == name
        };
        let objects = self.deletion_approvals.iter().filter(is_of);
        let objects = objects.map(Approval::of_object);
        let own = sync
            .map(|sync| Approval::annotated(sync, false))
            .unwrap_or_default();
        let shared = Approval::annotated(&self.group, true);
        let status = sync.and_then(|sync| sync.status.as_ref());
        let deletions = status.and_then(|status| status.deletions.as_ref());
        Approvals::new(
            objects.chain(own).chain(shared),
            deletions.map(|deletions| &*deletions.used),
            sync.and_then(ResourceExt::creation_timestamp).map(|time| time.0),
        )
    }

    /// Finds the Syncs that the group no longer wants, on one cluster or on all.
    pub(super) fn removals(&self, cluster: Option<&str>) -> Vec<PlannedRemoval> {
        let mut objects = GroupObjects {
            syncs: self.syncs.clone(),
            group: self.group.clone(),
            clusters: self.clusters.clone(),
        };
        objects
            .syncs
            .retain(|(on, _), _| cluster.is_none_or(|cluster| cluster == on));
        objects.removals()
    }
}
