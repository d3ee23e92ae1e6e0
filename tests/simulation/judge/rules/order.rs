//! The order in which the objects of a Sync go, and what is not deleted at all.

use starling_api::{DISABLED, PRUNE, RECONCILE};

use super::deletion::{Deletion, deletions};
use super::hand_over::is_rendered_by_another;
use super::targets::{is_current, targets};
use crate::judge::history::Key;
use crate::judge::member::{ObjectVersion, is_own, owner, uid};
use crate::judge::render::annotation;
use crate::judge::targets::Target;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// The objects of a Sync that is deleted go step by step, and so do those of a prune: none is deleted while an object
/// of an earlier step is there. And what was there before Starling is never deleted where its deletion deletes others.
///
/// Evidence: the objects on the member with the label of the owner that Starling has written, whether or not an
/// inventory lists them. Not in question is what stays: objects with an annotation, those of another Sync, those that
/// are let go of, and for a prune what its target renders, or what has a grace.
pub(super) fn objects_go_in_order(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for deletion in deletions(world) {
        if deletion.takes_others_along() && deletion.was_adopted() {
            found.push(deletion.violation(Rule::Adopted, "although it was there before Starling"));
        }
        if let Some(earlier) = remaining_of_earlier_step(&deletion) {
            found.push(deletion.violation(Rule::DeletionOrder, format!("before {earlier}")));
        }
    }
    found
}

/// Returns an object of an earlier step of the same Sync that is still there.
fn remaining_of_earlier_step(deletion: &Deletion<'_>) -> Option<Key> {
    let is_end = deletion.is_end();
    let targets = targets(deletion.world, deletion.owner()?, deletion.cluster).into_iter();
    // An attempt that prunes the object is at a target without it.
    let targets = targets.filter(|target| is_end || target.renders(&deletion.key()).is_none());
    let current: Vec<&Target> = targets
        .filter(|target| target.at <= deletion.at() && is_current(deletion.world, target, deletion.write))
        .collect();
    let has_grace = |target: &&Target| !target.desired.template.prune_grace.is_zero();
    if deletion.is_recreation() || (!is_end && current.iter().any(has_grace)) {
        return None;
    }
    let step = Step::of(&deletion.key());
    let goes = |key: &Key| is_end || current.iter().all(|target| target.renders(key).is_none());
    let objects = deletion.member.objects.iter();
    let mut earlier = objects.filter(|(key, _)| Step::of(key) < step && goes(key));
    let found = earlier.find(|(key, versions)| is_there(deletion, key, versions));
    found.map(|(key, _)| key.clone())
}

/// Whether an object of the owner that has to go is still there.
fn is_there(deletion: &Deletion<'_>, key: &Key, versions: &[ObjectVersion<'_>]) -> bool {
    let known = versions.partition_point(|version| version.write.at <= deletion.at());
    let Some(last) = versions[..known].last().filter(|last| !last.is_gone()) else {
        return false;
    };
    let live = &last.write.object;
    let mut same = versions[..known]
        .iter()
        .filter(|version| uid(&version.write.object) == uid(live));
    let stays = annotation(live, PRUNE) == DISABLED || annotation(live, RECONCILE) == DISABLED;
    let is_adopted = { same.clone() }.next().is_some_and(|first| !is_own(first.write));
    !stays
        && owner(live) == deletion.label
        && same.any(|version| is_own(version.write))
        && !(is_adopted && takes_others_along(key))
        && !is_rendered_by_another(deletion, key)
}

fn takes_others_along(key: &Key) -> bool {
    matches!(Step::of(key), Step::Definition | Step::Namespace) || key.kind.starts_with("PersistentVolume")
}

/// The steps, in order. The judge does not know those of Starling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// An operator of the set may have to finish it.
    CustomResource,
    /// It stands in the way of other requests.
    Interceptor,
    InNamespace,
    OfCluster,
    Definition,
    Namespace,
}

/// The API groups of kube-apiserver, but for those of webhooks, aggregated APIs and definitions.
const BUILT_IN: [&str; 18] = [
    "",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

impl Step {
    fn of(key: &Key) -> Self {
        match (key.group.as_str(), key.kind.as_str()) {
            ("", "Namespace") => Self::Namespace,
            ("apiextensions.k8s.io", _) => Self::Definition,
            ("admissionregistration.k8s.io" | "apiregistration.k8s.io", _) => Self::Interceptor,
            (group, _) if !BUILT_IN.contains(&group) => Self::CustomResource,
            _ if key.namespace.is_empty() => Self::OfCluster,
            _ => Self::InNamespace,
        }
    }
}
