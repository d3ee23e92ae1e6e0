//! The consequences of the state of a group for the deletions of its Syncs, which run in a loop of their own.

use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::ListParams;
use starling_api::{ABANDON, ADMITTED_AT, Cluster, ROLLOUT, RolloutAction, SyncGroup, SyncResource};
use starling_core::clock_jumps::{ClockJumps, is_far_ahead};
use starling_core::expand::{self, SelectorError};
use starling_core::identity;
use starling_core::ids::RolloutNumber;
use starling_core::plan::{OperatorInput, ReadStrategy, RemovalHold};
use starling_core::release::rolled_revision;
use starling_core::rollout::operator::{RolloutSubject, operator_actions};
use starling_core::window::{Calendar, combined};

use crate::controller::caches::{ObjectCaches, prune_requests};
use crate::controller::hub::{Hub, HubError};
use crate::controller::object_key::ObjectKey;

/// Why nothing is deleted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// The reason, for messages.
    pub(super) why: String,
    /// When time ends it; `None`: only a person does.
    pub(super) until: Option<Timestamp>,
}

/// Returns why a prune waits that comes after the attempt that the group admitted: at the end of a grace or of a hold.
/// A deletion has no slot and no gate of its own, but waits like the start of a cluster while the group is stopped or
/// no window is open.
pub(super) fn prune_stop(
    objects: &ObjectCaches,
    group: &SyncGroup,
    cluster: Option<&Cluster>,
    now: Timestamp,
) -> Option<Stop> {
    if let Some(why) = stopped(objects, group) {
        return Some(Stop { why, until: None });
    }
    closed_window(group, cluster, now)
}

/// Returns why nothing may be deleted on a cluster now, by the windows of a group.
pub(super) fn closed_window(group: &SyncGroup, cluster: Option<&Cluster>, now: Timestamp) -> Option<Stop> {
    let strategy = ReadStrategy::new(&group.spec.rollout_strategy).ok()?;
    let place = strategy.place(cluster?.labels());
    let windows = place.windows.iter();
    let windows = windows.filter_map(|window| strategy.strategy.windows.get(*window));
    let calendars: Vec<Calendar> = windows.map(|window| Calendar::of(window, now)).collect();
    let opening = combined(&calendars.iter().collect::<Vec<_>>(), now);
    let name = group.name_any();
    (!calendars.is_empty() && !opening.is_open).then(|| Stop {
        why: format!("no window of SyncGroup {name} is open"),
        until: opening.changes_at.or(opening.known_until),
    })
}

/// Returns why a group deletes nothing: it is suspended, or an operator paused its rollout. `None`: it may delete.
pub(super) fn stopped(objects: &ObjectCaches, group: &SyncGroup) -> Option<String> {
    let actions = objects.actions.indexed(&ObjectKey::of(group));
    stopped_by(group, actions.iter().map(|action| &**action))
}

/// The same by the operator actions that the management cluster has now: a person stops a group when something goes
/// wrong, and a watch may deliver nothing just then.
///
/// # Errors
/// [`HubError`].
pub(super) async fn stopped_now(hub: &Hub, group: &SyncGroup) -> Result<Option<String>, HubError> {
    if group.spec.suspend {
        return Ok(stopped_by(group, []));
    }
    Ok(stopped_by(group, &actions_now(hub, group).await?))
}

/// Reads the operator actions of the namespace of a group from the management cluster.
///
/// # Errors
/// [`HubError`].
pub(super) async fn actions_now(hub: &Hub, group: &SyncGroup) -> Result<Vec<RolloutAction>, HubError> {
    let namespace = group.namespace().unwrap_or_default();
    hub.list(&namespace, &ListParams::default()).await
}

/// Returns why what the release deletes later has to wait: an operator aborted its rollout.
pub(super) fn aborted_by<'a>(
    group: &SyncGroup,
    actions: impl IntoIterator<Item = &'a RolloutAction>,
) -> Option<String> {
    let is_aborted = requests(group, actions).aborted.is_some();
    is_aborted.then(|| prune_requests::why(&group.name_any(), Some(RemovalHold::Aborted)))
}

/// The actions are the state: the status of a group that is being deleted is not kept current.
pub(super) fn stopped_by<'a>(
    group: &SyncGroup,
    actions: impl IntoIterator<Item = &'a RolloutAction>,
) -> Option<String> {
    let name = group.name_any();
    if group.spec.suspend {
        return Some(format!("SyncGroup {name} is suspended"));
    }
    let is_paused = requests(group, actions).paused.is_some();
    is_paused.then(|| format!("the rollout of SyncGroup {name} is paused"))
}

