//! The end of a Sync: what happens to its objects on the member, and when.
//!
//! The safe decision is to leave the objects on the member, since that can be corrected by hand. They are deleted only
//! if the policy says so and nothing indicates that the deletion is the side effect of another one.

use std::collections::{BTreeMap, BTreeSet};

use starling_api::{ABANDON, DeletionPolicy};

/// Everything that the end of a Sync depends on.
#[derive(Clone, Debug)]
pub struct FinalizeInput<'a> {
    /// The policy of the Sync, or of its group if the group is being deleted.
    pub policy: DeletionPolicy,
    /// Whether the Sync is suspended: the member is left as it is.
    pub suspended: bool,
    /// Whether a suspended Sync waits and is not released: its group is being deleted, and once it is gone, what it
    /// depends on would go, such as the operator of its instances.
    pub needs_others: bool,
    /// Whether the group is gone without having removed the Sync: the intention is unknown.
    pub group_lost: bool,
    /// The state of the deletion of the namespace, or of the definition of a kind.
    pub parent: ParentDeletion,
    /// Why the group deletes nothing now: it is suspended, or its rollout is paused. `None`: it may, or there is no
    /// group.
    pub stopped: Option<String>,
    /// Whether the group wants the Sync, by a current response of the management cluster.
    pub wanted: bool,
    /// The Cluster of the Sync.
    pub cluster: Target,
    /// Whether a person decided by annotation that the objects stay.
    pub abandoned: bool,
    /// Syncs that depend on this one and are being deleted too. They are finalized first.
    pub dependents: &'a [String],
}

/// The state of the deletion of the parent of an object, by a current response of the management cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParentDeletion {
    /// No parent is being deleted.
    None,
    /// The named parent is being deleted, and the object with it.
    Deleting(String),
    /// The management cluster did not respond, for this reason.
    Unknown(String),
}

/// The member with the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The member is reachable.
    Ready,
    /// The Cluster has connected to another member since the Sync was applied: nobody decided that it loses objects.
    Other,
    /// The Cluster exists, and the member is not reachable, for this reason.
    Unavailable(String),
    /// The Cluster does not exist, by a current response of the management cluster.
    Gone,
    /// The management cluster did not respond whether the Cluster exists, for this reason.
    Unknown(String),
}

/// The next step of a Sync that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finalize {
    /// Remove the finalizer; the objects stay.
    Orphan(Orphaned),
    /// Wait.
    Wait(Waiting),
    /// Delete the objects, then remove the finalizer.
    Delete,
}

/// The reason why the objects stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Orphaned {
    /// The policy is Orphan.
    Policy,
    /// The Sync is suspended.
    Suspended,
    /// The named parent is being deleted, and the Sync with it.
    ParentDeleted(String),
    /// The group is gone without having removed the Sync.
    GroupLost,
    /// The group selects the cluster and has the entry: it creates the Sync anew, which takes over the objects.
    Wanted,
    /// The Cluster is gone.
    ClusterGone,
    /// The Cluster is another member now.
    OtherCluster,
    /// A person decided that the objects stay.
    Abandoned,
}

/// The condition that a Sync that is being deleted waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The deletions cannot be counted against the deletion budgets, for this reason.
    NotCounted(String),
    /// The management cluster has to respond whether a parent is being deleted.
    ParentUnknown(String),
    /// The management cluster has to respond whether the Cluster exists.
    ClusterUnknown(String),
    /// The group has to be resumed, for this reason.
    Group(String),
    /// Which objects other Syncs take over has to be known, for this reason.
    Siblings(String),
    /// The named Syncs have to be finalized first.
    Dependents(Vec<String>),
    /// The member has to be reachable, or its Cluster abandoned.
    Cluster(String),
}

/// Decides what to do with a Sync that is being deleted.
pub fn finalize(input: &FinalizeInput<'_>) -> Finalize {
    if input.policy == DeletionPolicy::Orphan {
        return Finalize::Orphan(Orphaned::Policy);
    }
    match &input.parent {
        ParentDeletion::Deleting(what) => return Finalize::Orphan(Orphaned::ParentDeleted(what.clone())),
        ParentDeletion::Unknown(why) => return Finalize::Wait(Waiting::ParentUnknown(why.clone())),
        ParentDeletion::None => {}
    }
    if input.group_lost {
        return Finalize::Orphan(Orphaned::GroupLost);
    }
    if input.suspended && !input.needs_others {
        return Finalize::Orphan(Orphaned::Suspended);
    }
    if input.cluster == Target::Gone {
        return Finalize::Orphan(Orphaned::ClusterGone);
    }
    // A cluster that returned since is no reason to delete what a person decided to leave there.
    if input.abandoned {
        return Finalize::Orphan(Orphaned::Abandoned);
    }
    if let Some(why) = &input.stopped {
        return Finalize::Wait(Waiting::Group(why.clone()));
    }
    if input.suspended {
        let why = format!(
            "the Sync is suspended, and its objects may need what it depends on; resume it, or set {ABANDON}: \"true\""
        );
        return Finalize::Wait(Waiting::Group(why));
    }
    // Also while the cluster is unreachable: the removal was decided before the group wanted the Sync again.
    if input.wanted {
        return Finalize::Orphan(Orphaned::Wanted);
    }
    match &input.cluster {
        Target::Gone => Finalize::Orphan(Orphaned::ClusterGone),
        Target::Other => Finalize::Orphan(Orphaned::OtherCluster),
        Target::Unknown(why) => Finalize::Wait(Waiting::ClusterUnknown(why.clone())),
        // The cluster comes first: an unreachable cluster also keeps the dependents, and a user can act on it.
        Target::Unavailable(why) => Finalize::Wait(Waiting::Cluster(why.clone())),
        Target::Ready if !input.dependents.is_empty() => {
            Finalize::Wait(Waiting::Dependents(input.dependents.to_vec()))
        }
        Target::Ready => Finalize::Delete,
    }
}

