//! Maps the status of a Cluster to its reachability.

use kube::ResourceExt as _;
use starling_api::Cluster;
use starling_api::conditions::{self, READY};
use starling_core::plan::Reach;

/// Returns the reachability of a Cluster, from a status of its current generation.
#[must_use]
pub fn reach(cluster: &Cluster) -> Reach {
    if cluster.spec.suspend {
        return Reach::Suspended;
    }
    let generation = cluster.metadata.generation.unwrap_or(0);
    let ready = cluster
        .status
        .as_ref()
        .and_then(|status| conditions::find(&status.conditions, READY))
        .filter(|condition| condition.observed_generation.unwrap_or(0) >= generation);
    match ready {
        None => Reach::Unprobed,
        Some(condition) if condition.status == "True" => Reach::Ready,
        Some(condition) => Reach::Unreachable {
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.last_transition_time.0,
        },
    }
}

/// Reports whether the last probe reached the member.
#[must_use]
pub fn is_reachable(cluster: &Cluster) -> bool {
    reach(cluster) == Reach::Ready
}

/// Returns the text that the jitter of a cluster is derived from: its cluster ID, or its name before the first probe.
#[must_use]
pub fn jitter_id(cluster: &Cluster) -> String {
    let id = cluster.status.as_ref().map(|status| status.cluster_id.clone());
    id.filter(|id| !id.is_empty())
        .unwrap_or_else(|| cluster.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(spec_generation: i64, ready: Option<(&str, i64)>, suspend: bool) -> Cluster {
        let conditions: Vec<_> = ready
            .into_iter()
            .map(|(status, generation)| {
                serde_json::json!({
                    "type": "Ready", "status": status, "reason": "R", "message": "m",
                    "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "c", "generation": spec_generation},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}, "suspend": suspend},
            "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    #[test]
    fn a_status_counts_for_the_generation_it_is_about() {
        assert_eq!(reach(&cluster(1, None, false)), Reach::Unprobed);
        assert_eq!(reach(&cluster(1, Some(("True", 1)), false)), Reach::Ready);
        assert_eq!(reach(&cluster(2, Some(("True", 1)), false)), Reach::Unprobed);
        assert_eq!(reach(&cluster(1, Some(("True", 1)), true)), Reach::Suspended);
        for status in ["Unknown", "False"] {
            assert!(matches!(
                reach(&cluster(1, Some((status, 1)), false)),
                Reach::Unreachable { .. }
            ));
        }
    }
}