/// Reports whether the admission of a Sync is over: the group is at another rollout, `progressDeadline` has passed, or
/// an operator aborted the rollout. What its attempt deletes from then on is no part of what the group admitted: a
/// cluster may come back days later, and a person may have stopped the group or reverted the commit since.
pub(super) fn is_admission_over(
    group: &SyncGroup,
    sync: &SyncResource,
    actions: &[RolloutAction],
    (now, clock_jumps): (Timestamp, &ClockJumps),
) -> bool {
    let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
    let annotation = |name: &str| sync.annotations().get(name).map(String::as_str);
    let is_current = rollout.is_some_and(|rollout| {
        let admitted_in = annotation(ROLLOUT).and_then(|number| number.parse().ok());
        admitted_in == Some(RolloutNumber::of(rollout))
    });
    let admitted_at: Option<Timestamp> = annotation(ADMITTED_AT).and_then(|at| at.parse().ok());
    // A clock that was wrong wrote it, and nobody knows when that was.
    let admitted_at = admitted_at.filter(|at| !is_far_ahead(*at, now));
    let deadline = group.spec.rollout_strategy.progress_deadline.as_std();
    let due = admitted_at.and_then(|at| clock_jumps.due(at, deadline));
    !is_current || due.is_none_or(|due| due <= now) || requests(group, actions).aborted.is_some()
}

/// Reports whether the removal of a Sync is over that began at a time: it gave its slot back, and what it deletes from
/// then on is no part of what the plan decided. Its objects were held, or its cluster was away.
pub(super) fn is_removal_over(
    group: &SyncGroup,
    since: Timestamp,
    (now, clock_jumps): (Timestamp, &ClockJumps),
) -> bool {
    let deadline = group.spec.rollout_strategy.progress_deadline.as_std();
    let due = clock_jumps.due(since, deadline);
    due.is_none_or(|due| due <= now)
}

/// Returns the requests of operators for the last rollout of a group.
pub(super) fn requests<'a>(
    group: &SyncGroup,
    actions: impl IntoIterator<Item = &'a RolloutAction>,
) -> OperatorInput {
    let status = group.status.as_ref();
    let Some(rollout) = status.and_then(|status| status.rollout.as_ref()) else {
        return OperatorInput::default();
    };
    let name = group.name_any();
    let subject = RolloutSubject {
        group: &name,
        since: identity::created_at(group),
        rollout: RolloutNumber::of(rollout),
        started_at: &rollout.start_time,
        digest: None,
    };
    operator_actions(subject, actions, []).input
}

/// Reports whether a person abandoned the objects of a Sync: they stay if the cluster is unreachable.
pub(super) fn is_abandoned(sync: &SyncResource) -> bool {
    sync.annotations().get(ABANDON).map(String::as_str) == Some("true")
}

/// Reports whether a group has an entry. A rollback has those of its release, whatever the spec says: it removes what
/// the release lacks, and takes the removal of an entry back that it has.
pub(super) fn has_entry(group: &SyncGroup, entry: &str) -> bool {
    let rollout = group.status.as_ref().and_then(|status| status.rollout.as_ref());
    match rollout.filter(|rollout| !rollout.direction.is_forward()) {
        Some(rollout) => rolled_revision(rollout, entry).is_some(),
        None => group.spec.syncs.iter().any(|one| one.name == entry),
    }
}

