//! What is told of each kind in a table.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::{self, Condition, READY};
use starling_api::{
    Cluster, EntryRevision, RolloutAction, RolloutApproval, RolloutStatus, Source, SyncGroup, SyncResource,
};

use crate::cli::output::age;

/// Hex digits of a commit that are shown.
const SHORT: usize = 8;
/// What stands where nothing is to be told.
const NOTHING: &str = "-";

/// A row of a table.
pub(super) trait Row: ResourceExt {
    /// The headings.
    fn headings(wide: bool) -> Vec<&'static str>;
    /// What stands below them.
    fn row(&self, wide: bool, now: Timestamp) -> Vec<String>;
}

fn created<K: ResourceExt>(object: &K, now: Timestamp) -> String {
    age(object.creation_timestamp().map(|time| time.0), now)
}

fn or_nothing(text: &str) -> String {
    if text.is_empty() {
        NOTHING.to_owned()
    } else {
        text.to_owned()
    }
}

/// `True`, or the reason why not.
fn ready(conditions: &[Condition]) -> String {
    match conditions::find(conditions, READY) {
        None => "Unknown".to_owned(),
        Some(ready) if ready.status == "True" => "True".to_owned(),
        Some(ready) => format!("{} ({})", ready.status, ready.reason),
    }
}

/// The same of what can be suspended: then nothing else counts.
fn ready_unless(suspended: bool, conditions: &[Condition]) -> String {
    if suspended {
        "Suspended".to_owned()
    } else {
        ready(conditions)
    }
}

/// How long ago a time of a status was; it is empty while nothing happened yet.
fn since(time: &str, now: Timestamp) -> String {
    let time = time.parse::<Timestamp>().ok();
    time.map_or_else(|| NOTHING.to_owned(), |time| age(Some(time), now))
}

fn message(conditions: &[Condition]) -> String {
    conditions::find(conditions, READY).map_or_else(String::new, |ready| ready.message.clone())
}

/// `v1.4.2@8d1e2f3a`: the name and the beginning of the commit.
pub(in crate::cli) fn short(revision: &str) -> String {
    let (name, commit) = revision.rsplit_once('@').unwrap_or(("", revision));
    let hex = commit.split_once(':').map_or(commit, |(_, hex)| hex);
    let hex: String = hex.chars().take(SHORT).collect();
    match (name, hex.as_str()) {
        ("", "") => NOTHING.to_owned(),
        ("", hex) => hex.to_owned(),
        (name, hex) => format!("{name}@{hex}"),
    }
}

/// The revisions of a release: one, if all entries have the same.
pub(in crate::cli) fn shorts(revisions: &[EntryRevision]) -> String {
    let mut texts: Vec<String> = revisions.iter().map(|entry| short(&entry.revision)).collect();
    texts.dedup();
    match &texts[..] {
        [] => NOTHING.to_owned(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} +{}", rest.len()),
    }
}

impl Row for SyncGroup {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec![
            "NAME",
            "PHASE",
            "REVISION",
            "STAGE",
            "DONE",
            "WORKING",
            "FAILED",
            "WAITS FOR",
            "AGE",
        ];
        if wide {
            headings.extend(["ROLLOUT", "DIRECTION", "PENDING", "UNREACHABLE", "HELD", "GOOD"]);
        }
        headings
    }

    fn row(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let counts = status.clusters;
        let rollout = status.rollout.as_ref();
        let phase = rollout.map_or_else(
            || ready(&status.conditions),
            |rollout| format!("{:?}", rollout.phase),
        );
        let mut row = vec![
            self.name_any(),
            phase,
            rollout.map_or_else(|| NOTHING.to_owned(), |rollout| shorts(&rollout.revisions)),
            or_nothing(rollout.map_or("", |rollout| &rollout.stage)),
            format!("{}/{}", counts.updated, counts.total),
            counts.progressing.to_string(),
            counts.failed.to_string(),
            waits_for(rollout, now),
            created(self, now),
        ];
        if wide {
            let direction = rollout.map_or_else(
                || NOTHING.to_owned(),
                |rollout| format!("{:?}", rollout.direction),
            );
            let good = status.last_known_good.as_ref();
            row.extend([
                rollout.map_or_else(|| NOTHING.to_owned(), |rollout| rollout.id.to_string()),
                direction,
                counts.pending.to_string(),
                counts.unreachable.to_string(),
                counts.held.to_string(),
                good.map_or_else(|| NOTHING.to_owned(), |good| shorts(&good.revisions)),
            ]);
        }
        row
    }
}

