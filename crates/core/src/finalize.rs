//! What becomes of a Sync that is deleted, and of what it has on its cluster.
//!
//! The safe answer is to leave the objects where they are: it can be made good by hand. They are deleted only where
//! somebody asked for that by policy and nothing says that the deletion is a side effect of something larger.

use std::collections::{BTreeMap, BTreeSet};

use starling_api::DeletionPolicy;

/// Everything that the end of a Sync depends on.
#[derive(Clone, Debug)]
pub struct FinalizeInput<'a> {
    /// What its spec says, or its group's where the group is being deleted.
    pub policy: DeletionPolicy,
    /// `suspend`: the cluster is left as it is.
    pub suspended: bool,
    /// Its group is gone without having taken it away: nobody can tell what was meant.
    pub group_lost: bool,
    /// What else goes on the management cluster: the namespace, a definition.
    pub surroundings: Surroundings,
    /// Its Cluster.
    pub cluster: Target,
    /// Somebody gave the cluster up by annotation.
    pub abandoned: bool,
    /// Syncs that depend on this one and are being deleted too: they go first.
    pub dependents: &'a [String],
}

/// What else goes on the management cluster, as it said when it was asked just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Surroundings {
    /// Nothing: the Sync was deleted by itself.
    Stay,
    /// This goes, and the Sync with it.
    Go(String),
    /// It did not say: this is what happened instead.
    Unknown(String),
}

/// The cluster that holds the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// It can be worked on.
    Ready,
    /// Its Cluster exists and cannot be worked on, for this reason.
    Unavailable(String),
    /// There is no such Cluster, as the management cluster said just now.
    Gone,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Finalize {
    /// Let the Sync go; its objects stay.
    Orphan(Orphaned),
    /// Not yet.
    Wait(Waiting),
    /// Delete the objects, then let the Sync go.
    Delete,
}

/// Why the objects stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Orphaned {
    /// The policy is to leave them.
    Policy,
    /// The Sync is suspended.
    Suspended,
    /// This goes, and the Sync with it.
    Surroundings(String),
    /// The group went without a word.
    GroupLost,
    /// The Cluster is gone.
    ClusterGone,
    /// Somebody gave the cluster up.
    Abandoned,
}

/// What a Sync that is being deleted waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The management cluster has to say what else goes.
    Surroundings(String),
    /// These go first.
    Dependents(Vec<String>),
    /// The cluster has to be there, or to be given up.
    Cluster(String),
}

/// Decides what becomes of a Sync that is being deleted.
pub fn finalize(input: &FinalizeInput<'_>) -> Finalize {
    if input.policy == DeletionPolicy::Orphan {
        return Finalize::Orphan(Orphaned::Policy);
    }
    match &input.surroundings {
        Surroundings::Go(what) => return Finalize::Orphan(Orphaned::Surroundings(what.clone())),
        Surroundings::Unknown(why) => return Finalize::Wait(Waiting::Surroundings(why.clone())),
        Surroundings::Stay => {}
    }
    if input.group_lost {
        return Finalize::Orphan(Orphaned::GroupLost);
    }
    if input.suspended {
        return Finalize::Orphan(Orphaned::Suspended);
    }
    match &input.cluster {
        Target::Gone => Finalize::Orphan(Orphaned::ClusterGone),
        Target::Unavailable(_) if input.abandoned => Finalize::Orphan(Orphaned::Abandoned),
        // Named first: a cluster that is away keeps the dependents too, and this is what a person can do something about.
        Target::Unavailable(why) => Finalize::Wait(Waiting::Cluster(why.clone())),
        Target::Ready if !input.dependents.is_empty() => {
            Finalize::Wait(Waiting::Dependents(input.dependents.to_vec()))
        }
        Target::Ready => Finalize::Delete,
    }
}

/// The Syncs that have to go before `name` does: those among the `leaving` that depend on it. In a cycle nobody waits.
///
/// `leaving` holds every Sync that is being deleted, with the Syncs that it depends on.
#[must_use]
pub fn dependents(name: &str, leaving: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let own = reach(name, leaving);
    leaving
        .iter()
        .filter(|(other, on)| {
            *other != name && on.iter().any(|on| on == name) && !own.contains(other.as_str())
        })
        .map(|(other, _)| other.clone())
        .collect()
}

