//! The view cache: the planner's views of a group's clusters.
//!
//! A plan covers all clusters, and few of them have changed since the last plan. A view depends on its Cluster, on the
//! group's Syncs on that cluster, and on values that all views share, and remains valid while none of them changes.
//! Objects are compared by address: the caches hold a changed object at a new address.

use std::collections::BTreeMap;
use std::sync::Arc;

use starling_api::Cluster;
use starling_core::ids::ClusterName;

use super::sync_index::{ClusterSyncs, GroupSyncs};

/// Views `V` of clusters, valid for `O`.
#[derive(Debug)]
pub struct ViewCache<O, V> {
    /// The value that the views are valid for; `None` while the views are lent, so that views that are not put back are
    /// computed again.
    of: Option<O>,
    next: Option<O>,
    stamps: BTreeMap<ClusterName, Stamp>,
    views: BTreeMap<ClusterName, V>,
}

/// The objects that a view was computed from. The stamp holds them, so no other object can get their address.
#[derive(Debug)]
struct Stamp {
    cluster: Arc<Cluster>,
    syncs: Option<Arc<ClusterSyncs>>,
    /// The view depends on nothing else.
    lasting: bool,
}

/// Clusters that need a new view.
#[derive(Debug)]
pub struct Changed {
    /// The clusters, by name.
    pub clusters: Vec<(ClusterName, Arc<Cluster>)>,
    /// Clusters that are no longer selected.
    pub gone: Vec<ClusterName>,
    /// All clusters need a new view: none was kept.
    pub all: bool,
}

impl<O, V> Default for ViewCache<O, V> {
    fn default() -> Self {
        Self {
            of: None,
            next: None,
            stamps: BTreeMap::new(),
            views: BTreeMap::new(),
        }
    }
}

impl<O: PartialEq, V> ViewCache<O, V> {
    /// Drops the views of clusters that are no longer selected, and returns the clusters without a view for `of`. The
    /// caller has to [`set`](Self::set) each of them.
    pub fn renew(
        &mut self,
        of: O,
        clusters: &BTreeMap<ClusterName, Arc<Cluster>>,
        syncs: &GroupSyncs,
    ) -> Changed {
        let all = self.of.take().as_ref() != Some(&of);
        self.next = Some(of);
        if all {
            self.stamps.clear();
            self.views.clear();
        }
        let (changed, gone) = self.compare(clusters, syncs);
        for name in &gone {
            self.stamps.remove(name);
            self.views.remove(name);
        }
        let mut names = Vec::with_capacity(changed.len());
        for (name, stamp) in changed {
            names.push((name.clone(), stamp.cluster.clone()));
            self.stamps.insert(name.clone(), stamp);
        }
        Changed {
            clusters: names,
            gone,
            all,
        }
    }

    /// Merges three lists that are ordered by name. In most cases only pointers are compared.
    fn compare<'c>(
        &self,
        clusters: &'c BTreeMap<ClusterName, Arc<Cluster>>,
        syncs: &GroupSyncs,
    ) -> (Vec<(&'c ClusterName, Stamp)>, Vec<ClusterName>) {
        let mut known = self.stamps.iter().peekable();
        let mut sync_lists = syncs.clusters().peekable();
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        for (name, cluster) in clusters {
            // Equal objects have equal names: for most clusters no text is compared.
            if let (Some((_, stamp)), Some((_, on))) = (known.peek(), sync_lists.peek())
                && stamp.is_of(cluster, Some(on))
            {
                known.next();
                sync_lists.next();
                continue;
            }
            while sync_lists.next_if(|(of, _)| *of < name.as_str()).is_some() {}
            let syncs = sync_lists.next_if(|(of, _)| of == name).map(|(_, on)| on);
            while let Some((before, _)) = known.next_if(|(before, _)| *before < name) {
                gone.push(before.clone());
            }
            let stamp = known.next_if(|(known, _)| *known == name);
            if !stamp.is_some_and(|(_, stamp)| stamp.is_of(cluster, syncs)) {
                let stamp = Stamp {
                    cluster: cluster.clone(),
                    syncs: syncs.cloned(),
                    lasting: true,
                };
                changed.push((name, stamp));
            }
        }
        gone.extend(known.map(|(name, _)| name.clone()));
        (changed, gone)
    }

    /// Sets the view of a cluster. A view that depends on more than its stamp is not `lasting`: each plan computes it
    /// again.
    pub fn set(&mut self, name: ClusterName, view: V, lasting: bool) {
        if let Some(stamp) = self.stamps.get_mut(&name) {
            stamp.lasting = lasting;
        }
        self.views.insert(name, view);
    }

    /// Returns all views.
    #[must_use]
    pub fn lend(&mut self) -> BTreeMap<ClusterName, V> {
        std::mem::take(&mut self.views)
    }

    /// Takes the views back, unchanged.
    pub fn put_back(&mut self, views: BTreeMap<ClusterName, V>) {
        self.views = views;
        self.of = self.next.take();
    }
}

