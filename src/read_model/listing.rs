//! Rows of lists: what `starling get` shows of each object, as values that can be sorted and formatted.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;
use starling_api::conditions::{self, Condition, READY};
use starling_api::{
    ActionType, Blocker, Cluster, ClusterCounts, DeletionApproval, RolloutAction, RolloutApproval,
    RolloutDirection, RolloutPhase, Source, SyncGroup, SyncResource,
};

use starling_core::rollout::operator;

use super::revisions::{short, shorts};

/// A kind that has rows.
pub trait Summarize {
    /// Its row.
    type Row: Serialize;

    /// Builds the row of an object.
    fn summarize(&self) -> Self::Row;
}

/// Columns of every row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRow {
    /// Namespace of the object; empty: it has none.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Time of creation.
    pub created_at: Option<Timestamp>,
}

/// The `Ready` condition of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReadyCondition {
    /// Whether `spec.suspend` is set: the condition does not count then.
    pub suspended: bool,
    /// `True`, `False` or `Unknown`; `Unknown` also without the condition.
    pub status: String,
    /// Reason of the condition; empty: there is no condition.
    pub reason: String,
    /// Message of the condition.
    pub message: String,
}

/// A row of a SyncGroup.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// The `Ready` condition.
    pub ready: ReadyCondition,
    /// The current rollout.
    pub rollout: Option<RolloutRow>,
    /// Number of clusters by state.
    pub clusters: ClusterCounts,
    /// Short revisions of the last known good release.
    pub last_known_good: Option<String>,
}

/// The current rollout of a group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutRow {
    /// Number of the rollout.
    pub id: i64,
    /// Its phase.
    pub phase: RolloutPhase,
    /// Its direction.
    pub direction: RolloutDirection,
    /// Its short revisions.
    pub revision: String,
    /// The current stage; empty: none.
    pub stage: String,
    /// Reasons that block the rollout, in order.
    pub blocked_by: Vec<Blocker>,
}

/// A row of a Cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// The `Ready` condition.
    pub ready: ReadyCondition,
    /// Kubernetes version; empty: not known yet.
    pub version: String,
    /// Time of the last probe.
    pub probed_at: Option<Timestamp>,
    /// Labels of the Cluster.
    pub labels: BTreeMap<String, String>,
    /// ID of the member; empty: not known yet.
    pub cluster_id: String,
}

/// A row of a Sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SyncRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// Name of the Cluster.
    pub cluster: String,
    /// Group and entry, as `GROUP/ENTRY`; `None`: it belongs to no group.
    pub group: Option<String>,
    /// The `Ready` condition.
    pub ready: ReadyCondition,
    /// Short form of the last applied revision.
    pub applied: String,
    /// Short form of the revision to apply.
    pub target: String,
    /// Number of objects in the inventory.
    pub objects: u32,
    /// Failed attempts in a row.
    pub attempts: u32,
    /// Time of the next attempt.
    pub next_retry_at: Option<Timestamp>,
}

/// A row of a Source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// The `Ready` condition.
    pub ready: ReadyCondition,
    /// Short form of the latest revision.
    pub revision: String,
    /// Since when this is the latest revision.
    pub revision_since: Option<Timestamp>,
    /// URL of the repository.
    pub url: String,
}

/// A row of a RolloutApproval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// Name of the group.
    pub group: String,
    /// Number of the rollout.
    pub rollout: i64,
    /// The approved stage.
    pub stage: String,
    /// The user who approved it.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// The approved release digest.
    pub release_digest: String,
}

/// A row of a RolloutAction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// Name of the group.
    pub group: String,
    /// Number of the rollout.
    pub rollout: i64,
    /// The action.
    pub action: ActionType,
    /// The cluster, stage or revision of the action; `None`: the whole rollout.
    pub subject: Option<String>,
    /// The user who requested it.
    pub by: String,
    /// Reason.
    pub reason: String,
}

/// A row of a DeletionApproval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionApprovalRow {
    /// Name, namespace and age.
    #[serde(flatten)]
    pub object: ObjectRow,
    /// `group NAME` or `sync NAME`.
    pub subject: String,
    /// The user who approved it.
    pub by: String,
    /// Reason.
    pub reason: String,
    /// The digest of the list.
    pub digest: String,
}

impl ObjectRow {
    fn of<K: ResourceExt>(object: &K) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            created_at: object.creation_timestamp().map(|time| time.0),
        }
    }
}

