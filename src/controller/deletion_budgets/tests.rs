//! Requests against a management cluster that stores counts and may refuse writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use http::Method;
use http::request::Parts;
use serde_json::{Value, json};
use starling_core::ids::ClusterName;
use starling_net::clock::Clock as NetClock;

use super::*;
use crate::controller::caches::waiting_syncs::WaitingSyncs;
use crate::controller::hub::testing::{failure, responding};
use crate::controller::queues::Queues;

/// A management cluster with the objects of a fleet, by path.
#[derive(Clone, Default)]
struct Store {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    /// The kinds whose writes fail, as in paths.
    refused: Arc<Mutex<BTreeSet<&'static str>>>,
}

impl Store {
    fn hub(&self) -> Hub {
        let store = self.clone();
        responding(move |parts, body| store.respond(parts, body))
    }

    fn respond(&self, parts: &Parts, body: &[u8]) -> (u16, Value) {
        let path = parts.uri.path().trim_end_matches("/status").to_owned();
        let mut objects = self.objects.lock().unwrap();
        let Some(known) = objects
            .get(&path)
            .cloned()
            .or_else(|| (parts.method == Method::PATCH).then(|| json!({})))
        else {
            return failure(parts, 404, "NotFound");
        };
        if parts.method == Method::GET {
            return (200, known);
        }
        if self
            .refused
            .lock()
            .unwrap()
            .iter()
            .any(|kind| path.contains(kind))
        {
            return failure(parts, 500, "InternalError");
        }
        let mut written: Value = serde_json::from_slice(body).unwrap();
        if let Some(spec) = known.get("spec") {
            let deletions = written["status"]["deletions"].take();
            written = known.clone();
            written["spec"] = spec.clone();
            written["status"]["deletions"] = deletions;
            let version: u64 = known["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .parse()
                .unwrap();
            written["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        }
        objects.insert(path, written.clone());
        (200, written)
    }

    fn put(&self, plural: &str, kind: &str, name: &str, spec: &Value, status: &Value) -> Value {
        let metadata = json!({"name": name, "namespace": "fleet", "uid": name, "resourceVersion": "1"});
        let object = json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": metadata,
            "spec": spec, "status": status});
        let path = format!("/apis/starling.dev/v1alpha1/namespaces/fleet/{plural}/{name}");
        self.objects.lock().unwrap().insert(path, object.clone());
        object
    }
}

/// A group with Syncs of 200 objects, one on each cluster, and its budgets.
struct World {
    store: Store,
    hub: Hub,
    objects: ObjectCaches,
    queues: Queues,
    waiting: WaitingSyncs,
    clock: NetClock,
    budgets: DeletionBudgets,
}

impl World {
    fn new(installation: Option<&str>, group: &Value, clusters: usize) -> Self {
        let (store, objects) = (Store::default(), ObjectCaches::default());
        let entry = json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "deletionBudget": group});
        let stored = store.put("syncgroups", "SyncGroup", "shop", &spec, &json!({}));
        objects
            .groups
            .observe_write(serde_json::from_value(stored).unwrap());
        for number in 0..clusters {
            let spec = json!({"clusterRef": {"name": format!("c{number}")}, "sourceRef": {"name": "s"},
                "path": "./x", "groupRef": {"name": "shop", "entry": "app"}});
            let status = json!({"inventory": {"objects": 200, "digest": "d"}});
            let stored = store.put("syncs", "Sync", &format!("s{number}"), &spec, &status);
            objects
                .syncs
                .observe_write(serde_json::from_value(stored).unwrap());
        }
        let settings = DeletionSettings {
            budget: installation.map(|limits| limits.parse().unwrap()),
            confirm: BTreeSet::new(),
        };
        Self {
            hub: store.hub(),
            store,
            objects,
            queues: Queues::default(),
            waiting: WaitingSyncs::default(),
            clock: NetClock::system(),
            budgets: DeletionBudgets::new(settings),
        }
    }

    fn context(&self) -> BudgetContext<'_> {
        BudgetContext {
            hub: &self.hub,
            objects: &self.objects,
            handlers: EventHandlers {
                objects: &self.objects,
                queues: &self.queues,
                waiting: &self.waiting,
            },
            clock: &self.clock,
            now: self.clock.now(),
        }
    }

    /// Asks for the deletion of objects of one Sync.
    async fn ask(&self, sync: usize, objects: usize) -> Result<(), DeletionRefusal> {
        let key = ObjectKey::new("fleet", format!("s{sync}"));
        let list: Vec<ObjectId> = (0..objects)
            .map(|number| ObjectId {
                group: String::new(),
                kind: "ConfigMap".into(),
                namespace: "default".into(),
                name: format!("o{number:03}"),
            })
            .collect();
        let deletions = SyncDeletions {
            sync: &key,
            target: "t",
            list: &list,
            begin: &list,
            remaining: 200 - objects,
            approved: None,
        };
        self.budgets.count(self.context(), deletions).await
    }

    /// The deletions that count against the budget of the group.
    fn counted(&self) -> u32 {
        let group = self.objects.groups.get(&ObjectKey::new("fleet", "shop")).unwrap();
        let deletions = group.status.as_ref().and_then(|status| status.deletions.as_ref());
        deletions.map_or(0, Deletions::objects)
    }

    async fn counted_of_the_installation(&self) -> u32 {
        let counts = self.hub.deletion_counts().await.unwrap();
        counts.iter().map(|count| count.objects).sum()
    }
}

