//! The permissions of Starling's ServiceAccount on a member.
//!
//! Two sets are always needed: to identify the member, and to keep the inventory and the token. The caller chooses what
//! Syncs may apply. Kubernetes lets nobody grant permissions that they do not have, so the caller needs these
//! permissions on the member.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde_json::{Value, json};
use starling_api::SYSTEM_NAMESPACE;

use super::manifest::Manifest;

/// Permissions of Syncs without a serviceAccountName.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// Apply any object.
    Everything,
    /// Nothing: each Sync impersonates a ServiceAccount. A Sync can only name accounts of its own namespace, which is
    /// that of the Cluster, so no other namespace is needed.
    ImpersonateOnly {
        /// The namespace of the Cluster.
        namespace: String,
        /// The accounts that may be impersonated; empty: all of the namespace.
        accounts: Vec<String>,
    },
    /// The permissions of an existing ClusterRole of the member.
    Role(String),
}

impl Grant {
    /// The grant as a sentence.
    pub(super) fn explained(&self) -> String {
        match self {
            Self::Everything => {
                "Syncs may apply and delete any object, without escalate, bind or impersonation of users and \
                groups; for manifests that need these, use --role cluster-admin"
                    .to_owned()
            }
            Self::ImpersonateOnly { namespace, accounts } => {
                let which = match &**accounts {
                    [] => format!("a ServiceAccount in namespace {namespace}"),
                    names => format!(
                        "one of the ServiceAccounts {} in namespace {namespace}",
                        names.join(", ")
                    ),
                };
                format!(
                    "the account may write only its inventory; each Sync needs a serviceAccountName, {which}, and \
                     has the permissions of that account"
                )
            }
            Self::Role(role) => format!("Syncs have the permissions of ClusterRole {role}"),
        }
    }

    /// Cluster-wide rules.
    fn cluster_rules(&self) -> Vec<Value> {
        let mut rules = vec![
            // The cluster ID: the UID of this namespace distinguishes a rebuilt cluster.
            json!({"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}),
            // Version and discovery. Most clusters allow this to every user; hardened ones do not.
            json!({"nonResourceURLs": ["/version", "/api", "/api/*", "/apis", "/apis/*"], "verbs": ["get"]}),
        ];
        match self {
            Self::Everything => {
                // The kinds in the repositories are not known, so all kinds, with the verbs to read and write. Starling
                // does not use `watch`, `update` and `deletecollection`: a Role in git may only grant what its applier
                // has, and most operators' Roles need them. `escalate`, `bind` and every other verb are excluded.
                rules.push(json!({
                    "apiGroups": ["*"], "resources": ["*"],
                    "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
                }));
                // For the same reason: a Role in git that allows /metrics.
                rules.push(json!({"nonResourceURLs": ["*"], "verbs": ["get"]}));
                // A Sync with serviceAccountName impersonates that account. Users and groups are excluded, so nobody
                // becomes system:masters.
                rules.push(
                    json!({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}),
                );
            }
            Self::ImpersonateOnly { .. } | Self::Role(_) => {}
        }
        rules
    }
}

/// The ServiceAccount `name` on a member with its RBAC; `whose` is the description on its objects.
pub(super) struct Account<'a> {
    pub(super) name: &'a str,
    pub(super) whose: &'a str,
    pub(super) grant: &'a Grant,
}

impl Account<'_> {
    /// All objects, in the order in which they are created.
    pub(super) fn manifests(&self) -> Vec<Manifest> {
        let mut manifests = vec![
            Manifest::of::<Namespace>(json!({"metadata": {"name": SYSTEM_NAMESPACE}})),
            Manifest::of::<ServiceAccount>(json!({
                "metadata": self.metadata(true),
                // No Pod runs as this account.
                "automountServiceAccountToken": false,
            })),
            Manifest::of::<Role>(json!({"metadata": self.metadata(true), "rules": self.own_rules()})),
            Manifest::of::<RoleBinding>(self.binding(true, "Role", self.name)),
            Manifest::of::<ClusterRole>(
                json!({"metadata": self.metadata(false), "rules": self.grant.cluster_rules()}),
            ),
            Manifest::of::<ClusterRoleBinding>(self.binding(false, "ClusterRole", self.name)),
        ];
        match self.grant {
            Grant::Everything => {}
            Grant::Role(role) => manifests.push(self.chosen_role(role)),
            Grant::ImpersonateOnly { namespace, accounts } => {
                manifests.extend(self.impersonation(namespace, accounts));
            }
        }
        manifests
    }

