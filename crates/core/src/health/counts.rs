//! The kinds that have a health that requires a read.

/// Reports whether an object of this kind can be unhealthy, so that it has to be read.
///
/// Kinds without a status, and those whose status the rules do not use, are healthy once they are applied. An unknown
/// kind may have conditions, so it has to be read.
#[must_use]
pub fn counts(group: &str, kind: &str) -> bool {
    !matches!(
        (group, kind),
        (
            "",
            "ConfigMap"
                | "Secret"
                | "ServiceAccount"
                | "Endpoints"
                | "LimitRange"
                | "ResourceQuota"
                | "PodTemplate"
                | "PersistentVolume"
        ) | (
            "rbac.authorization.k8s.io",
            "Role" | "RoleBinding" | "ClusterRole" | "ClusterRoleBinding"
        ) | ("apps", "ControllerRevision")
            | ("batch", "CronJob")
            | ("coordination.k8s.io", "Lease")
            | ("discovery.k8s.io", "EndpointSlice")
            | ("networking.k8s.io", "NetworkPolicy" | "Ingress" | "IngressClass")
            | ("node.k8s.io", "RuntimeClass")
            | ("scheduling.k8s.io", "PriorityClass")
            | (
                "storage.k8s.io",
                "StorageClass" | "CSIDriver" | "CSINode" | "CSIStorageCapacity"
            )
            | (
                "admissionregistration.k8s.io",
                "MutatingWebhookConfiguration"
                    | "ValidatingWebhookConfiguration"
                    | "MutatingAdmissionPolicy"
                    | "MutatingAdmissionPolicyBinding"
                    | "ValidatingAdmissionPolicyBinding"
            )
    )
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn kinds_without_a_status_need_no_read_and_unknown_kinds_do() {
        for (group, kind) in [
            ("", "ConfigMap"),
            ("", "Secret"),
            ("rbac.authorization.k8s.io", "ClusterRole"),
            ("networking.k8s.io", "Ingress"),
        ] {
            assert!(!counts(group, kind), "{kind}");
        }
        for (group, kind) in [
            ("apps", "Deployment"),
            ("batch", "Job"),
            ("apiextensions.k8s.io", "CustomResourceDefinition"),
            ("example.com", "ConfigMap"),
            ("example.com", "Widget"),
            ("", "Pod"),
        ] {
            assert!(counts(group, kind), "{kind}");
        }
    }
}
