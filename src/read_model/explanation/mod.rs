//! Explanations: the state of a group, a cluster or a Sync, what blocks it, and when it may be done.
//!
//! The present is explained from the objects on the management cluster: the planner gets the same input as in the
//! controller. The past is explained from the journal of the controller.

mod past;
mod present;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;
use starling_core::explain::{Estimate, Explanation};
use starling_core::ids::EntryName;
use starling_core::journal::past::RecordedAction;

use super::history::RolloutSummary;
use super::recorded::RecordedError;
use super::removals::PlannedRemoval;
use crate::controller::hub::HubError;

pub use past::Past;
pub use present::{NamespaceObjects, Present};

/// The subject of an explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainedObject {
    /// A SyncGroup.
    Group(String),
    /// A Sync.
    Sync(String),
    /// A Cluster.
    Cluster(String),
}

/// The kind of a subject that cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown kind {0}: expected GROUP, sync/NAME or cluster/NAME")]
pub struct UnknownKind(String);

impl FromStr for ExplainedObject {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, name) = text.split_once('/').unwrap_or(("syncgroup", text));
        let name = name.to_owned();
        match kind.to_ascii_lowercase().as_str() {
            "syncgroup" | "syncgroups" | "group" | "sg" => Ok(Self::Group(name)),
            "sync" | "syncs" => Ok(Self::Sync(name)),
            "cluster" | "clusters" => Ok(Self::Cluster(name)),
            other => Err(UnknownKind(other.to_owned())),
        }
    }
}

/// The explanation of a subject, for one group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SubjectExplanation {
    /// The subject, as `KIND/NAME`.
    pub subject: String,
    /// The group, as `NAMESPACE/NAME`; `None`: the Sync belongs to no group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The time that is explained.
    pub at: Timestamp,
    /// Number of the rollout; `None`: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<i64>,
    /// The entry of the journal that the explanation is from; `None`: it is from objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryReference>,
    /// The state and what blocks it.
    pub explanation: Explanation,
    /// The removals: Syncs that the group no longer wants; empty for the past.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub removals: Vec<PlannedRemoval>,
    /// Estimated time of completion; `None`: not estimated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// The state of each cluster; empty for the present.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterState>,
    /// The operator actions in effect; empty for the present.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<RecordedAction>,
    /// The releases of a group that no rollback can go back to; empty for the past.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<LostRelease>,
}

/// A release with revisions that are neither in the repository nor in the mirror.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LostRelease {
    /// Number of the rollout of the release.
    pub rollout: i64,
    /// The revisions, by entry.
    pub revisions: BTreeMap<String, String>,
}

impl LostRelease {
    /// Returns the lost releases in a history.
    #[must_use]
    pub fn of(history: &[RolloutSummary]) -> Vec<Self> {
        let lost = history.iter().filter(|row| !row.lost.is_empty());
        lost.map(|row| Self {
            rollout: row.rollout,
            revisions: row.lost.clone(),
        })
        .collect()
    }
}

/// A reference to an entry of the journal. Serialised as an array of its number and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "(i64, Timestamp)")]
pub struct EntryReference {
    /// Number of the entry.
    pub number: i64,
    /// Time of the entry.
    pub written_at: Timestamp,
}

impl From<EntryReference> for (i64, Timestamp) {
    fn from(EntryReference { number, written_at }: EntryReference) -> Self {
        (number, written_at)
    }
}

/// The recorded state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterState {
    /// Name of the cluster.
    pub cluster: String,
    /// Its stage.
    pub stage: String,
    /// The decision of the plan, such as `in flight` or `blocked: NoSlot`.
    pub decision: String,
    /// The state of each entry.
    pub entries: BTreeMap<EntryName, EntryState>,
}

/// The recorded state of an entry on a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryState {
    /// The admitted revision; empty: none.
    pub revision: String,
    /// Progress of the revision, such as `in progress` or `healthy since …`.
    pub state: String,
}

