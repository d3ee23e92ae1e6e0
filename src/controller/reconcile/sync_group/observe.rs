//! Observes a valid SyncGroup, from the caches alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use starling_api::{
    APPROVE_MEMBERSHIP, Cluster, DeletionApproval, GroupIdentity, RolloutAction, RolloutApproval, Source,
    SyncGroup,
};
use starling_core::deletion_approval::{Approval, Approvals};
use starling_core::gate::CheckTest;
use starling_core::identity;
use starling_core::ids::{ClusterName, GroupId, InstallationId, SyncName};
use starling_core::plan::ReadStrategy;

use super::super::marks;
use super::validate::{Rules, ValidSpec, validate};
use crate::controller::cache::Cache;
use crate::controller::caches::group_to_delete_from;
use crate::controller::caches::metric_tests::Checked;
use crate::controller::caches::release_snapshots::ReleaseOwner;
use crate::controller::caches::selections::{Selected, SelectionCache};
use crate::controller::caches::sync_index::{GroupSyncs, SyncCache};
use crate::controller::context::GroupContext;
use crate::controller::object_key::ObjectKey;
use crate::controller::policies::AdmissionPolicies;

/// A valid group, and all inputs of its plan.
pub(super) struct Group {
    pub(super) object: Arc<SyncGroup>,
    pub(super) key: ObjectKey,
    /// The identity, for everything outside of the object that refers to the group.
    pub(super) identity: GroupIdentity,
    /// The ID in the identity.
    pub(super) id: GroupId,
    /// The parsed strategy.
    pub(super) strategy: ReadStrategy,
    /// The Sources of the entries, by name. All of them have a revision.
    pub(super) sources: BTreeMap<String, Arc<Source>>,
    /// The selected clusters, by name.
    pub(super) clusters: Selected,
    /// The Syncs of the group, by cluster and entry, including those that are no longer wanted.
    pub(super) syncs: Arc<GroupSyncs>,
    /// Names that are taken.
    pub(super) foreign_names: ForeignNames,
    /// Clusters that exist and cannot be decoded: they are neither selected nor unselected.
    pub(super) unreadable: BTreeSet<ClusterName>,
    /// Names of Syncs in the namespace that exist and cannot be decoded.
    pub(super) unreadable_syncs: BTreeSet<SyncName>,
    /// The approvals of all rollouts of the group.
    pub(super) approvals: Vec<Arc<RolloutApproval>>,
    /// The operator actions of all rollouts of the group.
    pub(super) actions: Vec<Arc<RolloutAction>>,
    /// The approvals of deletions of the group.
    pub(super) deletion_approvals: Vec<Arc<DeletionApproval>>,
}

impl Group {
    /// Returns the approvals of what the group itself decides: clusters that leave, and entries that an automatic
    /// rollback removes. Those of objects are carried out by the Syncs.
    pub(super) fn deletion_approvals(&self) -> Approvals {
        self.approvals_with(&[APPROVE_MEMBERSHIP])
    }

    /// Returns the DeletionApprovals of the group and the digests in these annotations.
    pub(super) fn approvals_with(&self, annotations: &[&str]) -> Approvals {
        let object = &self.object;
        let objects = self
            .deletion_approvals
            .iter()
            .map(|approval| Approval::of_object(approval));
        let uid = object.uid().unwrap_or_default();
        let annotated = annotations.iter().flat_map(|name| {
            let value = object.annotations().get(*name).map_or("", String::as_str);
            Approval::of_annotation(name, value, &uid, true)
        });
        let status = object.status.as_ref();
        let deletions = status.and_then(|status| status.deletions.as_ref());
        Approvals::new(
            objects.chain(annotated),
            deletions.map(|deletions| &*deletions.used),
            Some(identity::created_at(object)),
        )
    }
}

/// The reason why a group cannot roll out.
pub(super) struct GroupBlocked {
    pub(super) object: Arc<SyncGroup>,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// True if an edit is required.
    pub(super) stalled: bool,
}

/// The objects that a pass observes.
#[derive(Clone, Copy)]
pub(super) struct Snapshot<'a> {
    pub(super) sources: &'a Cache<Source>,
    pub(super) clusters: &'a Cache<Cluster>,
    pub(super) syncs: &'a Arc<SyncCache>,
    pub(super) approvals: &'a Cache<RolloutApproval>,
    pub(super) actions: &'a Cache<RolloutAction>,
    pub(super) deletion_approvals: &'a Cache<DeletionApproval>,
    pub(super) selections: &'a SelectionCache,
    pub(super) rules: Rules<'a>,
    /// Whether the admission policies are in force; `None`: not known, so the marks of the objects say it.
    pub(super) policies: Option<&'a AdmissionPolicies>,
    /// The installation ID; `None`: not known, so the identity of a group is the one in its status.
    pub(super) installation: Option<&'a InstallationId>,
}

impl Group {
    /// Returns the group as the owner of its stored releases.
    pub(super) fn stored(&self) -> ReleaseOwner<'_> {
        ReleaseOwner {
            group: &self.object,
            id: &self.id,
        }
    }
}

impl<'a> Snapshot<'a> {
    /// Creates a snapshot of the caches of the controller.
    fn by(context: GroupContext<'a>, check_test: &'a CheckTest) -> Self {
        Self {
            sources: &context.objects.sources,
            clusters: &context.objects.clusters,
            syncs: &context.objects.syncs,
            approvals: &context.objects.approvals,
            actions: &context.objects.actions,
            deletion_approvals: &context.objects.deletion_approvals,
            selections: &context.caches.selections,
            rules: Rules {
                check_test,
                job_accounts: Some(&context.rights.job_accounts),
            },
            policies: Some(context.policies),
            installation: Some(context.installation),
        }
    }
}