/// Returns the Syncs that have to be finalized before `name`: those among the `leaving` that depend on it. In a cycle,
/// no Sync waits.
///
/// `leaving` has every Sync that is being deleted, with its dependencies.
#[must_use]
pub fn dependents<N: Ord + Clone>(name: &N, leaving: &BTreeMap<N, Vec<N>>) -> Vec<N> {
    let own = reach(name, leaving);
    leaving
        .iter()
        .filter(|(other, on)| *other != name && on.contains(name) && !own.contains(other))
        .map(|(other, _)| other.clone())
        .collect()
}

/// Returns everything that `name` depends on, over any number of steps.
fn reach<'a, N: Ord>(name: &'a N, leaving: &'a BTreeMap<N, Vec<N>>) -> BTreeSet<&'a N> {
    let mut seen = BTreeSet::new();
    let mut open = vec![name];
    while let Some(next) = open.pop() {
        for on in leaving.get(next).into_iter().flatten() {
            if seen.insert(on) {
                open.push(on);
            }
        }
    }
    seen
}

/// Returns the names in an order in which each comes before its dependencies; a cycle is in the order of names.
#[must_use]
pub fn dependents_first<N: Ord + Clone>(syncs: &BTreeMap<N, Vec<N>>) -> Vec<N> {
    let mut left = syncs.clone();
    let mut order = Vec::with_capacity(left.len());
    let mut dependents: BTreeMap<&N, Vec<&N>> = BTreeMap::new();
    for (name, on) in syncs {
        for on in on.iter().filter(|on| *on != name) {
            dependents.entry(on).or_default().push(name);
        }
    }
    let is_free = |name: &N, left: &BTreeMap<N, Vec<N>>| {
        let Some(by) = dependents.get(name) else {
            return true;
        };
        let mut by = by.iter().filter(|other| left.contains_key(*other)).peekable();
        by.peek().is_none() || {
            let own = reach(name, left);
            by.all(|other| own.contains(other))
        }
    };
    while !left.is_empty() {
        let free: Vec<N> = left.keys().filter(|name| is_free(name, &left)).cloned().collect();
        for name in &free {
            left.remove(name);
        }
        // The members of a cycle do not wait for each other, so one is always free.
        if free.is_empty() {
            order.extend(std::mem::take(&mut left).into_keys());
        }
        order.extend(free);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input() -> FinalizeInput<'static> {
        FinalizeInput {
            policy: DeletionPolicy::Delete,
            suspended: false,
            needs_others: false,
            group_lost: false,
            stopped: None,
            wanted: false,
            parent: ParentDeletion::None,
            cluster: Target::Ready,
            abandoned: false,
            dependents: &[],
        }
    }

    fn decide(change: impl FnOnce(&mut FinalizeInput<'static>)) -> Finalize {
        let mut input = input();
        change(&mut input);
        finalize(&input)
    }

    #[test]
    fn objects_are_deleted_only_if_everything_allows_it() {
        assert_eq!(finalize(&input()), Finalize::Delete);
        // The cluster came back after a person gave it up.
        assert_eq!(
            decide(|i| i.abandoned = true),
            Finalize::Orphan(Orphaned::Abandoned)
        );
        let orphan = |why| Finalize::Orphan(why);
        assert_eq!(
            decide(|i| i.policy = DeletionPolicy::Orphan),
            orphan(Orphaned::Policy)
        );
        assert_eq!(decide(|i| i.suspended = true), orphan(Orphaned::Suspended));
        assert_eq!(decide(|i| i.group_lost = true), orphan(Orphaned::GroupLost));
        assert_eq!(
            decide(|i| i.cluster = Target::Gone),
            orphan(Orphaned::ClusterGone)
        );
        let namespace = || "namespace fleet".to_owned();
        assert_eq!(
            decide(|i| i.parent = ParentDeletion::Deleting(namespace())),
            orphan(Orphaned::ParentDeleted(namespace()))
        );
    }

    #[test]
    fn without_a_response_nothing_is_deleted_or_released() {
        let why = || "no answer".to_owned();
        assert_eq!(
            decide(|i| i.parent = ParentDeletion::Unknown(why())),
            Finalize::Wait(Waiting::ParentUnknown(why()))
        );
        // Objects that stay in any case need no response.
        let orphaned = decide(|i| {
            i.parent = ParentDeletion::Unknown(why());
            i.policy = DeletionPolicy::Orphan;
        });
        assert_eq!(orphaned, Finalize::Orphan(Orphaned::Policy));
    }

    /// Guards against an operator that goes because the Sync of its instances was released.
    #[test]
    fn a_suspended_sync_that_needs_others_waits_until_it_is_abandoned() {
        let waits = decide(|i| (i.suspended, i.needs_others) = (true, true));
        assert!(
            matches!(&waits, Finalize::Wait(Waiting::Group(why)) if why.contains("is suspended")),
            "{waits:?}"
        );
        let why = || "the group has not decided".to_owned();
        let undecided = decide(|i| (i.suspended, i.needs_others, i.stopped) = (true, true, Some(why())));
        assert_eq!(undecided, Finalize::Wait(Waiting::Group(why())));
        let given_up = decide(|i| (i.suspended, i.needs_others, i.abandoned) = (true, true, true));
        assert_eq!(given_up, Finalize::Orphan(Orphaned::Abandoned));
        assert_eq!(decide(|i| i.needs_others = true), Finalize::Delete);
    }

    #[test]
    fn a_cluster_that_is_another_one_or_unknown_loses_nothing() {
        assert_eq!(
            decide(|i| i.cluster = Target::Other),
            Finalize::Orphan(Orphaned::OtherCluster)
        );
        let unknown = || Target::Unknown("no answer".into());
        assert_eq!(
            decide(|i| i.cluster = unknown()),
            Finalize::Wait(Waiting::ClusterUnknown("no answer".into()))
        );
        let given_up = decide(|i| (i.cluster, i.abandoned) = (unknown(), true));
        assert_eq!(given_up, Finalize::Orphan(Orphaned::Abandoned));
    }

    #[test]
    fn an_unreachable_cluster_keeps_the_finalizer_until_it_is_abandoned() {
        let away = || Target::Unavailable("no route".into());
        assert_eq!(
            decide(|i| i.cluster = away()),
            Finalize::Wait(Waiting::Cluster("no route".into()))
        );
        let given_up = decide(|i| {
            i.cluster = away();
            i.abandoned = true;
        });
        assert_eq!(given_up, Finalize::Orphan(Orphaned::Abandoned));
    }

    /// The removal was decided before: the label is back, the entry is back, or the group was suspended since.
    #[test]
    fn a_removal_that_the_group_took_back_deletes_nothing() {
        let away = || Target::Unavailable("no route".into());
        let stopped = || Some("SyncGroup web is suspended".to_owned());
        assert_eq!(decide(|i| i.wanted = true), Finalize::Orphan(Orphaned::Wanted));
        let returned = decide(|i| (i.wanted, i.cluster) = (true, away()));
        assert_eq!(returned, Finalize::Orphan(Orphaned::Wanted));
        for wanted in [false, true] {
            for cluster in [away(), Target::Ready] {
                let held = decide(|i| (i.stopped, i.wanted, i.cluster) = (stopped(), wanted, cluster));
                assert_eq!(
                    held,
                    Finalize::Wait(Waiting::Group("SyncGroup web is suspended".into()))
                );
            }
        }
        // A Sync that leaves its objects on the member does not wait.
        let gone = decide(|i| (i.stopped, i.cluster) = (stopped(), Target::Gone));
        assert_eq!(gone, Finalize::Orphan(Orphaned::ClusterGone));
        let given_up = decide(|i| (i.stopped, i.cluster, i.abandoned) = (stopped(), away(), true));
        assert_eq!(given_up, Finalize::Orphan(Orphaned::Abandoned));
    }

    fn leaving(edges: &[(&'static str, &[&'static str])]) -> BTreeMap<&'static str, Vec<&'static str>> {
        edges.iter().map(|(name, on)| (*name, on.to_vec())).collect()
    }

    #[test]
    fn dependents_are_first_and_a_cycle_does_not_wait() {
        let chain = leaving(&[("app", &["db", "crds"]), ("db", &["crds"]), ("crds", &[])]);
        assert_eq!(dependents(&"crds", &chain), ["app", "db"]);
        assert_eq!(dependents(&"db", &chain), ["app"]);
        assert!(dependents(&"app", &chain).is_empty());
        assert_eq!(dependents_first(&chain), ["app", "db", "crds"]);

        let cycle = leaving(&[
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["a"]),
            ("d", &["a"]),
            ("e", &["e"]),
        ]);
        assert_eq!(dependents(&"a", &cycle), ["d"]);
        assert!(dependents(&"b", &cycle).is_empty() && dependents(&"c", &cycle).is_empty());
        assert!(dependents(&"e", &cycle).is_empty());
        let order = dependents_first(&cycle);
        assert_eq!(order.len(), 5);
        let at = |name: &str| order.iter().position(|n| *n == name);
        assert!(at("d") < at("a"));
        let waiting = decide(|i| i.dependents = Box::leak(Box::new(["d".to_owned()])));
        assert_eq!(waiting, Finalize::Wait(Waiting::Dependents(vec!["d".into()])));
    }
}