    /// The binding of [`Grant::ImpersonateOnly`] in a namespace.
    pub(super) fn impersonation_binding(&self, namespace: &str) -> Manifest {
        let [_, _, binding] = self.impersonation(namespace, &[]);
        binding
    }

    /// The right to impersonate accounts of one namespace, which is created if it does not exist.
    fn impersonation(&self, namespace: &str, accounts: &[String]) -> [Manifest; 3] {
        let mut rule = json!({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]});
        if !accounts.is_empty() {
            rule["resourceNames"] = json!(accounts);
        }
        let mut role = json!({"metadata": self.metadata(false), "rules": [rule]});
        let mut binding = self.binding(false, "Role", &format!("{}-impersonate", self.name));
        for body in [&mut role, &mut binding] {
            body["metadata"]["name"] = format!("{}-impersonate", self.name).into();
            body["metadata"]["namespace"] = namespace.into();
        }
        [
            Manifest::of::<Namespace>(json!({"metadata": {"name": namespace}})),
            Manifest::of::<Role>(role),
            Manifest::of::<RoleBinding>(binding),
        ]
    }

    /// The binding to the ClusterRole that the caller chose. The roleRef of a binding is immutable, so this is a
    /// binding of its own.
    pub(super) fn chosen_role(&self, role: &str) -> Manifest {
        let mut binding = self.binding(false, "ClusterRole", role);
        binding["metadata"]["name"] = self.chosen_role_name().into();
        Manifest::of::<ClusterRoleBinding>(binding)
    }

    /// The name of [`Self::chosen_role`].
    pub(super) fn chosen_role_name(&self) -> String {
        format!("{}-role", self.name)
    }

    /// Rules in `starling-system`.
    fn own_rules(&self) -> Vec<Value> {
        vec![
            // The inventories. `create` cannot be restricted to a name. `list` saves a request for each of them after a
            // start of the controller.
            json!({
                "apiGroups": [""], "resources": ["configmaps"],
                "verbs": ["get", "list", "create", "patch", "delete"],
            }),
            // The next token of this account only.
            json!({
                "apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": [self.name],
                "verbs": ["create"],
            }),
        ]
    }

    fn binding(&self, namespaced: bool, kind: &str, role: &str) -> Value {
        json!({
            "metadata": self.metadata(namespaced),
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": SYSTEM_NAMESPACE}],
        })
    }

    fn metadata(&self, namespaced: bool) -> Value {
        let mut metadata = json!({
            "name": self.name,
            "labels": {"app.kubernetes.io/managed-by": "starling"},
            "annotations": {"kubernetes.io/description": self.whose},
        });
        if namespaced {
            metadata["namespace"] = SYSTEM_NAMESPACE.into();
        }
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn impersonate_only() -> Grant {
        Grant::ImpersonateOnly {
            namespace: "fleet".into(),
            accounts: Vec::new(),
        }
    }

    fn verbs(rules: &[Value]) -> Vec<&str> {
        rules
            .iter()
            .flat_map(|rule| rule["verbs"].as_array().into_iter().flatten())
            .filter_map(Value::as_str)
            .collect()
    }

    #[test]
    fn no_grant_hands_out_rights_or_takes_all_verbs() {
        for grant in [
            Grant::Everything,
            impersonate_only(),
            Grant::Role("cluster-admin".into()),
        ] {
            let rules = grant.cluster_rules();
            for forbidden in ["*", "escalate", "bind", "approve", "sign"] {
                assert!(
                    !verbs(&rules).contains(&forbidden),
                    "{grant:?} permits {forbidden}"
                );
            }
            let impersonates = |rule: &&Value| rule["verbs"] == json!(["impersonate"]);
            for rule in rules.iter().filter(impersonates) {
                assert_eq!(rule["resources"], json!(["serviceaccounts"]));
            }
        }
    }

    #[test]
    fn without_rights_of_its_own_it_can_only_read_who_the_member_is() {
        for grant in [impersonate_only(), Grant::Role("edit".into())] {
            let rules = grant.cluster_rules();
            let writing = ["create", "update", "patch", "delete", "list", "watch"];
            assert!(
                verbs(&rules).iter().all(|verb| !writing.contains(verb)),
                "{grant:?}"
            );
        }
    }
}
