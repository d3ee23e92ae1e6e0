//! The selection cache: the clusters that each group selects. Labels rarely change during a rollout.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use starling_api::{Cluster, SyncGroup};
use starling_core::ids::ClusterName;

use super::cache::Cache;
use super::plan_memo::ObjectState;
use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// Clusters by name.
pub type Selected = Arc<BTreeMap<ClusterName, Arc<Cluster>>>;

/// The selection of each group.
#[derive(Debug, Default)]
pub struct SelectionCache(Keyed<Selection>);

per_object!(SelectionCache, 0);

#[derive(Debug)]
struct Selection {
    /// The state of the group, which has the selector.
    of: ObjectState,
    /// The change counter of the cache of Clusters.
    edition: u64,
    selected: Selected,
}

impl SelectionCache {
    /// Returns the clusters in a group's namespace that are not being deleted and match its selector.
    pub fn get(&self, clusters: &Cache<Cluster>, group: &SyncGroup, selector: &Selector) -> Selected {
        let (key, of) = (ObjectKey::of(group), ObjectState::spec(group));
        // The counter is read before the clusters: after a change in between, the clusters are selected again.
        let edition = clusters.edition();
        let known =
            self.0.lock().get(&key).and_then(|known| {
                (known.edition == edition && known.of == of).then(|| known.selected.clone())
            });
        known.unwrap_or_else(|| {
            let selected = Arc::new(select(clusters, &key.namespace, selector));
            let selection = Selection {
                of,
                edition,
                selected: selected.clone(),
            };
            self.0.set(&key, selection);
            selected
        })
    }
}

fn select(
    clusters: &Cache<Cluster>,
    namespace: &str,
    selector: &Selector,
) -> BTreeMap<ClusterName, Arc<Cluster>> {
    clusters
        .in_namespace(namespace)
        .into_iter()
        .filter(|cluster| cluster.metadata.deletion_timestamp.is_none() && selector.matches(cluster.labels()))
        .map(|cluster| (cluster.name_any().into(), cluster))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::cache::Event;
    use super::*;

    fn cluster(name: &str, version: u64, tier: &str) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"namespace": "ns", "name": name, "resourceVersion": version.to_string(), "labels": {"tier": tier}},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}},
        }))
        .unwrap()
    }

    fn group(generation: i64) -> SyncGroup {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"namespace": "ns", "name": "g", "uid": "u", "generation": generation},
            "spec": {"clusterSelector": {}, "syncs": []},
        }))
        .unwrap()
    }

    fn selector(tier: &str) -> Selector {
        [("tier".to_owned(), tier.to_owned())].into_iter().collect()
    }

    #[test]
    fn a_selection_follows_the_clusters_and_the_spec_of_the_group() {
        let (clusters, selections) = (Cache::<Cluster>::default(), SelectionCache::default());
        let ask =
            |generation: i64, tier: &str| selections.get(&clusters, &group(generation), &selector(tier));
        let names = |selected: &Selected| selected.keys().cloned().collect::<Vec<_>>();
        for (name, version) in [("a", 1), ("b", 2)] {
            clusters.observe_write(cluster(name, version, "gold"));
        }
        let first = ask(1, "gold");
        assert_eq!(names(&first), ["a", "b"]);
        assert!(Arc::ptr_eq(&first, &ask(1, "gold")), "nothing changed");
        clusters.observe_write(cluster("a", 1, "lead"));
        assert!(Arc::ptr_eq(&first, &ask(1, "gold")), "older than what is known");
        clusters.observe_write(cluster("a", 3, "lead"));
        assert_eq!(names(&ask(1, "gold")), ["b"]);
        assert_eq!(names(&ask(2, "lead")), ["a"]);
        clusters.observe_event(Event::Delete(kube::core::DeserializeGuard(Ok(cluster(
            "b", 4, "gold",
        )))));
        assert!(names(&ask(3, "gold")).is_empty());
    }
}
