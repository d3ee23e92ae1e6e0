//! Which resource a kind is: its plural, and whether it lives in namespaces.
//!
//! The kinds that Kubernetes itself brings are in a table, so a set without custom resources needs no discovery. Others are
//! asked for by group-version, once, and again at most once per attempt when a kind is missing: its definition may have
//! been applied a moment ago.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use starling_core::object::ObjectKey;

use super::attempt::Attempt;
use super::call::{Call, JSON, What};
use super::error::MemberError;
use super::paths;
use super::transport::Member;

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
type Served = BTreeMap<String, (String, bool)>;

/// The versions of each group, the preferred one first.
pub(super) type Groups = BTreeMap<String, Vec<String>>;

/// What a member was found to serve, by group-version.
#[derive(Debug, Default)]
pub(super) struct Kinds {
    found: Mutex<BTreeMap<String, Arc<Served>>>,
}

impl Kinds {
    fn get(&self, group_version: &str, kind: &str) -> Option<Resource> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        resource(group_version, found.get(group_version)?, kind)
    }

    /// A version of the group that is known to have the kind.
    fn get_unversioned(&self, group: &str, kind: &str) -> Option<Resource> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found
            .iter()
            .filter(|(group_version, _)| group_of(group_version) == group)
            .find_map(|(group_version, served)| resource(group_version, served, kind))
    }

    fn put(&self, group_version: &str, served: Served) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.insert(group_version.to_owned(), Arc::new(served));
    }

    /// Drops what is known of a group-version: the member no longer serves it as it did.
    pub(super) fn forget(&self, group_version: &str) {
        self.found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(group_version);
    }
}

impl Member {
    /// The resource of an object that is to be applied as `api_version`.
    pub(super) async fn resource(
        &self,
        key: &ObjectKey,
        api_version: &str,
        attempt: &Attempt,
    ) -> Result<Resource, MemberError> {
        if let Some(builtin) = builtin(&key.group, &key.kind) {
            return Ok(Resource {
                group_version: Cow::Owned(api_version.to_owned()),
                ..builtin
            });
        }
        if let Some(known) = self.kinds().get(api_version, &key.kind) {
            return Ok(known);
        }
        self.fetch_kinds(api_version, attempt).await?;
        let unknown = || MemberError::UnknownKind {
            object: key.clone(),
            api_version: api_version.to_owned(),
        };
        self.kinds().get(api_version, &key.kind).ok_or_else(unknown)
    }

    /// Whether a kind is served in a version: as known, or as the member says when it is asked now, whatever it was
    /// asked before in this attempt.
    pub(super) async fn serves(
        &self,
        api_version: &str,
        kind: &str,
        attempt: &Attempt,
    ) -> Result<bool, MemberError> {
        if self.knows(api_version, kind) {
            return Ok(true);
        }
        attempt.fetched.lock().await.remove(api_version);
        self.fetch_kinds(api_version, attempt).await?;
        Ok(self.knows(api_version, kind))
    }

    /// Whether a kind is known to be served in a version, without asking.
    pub(super) fn knows(&self, api_version: &str, kind: &str) -> bool {
        let known = self.kinds().get(api_version, kind);
        known.is_some() || builtin(group_of(api_version), kind).is_some()
    }

    /// The resource of a kind in any version that the member serves. `None` only if the member, asked for all of its
    /// groups, does not have the kind: then it has no object of it either.
    pub(super) async fn resource_unversioned(
        &self,
        group: &str,
        kind: &str,
        attempt: &Attempt,
    ) -> Result<Option<Resource>, MemberError> {
        if let Some(known) = builtin(group, kind).or_else(|| self.kinds().get_unversioned(group, kind)) {
            return Ok(Some(known));
        }
        let versions = if group.is_empty() {
            vec!["v1".to_owned()]
        } else {
            let groups = attempt
                .groups
                .get_or_try_init(|| self.fetch_groups(attempt))
                .await?;
            groups.get(group).cloned().unwrap_or_default()
        };
        for version in &versions {
            self.fetch_kinds(version, attempt).await?;
        }
        Ok(versions
            .iter()
            .find_map(|version| self.kinds().get(version, kind)))
    }