/// `WindowClosed 3h12m`, `NoSlot +1`: the first thing that is waited for, for how long, and how many more there are.
fn waits_for(rollout: Option<&RolloutStatus>, now: Timestamp) -> String {
    let Some([first, rest @ ..]) = rollout.map(|rollout| &rollout.blocked_by[..]) else {
        return NOTHING.to_owned();
    };
    let mut text = first.reason.clone();
    if let Ok(until) = first.recheck_at.parse::<Timestamp>() {
        let wait = until.duration_since(now).as_secs();
        text.push(' ');
        text.push_str(&crate::cli::output::duration(wait));
    }
    if !rest.is_empty() {
        text.push_str(&format!(" +{}", rest.len()));
    }
    text
}

impl Row for Cluster {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "READY", "VERSION", "PROBED", "AGE"];
        if wide {
            headings.extend(["LABELS", "ID", "STATUS"]);
        }
        headings
    }

    fn row(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let mut row = vec![
            self.name_any(),
            ready_unless(self.spec.suspend, &status.conditions),
            or_nothing(&status.version),
            since(&status.last_probe_time, now),
            created(self, now),
        ];
        if wide {
            let labels: Vec<String> = self
                .labels()
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            row.extend([
                or_nothing(&labels.join(",")),
                or_nothing(&status.cluster_id),
                message(&status.conditions),
            ]);
        }
        row
    }
}

impl Row for SyncResource {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec![
            "NAME", "CLUSTER", "GROUP", "READY", "APPLIED", "WANTED", "OBJECTS", "AGE",
        ];
        if wide {
            headings.extend(["ATTEMPTS", "NEXT TRY", "STATUS"]);
        }
        headings
    }

    fn row(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let group = self.spec.group_ref.as_ref();
        let mut row = vec![
            self.name_any(),
            self.spec.cluster_ref.name.clone(),
            group.map_or_else(
                || NOTHING.to_owned(),
                |group| format!("{}/{}", group.name, group.entry),
            ),
            ready_unless(self.spec.template.suspend, &status.conditions),
            short(&status.last_applied_revision),
            short(&self.spec.revision),
            status.inventory.objects.to_string(),
            created(self, now),
        ];
        if wide {
            let next = status.next_attempt_time.parse::<Timestamp>().ok();
            let next = next.map(|at| crate::cli::output::duration(at.duration_since(now).as_secs()));
            row.extend([
                status.attempts.to_string(),
                next.unwrap_or_else(|| NOTHING.to_owned()),
                message(&status.conditions),
            ]);
        }
        row
    }
}

impl Row for Source {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "READY", "REVISION", "SINCE", "AGE"];
        if wide {
            headings.extend(["URL", "STATUS"]);
        }
        headings
    }

    fn row(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let mut row = vec![
            self.name_any(),
            ready_unless(self.spec.suspend, &status.conditions),
            short(&status.revision),
            since(&status.revision_time, now),
            created(self, now),
        ];
        if wide {
            row.extend([self.spec.url.clone(), message(&status.conditions)]);
        }
        row
    }
}

