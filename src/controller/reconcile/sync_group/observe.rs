//! Observes and validates a SyncGroup, from the caches alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_api::{Cluster, RolloutAction, RolloutApproval, Source, SyncGroup};
use starling_core::ignore::IgnoreRules;
use starling_core::plan::ReadStrategy;
use starling_core::{depend, expand, unimplemented};
use starling_expression::metric;

use super::super::not_implemented;
use crate::controller::cache::{Cache, ObjectKey};
use crate::controller::caches::selections::{Selected, SelectionCache};
use crate::controller::caches::sync_index::{GroupSyncs, SyncCache};
use crate::controller::context::GroupContext;

/// A valid group, and all inputs of its plan.
pub(super) struct Group {
    pub(super) object: Arc<SyncGroup>,
    pub(super) key: ObjectKey,
    /// The parsed strategy.
    pub(super) strategy: ReadStrategy,
    /// The Sources of the entries, by name. All of them have a revision.
    pub(super) sources: BTreeMap<String, Arc<Source>>,
    /// The selected clusters, by name.
    pub(super) clusters: Selected,
    /// The Syncs of the group, by cluster and entry, including those that are no longer wanted.
    pub(super) syncs: Arc<GroupSyncs>,
    /// Names of Syncs that do not belong to the group.
    pub(super) foreign_names: ForeignNames,
    /// Clusters that exist and cannot be decoded: they are neither selected nor unselected.
    pub(super) unreadable: BTreeSet<String>,
    /// The approvals of all rollouts of the group.
    pub(super) approvals: Vec<Arc<RolloutApproval>>,
    /// The operator actions of all rollouts of the group.
    pub(super) actions: Vec<Arc<RolloutAction>>,
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
    pub(super) selections: &'a SelectionCache,
}

impl<'a> Snapshot<'a> {
    /// Creates a snapshot of the caches of the controller.
    pub(super) fn by(context: GroupContext<'a>) -> Self {
        Self {
            sources: &context.objects.sources,
            clusters: &context.objects.clusters,
            syncs: &context.objects.syncs,
            approvals: &context.objects.approvals,
            actions: &context.objects.actions,
            selections: &context.caches.selections,
        }
    }
}

pub(super) fn observe(snapshot: Snapshot<'_>, object: Arc<SyncGroup>) -> Result<Group, GroupBlocked> {
    let blocked = |reason, message, stalled| GroupBlocked {
        object: object.clone(),
        reason,
        message,
        stalled,
    };
    let key = ObjectKey::of(&*object);
    let missing = unimplemented::of_group(&object.spec);
    if !missing.is_empty() {
        return Err(blocked("NotImplemented", not_implemented(&missing), true));
    }
    let selector = expand::selector(&object.spec.cluster_selector)
        .map_err(|error| blocked("InvalidSelector", format!("spec.clusterSelector: {error}"), true))?;
    if let Some(twice) = repeated_entry(&object) {
        return Err(blocked(
            "InvalidSpec",
            format!("spec.syncs: the name {twice:?} occurs twice"),
            true,
        ));
    }
    let strategy = ReadStrategy::checked(&object.spec.rollout_strategy, &metric::check)
        .map_err(|error| blocked("InvalidSpec", format!("spec.{error}"), true))?;
    depend::check_entries(&object.spec.syncs)
        .map_err(|error| blocked(error.reason(), format!("spec.{error}"), true))?;
    if let Some(message) = invalid_ignore(&object) {
        return Err(blocked("InvalidSpec", message, true));
    }
    let sources = sources(snapshot.sources, &object, &key)
        .map_err(|(reason, message)| blocked(reason, message, false))?;

    let clusters = snapshot.selections.get(snapshot.clusters, &object, &selector);
    let syncs = snapshot.syncs.of_group(&key);
    let unreadable = snapshot.clusters.unreadable_in(&key.namespace);
    Ok(Group {
        approvals: snapshot.approvals.indexed(&key),
        actions: snapshot.actions.indexed(&key),
        foreign_names: ForeignNames {
            all: snapshot.syncs.clone(),
            own: syncs.clone(),
            namespace: key.namespace.clone(),
        },
        object,
        key,
        strategy,
        sources,
        clusters,
        syncs,
        unreadable,
    })
}

/// Returns the first invalid `ignore` of an entry, with the error.
fn invalid_ignore(group: &SyncGroup) -> Option<String> {
    group.spec.syncs.iter().find_map(|entry| {
        let error = IgnoreRules::new(&entry.template.ignore).err()?;
        Some(format!("spec.syncs[{}].{error}", entry.name))
    })
}

fn repeated_entry(group: &SyncGroup) -> Option<&str> {
    let mut names = BTreeSet::new();
    group
        .spec
        .syncs
        .iter()
        .map(|entry| entry.name.as_str())
        .find(|name| !names.insert(*name))
}

fn sources(
    known: &Cache<Source>,
    group: &SyncGroup,
    key: &ObjectKey,
) -> Result<BTreeMap<String, Arc<Source>>, (&'static str, String)> {
    let mut sources = BTreeMap::new();
    for entry in &group.spec.syncs {
        let name = &entry.template.source_ref.name;
        let source = known.get(&ObjectKey::new(&key.namespace, name)).ok_or_else(|| {
            let message = format!("spec.syncs[{}].sourceRef: Source {name:?} not found", entry.name);
            ("SourceNotFound", message)
        })?;
        let offers = source
            .status
            .as_ref()
            .is_some_and(|status| !status.revision.is_empty());
        if !offers {
            let message = format!(
                "spec.syncs[{}].sourceRef: Source {name:?} has no revision yet",
                entry.name
            );
            return Err(("SourceNotReady", message));
        }
        sources.insert(name.clone(), source);
    }
    Ok(sources)
}

/// Returns the current Syncs of a group.
pub(super) fn syncs(context: GroupContext<'_>, key: &ObjectKey) -> Arc<GroupSyncs> {
    context.objects.syncs.of_group(key)
}

/// Names of Syncs in a namespace that do not belong to a group. The name of a younger copy of one of its Syncs does not
/// belong to the group either.
pub(super) struct ForeignNames {
    all: Arc<SyncCache>,
    own: Arc<GroupSyncs>,
    namespace: String,
}

impl ForeignNames {
    pub(super) fn contains(&self, name: &str) -> bool {
        let Some(sync) = self.all.get(&ObjectKey::new(&self.namespace, name)) else {
            return false;
        };
        let entry = sync.spec.group_ref.as_ref().map_or("", |group| &group.entry);
        let own = self.own.get(&sync.spec.cluster_ref.name, entry);
        own.is_none_or(|own| own.metadata.name != sync.metadata.name)
    }
}