    /// Asks for the kinds of a group-version, unless this attempt has asked before.
    async fn fetch_kinds(&self, group_version: &str, attempt: &Attempt) -> Result<(), MemberError> {
        #[derive(Deserialize)]
        struct List {
            resources: Vec<Item>,
        }
        #[derive(Deserialize)]
        struct Item {
            name: String,
            namespaced: bool,
            kind: String,
        }
        let mut fetched = attempt.fetched.lock().await;
        if fetched.contains(group_version) {
            return Ok(());
        }
        let what = What::named("discover", group_version);
        let items = match self
            .send(Call::get(what, paths::version(group_version), JSON), attempt)
            .await
        {
            Ok(answer) => answer.parse::<List>(what)?.resources,
            // A group without any definition left is not served at all.
            Err(MemberError::NotFound { .. } | MemberError::NotServed { .. }) => Vec::new(),
            Err(error) => return Err(error),
        };
        let resources = items.into_iter().filter(|item| !item.name.contains('/'));
        self.kinds().put(
            group_version,
            resources
                .map(|item| (item.kind, (item.name, item.namespaced)))
                .collect(),
        );
        fetched.insert(group_version.to_owned());
        Ok(())
    }

    async fn fetch_groups(&self, attempt: &Attempt) -> Result<Groups, MemberError> {
        #[derive(Deserialize)]
        struct List {
            groups: Vec<Group>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Group {
            name: String,
            versions: Vec<Version>,
            preferred_version: Option<Version>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            group_version: String,
        }
        let what = What::named("discover", "the API groups");
        let answer = self.send(Call::get(what, "/apis".into(), JSON), attempt).await?;
        let groups = answer.parse::<List>(what)?.groups.into_iter().map(|group| {
            let mut versions: Vec<_> = group
                .preferred_version
                .into_iter()
                .chain(group.versions)
                .map(|v| v.group_version)
                .collect();
            let mut seen = std::collections::BTreeSet::new();
            versions.retain(|version| seen.insert(version.clone()));
            (group.name, versions)
        });
        Ok(groups.collect())
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

fn group_of(group_version: &str) -> &str {
    group_version.split_once('/').map_or("", |(group, _)| group)
}

/// A kind of Kubernetes itself, in the version that every supported release serves.
fn builtin(group: &str, kind: &str) -> Option<Resource> {
    let row = BUILTIN
        .iter()
        .find(|row| row.kind == kind && group_of(row.group_version) == group)?;
    Some(Resource {
        group_version: Cow::Borrowed(row.group_version),
        plural: Cow::Borrowed(row.plural),
        namespaced: row.namespaced,
    })
}

struct Builtin {
    group_version: &'static str,
    kind: &'static str,
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

/// Kinds whose stable version is served by every release since 1.25. Younger ones are left to discovery, which knows the
/// version that the member has.
const BUILTIN: [Builtin; 43] = [
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
    use std::time::Duration;

    use starling_controlplane::{Assets, ControlPlanes, Options};
    use tokio::time::Instant;

    use super::*;
    use crate::member::{MemberConfig, MemberLimits};

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

    /// A wrong row would send every object of its kind to a wrong path, so the table is held against a real API server.
    #[tokio::test]
    async fn the_table_is_what_an_api_server_serves() {
        let planes = ControlPlanes::start(&Assets::find().unwrap(), &["kinds"], Options::default())
            .await
            .unwrap();
        let config = MemberConfig::from_kubeconfig(&planes.get("kinds").unwrap().kubeconfig_yaml()).unwrap();
        let member = Member::connect(config, MemberLimits::default()).unwrap();
        let attempt = Attempt::until(Instant::now() + Duration::from_secs(30));
        for row in &BUILTIN {
            member.fetch_kinds(row.group_version, &attempt).await.unwrap();
            let served = member.kinds().get(row.group_version, row.kind);
            assert_eq!(
                served,
                builtin(group_of(row.group_version), row.kind),
                "{}",
                row.kind
            );
        }
    }
}