impl ReadyCondition {
    fn of(suspended: bool, conditions: &[Condition]) -> Self {
        let ready = conditions::find(conditions, READY);
        Self {
            suspended,
            status: ready.map_or_else(|| "Unknown".to_owned(), |ready| ready.status.clone()),
            reason: ready.map_or_else(String::new, |ready| ready.reason.clone()),
            message: ready.map_or_else(String::new, |ready| ready.message.clone()),
        }
    }
}

/// A time of a status, which is empty until the event has happened.
fn time(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

impl Summarize for SyncGroup {
    type Row = GroupRow;

    fn summarize(&self) -> GroupRow {
        let status = self.status.clone().unwrap_or_default();
        GroupRow {
            object: ObjectRow::of(self),
            ready: ReadyCondition::of(false, &status.conditions),
            clusters: status.clusters,
            last_known_good: status.last_known_good.map(|good| shorts(&good.revisions)),
            rollout: status.rollout.map(|rollout| RolloutRow {
                id: rollout.id,
                phase: rollout.phase,
                direction: rollout.direction,
                revision: shorts(&rollout.revisions),
                stage: rollout.stage,
                blocked_by: rollout.blocked_by,
            }),
        }
    }
}

impl Summarize for Cluster {
    type Row = ClusterRow;

    fn summarize(&self) -> ClusterRow {
        let status = self.status.clone().unwrap_or_default();
        ClusterRow {
            object: ObjectRow::of(self),
            ready: ReadyCondition::of(self.spec.suspend, &status.conditions),
            version: status.version,
            probed_at: time(&status.last_probe_time),
            labels: self.labels().clone(),
            cluster_id: status.cluster_id,
        }
    }
}

impl Summarize for SyncResource {
    type Row = SyncRow;

    fn summarize(&self) -> SyncRow {
        let status = self.status.clone().unwrap_or_default();
        let group = self.spec.group_ref.as_ref();
        SyncRow {
            object: ObjectRow::of(self),
            cluster: self.spec.cluster_ref.name.clone(),
            group: group.map(|group| format!("{}/{}", group.name, group.entry)),
            ready: ReadyCondition::of(self.spec.template.suspend, &status.conditions),
            applied: short(&status.last_applied_revision),
            target: short(&self.spec.revision),
            objects: status.inventory.objects,
            attempts: status.attempts,
            next_retry_at: time(&status.next_attempt_time),
        }
    }
}

impl Summarize for Source {
    type Row = SourceRow;

    fn summarize(&self) -> SourceRow {
        let status = self.status.clone().unwrap_or_default();
        SourceRow {
            object: ObjectRow::of(self),
            ready: ReadyCondition::of(self.spec.suspend, &status.conditions),
            revision: short(&status.revision),
            revision_since: time(&status.revision_time),
            url: self.spec.url.clone(),
        }
    }
}

impl Summarize for RolloutApproval {
    type Row = ApprovalRow;

    fn summarize(&self) -> ApprovalRow {
        let spec = &self.spec;
        ApprovalRow {
            object: ObjectRow::of(self),
            group: spec.group.clone(),
            rollout: spec.rollout,
            stage: spec.stage.clone(),
            by: operator::attributed(&spec.by, self),
            reason: spec.reason.clone(),
            release_digest: spec.release_digest.clone(),
        }
    }
}

impl Summarize for DeletionApproval {
    type Row = DeletionApprovalRow;

    fn summarize(&self) -> DeletionApprovalRow {
        let spec = &self.spec;
        let of = |kind: &str, name: &Option<String>| name.as_ref().map(|name| format!("{kind} {name}"));
        let subject = of("group", &spec.group).or_else(|| of("sync", &spec.sync));
        DeletionApprovalRow {
            object: ObjectRow::of(self),
            subject: subject.unwrap_or_default(),
            by: operator::attributed(&spec.by, self),
            reason: spec.reason.clone(),
            digest: spec.digest.clone(),
        }
    }
}

impl Summarize for RolloutAction {
    type Row = ActionRow;

    fn summarize(&self) -> ActionRow {
        let spec = &self.spec;
        let of = |kind: &str, name: &Option<String>| name.as_ref().map(|name| format!("{kind} {name}"));
        ActionRow {
            object: ObjectRow::of(self),
            group: spec.group.clone(),
            rollout: spec.rollout,
            action: spec.action,
            subject: of("cluster", &spec.cluster)
                .or_else(|| of("stage", &spec.stage))
                .or_else(|| spec.revision.clone()),
            by: operator::attributed(&spec.by, self),
            reason: spec.reason.clone(),
        }
    }
}
