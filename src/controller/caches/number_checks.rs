//! The members that were checked since the start, for writes that the management cluster does not know (ADR 40).
//!
//! Until its members were checked, nothing tells a management cluster that was set back from one that was not, and a
//! group would ask its gates for a rollout that was done in the lost past.

use std::sync::atomic::{AtomicBool, Ordering};

use starling_api::Cluster;

use super::cache::Cache;
use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The checks of this process.
#[derive(Debug, Default)]
pub struct NumberChecks {
    /// Whether a member was checked; `false`: a check was tried, and failed.
    by_cluster: Keyed<bool>,
    /// No check of the start is pending any more.
    is_complete: AtomicBool,
}

per_object!(NumberChecks, by_cluster);

impl NumberChecks {
    /// Returns whether a member was checked.
    #[must_use]
    pub fn is_done(&self, cluster: &ObjectKey) -> bool {
        self.by_cluster.get(cluster) == Some(true)
    }

    /// Returns whether a check was tried, with or without success.
    #[must_use]
    pub fn is_tried(&self, cluster: &ObjectKey) -> bool {
        self.by_cluster.get(cluster).is_some()
    }

    /// Records a check, and returns whether it is the first one. A check that failed does not undo an earlier one.
    pub fn tried(&self, cluster: &ObjectKey, is_done: bool) -> bool {
        let mut number_checks = self.by_cluster.lock();
        let before = number_checks.get(cluster).copied();
        number_checks.insert(cluster.clone(), is_done || before == Some(true));
        before.is_none()
    }

    /// Returns the reachable Clusters of which no check was tried: those that the last process has left as Ready, until
    /// the first probe of this one. A Cluster that gets Ready later was checked before.
    pub fn pending(
        &self,
        clusters: &Cache<Cluster>,
        is_reachable: impl Fn(&Cluster) -> bool,
    ) -> Vec<ObjectKey> {
        if self.is_complete.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let is_pending = |cluster: &Cluster| is_reachable(cluster) && !self.is_tried(&ObjectKey::of(cluster));
        let pending = clusters.select(is_pending);
        if pending.is_empty() {
            self.is_complete.store(true, Ordering::SeqCst);
        }
        pending.iter().map(|cluster| ObjectKey::of(&**cluster)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_api::conditions::{self, READY};

    use super::*;

    fn cluster(name: &str, ready: &str) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": "fleet", "uid": name, "resourceVersion": "1"},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}},
            "status": {"conditions": [{"type": READY, "status": ready, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_reachable_cluster_is_pending_until_a_check_was_tried() {
        let (number_checks, clusters) = (NumberChecks::default(), Cache::default());
        for (name, ready) in [("a", "True"), ("b", "True"), ("gone", "Unknown")] {
            drop(clusters.observe_write(cluster(name, ready)));
        }
        let key = |name: &str| ObjectKey::new("fleet", name);
        let is_ready = |cluster: &Cluster| {
            let conditions = cluster.status.as_ref().map(|status| &status.conditions);
            let ready = conditions.and_then(|conditions| conditions::find(conditions, READY));
            ready.is_some_and(|ready| ready.status == "True")
        };
        let mut pending = number_checks.pending(&clusters, is_ready);
        pending.sort();
        assert_eq!(pending, [key("a"), key("b")]);
        assert!(number_checks.tried(&key("a"), true) && !number_checks.tried(&key("a"), false));
        assert!(number_checks.is_done(&key("a")));
        assert_eq!(number_checks.pending(&clusters, is_ready), [key("b")]);
        // A member that cannot be read must not hold its groups for ever.
        assert!(number_checks.tried(&key("b"), false));
        assert!(number_checks.pending(&clusters, is_ready).is_empty() && !number_checks.is_done(&key("b")));
        // A member that joins later is checked before it is connected, and holds nobody.
        drop(clusters.observe_write(cluster("later", "True")));
        assert!(number_checks.pending(&clusters, is_ready).is_empty());
    }
}
