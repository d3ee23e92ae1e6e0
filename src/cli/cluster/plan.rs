//! The objects on the management cluster, and conflicts with existing ones. Pure.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use starling_api::{Cluster, TOKEN_SERVICE_ACCOUNT};
use starling_core::identity_claim;

use super::manifest::{MANAGER, Manifest};

/// Key of the kubeconfig in the Secret.
const KEY: &str = "value";

/// Namespace and name of a Cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClusterName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// The existing objects on the management cluster.
#[derive(Debug, Default)]
pub(super) struct Existing {
    /// The Clusters of the namespace.
    pub(super) clusters: Vec<Cluster>,
    /// Annotations of the Secret; `None`: there is no Secret.
    pub(super) secret: Option<BTreeMap<String, String>>,
}

impl ClusterName<'_> {
    /// Name of the Secret with the kubeconfig.
    pub(super) fn secret(&self) -> String {
        format!("{}-kubeconfig", self.name)
    }

    /// The Secret with a kubeconfig.
    pub(super) fn secret_manifest(
        &self,
        annotations: &BTreeMap<String, String>,
        kubeconfig: &str,
    ) -> Manifest {
        Manifest::of::<Secret>(json!({
            "metadata": {
                "name": self.secret(), "namespace": self.namespace, "annotations": annotations,
                "labels": {"app.kubernetes.io/managed-by": "starling"},
            },
            "type": "Opaque",
            "data": {KEY: BASE64.encode(kubeconfig)},
        }))
    }

    /// The Cluster.
    pub(super) fn cluster_manifest(&self, labels: &BTreeMap<String, String>) -> Manifest {
        Manifest::of::<Cluster>(json!({
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": labels},
            "spec": {"kubeConfig": {"secretRef": {"name": self.secret(), "key": KEY}}},
        }))
    }
}

impl Existing {
    fn cluster(&self, named: ClusterName<'_>) -> Option<&Cluster> {
        self.clusters
            .iter()
            .find(|cluster| cluster.name_any() == named.name)
    }

    /// Returns the reason why the member with this cluster ID cannot be added under this name, and what to do instead.
    pub(super) fn conflict(&self, named: ClusterName<'_>, member: &str) -> Option<String> {
        let ClusterName { namespace, name } = named;
        let id = |cluster: &Cluster| {
            let status = cluster.status.as_ref();
            status.map(|status| status.cluster_id.clone()).unwrap_or_default()
        };
        let present = self.cluster(named);
        if let Some(known) = present
            .map(id)
            .filter(|known| !known.is_empty() && identity_claim::claimed(known) != member)
        {
            return Some(format!(
                "Cluster {namespace}/{name} has cluster ID {known}, but the context has {member}; use another --name, or delete \
                 that Cluster first if the member was rebuilt"
            ));
        }
        let twin = self
            .clusters
            .iter()
            .find(|cluster| cluster.name_any() != name && id(cluster) == member);
        if let Some(twin) = twin {
            return Some(format!(
                "Cluster {namespace}/{} is already this member; use --name {0} to renew its credentials, or delete it first",
                twin.name_any()
            ));
        }
        let foreign =
            |annotations: &BTreeMap<String, String>| !annotations.contains_key(TOKEN_SERVICE_ACCOUNT);
        if present.is_none() && self.secret.as_ref().is_some_and(foreign) {
            return Some(format!(
                "Secret {namespace}/{} exists and was not created by this command; use another --name, or delete it first",
                named.secret()
            ));
        }
        None
    }

    /// The labels of the Cluster: the given ones and those of earlier runs. A run that renews credentials without
    /// labels must not remove a cluster from its groups.
    pub(super) fn labels(
        &self,
        named: ClusterName<'_>,
        given: &[(String, String)],
    ) -> BTreeMap<String, String> {
        let mut labels = self.cluster(named).map(own_labels).unwrap_or_default();
        labels.extend(given.iter().cloned());
        labels
    }
}

/// The labels that this command has set.
fn own_labels(cluster: &Cluster) -> BTreeMap<String, String> {
    let own = cluster
        .managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(MANAGER))
        .filter_map(|entry| entry.fields_v1.as_ref())
        .filter_map(|fields| fields.0["f:metadata"]["f:labels"].as_object())
        .flat_map(|fields| fields.keys())
        .filter_map(|field| field.strip_prefix("f:"));
    own.filter_map(|key| Some((key.to_owned(), cluster.labels().get(key)?.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EU: ClusterName<'static> = ClusterName {
        namespace: "fleet",
        name: "eu-1",
    };

    fn cluster(name: &str, id: &str) -> Cluster {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {
                "name": name, "labels": {"region": "eu", "tier": "prod"},
                "managedFields": [
                    {"manager": MANAGER, "operation": "Apply", "fieldsType": "FieldsV1",
                     "fieldsV1": {"f:metadata": {"f:labels": {"f:region": {}, "f:gone": {}}}}},
                    {"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1",
                     "fieldsV1": {"f:metadata": {"f:labels": {"f:tier": {}}}}},
                ],
            },
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}},
            "status": {"clusterID": id},
        }))
        .unwrap()
    }

    fn found(clusters: Vec<Cluster>, secret: Option<&[&str]>) -> Existing {
        let secret = secret.map(|keys| {
            keys.iter()
                .map(|key| ((*key).to_owned(), String::new()))
                .collect()
        });
        Existing { clusters, secret }
    }

    #[test]
    fn only_the_same_cluster_may_be_added_again() {
        for (found, expected) in [
            (found(vec![], None), None),
            (found(vec![cluster("eu-1", "id")], None), None),
            (found(vec![cluster("eu-1", "")], None), None),
            (found(vec![cluster("us-1", "other")], None), None),
            (
                found(vec![cluster("eu-1", "other")], None),
                Some("use another --name"),
            ),
            (found(vec![cluster("old", "id")], None), Some("use --name old")),
            (
                found(vec![], Some(&[])),
                Some("Secret fleet/eu-1-kubeconfig exists"),
            ),
            (found(vec![], Some(&[TOKEN_SERVICE_ACCOUNT])), None),
            (found(vec![cluster("eu-1", "id")], Some(&[])), None),
        ] {
            let conflict = found.conflict(EU, "id");
            match expected {
                None => assert_eq!(conflict, None),
                Some(expected) => assert!(
                    conflict.as_ref().is_some_and(|text| text.contains(expected)),
                    "{conflict:?}"
                ),
            }
        }
    }

    #[test]
    fn labels_of_an_earlier_run_stay_and_those_of_others_are_not_taken_over() {
        let found = found(vec![cluster("eu-1", "id")], None);
        let labels = found.labels(EU, &[("stage".into(), "canary".into())]);
        let expected = [("region", "eu"), ("stage", "canary")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(labels, expected.into());
        let changed = found.labels(EU, &[("region".into(), "us".into())]);
        assert_eq!(changed.get("region").map(String::as_str), Some("us"));
    }
}
