//! What Starling's account on a member may do, and why.
//!
//! Two things are always needed (knowing the member, and keeping the inventory and the token); what Syncs may apply is
//! the caller's choice. Kubernetes lets nobody give rights that they do not have, so whoever adds a cluster has these
//! rights there.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde_json::{Value, json};
use starling_api::SYSTEM_NAMESPACE;

use super::manifest::Manifest;

/// What Syncs on the member may do with the account itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// Apply any object.
    Everything,
    /// Nothing: each Sync names a ServiceAccount that it acts as.
    ImpersonateOnly,
    /// What a ClusterRole of the member permits.
    Role(String),
}

impl Grant {
    /// One sentence for people.
    pub(super) fn explained(&self) -> String {
        match self {
            Self::Everything => "Syncs may apply and delete any object there, but hand out no rights beyond that \
                (no escalate, no bind, no impersonation of users or groups); for manifests that do, use --role cluster-admin"
                .to_owned(),
            Self::ImpersonateOnly => "the account may write nothing but its inventory; each Sync needs a \
                serviceAccountName, whose rights count"
                .to_owned(),
            Self::Role(role) => format!("Syncs may do there what ClusterRole {role} permits"),
        }
    }

    /// Cluster-wide rules.
    fn cluster_rules(&self) -> Vec<Value> {
        let mut rules = vec![
            // Who the member is: the UID of this namespace tells a rebuilt cluster from the one that was there.
            json!({"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]}),
            // Its version, and which kinds it has. Most clusters permit that to everybody; hardened ones do not.
            json!({"nonResourceURLs": ["/version", "/api", "/api/*", "/apis", "/apis/*"], "verbs": ["get"]}),
        ];
        // A Sync with serviceAccountName acts as that account. Users and groups are left out, so nobody becomes
        // system:masters this way.
        let impersonate =
            json!({"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]});
        match self {
            Self::Everything => {
                // Which kinds the repositories will hold is not known, CustomResourceDefinitions among them; so all of
                // them, with the verbs of reading and writing. `watch`, `update` and `deletecollection` are not used:
                // they are here because a Role in git may only hold what the one who applies it holds, and hardly any
                // operator's Role does without them. `escalate`, `bind` and every other verb stay out.
                rules.push(json!({
                    "apiGroups": ["*"], "resources": ["*"],
                    "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"],
                }));
                // For the same reason: a Role in git that permits /metrics.
                rules.push(json!({"nonResourceURLs": ["*"], "verbs": ["get"]}));
                rules.push(impersonate);
            }
            Self::ImpersonateOnly => rules.push(impersonate),
            Self::Role(_) => {}
        }
        rules
    }
}

/// The account called `name` on a member, with its rights; `whose` says on the objects whose it is.
pub(super) struct Account<'a> {
    pub(super) name: &'a str,
    pub(super) whose: &'a str,
    pub(super) grant: &'a Grant,
}

impl Account<'_> {
    /// All objects, in the order in which they are made.
    pub(super) fn manifests(&self) -> Vec<Manifest> {
        let mut manifests = vec![
            Manifest::of::<Namespace>(json!({"metadata": {"name": SYSTEM_NAMESPACE}})),
            Manifest::of::<ServiceAccount>(json!({
                "metadata": self.metadata(true),
                // Nobody runs a Pod as it.
                "automountServiceAccountToken": false,
            })),
            Manifest::of::<Role>(json!({"metadata": self.metadata(true), "rules": self.own_rules()})),
            Manifest::of::<RoleBinding>(self.binding(true, "Role", self.name)),
            Manifest::of::<ClusterRole>(
                json!({"metadata": self.metadata(false), "rules": self.grant.cluster_rules()}),
            ),
            Manifest::of::<ClusterRoleBinding>(self.binding(false, "ClusterRole", self.name)),
        ];
        if let Grant::Role(role) = self.grant {
            manifests.push(self.chosen_role(role));
        }
        manifests
    }

    /// The binding to a ClusterRole of the caller's choice. A binding of its own: which role a binding is to can never
    /// be changed, so another choice means another object.
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
            // The inventories: which objects are whose. `create` cannot be bound to a name.
            json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch", "delete"]}),
            // Its own next token, and nobody else's.
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
            Grant::ImpersonateOnly,
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
        for grant in [Grant::ImpersonateOnly, Grant::Role("edit".into())] {
            let rules = grant.cluster_rules();
            let writing = ["create", "update", "patch", "delete", "list", "watch"];
            assert!(
                verbs(&rules).iter().all(|verb| !writing.contains(verb)),
                "{grant:?}"
            );
        }
    }
}
