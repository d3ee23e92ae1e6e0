//! Watches the Syncs of the management cluster, and records violations.

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

/// The observed admissions.
#[derive(Debug, Default)]
struct Observed {
    /// Sync name to cluster, for Syncs that are admitted and not applied yet.
    in_flight: BTreeMap<String, String>,
    /// Maximum number of clusters in flight.
    max_in_flight: usize,
    /// Revision and time of admission of each generation of each Sync.
    admitted: BTreeMap<(String, i64), (String, String)>,
    /// The violations.
    violations: Vec<String>,
}

/// A watch that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct ConcurrencyWatch {
    limit: usize,
    observed: Arc<Mutex<Observed>>,
    task: JoinHandle<()>,
}

impl ConcurrencyWatch {
    /// Watches the fleet's Syncs; more than `limit` clusters in flight are an error.
    pub(crate) fn watch(fleet: &Fleet, limit: usize) -> Self {
        let api: Api<SyncResource> = Api::namespaced(fleet.hub().clone(), NAMESPACE);
        let observed = Arc::new(Mutex::new(Observed::default()));
        let noted = Arc::clone(&observed);
        let task = tokio::spawn(async move {
            let mut events = watch(api, watcher::Config::default()).default_backoff().boxed();
            loop {
                match events.try_next().await {
                    Ok(Some(event)) => note(&noted, limit, event),
                    Ok(None) => return,
                    // The watch continues with a list, which contains the changes meanwhile.
                    Err(error) => tracing::warn!(%error, "watch interrupted"),
                }
            }
        });
        Self {
            limit,
            observed,
            task,
        }
    }

    /// Fails if there was a violation so far. Returns the maximum number of clusters in flight.
    pub(crate) fn check(&self) -> Result<usize> {
        let observed = self.observed.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(!self.task.is_finished(), "the watch of the Syncs has ended");
        ensure!(
            observed.violations.is_empty(),
            "with maxConcurrency {}: {:#?}",
            self.limit,
            observed.violations
        );
        Ok(observed.max_in_flight)
    }
}

impl Drop for ConcurrencyWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn note(observed: &Mutex<Observed>, limit: usize, event: Event<SyncResource>) {
    let mut observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
    match event {
        Event::Apply(sync) | Event::InitApply(sync) => observed.note(&sync, limit),
        Event::Delete(sync) => {
            observed.in_flight.remove(&sync.name_any());
        }
        Event::Init => observed.in_flight.clear(),
        Event::InitDone => {}
    }
}

impl Observed {
    fn note(&mut self, sync: &SyncResource, limit: usize) {
        let name = sync.name_any();
        let status = sync.status.clone().unwrap_or_default();
        self.note_admission(sync);
        // The tests change revisions only, so the revision identifies the target.
        if sync.spec.revision == status.last_applied_revision {
            self.in_flight.remove(&name);
        } else {
            self.in_flight.insert(name, sync.spec.cluster_ref.name.clone());
        }
        let clusters: BTreeSet<&String> = self.in_flight.values().collect();
        self.max_in_flight = self.max_in_flight.max(clusters.len());
        if clusters.len() > limit {
            self.violations.push(format!(
                "{} clusters in flight: {:?}",
                clusters.len(),
                self.in_flight
            ));
        }
    }

    /// One admission is one generation: a new revision, at one time. The API server counts the deletion of an object
    /// with a finalizer as a generation too.
    fn note_admission(&mut self, sync: &SyncResource) {
        if sync.metadata.deletion_timestamp.is_some() {
            return;
        }
        let (uid, generation) = (
            sync.uid().unwrap_or_default(),
            sync.metadata.generation.unwrap_or_default(),
        );
        let time = sync.annotations().get(ADMITTED_AT).cloned().unwrap_or_default();
        let is = (sync.spec.revision.clone(), time);
        let before = self.admitted.get(&(uid.clone(), generation - 1));
        if before.is_some_and(|(revision, _)| *revision == is.0) {
            self.violations
                .push(format!("{} was admitted to {} twice", sync.name_any(), is.0));
        }
        let known = self
            .admitted
            .entry((uid, generation))
            .or_insert_with(|| is.clone());
        if *known != is {
            self.violations
                .push(format!("{}: admission {known:?} became {is:?}", sync.name_any()));
        }
    }
}

/// The watch itself is tested with violations.
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
    fn clusters_above_the_limit_and_second_admissions_are_found() {
        let mut observed = Observed::default();
        observed.note(&sync("a", 1, "r1", "", "1"), 1);
        observed.note(&sync("a", 1, "r1", "r1", "1"), 1);
        observed.note(&sync("b", 1, "r1", "", "2"), 1);
        assert_eq!((observed.max_in_flight, &observed.violations), (1, &Vec::new()));
        observed.note(&sync("a", 2, "r2", "r1", "3"), 1);
        assert_eq!((observed.max_in_flight, observed.violations.len()), (2, 1));
        observed.note(&sync("b", 1, "r1", "r1", "2"), 1);
        observed.note(&sync("a", 3, "r2", "r1", "3"), 1);
        assert!(
            observed.violations[1].contains("admitted to r2 twice"),
            "{:?}",
            observed.violations
        );
        observed.note(&sync("b", 1, "r1", "r1", "9"), 1);
        assert_eq!(observed.violations.len(), 3);
    }
}