/// Observes a group whose metric tests were checked.
pub(super) fn observe_checked(
    context: GroupContext<'_>,
    tests: &Arc<Checked>,
    object: Arc<SyncGroup>,
) -> Result<Group, GroupBlocked> {
    let tests = tests.clone();
    // Every test of the strategy was checked.
    let result_of = move |test: &str| tests.get(test).cloned().unwrap_or(Ok(()));
    observe(Snapshot::by(context, &result_of), object)
}

pub(super) fn observe(snapshot: Snapshot<'_>, object: Arc<SyncGroup>) -> Result<Group, GroupBlocked> {
    let blocked = |reason, message, stalled| GroupBlocked {
        object: object.clone(),
        reason,
        message,
        stalled,
    };
    let key = ObjectKey::of(&*object);
    let ValidSpec { selector, strategy } = validate(&object.spec, snapshot.rules)
        .map_err(|error| blocked(error.reason(), error.to_string(), true))?;
    let sources = sources(snapshot.sources, &object, &key)
        .map_err(|error| blocked(error.reason(), error.to_string(), false))?;

    let clusters = snapshot.selections.get(snapshot.clusters, &object, &selector);
    let syncs = snapshot.syncs.of_group(&key);
    let unreadable = snapshot.clusters.unreadable_in(&key.namespace).into_iter();
    let unreadable_syncs = snapshot.syncs.unreadable_in(&key.namespace).into_iter();
    let identity = identity(snapshot.installation, &object);
    Ok(Group {
        approvals: judged(snapshot.policies, snapshot.approvals.indexed(&key)),
        actions: judged(snapshot.policies, snapshot.actions.indexed(&key)),
        deletion_approvals: snapshot
            .deletion_approvals
            .indexed(&group_to_delete_from(&key.namespace, &key.name)),
        foreign_names: ForeignNames {
            all: snapshot.syncs.clone(),
            group: key.clone(),
        },
        id: GroupId::new(identity.id.as_str()),
        identity,
        object,
        key,
        strategy,
        sources,
        clusters,
        syncs,
        unreadable: unreadable.map(ClusterName::from).collect(),
        unreadable_syncs: unreadable_syncs.map(SyncName::from).collect(),
    })
}

/// Returns actions or approvals, each of which says whether its `by` is verified.
pub(super) fn judged<K: ResourceExt + Clone>(
    policies: Option<&AdmissionPolicies>,
    objects: Vec<Arc<K>>,
) -> Vec<Arc<K>> {
    match policies {
        None => objects,
        Some(policies) => {
            let judged = objects.into_iter().map(|object| marks::judged(policies, object));
            judged.collect()
        }
    }
}

fn identity(installation: Option<&InstallationId>, group: &SyncGroup) -> GroupIdentity {
    match installation {
        Some(installation) => identity::of_group(installation, group),
        None => group
            .status
            .as_ref()
            .and_then(|status| status.identity.clone())
            .unwrap_or_default(),
    }
}

/// The reason why a Source of an entry cannot be used.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    /// The Source does not exist.
    #[error("spec.syncs[{entry}].sourceRef: Source {source_name:?} not found")]
    NotFound {
        /// Name of the entry.
        entry: String,
        /// Name of the Source.
        source_name: String,
    },
    /// The Source has not been fetched yet.
    #[error("spec.syncs[{entry}].sourceRef: Source {source_name:?} has no revision yet")]
    NotReady {
        /// Name of the entry.
        entry: String,
        /// Name of the Source.
        source_name: String,
    },
}

impl SourceError {
    /// The reason of the condition.
    fn reason(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "SourceNotFound",
            Self::NotReady { .. } => "SourceNotReady",
        }
    }
}

fn sources(
    known: &Cache<Source>,
    group: &SyncGroup,
    key: &ObjectKey,
) -> Result<BTreeMap<String, Arc<Source>>, SourceError> {
    let mut sources = BTreeMap::new();
    for entry in &group.spec.syncs {
        let name = &entry.template.source_ref.name;
        let source = known.get(&ObjectKey::new(&key.namespace, name));
        let source = source.ok_or_else(|| SourceError::NotFound {
            entry: entry.name.clone(),
            source_name: name.clone(),
        })?;
        let offers = source
            .status
            .as_ref()
            .is_some_and(|status| !status.revision.is_empty());
        if !offers {
            return Err(SourceError::NotReady {
                entry: entry.name.clone(),
                source_name: name.clone(),
            });
        }
        sources.insert(name.clone(), source);
    }
    Ok(sources)
}

/// Returns the current Syncs of a group.
pub(super) fn syncs(context: GroupContext<'_>, key: &ObjectKey) -> Arc<GroupSyncs> {
    context.objects.syncs.of_group(key)
}

/// The names of Syncs that the Syncs of a group cannot have.
pub(super) struct ForeignNames {
    all: Arc<SyncCache>,
    group: ObjectKey,
}

impl ForeignNames {
    /// Whether another Sync than that of this entry on this cluster has a name.
    ///
    /// The Sync itself may have appeared since the pass began: a management cluster that was set back brings it back.
    pub(super) fn contains(&self, name: &str, cluster: &str, entry: &str) -> bool {
        let known = self.all.get(&ObjectKey::new(&self.group.namespace, name));
        known.is_some_and(|sync| {
            let of = sync.spec.group_ref.as_ref();
            let is_of_entry = of.is_some_and(|of| of.name == self.group.name && of.entry == entry);
            !is_of_entry || sync.spec.cluster_ref.name != cluster
        })
    }
}
