//! Role-based access control: whether a user may send a request.
//!
//! The rules are those of Kubernetes 1.35: `plugin/pkg/auth/authorizer/rbac` decides, `pkg/registry/rbac` prevents that
//! users grant more than they have, and `bootstrappolicy` has the roles of every cluster. The order of bindings is that
//! of their names; Kubernetes tries those of a cluster in any order, so that the reason of an allowed request may name
//! another binding there.

mod attributes;
mod bootstrap;
mod cover;
mod mode;
mod policy;
mod rule;

use std::sync::LazyLock;

pub(crate) use attributes::forbidden;
pub use attributes::{Attributes, Requested};
pub(crate) use bootstrap::{Bootstrap, Reconciled, reconciled};
pub(crate) use cover::quoted_list;
pub use cover::{compact, describe, uncovered};
pub use mode::{AuthorizationMode, UnknownAuthorizationMode};
pub(crate) use policy::{CLUSTER_ROLES, aggregate};
pub use policy::{Decision, Grant, Policy, Problem, Who};
pub use rule::Rule;

/// The group whose members may do everything, whatever roles and bindings say.
pub const PRIVILEGED_GROUP: &str = "system:masters";
/// The API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// The groups of the server itself and of its controllers.
static OWN_GROUPS: LazyLock<Vec<String>> = LazyLock::new(|| vec![PRIVILEGED_GROUP.to_owned()]);

/// Returns the groups of the server itself and of its controllers.
pub(crate) fn own_groups() -> &'static [String] {
    &OWN_GROUPS
}
