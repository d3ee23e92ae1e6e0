//! The columns of each kind in a table.

use jiff::Timestamp;
use starling_api::Blocker;

use crate::cli::output::{age, duration};
use crate::read_model::listing::{
    ActionRow, ApprovalRow, ClusterRow, DeletionApprovalRow, GroupRow, ObjectRow, ReadyCondition, SourceRow,
    SyncRow,
};

/// The text of an empty cell.
const NONE: &str = "-";

/// A row of a table.
pub(super) trait Columns {
    /// The headings.
    fn headings(wide: bool) -> Vec<&'static str>;
    /// The cells below them.
    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String>;
}

fn or_none(text: &str) -> String {
    if text.is_empty() {
        NONE.to_owned()
    } else {
        text.to_owned()
    }
}

/// `True`, or the status with its reason.
fn ready(ready: &ReadyCondition) -> String {
    match ready.status.as_str() {
        _ if ready.suspended => "Suspended".to_owned(),
        "True" => "True".to_owned(),
        status if ready.reason.is_empty() => status.to_owned(),
        status => format!("{status} ({})", ready.reason),
    }
}

fn created(object: &ObjectRow, now: Timestamp) -> String {
    age(object.created_at, now)
}

/// The age of an event; `-` if it has not happened yet.
fn since(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(|| NONE.to_owned(), |time| age(Some(time), now))
}

/// The first blocker, how long it lasts, and the number of the others: `WindowClosed 3h12m`, `NoSlot +1`.
fn blockers(blocked_by: &[Blocker], now: Timestamp) -> String {
    let [first, rest @ ..] = blocked_by else {
        return NONE.to_owned();
    };
    let mut text = first.reason.clone();
    if let Ok(until) = first.recheck_at.parse::<Timestamp>() {
        text.push(' ');
        text.push_str(&duration(until.duration_since(now).as_secs()));
    }
    if !rest.is_empty() {
        text.push_str(&format!(" +{}", rest.len()));
    }
    text
}

impl Columns for GroupRow {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec![
            "NAME",
            "PHASE",
            "REVISION",
            "STAGE",
            "DONE",
            "IN FLIGHT",
            "FAILED",
            "BLOCKED BY",
            "AGE",
        ];
        if wide {
            headings.extend([
                "ROLLOUT",
                "DIRECTION",
                "PENDING",
                "UNREACHABLE",
                "ON HOLD",
                "LAST GOOD",
            ]);
        }
        headings
    }

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let counts = &self.clusters;
        let rollout = self.rollout.as_ref();
        let none = || NONE.to_owned();
        let mut cells = vec![
            self.object.name.clone(),
            rollout.map_or_else(|| ready(&self.ready), |rollout| format!("{:?}", rollout.phase)),
            rollout.map_or_else(none, |rollout| rollout.revision.clone()),
            or_none(rollout.map_or("", |rollout| &rollout.stage)),
            format!("{}/{}", counts.updated, counts.total),
            counts.progressing.to_string(),
            counts.failed.to_string(),
            blockers(rollout.map_or(&[], |rollout| &rollout.blocked_by), now),
            created(&self.object, now),
        ];
        if wide {
            cells.extend([
                rollout.map_or_else(none, |rollout| rollout.id.to_string()),
                rollout.map_or_else(none, |rollout| format!("{:?}", rollout.direction)),
                counts.pending.to_string(),
                counts.unreachable.to_string(),
                counts.held.to_string(),
                self.last_known_good.clone().unwrap_or_else(none),
            ]);
        }
        cells
    }
}

impl Columns for ClusterRow {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "READY", "VERSION", "PROBED", "AGE"];
        if wide {
            headings.extend(["LABELS", "ID", "STATUS"]);
        }
        headings
    }

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let mut cells = vec![
            self.object.name.clone(),
            ready(&self.ready),
            or_none(&self.version),
            since(self.probed_at, now),
            created(&self.object, now),
        ];
        if wide {
            let labels = self.labels.iter();
            let labels: Vec<String> = labels.map(|(key, value)| format!("{key}={value}")).collect();
            cells.extend([
                or_none(&labels.join(",")),
                or_none(&self.cluster_id),
                self.ready.message.clone(),
            ]);
        }
        cells
    }
}

impl Columns for SyncRow {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec![
            "NAME", "CLUSTER", "GROUP", "READY", "APPLIED", "TARGET", "OBJECTS", "AGE",
        ];
        if wide {
            headings.extend(["ATTEMPTS", "NEXT RETRY", "STATUS"]);
        }
        headings
    }

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let none = || NONE.to_owned();
        let mut cells = vec![
            self.object.name.clone(),
            self.cluster.clone(),
            self.group.clone().unwrap_or_else(none),
            ready(&self.ready),
            self.applied.clone(),
            self.target.clone(),
            self.objects.to_string(),
            created(&self.object, now),
        ];
        if wide {
            let next = self.next_retry_at;
            cells.extend([
                self.attempts.to_string(),
                next.map_or_else(none, |at| duration(at.duration_since(now).as_secs())),
                self.ready.message.clone(),
            ]);
        }
        cells
    }
}

impl Columns for SourceRow {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "READY", "REVISION", "SINCE", "AGE"];
        if wide {
            headings.extend(["URL", "STATUS"]);
        }
        headings
    }

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let mut cells = vec![
            self.object.name.clone(),
            ready(&self.ready),
            self.revision.clone(),
            since(self.revision_since, now),
            created(&self.object, now),
        ];
        if wide {
            cells.extend([self.url.clone(), self.ready.message.clone()]);
        }
        cells
    }
}

