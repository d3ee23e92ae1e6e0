//! The behaviour of kinds that differs between them: the options of the API server's registry strategies.

use crate::object::names::NameRule;

/// The options of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Strategy {
    /// The rule for names of objects.
    pub names: NameRule,
    /// Whether `metadata.generation` counts the changes of the desired state.
    pub generation: bool,
    /// Whether the generation counts the changes of labels, too.
    pub generation_of_labels: bool,
    /// Whether a response to a deletion contains the object.
    pub returns_deleted: bool,
    /// Whether an update creates a missing object.
    pub create_on_update: bool,
    /// Whether an update may omit the resource version.
    pub unconditional_update: bool,
    /// Whether a deletion orphans dependents by default.
    pub orphans: bool,
    /// Whether the creation of an object ignores its `status`.
    pub status_is_reset: bool,
    /// The metadata that writes to `status` leave unchanged.
    pub status_keeps: &'static [&'static str],
    /// The fields that writes to `status` leave unchanged.
    pub status_resets: &'static [&'static [&'static str]],
}

const SPEC: &[&[&str]] = &[&["spec"]];

impl Strategy {
    /// Returns the options of a built-in kind.
    pub fn of_builtin(group: &str, kind: &str) -> Self {
        let core = group.is_empty();
        Self {
            names: name_rule(group, kind),
            generation: match kind {
                "Pod" | "PodTemplate" | "ReplicationController" => core,
                "DaemonSet"
                | "StatefulSet"
                | "Deployment"
                | "ReplicaSet"
                | "Job"
                | "CronJob"
                | "Ingress"
                | "IngressClass"
                | "NetworkPolicy"
                | "EndpointSlice"
                | "PodDisruptionBudget"
                | "FlowSchema"
                | "PriorityLevelConfiguration"
                | "PriorityClass"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingWebhookConfiguration"
                | "ValidatingWebhookConfiguration"
                | "CustomResourceDefinition" => true,
                _ => false,
            },
            generation_of_labels: kind == "EndpointSlice",
            returns_deleted: match kind {
                "ResourceQuota"
                | "PersistentVolume"
                | "ServiceAccount"
                | "PersistentVolumeClaim"
                | "Namespace"
                | "Pod"
                | "Service"
                | "PodTemplate" => core,
                "CSIDriver" | "CSINode" | "StorageClass" | "VolumeAttachment" | "VolumeAttributesClass" => {
                    true
                }
                _ => false,
            },
            create_on_update: matches!(
                kind,
                "RuntimeClass"
                    | "RoleBinding"
                    | "ClusterRoleBinding"
                    | "Role"
                    | "ClusterRole"
                    | "Lease"
                    | "LimitRange"
                    | "Event"
                    | "Service"
                    | "Endpoints"
            ),
            unconditional_update: !matches!(
                kind,
                "RuntimeClass"
                    | "PodDisruptionBudget"
                    | "CSIDriver"
                    | "CSIStorageCapacity"
                    | "VolumeAttachment"
                    | "CSINode"
                    | "Lease"
                    | "ValidatingAdmissionPolicy"
                    | "ValidatingAdmissionPolicyBinding"
                    | "MutatingWebhookConfiguration"
                    | "ValidatingWebhookConfiguration"
                    | "CustomResourceDefinition"
                    | "APIService"
            ),
            orphans: matches!(kind, "Job" | "ReplicationController"),
            // A kubelet registers its Node with its status; and Kubernetes keeps that of a new ServiceCIDR.
            status_is_reset: !matches!(kind, "Node" | "ServiceCIDR"),
            status_keeps: match (group, kind) {
                ("apps", "Deployment") => &["labels"],
                ("", "Pod")
                | ("storage.k8s.io", "VolumeAttachment")
                | ("networking.k8s.io", "ServiceCIDR")
                | ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy")
                | ("flowcontrol.apiserver.k8s.io", "FlowSchema" | "PriorityLevelConfiguration") => {
                    &["labels", "annotations", "finalizers", "ownerReferences"]
                }
                _ => &[],
            },
            status_resets: match kind {
                "Deployment" => &[&["spec"], &["metadata", "labels"]],
                "Pod" => &[
                    &["spec"],
                    &["metadata", "deletionTimestamp"],
                    &["metadata", "ownerReferences"],
                ],
                "CertificateSigningRequest" => &[&["spec"], &["status", "conditions"]],
                "FlowSchema"
                | "ValidatingAdmissionPolicy"
                | "PriorityLevelConfiguration"
                | "VolumeAttachment"
                | "CustomResourceDefinition"
                | "APIService" => &[&["spec"], &["metadata"]],
                _ => SPEC,
            },
        }
    }

    /// Returns the options of custom resources.
    pub const fn of_custom(has_status: bool) -> Self {
        Self {
            names: NameRule::Subdomain,
            generation: true,
            generation_of_labels: false,
            returns_deleted: false,
            create_on_update: false,
            unconditional_update: false,
            orphans: false,
            status_is_reset: has_status,
            status_keeps: &[],
            status_resets: SPEC,
        }
    }
}

fn name_rule(group: &str, kind: &str) -> NameRule {
    match (group, kind) {
        ("", "Namespace") => NameRule::Label,
        ("", "Service") => NameRule::Label1035,
        ("rbac.authorization.k8s.io", _) => NameRule::PathSegment,
        _ => NameRule::Subdomain,
    }
}