/// Reports whether a group selects a cluster. One that is being deleted selects none, and none selects a Cluster that
/// is being deleted.
///
/// # Errors
/// [`SelectorError`]: it is not known, because the selector is invalid. Nothing may be taken away because of that.
pub(super) fn selects(group: &SyncGroup, cluster: &Cluster) -> Result<bool, SelectorError> {
    if group.metadata.deletion_timestamp.is_some() || cluster.metadata.deletion_timestamp.is_some() {
        return Ok(false);
    }
    expand::selects(&group.spec.cluster_selector, cluster.labels())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rollback_wants_the_entries_of_its_release() {
        let group = |direction: &str, rolled: &[&str]| -> SyncGroup {
            let revisions: Vec<_> = rolled
                .iter()
                .map(|name| json!({"sync": name, "revision": "main@sha1:1"}))
                .collect();
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "web"},
                "spec": {
                    "clusterSelector": {"matchLabels": {"web": "yes"}},
                    "syncs": [{"name": "app", "sourceRef": {"name": "s"}, "path": "."}],
                },
                "status": {"rollout": {"id": 2, "direction": direction, "revisions": revisions}},
            }))
            .unwrap()
        };
        let cluster = |labels: serde_json::Value| -> Cluster {
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "m1", "labels": labels},
                "spec": {"kubeConfig": {"secretRef": {"name": "m1"}}},
            }))
            .unwrap()
        };
        let (selected, other) = (cluster(json!({"web": "yes"})), cluster(json!({})));
        for (direction, rolled, entry, cluster, expected) in [
            ("Forward", &["app"][..], "app", &selected, true),
            ("Forward", &["app"], "app", &other, false),
            ("Forward", &["app"], "tool", &selected, false),
            // The entry is back in the spec, and its rollout has not begun.
            ("Forward", &[], "app", &selected, true),
            ("Back", &["app"], "app", &selected, true),
            ("Back", &[], "app", &selected, false),
            // It was removed from the spec since.
            ("Back", &["tool"], "tool", &selected, true),
            ("Back", &["tool"], "tool", &other, false),
        ] {
            let group = group(direction, rolled);
            let wanted = has_entry(&group, entry) && selects(&group, cluster).unwrap();
            assert_eq!(wanted, expected, "{direction} {rolled:?} {entry}");
        }
    }

    /// Guards against a cluster that loses objects because of a typing error.
    #[test]
    fn it_is_not_known_what_an_invalid_selector_selects() {
        let group = |selector: serde_json::Value, more: serde_json::Value| -> SyncGroup {
            let mut group = json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "web"},
                "spec": {"clusterSelector": selector, "syncs": []},
            });
            group["metadata"]["deletionTimestamp"] = more;
            serde_json::from_value(group).unwrap()
        };
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "m1"},
            "spec": {"kubeConfig": {"secretRef": {"name": "m1"}}},
        }))
        .unwrap();
        let invalid = json!({"matchExpressions": [{"key": "tier", "operator": "In"}]});
        assert!(selects(&group(invalid.clone(), json!(null)), &cluster).is_err());
        assert!(selects(&group(json!({}), json!(null)), &cluster).unwrap());
        let deleted_at = json!("2026-11-02T00:00:00Z");
        assert!(!selects(&group(invalid, deleted_at), &cluster).unwrap());
    }

    /// Guards against a prune of an attempt that comes long after its admission.
    #[test]
    fn an_admission_ends_with_its_rollout_its_deadline_and_an_abort() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let group = |rollout: i64| -> SyncGroup {
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
                "metadata": {"name": "web", "creationTimestamp": at(0).to_string()},
                "spec": {
                    "clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}, "path": "."}],
                    "rolloutStrategy": {"progressDeadline": "1m"},
                },
                "status": {"rollout": {"id": rollout, "startTime": at(0).to_string()}},
            }))
            .unwrap()
        };
        let sync = |annotations: serde_json::Value| -> SyncResource {
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
                "metadata": {"name": "web-app-m1", "annotations": annotations},
                "spec": {"clusterRef": {"name": "m1"}, "sourceRef": {"name": "s"}},
            }))
            .unwrap()
        };
        let abort: RolloutAction = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "RolloutAction",
            "metadata": {"name": "a", "creationTimestamp": at(10).to_string()},
            "spec": {"group": "web", "rollout": 2, "action": "Abort", "by": "jane", "reason": "wrong"},
        }))
        .unwrap();
        let admitted = sync(json!({ROLLOUT: "2", ADMITTED_AT: at(1).to_string()}));
        let jumps = ClockJumps::default();
        for (rollout, sync, actions, now, expected) in [
            (2, &admitted, &[][..], 60, false),
            (2, &admitted, &[], 61, true),
            (3, &admitted, &[], 2, true),
            (2, &admitted, std::slice::from_ref(&abort), 11, true),
            (2, &sync(json!({ROLLOUT: "2"})), &[], 2, true),
            (2, &sync(json!({})), &[], 2, true),
        ] {
            let is_over = is_admission_over(&group(rollout), sync, actions, (at(now), &jumps));
            assert_eq!(is_over, expected, "rollout {rollout}, at {now}: {sync:?}");
        }
    }
}