impl Columns for ApprovalRow {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "GROUP", "ROLLOUT", "STAGE", "BY", "AGE", "REASON"];
        if wide {
            headings.push("DIGEST");
        }
        headings
    }

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let mut cells = vec![
            self.object.name.clone(),
            self.group.clone(),
            self.rollout.to_string(),
            self.stage.clone(),
            self.by.clone(),
            created(&self.object, now),
            self.reason.clone(),
        ];
        if wide {
            cells.push(self.release_digest.clone());
        }
        cells
    }
}

impl Columns for DeletionApprovalRow {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "FOR", "BY", "AGE", "REASON"];
        if wide {
            headings.push("DIGEST");
        }
        headings
    }

    fn cells(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let mut cells = vec![
            self.object.name.clone(),
            self.subject.clone(),
            self.by.clone(),
            created(&self.object, now),
            self.reason.clone(),
        ];
        if wide {
            cells.push(self.digest.clone());
        }
        cells
    }
}

impl Columns for ActionRow {
    fn headings(_wide: bool) -> Vec<&'static str> {
        vec![
            "NAME", "GROUP", "ROLLOUT", "ACTION", "SUBJECT", "BY", "AGE", "REASON",
        ]
    }

    fn cells(&self, _wide: bool, now: Timestamp) -> Vec<String> {
        vec![
            self.object.name.clone(),
            self.group.clone(),
            self.rollout.to_string(),
            format!("{:?}", self.action),
            self.subject.clone().unwrap_or_else(|| NONE.to_owned()),
            self.by.clone(),
            created(&self.object, now),
            self.reason.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use starling_api::{Cluster, RolloutAction, Source, SyncGroup, SyncResource};

    use super::*;
    use crate::read_model::listing::Summarize;

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    fn object(kind: &str, spec: &Value, status: &Value) -> Value {
        json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "shop", "namespace": "fleet", "creationTimestamp": "2026-11-21T11:00:00Z"},
            "spec": spec, "status": status})
    }

    fn cells<K>(object: Value, wide: bool) -> Vec<String>
    where
        K: Summarize<Row: Columns> + serde::de::DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).unwrap();
        let cells = object.summarize().cells(wide, now());
        assert_eq!(cells.len(), K::Row::headings(wide).len());
        cells
    }

    #[test]
    fn a_group_has_its_rollout_and_its_blockers() {
        let revision = |entry: &str, text: &str| json!({"sync": entry, "revision": text});
        let commit = "8d1e2f3a".to_owned() + &"0".repeat(32);
        let status = json!({
            "clusters": {"total": 9, "updated": 3, "progressing": 1, "failed": 2, "pending": 3},
            "lastKnownGood": {"release": "r", "revisions": [revision("app", "v1@sha1:0123456789")]},
            "rollout": {"id": 7, "phase": "Progressing", "stage": "canary",
                "revisions": [revision("app", &format!("v2@sha1:{commit}")), revision("db", "v3@sha1:1111111111")],
                "blockedBy": [{"reason": "WindowClosed", "recheckAt": "2026-11-21T15:12:00Z"}, {"reason": "NoSlot"}]}});
        let group = object("SyncGroup", &json!({"clusterSelector": {}}), &status);
        assert_eq!(
            cells::<SyncGroup>(group.clone(), false),
            [
                "shop",
                "Progressing",
                "v2@8d1e2f3a +1",
                "canary",
                "3/9",
                "1",
                "2",
                "WindowClosed 3h12m +1",
                "1h"
            ]
        );
        let wide = cells::<SyncGroup>(group, true);
        assert_eq!(wide[9..], ["7", "Forward", "3", "0", "0", "v1@01234567"]);
        let new = object("SyncGroup", &json!({"clusterSelector": {}}), &json!({}));
        assert_eq!(cells::<SyncGroup>(new, false)[1..4], ["Unknown", "-", "-"]);
    }

    #[test]
    fn other_kinds_have_their_readiness() {
        let not_ready = json!([{"type": "Ready", "status": "False", "reason": "Unreachable", "message": "no answer",
            "lastTransitionTime": "2026-11-21T11:00:00Z"}]);
        let cluster = object(
            "Cluster",
            &json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
            &json!({"conditions": not_ready, "lastProbeTime": "2026-11-21T11:59:30Z"}),
        );
        assert_eq!(
            cells::<Cluster>(cluster.clone(), false),
            ["shop", "False (Unreachable)", "-", "30s", "1h"]
        );
        assert_eq!(cells::<Cluster>(cluster, true)[7], "no answer");
        let sync = object(
            "Sync",
            &json!({"clusterRef": {"name": "eu"}, "sourceRef": {"name": "s"}, "suspend": true,
                "groupRef": {"name": "g", "entry": "app"}, "revision": "main@sha1:abcdef0123"}),
            &json!({"inventory": {"objects": 12}}),
        );
        assert_eq!(
            cells::<SyncResource>(sync, false),
            [
                "shop",
                "eu",
                "g/app",
                "Suspended",
                "-",
                "main@abcdef01",
                "12",
                "1h"
            ]
        );
        let source = object(
            "Source",
            &json!({"url": "https://h/r", "ref": {"branch": "main"}}),
            &json!({"revision": "sha1:abcdef0123", "revisionTime": "2026-11-21T11:50:00Z"}),
        );
        assert_eq!(cells::<Source>(source, false)[2..4], ["abcdef01", "10m"]);
        let action = object(
            "RolloutAction",
            &json!({"group": "shop", "rollout": 7, "action": "Skip", "cluster": "eu", "by": "ann", "reason": "why"}),
            &Value::Null,
        );
        assert_eq!(
            cells::<RolloutAction>(action, false),
            ["shop", "shop", "7", "Skip", "cluster eu", "ann", "1h", "why"]
        );
    }
}
