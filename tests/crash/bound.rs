//! Watches the hub's Syncs as they change, and notes what must never be seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, ResourceExt};
use starling_api::{ADMITTED_AT, SyncResource};
use starling_testkit::fleet::{Fleet, NAMESPACE};
use tokio::task::JoinHandle;

/// What was seen of the admissions.
#[derive(Debug, Default)]
struct Seen {
    /// Sync name to cluster, for those that are admitted and do not hold their revision yet.
    in_flight: BTreeMap<String, String>,
    /// The most clusters in flight at one time.
    most: usize,
    /// Revision and time of admission of each generation of each Sync.
    admitted: BTreeMap<(String, i64), (String, String)>,
    /// What must not be.
    wrong: Vec<String>,
}

/// A watch that runs as long as this lives.
#[derive(Debug)]
pub(crate) struct Bound {
    limit: usize,
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

impl Bound {
    /// Watches the fleet's Syncs; more than `limit` clusters in flight are an error.
    pub(crate) fn watch(fleet: &Fleet, limit: usize) -> Self {
        let api: Api<SyncResource> = Api::namespaced(fleet.hub().clone(), NAMESPACE);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut events = watch(api, watcher::Config::default()).default_backoff().boxed();
            loop {
                match events.try_next().await {
                    Ok(Some(event)) => note(&noted, limit, event),
                    Ok(None) => return,
                    // The watch goes on with a list; what came meanwhile is in it.
                    Err(error) => tracing::warn!(%error, "watch interrupted"),
                }
            }
        });
        Self { limit, seen, task }
    }

    /// Fails if anything was wrong so far. Returns the most clusters that were in flight at one time.
    pub(crate) fn check(&self) -> Result<usize> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!self.task.is_finished(), "the watch of the Syncs has ended");
        ensure!(
            seen.wrong.is_empty(),
            "with maxConcurrency {}: {:#?}",
            self.limit,
            seen.wrong
        );
        Ok(seen.most)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn note(seen: &Mutex<Seen>, limit: usize, event: Event<SyncResource>) {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        Event::Apply(sync) | Event::InitApply(sync) => seen.note(&sync, limit),
        Event::Delete(sync) => {
            seen.in_flight.remove(&sync.name_any());
        }
        Event::Init => seen.in_flight.clear(),
        Event::InitDone => {}
    }
}

impl Seen {
    fn note(&mut self, sync: &SyncResource, limit: usize) {
        let name = sync.name_any();
        let status = sync.status.clone().unwrap_or_default();
        self.note_admission(sync);
        // The tests change revisions and nothing else, so the revision stands for the target.
        if sync.spec.revision == status.last_applied_revision {
            self.in_flight.remove(&name);
        } else {
            self.in_flight.insert(name, sync.spec.cluster_ref.name.clone());
        }
        let clusters: BTreeSet<&String> = self.in_flight.values().collect();
        self.most = self.most.max(clusters.len());
        if clusters.len() > limit {
            self.wrong.push(format!(
                "{} clusters in flight: {:?}",
                clusters.len(),
                self.in_flight
            ));
        }
    }

    /// One admission is one generation: a new revision, at one time.
    fn note_admission(&mut self, sync: &SyncResource) {
        let (uid, generation) = (
            sync.uid().unwrap_or_default(),
            sync.metadata.generation.unwrap_or_default(),
        );
        let time = sync.annotations().get(ADMITTED_AT).cloned().unwrap_or_default();
        let is = (sync.spec.revision.clone(), time);
        let before = self.admitted.get(&(uid.clone(), generation - 1));
        if before.is_some_and(|(revision, _)| *revision == is.0) {
            self.wrong
                .push(format!("{} was admitted to {} twice", sync.name_any(), is.0));
        }
        let known = self
            .admitted
            .entry((uid, generation))
            .or_insert_with(|| is.clone());
        if *known != is {
            self.wrong
                .push(format!("{}: admission {known:?} became {is:?}", sync.name_any()));
        }
    }
}

/// A watch that finds nothing must be able to find something.
#[cfg(test)]
mod tests {
    use super::*;

    fn sync(
        cluster: &str,
        generation: i64,
        revision: &str,
        applied: &str,
        admitted_at: &str,
    ) -> SyncResource {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {
                "name": cluster, "uid": cluster, "generation": generation,
                "annotations": {ADMITTED_AT: admitted_at},
            },
            "spec": {"clusterRef": {"name": cluster}, "sourceRef": {"name": "s"}, "revision": revision},
            "status": {"lastAppliedRevision": applied},
        }))
        .unwrap()
    }

    #[test]
    fn clusters_above_the_bound_and_second_admissions_are_found() {
        let mut seen = Seen::default();
        seen.note(&sync("a", 1, "r1", "", "1"), 1);
        seen.note(&sync("a", 1, "r1", "r1", "1"), 1);
        seen.note(&sync("b", 1, "r1", "", "2"), 1);
        assert_eq!((seen.most, &seen.wrong), (1, &Vec::new()));
        seen.note(&sync("a", 2, "r2", "r1", "3"), 1);
        assert_eq!((seen.most, seen.wrong.len()), (2, 1));
        seen.note(&sync("b", 1, "r1", "r1", "2"), 1);
        seen.note(&sync("a", 3, "r2", "r1", "3"), 1);
        assert!(seen.wrong[1].contains("admitted to r2 twice"), "{:?}", seen.wrong);
        seen.note(&sync("b", 1, "r1", "r1", "9"), 1);
        assert_eq!(seen.wrong.len(), 3);
    }
}
