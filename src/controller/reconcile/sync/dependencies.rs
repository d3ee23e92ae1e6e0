//! Observes whether the dependencies of a Sync are done, from the caches alone.

use std::collections::BTreeSet;

use kube::ResourceExt;
use starling_api::conditions::{self, READY};
use starling_api::{RELEASE, SyncResource};
use starling_core::depend::{self, Dependencies};
use starling_core::ids::ClusterId;
use starling_core::plan::Progress;
use starling_core::progress::{Admitted, progress};
use starling_core::target;

use super::resolve::resolve;
use crate::controller::caches::waiting_syncs::Awaited;
use crate::controller::context::SyncContext;
use crate::controller::object_key::ObjectKey;

pub(super) fn observe(context: SyncContext<'_>, key: &ObjectKey, sync: &SyncResource) -> Dependencies {
    let names = named(sync);
    if names.is_empty() {
        return Dependencies::Done;
    }
    // The waits are recorded before the caches are read, so that no change in between is missed.
    for name in &names {
        context
            .caches
            .waiting
            .wait(&Awaited::sync(&key.namespace, name), key);
    }
    if let Some(names) = cycle(context, key) {
        return Dependencies::Cycle { names };
    }
    for name in names {
        let other = ObjectKey::new(&key.namespace, name);
        let missing = match context.objects.syncs.get(&other) {
            None => Some(format!("Sync {name:?} not found")),
            Some(known) => unfinished(context, sync, &known, Health::Healthy),
        };
        if let Some(message) = missing {
            return Dependencies::Waiting { message };
        }
    }
    Dependencies::Done
}

/// Returns why the Syncs that depend on this one, in its group and on its cluster, are not done with what they delete
/// for the same release; `None`: they are, or there are none. Without a group, these are the Syncs without a group on
/// its cluster, and the newest revision of their Source. Their objects may need what this Sync deletes, such as the
/// operator that runs their finalizers. Those that no longer depend on it, by the release that takes their objects
/// away, count until they have deleted them.
pub(super) fn dependents_left(
    context: SyncContext<'_>,
    key: &ObjectKey,
    sync: &SyncResource,
) -> Option<String> {
    let group_of = |sync: &SyncResource| sync.spec.group_ref.as_ref().map(|of| of.name.clone());
    for name in context.objects.syncs.dependents(key) {
        let other = ObjectKey::new(&key.namespace, &name);
        // The wait is recorded before the cache is read, so that no change in between is missed.
        context.caches.waiting.wait(&Awaited::Sync(other.clone()), key);
        let Some(on) = context.objects.syncs.get(&other) else {
            continue;
        };
        if group_of(&on) != group_of(sync) || on.spec.cluster_ref != sync.spec.cluster_ref {
            continue;
        }
        // Two that swapped places would wait for each other.
        if !named(&on).contains(&key.name.as_str()) && depends(context, key, &name) {
            continue;
        }
        let status = on.status.as_ref();
        let deletes = status
            .is_some_and(|status| status.pending_deletions.is_some() || status.held_deletions.is_some());
        if deletes {
            return Some(format!(
                "Sync {name:?}, which depends on this one, has objects to delete"
            ));
        }
        if let Some(why) = unfinished(context, sync, &on, Health::Any) {
            return Some(format!("a dependent is not done: {why}"));
        }
    }
    None
}

/// Which health the objects of a Sync that is done must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Health {
    Healthy,
    Any,
}

/// Returns the names of the Syncs that a Sync depends on.
pub(in super::super) fn depends_on(sync: &SyncResource) -> Vec<String> {
    let on = sync.spec.template.depends_on.iter();
    on.map(|on| on.name.clone()).collect()
}

fn named(sync: &SyncResource) -> Vec<&str> {
    let names = sync.spec.template.depends_on.iter().map(|on| on.name.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// Reports whether a Sync depends on another one of its namespace, also by way of others.
pub(super) fn depends(context: SyncContext<'_>, key: &ObjectKey, on: &str) -> bool {
    let (mut seen, mut todo) = (BTreeSet::new(), vec![key.name.clone()]);
    while let Some(name) = todo.pop() {
        let Some(sync) = context.objects.syncs.get(&ObjectKey::new(&key.namespace, &name)) else {
            continue;
        };
        for next in depends_on(&sync) {
            if next == on {
                return true;
            }
            if seen.insert(next.clone()) {
                todo.push(next);
            }
        }
    }
    false
}

fn cycle(context: SyncContext<'_>, key: &ObjectKey) -> Option<Vec<String>> {
    // The graph borrows names from the Syncs, so that the Syncs are kept while the graph is searched.
    let mut known = std::collections::BTreeMap::new();
    let mut todo = vec![key.name.clone()];
    while let Some(name) = todo.pop() {
        if known.contains_key(&name) {
            continue;
        }
        let Some(sync) = context.objects.syncs.get(&ObjectKey::new(&key.namespace, &name)) else {
            continue;
        };
        todo.extend(named(&sync).into_iter().map(str::to_owned));
        known.insert(name, sync);
    }
    depend::cycle(&key.name, |name| {
        known.get(name).map(|sync| named(sync)).unwrap_or_default()
    })
}

/// Returns the reason why `on` is not done for `sync`; `None` if it is done.
fn unfinished(
    context: SyncContext<'_>,
    sync: &SyncResource,
    on: &SyncResource,
    health: Health,
) -> Option<String> {
    let name = on.name_any();
    if on.metadata.deletion_timestamp.is_some() {
        return Some(format!("Sync {name:?} is being deleted"));
    }
    let release = |sync: &SyncResource| sync.annotations().get(RELEASE).cloned();
    if sync.spec.group_ref.is_some() && release(sync) != release(on) {
        return Some(format!("Sync {name:?} is not admitted to this release yet"));
    }
    let cluster_key = ObjectKey::new(on.namespace().unwrap_or_default(), &on.spec.cluster_ref.name);
    let cluster = context.objects.clusters.get(&cluster_key);
    let id = cluster.as_deref().map(ClusterId::of).unwrap_or_default();
    let spec = match resolve(&on.spec, cluster.as_deref()) {
        Ok(spec) => spec,
        Err(error) => return Some(format!("Sync {name:?} is invalid: spec.{error}")),
    };
    let revision = match (&spec.revision, &spec.group_ref) {
        (revision, None) if revision.is_empty() => {
            let source = ObjectKey::new(&cluster_key.namespace, &spec.template.source_ref.name);
            let source = context.objects.sources.get(&source);
            source.and_then(|source| source.status.as_ref().map(|status| status.revision.clone()))
        }
        (revision, _) => Some(revision.clone()),
    };
    let Some(revision) = revision.filter(|revision| !revision.is_empty()) else {
        return Some(format!("Sync {name:?} has no revision yet"));
    };
    let wanted = target::of_sync(&revision, &spec.template);
    let status = on.status.clone().unwrap_or_default();
    let reported = || {
        let ready = conditions::find(&status.conditions, READY);
        ready.map_or_else(
            || "not reconciled yet".to_owned(),
            |c| format!("{}: {}", c.reason, c.message),
        )
    };
    match progress(&status, &Admitted::of(on, &wanted, &id)) {
        Progress::Applied(_) if health == Health::Any => None,
        Progress::Applied(applied) => {
            let problem = applied.problem?;
            Some(format!("Sync {name:?} is not healthy: {}", problem.message))
        }
        Progress::Working => Some(format!("Sync {name:?} is applying {revision}")),
        Progress::Failing { .. } => Some(format!("Sync {name:?} fails: {}", reported())),
    }
}