impl Stamp {
    fn is_of(&self, cluster: &Arc<Cluster>, syncs: Option<&Arc<ClusterSyncs>>) -> bool {
        let same_syncs = match (&self.syncs, syncs) {
            (None, None) => true,
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (None, Some(_)) | (Some(_), None) => false,
        };
        self.lasting && same_syncs && Arc::ptr_eq(&self.cluster, cluster)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sync_index::SyncCache;
    use super::*;
    use crate::controller::object_key::ObjectKey;

    /// A group `g` on clusters; counts the clusters that every plan views.
    struct World {
        clusters: BTreeMap<ClusterName, Arc<Cluster>>,
        syncs: SyncCache,
        views: ViewCache<&'static str, u32>,
        plan: u32,
    }

    impl World {
        fn new(names: &[&str]) -> Self {
            let mut world = Self {
                clusters: BTreeMap::new(),
                syncs: SyncCache::indexed_by(|_| None),
                views: ViewCache::default(),
                plan: 0,
            };
            for name in names {
                world.change(name);
            }
            world
        }

        fn change(&mut self, name: &str) {
            let cluster = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
                "spec": {"kubeConfig": {"secretRef": {"name": "s"}}}});
            let cluster = Arc::new(serde_json::from_value(cluster).unwrap());
            self.clusters.insert(name.into(), cluster);
        }

        fn write(&self, version: u64, cluster: &str) {
            let sync = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
                "metadata": {"namespace": "ns", "name": format!("g-{cluster}"), "resourceVersion": version.to_string()},
                "spec": {"groupRef": {"name": "g", "entry": "app"}, "clusterRef": {"name": cluster}, "sourceRef": {"name": "s"}}});
            self.syncs.observe_write(serde_json::from_value(sync).unwrap());
        }

        /// Returns the clusters that a plan views, and compares the views with those of a plan without a cache.
        fn plan(&mut self, of: &'static str, volatile: &str) -> String {
            self.plan += 1;
            let of_group = self.syncs.of_group(&ObjectKey::new("ns", "g"));
            let changed = self.views.renew(of, &self.clusters, &of_group);
            let mut viewed = Vec::new();
            viewed.extend(changed.gone.iter().map(|name| format!("-{name}")));
            for (name, cluster) in changed.clusters {
                assert!(Arc::ptr_eq(&cluster, &self.clusters[&name]));
                viewed.push(name.to_string());
                let lasting = name != volatile;
                self.views.set(name, self.plan, lasting);
            }
            let lent = self.views.lend();
            assert!(lent.keys().eq(self.clusters.keys()), "{lent:?}");
            self.views.put_back(lent);
            viewed.join(" ")
        }
    }

    #[test]
    fn a_plan_views_what_changed_and_nothing_else() {
        let mut world = World::new(&["a", "b", "c"]);
        world.write(1, "b");
        assert_eq!(world.plan("r1", ""), "a b c");
        assert_eq!(world.plan("r1", ""), "");
        world.write(2, "b");
        world.write(3, "c");
        assert_eq!(world.plan("r1", ""), "b c");
        world.change("a");
        assert_eq!(world.plan("r1", ""), "a");
        // Syncs of clusters that are not selected, before, between and after the selected ones by name.
        for (version, other) in [(4, "A"), (5, "bb"), (6, "z")] {
            world.write(version, other);
        }
        assert_eq!(world.plan("r1", ""), "");
        world.syncs.observe_delete(&ObjectKey::new("ns", "g-b"));
        assert_eq!(world.plan("r1", ""), "b");
        assert_eq!(world.plan("r2", ""), "a b c");
        assert_eq!(
            world.plan("r1", ""),
            "a b c",
            "what was kept is of the other release"
        );
    }

    #[test]
    fn clusters_come_and_go() {
        let mut world = World::new(&["b", "d"]);
        assert_eq!(world.plan("r", ""), "b d");
        for name in ["a", "c", "e"] {
            world.change(name);
        }
        assert_eq!(world.plan("r", ""), "a c e");
        for name in ["a", "d", "e"] {
            world.clusters.remove(name);
        }
        assert_eq!(world.plan("r", ""), "-a -d -e");
        assert_eq!(world.views.stamps.len(), 2);
        world.change("d");
        assert_eq!(world.plan("r", ""), "d");
    }

    #[test]
    fn a_view_that_does_not_last_is_made_by_each_plan() {
        let mut world = World::new(&["a", "b"]);
        assert_eq!(world.plan("r", "b"), "a b");
        assert_eq!(world.plan("r", "b"), "b");
        assert_eq!(world.plan("r", ""), "b");
        assert_eq!(world.plan("r", ""), "");
        world.change("b");
        assert_eq!(world.plan("r", "b"), "b");
        world.clusters.remove("b");
        assert_eq!(world.plan("r", "b"), "-b");
    }

    /// Guards against a plan over half of the clusters: a reconcile that failed kept the views that it had taken.
    #[test]
    fn views_that_do_not_come_back_are_made_anew() {
        let mut world = World::new(&["a", "b"]);
        assert_eq!(world.plan("r", ""), "a b");
        let of_group = world.syncs.of_group(&ObjectKey::new("ns", "g"));
        let changed = world.views.renew("r", &world.clusters, &of_group);
        assert!(changed.clusters.is_empty() && !changed.all);
        drop(world.views.lend());
        assert_eq!(world.plan("r", ""), "a b");
    }
}