impl Row for RolloutApproval {
    fn headings(wide: bool) -> Vec<&'static str> {
        let mut headings = vec!["NAME", "GROUP", "ROLLOUT", "STAGE", "BY", "AGE", "REASON"];
        if wide {
            headings.push("DIGEST");
        }
        headings
    }

    fn row(&self, wide: bool, now: Timestamp) -> Vec<String> {
        let mut row = vec![
            self.name_any(),
            self.spec.group.clone(),
            self.spec.rollout.to_string(),
            self.spec.stage.clone(),
            self.spec.by.clone(),
            created(self, now),
            self.spec.reason.clone(),
        ];
        if wide {
            row.push(self.spec.release_digest.clone());
        }
        row
    }
}

impl Row for RolloutAction {
    fn headings(_wide: bool) -> Vec<&'static str> {
        vec![
            "NAME", "GROUP", "ROLLOUT", "ACTION", "ABOUT", "BY", "AGE", "REASON",
        ]
    }

    fn row(&self, _wide: bool, now: Timestamp) -> Vec<String> {
        let spec = &self.spec;
        let about = spec
            .cluster
            .as_ref()
            .map(|cluster| format!("cluster {cluster}"))
            .or_else(|| spec.stage.as_ref().map(|stage| format!("stage {stage}")))
            .or_else(|| spec.revision.clone());
        vec![
            self.name_any(),
            spec.group.clone(),
            spec.rollout.to_string(),
            format!("{:?}", spec.action),
            about.unwrap_or_else(|| NOTHING.to_owned()),
            spec.by.clone(),
            created(self, now),
            spec.reason.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn now() -> Timestamp {
        "2026-11-21T12:00:00Z".parse().unwrap()
    }

    fn object(kind: &str, spec: &Value, status: &Value) -> Value {
        json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "shop", "namespace": "fleet", "creationTimestamp": "2026-11-21T11:00:00Z"},
            "spec": spec, "status": status})
    }

    fn told<K: Row + serde::de::DeserializeOwned>(object: Value, wide: bool) -> Vec<String> {
        let object: K = serde_json::from_value(object).unwrap();
        let row = object.row(wide, now());
        assert_eq!(row.len(), K::headings(wide).len());
        row
    }

    #[test]
    fn a_group_tells_where_it_is_and_what_it_waits_for() {
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
            told::<SyncGroup>(group.clone(), false),
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
        let wide = told::<SyncGroup>(group, true);
        assert_eq!(wide[9..], ["7", "Forward", "3", "0", "0", "v1@01234567"]);
        let new = object("SyncGroup", &json!({"clusterSelector": {}}), &json!({}));
        assert_eq!(told::<SyncGroup>(new, false)[1..4], ["Unknown", "-", "-"]);
    }

    #[test]
    fn the_others_tell_what_is_wrong_with_them() {
        let not_ready = json!([{"type": "Ready", "status": "False", "reason": "Unreachable", "message": "no answer",
            "lastTransitionTime": "2026-11-21T11:00:00Z"}]);
        let cluster = object(
            "Cluster",
            &json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
            &json!({"conditions": not_ready, "lastProbeTime": "2026-11-21T11:59:30Z"}),
        );
        assert_eq!(
            told::<Cluster>(cluster.clone(), false),
            ["shop", "False (Unreachable)", "-", "30s", "1h"]
        );
        assert_eq!(told::<Cluster>(cluster, true)[7], "no answer");
        let sync = object(
            "Sync",
            &json!({"clusterRef": {"name": "eu"}, "sourceRef": {"name": "s"}, "suspend": true,
                "groupRef": {"name": "g", "entry": "app"}, "revision": "main@sha1:abcdef0123"}),
            &json!({"inventory": {"objects": 12}}),
        );
        assert_eq!(
            told::<SyncResource>(sync, false),
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
        assert_eq!(told::<Source>(source, false)[2..4], ["abcdef01", "10m"]);
        let action = object(
            "RolloutAction",
            &json!({"group": "shop", "rollout": 7, "action": "Skip", "cluster": "eu", "by": "ann", "reason": "why"}),
            &Value::Null,
        );
        assert_eq!(
            told::<RolloutAction>(action, false),
            ["shop", "shop", "7", "Skip", "cluster eu", "ann", "1h", "why"]
        );
    }
}
