//! The resources that a member serves, by kind.
//!
//! The built-in kinds of Kubernetes are in a table, so a set without custom resources needs no discovery.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// One resource of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    /// `v1` or `apps/v1`.
    pub(super) group_version: Cow<'static, str>,
    /// As in paths, such as `deployments`.
    pub(super) plural: Cow<'static, str>,
    pub(super) namespaced: bool,
}

/// The kinds of one group-version: kind to plural and scope.
pub(super) type Served = BTreeMap<String, (String, bool)>;

/// The versions of each group, the preferred one first.
pub(super) type Groups = BTreeMap<String, Vec<String>>;

/// The discovered kinds of a member, by group-version.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    found: Mutex<BTreeMap<String, Arc<Served>>>,
}

impl Kinds {
    pub(super) fn get(&self, group_version: &str, kind: &str) -> Option<Resource> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        resource(group_version, found.get(group_version)?, kind)
    }

    /// Returns the resource in a version of the group that is known to have the kind.
    pub(super) fn get_unversioned(&self, group: &str, kind: &str) -> Option<Resource> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found
            .iter()
            .filter(|(group_version, _)| group_of(group_version) == group)
            .find_map(|(group_version, served)| resource(group_version, served, kind))
    }

    pub(super) fn put(&self, group_version: &str, served: Served) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(group_version.to_owned(), Arc::new(served));
    }

    /// Returns the kinds of a group-version, and whether each is namespaced.
    #[cfg(test)]
    pub(super) fn scopes(&self, group_version: &str) -> Vec<(String, bool)> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let served = found
            .get(group_version)
            .into_iter()
            .flat_map(|served| served.iter());
        served
            .map(|(kind, (_, namespaced))| (kind.clone(), *namespaced))
            .collect()
    }

    /// Drops the cached kinds of a group-version that the member no longer serves as before.
    pub(super) fn forget(&self, group_version: &str) {
        self.found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(group_version);
    }
}

fn resource(group_version: &str, served: &Served, kind: &str) -> Option<Resource> {
    let (plural, namespaced) = served.get(kind)?;
    Some(Resource {
        group_version: Cow::Owned(group_version.to_owned()),
        plural: Cow::Owned(plural.clone()),
        namespaced: *namespaced,
    })
}

pub(super) fn group_of(group_version: &str) -> &str {
    group_version.split_once('/').map_or("", |(group, _)| group)
}

/// Returns a built-in kind, in the version that every supported release serves.
pub(super) fn builtin(group: &str, kind: &str) -> Option<Resource> {
    let row = BUILTIN
        .iter()
        .find(|row| row.kind == kind && group_of(row.group_version) == group)?;
    Some(Resource {
        group_version: Cow::Borrowed(row.group_version),
        plural: Cow::Borrowed(row.plural),
        namespaced: row.namespaced,
    })
}

pub(super) struct Builtin {
    pub(super) group_version: &'static str,
    pub(super) kind: &'static str,
    plural: &'static str,
    namespaced: bool,
}

const fn in_namespace(group_version: &'static str, kind: &'static str, plural: &'static str) -> Builtin {
    Builtin {
        group_version,
        kind,
        plural,
        namespaced: true,
    }
}

const fn cluster_wide(group_version: &'static str, kind: &'static str, plural: &'static str) -> Builtin {
    Builtin {
        group_version,
        kind,
        plural,
        namespaced: false,
    }
}

/// Kinds whose stable version is served by every release since 1.25. Newer kinds are discovered, because their version
/// depends on the member.
pub(super) const BUILTIN: [Builtin; 43] = [
    in_namespace("v1", "ConfigMap", "configmaps"),
    in_namespace("v1", "Secret", "secrets"),
    in_namespace("v1", "Service", "services"),
    in_namespace("v1", "ServiceAccount", "serviceaccounts"),
    in_namespace("apps/v1", "Deployment", "deployments"),
    in_namespace("apps/v1", "StatefulSet", "statefulsets"),
    in_namespace("apps/v1", "DaemonSet", "daemonsets"),
    cluster_wide("v1", "Namespace", "namespaces"),
    in_namespace("networking.k8s.io/v1", "Ingress", "ingresses"),
    in_namespace("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    cluster_wide("networking.k8s.io/v1", "IngressClass", "ingressclasses"),
    in_namespace("rbac.authorization.k8s.io/v1", "Role", "roles"),
    in_namespace("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    cluster_wide("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles"),
    cluster_wide(
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
    ),
    in_namespace("batch/v1", "Job", "jobs"),
    in_namespace("batch/v1", "CronJob", "cronjobs"),
    in_namespace(
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
    in_namespace("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    cluster_wide(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
    ),
    cluster_wide("apiregistration.k8s.io/v1", "APIService", "apiservices"),
    cluster_wide(
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    ),
    cluster_wide(
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    ),
    in_namespace("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    cluster_wide("v1", "PersistentVolume", "persistentvolumes"),
    in_namespace("v1", "Pod", "pods"),
    in_namespace("v1", "PodTemplate", "podtemplates"),
    in_namespace("v1", "ReplicationController", "replicationcontrollers"),
    in_namespace("v1", "Endpoints", "endpoints"),
    in_namespace("v1", "Event", "events"),
    in_namespace("v1", "LimitRange", "limitranges"),
    in_namespace("v1", "ResourceQuota", "resourcequotas"),
    cluster_wide("v1", "Node", "nodes"),
    in_namespace("apps/v1", "ReplicaSet", "replicasets"),
    in_namespace("apps/v1", "ControllerRevision", "controllerrevisions"),
    cluster_wide("storage.k8s.io/v1", "StorageClass", "storageclasses"),
    cluster_wide("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments"),
    cluster_wide("storage.k8s.io/v1", "CSIDriver", "csidrivers"),
    cluster_wide("storage.k8s.io/v1", "CSINode", "csinodes"),
    cluster_wide("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses"),
    cluster_wide("node.k8s.io/v1", "RuntimeClass", "runtimeclasses"),
    in_namespace("coordination.k8s.io/v1", "Lease", "leases"),
    in_namespace("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_names_each_kind_once() {
        let mut seen = BTreeSet::new();
        for row in &BUILTIN {
            assert!(
                seen.insert((group_of(row.group_version), row.kind)),
                "{} {}",
                row.group_version,
                row.kind
            );
        }
        assert_eq!(builtin("apps", "Deployment").unwrap().plural, "deployments");
        assert_eq!(builtin("extensions", "Deployment"), None);
    }
}