/// Everything that `name` depends on, over any number of steps.
fn reach<'a>(name: &'a str, leaving: &'a BTreeMap<String, Vec<String>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![name];
    while let Some(next) = open.pop() {
        for on in leaving.get(next).into_iter().flatten() {
            if seen.insert(on.as_str()) {
                open.push(on);
            }
        }
    }
    seen
}

/// Names so ordered that each comes before what it depends on; what is in a cycle comes in the order of names.
#[must_use]
pub fn dependents_first(syncs: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut left: BTreeMap<String, Vec<String>> = syncs.clone();
    let mut order = Vec::with_capacity(left.len());
    let mut asked_for: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, on) in syncs {
        for on in on.iter().filter(|on| *on != name) {
            asked_for.entry(on).or_default().push(name);
        }
    }
    let is_free = |name: &str, left: &BTreeMap<String, Vec<String>>| {
        let Some(by) = asked_for.get(name) else {
            return true;
        };
        let mut by = by.iter().filter(|other| left.contains_key(**other)).peekable();
        by.peek().is_none() || {
            let own = reach(name, left);
            by.all(|other| own.contains(other))
        }
    };
    while !left.is_empty() {
        let free: Vec<String> = left.keys().filter(|name| is_free(name, &left)).cloned().collect();
        for name in &free {
            left.remove(name);
        }
        // Those in a cycle do not wait for each other, so somebody is always free.
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
            group_lost: false,
            surroundings: Surroundings::Stay,
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
    fn objects_are_deleted_only_where_all_says_so() {
        assert_eq!(finalize(&input()), Finalize::Delete);
        // An abandoned cluster that is there is cleaned up like any other.
        assert_eq!(decide(|i| i.abandoned = true), Finalize::Delete);
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
            decide(|i| i.surroundings = Surroundings::Go(namespace())),
            orphan(Orphaned::Surroundings(namespace()))
        );
    }

    #[test]
    fn without_an_answer_nothing_is_deleted_and_nothing_let_go() {
        let why = || "no answer".to_owned();
        assert_eq!(
            decide(|i| i.surroundings = Surroundings::Unknown(why())),
            Finalize::Wait(Waiting::Surroundings(why()))
        );
        // What would be left behind anyway needs no answer.
        let orphaned = decide(|i| {
            i.surroundings = Surroundings::Unknown(why());
            i.policy = DeletionPolicy::Orphan;
        });
        assert_eq!(orphaned, Finalize::Orphan(Orphaned::Policy));
    }

    #[test]
    fn an_unreachable_cluster_keeps_the_finalizer_until_it_is_given_up() {
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

    fn leaving(edges: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
        edges
            .iter()
            .map(|(name, on)| ((*name).to_owned(), on.iter().map(|on| (*on).to_owned()).collect()))
            .collect()
    }

    #[test]
    fn dependents_go_first_and_a_cycle_waits_for_nobody() {
        let chain = leaving(&[("app", &["db", "crds"]), ("db", &["crds"]), ("crds", &[])]);
        assert_eq!(dependents("crds", &chain), ["app", "db"]);
        assert_eq!(dependents("db", &chain), ["app"]);
        assert!(dependents("app", &chain).is_empty());
        assert_eq!(dependents_first(&chain), ["app", "db", "crds"]);

        let cycle = leaving(&[
            ("a", &["b"]),
            ("b", &["c"]),
            ("c", &["a"]),
            ("d", &["a"]),
            ("e", &["e"]),
        ]);
        assert_eq!(dependents("a", &cycle), ["d"]);
        assert!(dependents("b", &cycle).is_empty() && dependents("c", &cycle).is_empty());
        assert!(dependents("e", &cycle).is_empty());
        let order = dependents_first(&cycle);
        assert_eq!(order.len(), 5);
        let at = |name: &str| order.iter().position(|n| n == name);
        assert!(at("d") < at("a"));
        let waiting = decide(|i| i.dependents = Box::leak(Box::new(["d".to_owned()])));
        assert_eq!(waiting, Finalize::Wait(Waiting::Dependents(vec!["d".into()])));
    }
}