/// Reason why a subject cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplanationError {
    /// The group does not exist.
    #[error("SyncGroup {namespace}/{group} not found")]
    GroupNotFound {
        /// Its namespace.
        namespace: String,
        /// Its name.
        group: String,
    },
    /// The group does not select the cluster.
    #[error("SyncGroup {group} does not select cluster {cluster}")]
    NotSelected {
        /// The group.
        group: String,
        /// The cluster.
        cluster: String,
    },
    /// The group did not select the cluster at that time.
    #[error("SyncGroup {group} did not select cluster {cluster} at {at}")]
    NotSelectedAt {
        /// The group.
        group: String,
        /// The cluster.
        cluster: String,
        /// The time.
        at: Timestamp,
    },
    /// No group selects the cluster.
    #[error("no SyncGroup of namespace {namespace} selects cluster {cluster}")]
    NoGroupSelects {
        /// The namespace.
        namespace: String,
        /// The cluster.
        cluster: String,
    },
    /// The Sync belongs to no group.
    #[error("Sync {sync} belongs to no group; the journal records groups only")]
    NoGroup {
        /// The Sync.
        sync: String,
    },
    /// No journal has the cluster at that time.
    #[error("no journal of namespace {namespace} has cluster {cluster} at {at}")]
    NotRecorded {
        /// The namespace.
        namespace: String,
        /// The cluster.
        cluster: String,
        /// The time.
        at: Timestamp,
    },
    /// The journal of the group begins later.
    #[error("the journal of {namespace}/{group} has no entry at {at}; it begins at {begins_at}")]
    BeforeJournal {
        /// Namespace of the group.
        namespace: String,
        /// The group.
        group: String,
        /// The time.
        at: Timestamp,
        /// Time of the first entry.
        begins_at: Timestamp,
    },
    /// The journal of the group has no entry.
    #[error("the journal of {namespace}/{group} in {} is empty", directory.display())]
    EmptyJournal {
        /// Namespace of the group.
        namespace: String,
        /// The group.
        group: String,
        /// The data directory.
        directory: PathBuf,
    },
    /// The journal cannot be read.
    #[error(transparent)]
    Recorded(#[from] RecordedError),
    /// The management cluster did not return something.
    #[error(transparent)]
    Hub(#[from] HubError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_a_group_a_sync_or_a_cluster() {
        for (text, expected) in [
            ("web", ExplainedObject::Group("web".into())),
            ("syncgroup/web", ExplainedObject::Group("web".into())),
            ("sync/web-eu-1", ExplainedObject::Sync("web-eu-1".into())),
            ("clusters/eu-1", ExplainedObject::Cluster("eu-1".into())),
        ] {
            assert_eq!(text.parse(), Ok(expected));
        }
        let error = "pod/x".parse::<ExplainedObject>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "unknown kind pod: expected GROUP, sync/NAME or cluster/NAME"
        );
    }

    /// Programs read this form.
    #[test]
    fn the_json_form_is_stable() {
        let at: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        let explanation = SubjectExplanation {
            subject: "syncgroup/web".into(),
            group: Some("shop/web".into()),
            at,
            rollout: Some(3),
            entry: Some(EntryReference {
                number: 7,
                written_at: at,
            }),
            explanation: Explanation {
                state: "Succeeded".into(),
                blockers: Vec::new(),
                next: String::new(),
                next_at: None,
            },
            removals: Vec::new(),
            estimate: None,
            clusters: Vec::new(),
            actions: Vec::new(),
            lost: Vec::new(),
        };
        assert_eq!(
            serde_json::to_string(&explanation).unwrap(),
            r#"{"subject":"syncgroup/web","group":"shop/web","at":"2026-11-20T10:00:00Z","rollout":3,"entry":[7,"2026-11-20T10:00:00Z"],"explanation":{"state":"Succeeded","blockers":[],"next":""}}"#
        );
    }
}