/// The budget of the installation added nothing up: each request was compared with the limit alone.
#[tokio::test]
async fn the_requests_of_an_installation_add_up() {
    let world = World::new(Some("objects=500"), &json!({"objects": "100%"}), 10);
    for sync in 0..8 {
        assert_eq!(world.ask(sync, 60).await, Ok(()), "{sync}");
    }
    assert_eq!(world.counted_of_the_installation().await, 480);
    let refused = world.ask(8, 60).await;
    assert!(matches!(refused, Err(DeletionRefusal::Held(_))), "{refused:?}");
    assert_eq!(world.counted_of_the_installation().await, 480);
}

/// The inventories in status have the deleted objects until the attempts have ended.
#[tokio::test]
async fn deletions_in_progress_count_against_the_budget_of_the_group() {
    let world = World::new(None, &json!({"objects": 800}), 8);
    for sync in 0..4 {
        assert_eq!(world.ask(sync, 200).await, Ok(()), "{sync}");
    }
    for sync in 4..8 {
        let refused = world.ask(sync, 200).await;
        assert!(
            matches!(refused, Err(DeletionRefusal::Held(_))),
            "{sync}: {refused:?}"
        );
    }
    assert_eq!(world.counted(), 800);
}

/// The grant is written last. If that fails, the retries counted the same deletions again.
#[tokio::test]
async fn a_retry_after_a_failed_write_counts_once() {
    let world = World::new(Some("objects=500"), &json!({"objects": "100%"}), 2);
    world.store.refused.lock().unwrap().insert("/syncs/");
    for _ in 0..5 {
        let refused = world.ask(0, 60).await;
        assert!(
            matches!(refused, Err(DeletionRefusal::NotCounted(_))),
            "{refused:?}"
        );
    }
    assert_eq!(
        (world.counted(), world.counted_of_the_installation().await),
        (60, 60)
    );
    // Another list is another request.
    assert!(world.ask(0, 10).await.is_err());
    assert_eq!(world.counted(), 70);
    world.store.refused.lock().unwrap().clear();
    assert_eq!(world.ask(0, 10).await, Ok(()));
    assert_eq!(world.ask(0, 10).await, Ok(()), "granted before");
    assert_eq!(world.counted(), 70);
    assert_eq!(world.ask(1, 10).await, Ok(()), "another Sync");
    assert_eq!(world.counted(), 80);
}

