//! Names that stand in clusters: labels, annotations, managers, namespaces.

/// The API group of all kinds.
pub const GROUP: &str = "starling.dev";
/// The served and stored version.
pub const VERSION: &str = "v1alpha1";

/// The field manager of everything that Starling writes but the Syncs of a group.
pub const FIELD_MANAGER: &str = "starling";
/// The field manager with which a SyncGroup writes its Syncs. Its own, so that people's `suspend` and
/// annotations on a Sync are never part of what the group owns.
pub const GROUP_MANAGER: &str = "starling-group";

/// Label on every object that Starling applies to a member: finds objects, never proves ownership.
pub const OWNER_LABEL: &str = "starling.dev/owner";
/// Label on a group's Syncs: the name of the group.
pub const GROUP_LABEL: &str = "starling.dev/group";
/// Label on a group's Syncs: the name of the Cluster.
pub const CLUSTER_LABEL: &str = "starling.dev/cluster";

/// Annotation on any kind: look now. Echoed in `status.lastHandledReconcileAt`.
pub const REQUESTED_AT: &str = "starling.dev/requested-at";
/// Annotation on a group's Sync: the rollout that admitted it.
pub const ROLLOUT: &str = "starling.dev/rollout";
/// Annotation on a group's Sync: the release that admitted it.
pub const RELEASE: &str = "starling.dev/release";
/// Annotation on a group's Sync: when it was admitted, RFC 3339. `progressDeadline` counts from here.
pub const ADMITTED_AT: &str = "starling.dev/admitted-at";

/// Annotation on the Job of a stage's task: the gate that it was made for.
pub const GATE: &str = "starling.dev/gate";

/// Annotation on a Sync or SyncGroup: the digest of the deletions that a person approves, as the condition
/// `DeletionHeld` names it. On a group it counts for all of its Syncs.
pub const APPROVE_DELETIONS: &str = "starling.dev/approve-deletions";
/// Annotation on a SyncGroup: the digest of the membership change that a person approves, as the condition
/// `MembershipHeld` names it.
pub const APPROVE_MEMBERSHIP: &str = "starling.dev/approve-membership";
/// Annotation on a Sync: `"true"` lets its finalizer go though the cluster cannot be reached.
pub const ABANDON: &str = "starling.dev/abandon";
/// Finalizer of a Sync or SyncGroup whose deletion means work on members.
pub const FINALIZER: &str = "starling.dev/finalizer";

/// Annotation on an object of a member, in git or set there by hand: `disabled` leaves the object alone, neither
/// applied nor repaired nor deleted.
pub const RECONCILE: &str = "starling.dev/reconcile";
/// Annotation on an object of a member: `disabled` keeps it from being pruned or deleted.
pub const PRUNE: &str = "starling.dev/prune";
/// Value of [`RECONCILE`] and [`PRUNE`] that has an effect.
pub const DISABLED: &str = "disabled";
/// Annotation on an object in git: `enabled` makes it anew where a field is immutable, as `force` does for a whole Sync.
pub const FORCE: &str = "starling.dev/force";
/// Value of [`FORCE`] that has an effect.
pub const ENABLED: &str = "enabled";

/// Annotation on the Secret of a Cluster: the ServiceAccount of the member whose token it holds, `NAMESPACE/NAME`.
/// Where it is set, the controller renews the token.
pub const TOKEN_SERVICE_ACCOUNT: &str = "starling.dev/token-service-account";
/// Annotation on the Secret of a Cluster: the lifetime that is asked for when its token is renewed.
pub const TOKEN_LIFETIME: &str = "starling.dev/token-lifetime";
/// Annotation on the Secret of a Cluster: when its token was issued, RFC 3339.
pub const TOKEN_ISSUED_AT: &str = "starling.dev/token-issued-at";
/// Annotation on the Secret of a Cluster: when its token ends, RFC 3339.
pub const TOKEN_EXPIRES_AT: &str = "starling.dev/token-expires-at";

/// Where Starling keeps its own objects: the inventory on a member, the installation ID on the hub.
pub const SYSTEM_NAMESPACE: &str = "starling-system";
/// First part of the name of an inventory ConfigMap; the owner follows.
pub const INVENTORY_PREFIX: &str = "starling-inventory-";
/// ConfigMap on the management cluster that holds the installation ID.
pub const INSTALLATION: &str = "starling-installation";
