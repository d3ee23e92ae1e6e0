//! Names of labels, annotations, field managers, finalizers and namespaces.

/// API group of all kinds.
pub const GROUP: &str = "starling.dev";
/// API version that is served and stored.
pub const VERSION: &str = "v1alpha1";

/// Field manager of everything that Starling writes except the Syncs of a group.
pub const FIELD_MANAGER: &str = "starling";
/// Field manager with which a SyncGroup writes its Syncs. A separate manager, so that the group never owns
/// the `suspend` and the annotations that users set on a Sync.
pub const GROUP_MANAGER: &str = "starling-group";

/// Label on every object that Starling applies to a member. The label finds objects; it never proves
/// ownership.
pub const OWNER_LABEL: &str = "starling.dev/owner";
/// Label on the Syncs of a group: name of the SyncGroup.
pub const GROUP_LABEL: &str = "starling.dev/group";
/// Label on the kept releases of a group: identity of the SyncGroup, as in `status.identity.id`.
pub const GROUP_ID_LABEL: &str = "starling.dev/group-id";
/// Label on the Syncs of a group: name of the Cluster.
pub const CLUSTER_LABEL: &str = "starling.dev/cluster";

/// Field manager of the counts of deletions in status. A separate manager, because the controller of Syncs
/// counts the deletions of a group.
pub const DELETIONS_MANAGER: &str = "starling-deletions";

/// Annotation on a RolloutAction or RolloutApproval: start time of the rollout that it counts for, or
/// [`COUNTS_FOR_NONE`]. Set by the controller when it first sees the object. The creation time of an object changes
/// with a restore to another API server, and the numbers of rollouts may begin again; the start time does neither.
pub const COUNTS_FOR: &str = "starling.dev/counts-for";
/// Value of [`COUNTS_FOR`] of an object that was written for another rollout of the same number.
pub const COUNTS_FOR_NONE: &str = "none";
/// Annotation on a RolloutAction, RolloutApproval or DeletionApproval: no admission policy has verified
/// `spec.by`. Set by the controller when it first sees the object.
pub const UNVERIFIED_BY: &str = "starling.dev/unverified-by";
/// Annotation on a RolloutAction or RolloutApproval: its creation time when the controller first saw it, in RFC 3339
/// format. It orders actions.
pub const FIRST_CREATED_AT: &str = "starling.dev/first-created-at";

/// Annotation on any kind: a new value requests a reconciliation. `status.lastHandledReconcileAt` repeats the
/// value. On a Sync, a Cluster or a SyncGroup it requests that every object is compared with the cluster.
pub const REQUESTED_AT: &str = "starling.dev/requested-at";
/// Annotation on the Syncs of a group: time of the operator's `Retry` that the Sync was admitted for.
pub const RETRIED_FOR: &str = "starling.dev/retried-for";
/// Annotation on the Syncs of a group: number of the rollout that admitted the Sync.
pub const ROLLOUT: &str = "starling.dev/rollout";
/// Annotation on the Syncs of a group: digest of the release that the Sync was admitted to.
pub const RELEASE: &str = "starling.dev/release";
/// Annotation on the Syncs of a group: time of the admission, in RFC 3339 format. `progressDeadline` counts
/// from it.
pub const ADMITTED_AT: &str = "starling.dev/admitted-at";

/// Annotation on the Job of a gate: key of the gate.
pub const GATE: &str = "starling.dev/gate";

/// Annotation on a Sync or SyncGroup: digest of the deletions that an operator approves, as reported in the
/// condition `DeletionHeld`. On a SyncGroup it applies to all its Syncs. A digest approves once, until it is removed
/// and set again.
pub const APPROVE_DELETIONS: &str = "starling.dev/approve-deletions";
/// Annotation on a SyncGroup: digest of the membership change that an operator approves, as reported in the
/// condition `MembershipHeld`. A digest approves once, until it is removed and set again.
pub const APPROVE_MEMBERSHIP: &str = "starling.dev/approve-membership";
/// Annotation on a Sync of a group that is being deleted: its deletion timestamp, once the plan of the group has
/// decided the removal. Without it no object is deleted.
pub const REMOVAL: &str = "starling.dev/removal";
/// Annotation on a Sync: `"true"` leaves its objects on the member when the Sync is deleted, so that a member that
/// cannot be reached does not delay the deletion.
pub const ABANDON: &str = "starling.dev/abandon";
/// Finalizer of a Sync or SyncGroup whose deletion deletes objects on members.
pub const FINALIZER: &str = "starling.dev/finalizer";

/// Annotation on an object of a member, in git or set on the member: with `disabled`, Starling neither
/// applies nor repairs nor deletes the object.
pub const RECONCILE: &str = "starling.dev/reconcile";
/// Annotation on an object of a member: with `disabled`, Starling neither prunes nor deletes the object.
pub const PRUNE: &str = "starling.dev/prune";
/// Annotation on an object of a member, in git or set on the member: with `Confirm`, Starling deletes the object
/// only after an approval.
pub const DELETION: &str = "starling.dev/deletion";
/// Annotation on a Sync or SyncGroup: objects that were no longer rendered at this time, in RFC 3339 format, and wait
/// for `pruneGrace`, are not deleted. Starling no longer manages them.
pub const UNDELETE: &str = "starling.dev/undelete";
/// Value of [`DELETION`] that has an effect.
pub const CONFIRM: &str = "Confirm";
/// Value of [`RECONCILE`] and [`PRUNE`] that has an effect.
pub const DISABLED: &str = "disabled";
/// Annotation on an object in git: with `enabled`, Starling recreates the object when an immutable field
/// changes, as `force` does for a whole Sync.
pub const FORCE: &str = "starling.dev/force";
/// Value of [`FORCE`] that has an effect.
pub const ENABLED: &str = "enabled";

/// Annotation on the Secret of a Cluster: ServiceAccount of the member that the token belongs to, as
/// `NAMESPACE/NAME`. If it is set, the controller renews the token.
pub const TOKEN_SERVICE_ACCOUNT: &str = "starling.dev/token-service-account";
/// Annotation on the Secret of a Cluster: lifetime to request when the token is renewed.
pub const TOKEN_LIFETIME: &str = "starling.dev/token-lifetime";
/// Annotation on the Secret of a Cluster: time at which the token was issued, in RFC 3339 format.
pub const TOKEN_ISSUED_AT: &str = "starling.dev/token-issued-at";
/// Annotation on the Secret of a Cluster: time at which the token expires, in RFC 3339 format.
pub const TOKEN_EXPIRES_AT: &str = "starling.dev/token-expires-at";

/// Namespace of Starling's own objects: the inventories on a member, the installation ID on the management
/// cluster.
pub const SYSTEM_NAMESPACE: &str = "starling-system";
/// Prefix of the name of an inventory ConfigMap. The owner follows.
pub const INVENTORY_PREFIX: &str = "starling-inventory-";
/// The start of the name of the ConfigMap with the number of the last removal, in [`SYSTEM_NAMESPACE`] of a member.
pub const REMOVALS_PREFIX: &str = "starling-hub-";
/// The start of the name of the ConfigMaps in [`SYSTEM_NAMESPACE`] of a member by which two Clusters are found to be
/// the same member. They exist for a moment.
pub const IDENTITY_PREFIX: &str = "starling-identity-";
/// ConfigMap on the management cluster that holds the installation ID.
pub const INSTALLATION: &str = "starling-installation";
/// ConfigMap on the management cluster that holds the counts of the deletions of the installation.
pub const DELETIONS: &str = "starling-deletions";