/// A request whose grant could not be written is not decided again. Guards against a budget that others use up
/// meanwhile: by the inventories in status nothing was lost.
#[tokio::test]
async fn what_is_counted_and_not_granted_yet_counts_against_the_budget_of_the_group() {
    let world = World::new(None, &json!({"objects": 100}), 3);
    world.store.refused.lock().unwrap().insert("/syncs/");
    let refused = world.ask(0, 60).await;
    assert!(
        matches!(refused, Err(DeletionRefusal::NotCounted(_))),
        "{refused:?}"
    );
    world.store.refused.lock().unwrap().clear();
    let refused = world.ask(1, 60).await;
    assert!(matches!(refused, Err(DeletionRefusal::Held(_))), "{refused:?}");
    assert_eq!(world.ask(2, 40).await, Ok(()));
    assert_eq!(world.ask(0, 60).await, Ok(()), "counted before");
    assert_eq!(world.counted(), 100);
}

/// A request that waits for the management cluster holds up its own group only.
#[tokio::test]
async fn groups_are_counted_independently() {
    let world = World::new(None, &json!({"objects": "100%"}), 2);
    let other = world.budgets.turns.of(&ObjectKey::new("fleet", "another"));
    let _held = other.lock().await;
    assert_eq!(world.ask(0, 10).await, Ok(()));
    let own = world.budgets.turns.of(&ObjectKey::new("fleet", "shop"));
    let _held = own.lock().await;
    let waits = tokio::time::timeout(std::time::Duration::from_millis(50), world.ask(1, 10));
    assert!(waits.await.is_err());
}

/// Guards against one write for each cluster that leaves, and against a repeated pass that counts twice.
#[tokio::test]
async fn clusters_that_leave_together_are_counted_once_with_one_write() {
    let world = World::new(None, &json!({}), 40);
    let key = ObjectKey::new("fleet", "shop");
    let clusters: BTreeSet<ClusterName> = (0..16).map(|number| format!("c{number}").into()).collect();
    let group = || world.objects.groups.get(&key).unwrap();
    for _ in 0..2 {
        let counted = world.budgets.count_left(world.context(), &key, &clusters, None);
        counted.await.unwrap();
        let deletions = group().status.as_ref().unwrap().deletions.clone().unwrap();
        assert_eq!(deletions.leaving.len(), 16);
        let left: u32 = deletions.counts.iter().map(|count| count.left).sum();
        assert_eq!(left, 16);
        assert_eq!(
            group().metadata.resource_version.as_deref(),
            Some("2"),
            "one write"
        );
    }
}

/// Guards against counts that never leave the window, so that clusters that leave are held for ever: the clock was
/// wrong when they were written.
#[tokio::test]
async fn counts_that_lie_ahead_are_stored_as_of_now() {
    let world = World::new(None, &json!({}), 3);
    let key = ObjectKey::new("fleet", "shop");
    let group = || world.objects.groups.get(&key).unwrap();
    let counts = || group().status.as_ref().unwrap().deletions.clone().unwrap().counts;
    let mut ahead = world.context();
    ahead.now = "2100-01-01T00:00:00Z".parse().unwrap();
    let clusters = ["c0", "c1"].map(ClusterName::from).into();
    world
        .budgets
        .count_left(ahead, &key, &clusters, None)
        .await
        .unwrap();
    assert!(counts()[0].time.starts_with("2100"));
    world.budgets.repair(world.context(), &group()).await.unwrap();
    let repaired = counts();
    assert!(repaired[0].time <= world.clock.now().to_string(), "{repaired:?}");
    assert_eq!(repaired.iter().map(|count| count.left).sum::<u32>(), 2);
    world.budgets.repair(world.context(), &group()).await.unwrap();
    assert_eq!(
        group().metadata.resource_version.as_deref(),
        Some("3"),
        "one write"
    );
}
