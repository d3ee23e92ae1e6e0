//! Maintains the drift state of a Sync after checks and attempts, and selects the objects to repair.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::conditions::{self, CONTESTED};
use starling_core::apply::Record;
use starling_core::drift_fight::DriftFight;
use starling_core::fields::FieldSet;
use starling_core::object::ObjectId;

use super::observe::SyncSnapshot;
use super::validate::ValidSync;
use crate::controller::caches::drift_states::{DriftState, Holder, LostFields, Repaired};
use crate::controller::context::SyncContext;
use starling_member::{ApplyOutcome, DriftReport, Manager, Member};

/// Records the results of a drift check, and returns the objects to repair now.
pub(super) async fn checked(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    report: &DriftReport,
    records: &BTreeMap<ObjectId, Record>,
) -> BTreeSet<ObjectId> {
    let observed = sync.observed;
    let state = context.caches.drift.get(&observed.key).unwrap_or_default();
    let before = if state.repaired.is_empty() && was_fought_over(observed) {
        // The process has just started, or a reconcile was requested right after the start.
        resumed(state, report)
    } else {
        state
    };
    let state = after_check(before, report, records);
    let repair = due(&state, report, sync, context.clock.now());
    context.caches.drift.set(&observed.key, state);
    let changed = observed_records(report, records);
    let (cluster_id, owner) = (&observed.cluster_id, &observed.owner);
    let saved = context
        .ledger
        .save_records(cluster_id, owner, &changed, &BTreeSet::new())
        .await;
    if let Err(error) = saved {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "records of objects not saved");
    }
    repair
}

/// Returns the objects that had reconcile disabled or another owner, and no longer have. An attempt without a check
/// before it reads them: an attempt that fails because of these objects is retried without a drift check in between.
pub(super) async fn returned(
    member: &Member,
    observed: &SyncSnapshot,
    records: &BTreeMap<ObjectId, Record>,
) -> BTreeSet<ObjectId> {
    let is_away = |(_, record): &(&ObjectId, &Record)| {
        record.management.left_alone || !record.management.owner.is_empty()
    };
    let away: BTreeMap<ObjectId, Record> = records
        .iter()
        .filter(is_away)
        .map(|(key, record)| (key.clone(), record.clone()))
        .collect();
    if away.is_empty() {
        return BTreeSet::new();
    }
    // Objects that cannot be read stay as they are; the attempt reports the problem with the cluster.
    member
        .find_drift(&observed.owner, &away, observed.deadline())
        .await
        .drifted
}

/// Applies the results of an attempt: others may undo its repairs again.
pub(super) fn attempted(context: SyncContext<'_>, observed: &SyncSnapshot, applied: &ApplyOutcome) {
    let mut state = context.caches.drift.get(&observed.key).unwrap_or_default();
    let now = context.clock.now();
    if applied.interrupted.is_none() {
        state.left_alone = applied.left_alone.iter().cloned().collect();
    }
    for one in &applied.applied {
        if one.record.management.left_alone {
            state.left_alone.insert(one.key.clone());
        }
        if let Some(fields) = &one.fields {
            let before = state.repaired.get(&one.key).map(|repaired| repaired.fight);
            let lost = state.repaired.remove(&one.key).map(|repaired| repaired.lost);
            let repaired = Repaired {
                fight: DriftFight::repaired(before, now),
                fields: Some(fields.clone()),
                lost: lost.unwrap_or_default(),
            };
            state.repaired.insert(one.key.clone(), repaired);
        }
    }
    for key in applied
        .deleted
        .iter()
        .chain(&applied.released)
        .chain(&applied.relinquished)
        .chain(&applied.undeleted)
    {
        state.repaired.remove(key);
    }
    context.caches.drift.set(&observed.key, state);
}

fn was_fought_over(observed: &SyncSnapshot) -> bool {
    conditions::find(&observed.status.conditions, CONTESTED).is_some()
}

fn resumed(state: DriftState, report: &DriftReport) -> DriftState {
    let repaired = report.drifted.iter().map(|key| {
        let repaired = Repaired {
            fight: DriftFight::resumed(),
            fields: None,
            lost: LostFields::default(),
        };
        (key.clone(), repaired)
    });
    DriftState {
        repaired: repaired.collect(),
        ..state
    }
}

fn after_check(
    mut state: DriftState,
    report: &DriftReport,
    records: &BTreeMap<ObjectId, Record>,
) -> DriftState {
    let unread = |key: &ObjectId| report.failures.iter().any(|(kind, _)| key.is_of(kind));
    // An object that is in sync again ends its drift fight.
    state
        .repaired
        .retain(|key, _| report.drifted.contains(key) || unread(key));
    for (key, repaired) in &mut state.repaired {
        if let (Some(before), Some((own, managers))) = (&repaired.fields, report.managers.get(key)) {
            repaired.lost = lost(before, own, managers);
        }
    }
    // A check reads the annotations on the member. The annotations in git are known from the last attempt.
    let in_git = |key: &ObjectId| {
        records
            .get(key)
            .is_none_or(|record| !record.management.left_alone)
    };
    state.left_alone.retain(|key| in_git(key) || unread(key));
    state.left_alone.extend(report.left_alone.iter().cloned());
    state
}

/// Returns the drifted objects whose repair is due. A requested reconcile makes all of them due.
fn due(state: &DriftState, report: &DriftReport, sync: &ValidSync<'_>, now: Timestamp) -> BTreeSet<ObjectId> {
    let interval = sync.spec.template.interval.as_std();
    let is_due = |key: &&ObjectId| {
        let repaired = state.repaired.get(*key);
        sync.observed.requested() || repaired.is_none_or(|repaired| repaired.fight.is_due(interval, now))
    };
    report.drifted.iter().filter(is_due).cloned().collect()
}

/// Returns the records whose management state differs from the observed one. An object with reconcile disabled, or with
/// another owner, keeps that state until it is applied again, since only then it is in sync.
fn observed_records(
    report: &DriftReport,
    records: &BTreeMap<ObjectId, Record>,
) -> BTreeMap<ObjectId, Record> {
    let left_alone = report.left_alone.iter().filter_map(|key| {
        let mut record = records
            .get(key)
            .filter(|record| !record.management.left_alone)?
            .clone();
        record.management.left_alone = true;
        Some((key.clone(), record))
    });
    let foreign = report.foreign.iter().filter_map(|(key, owner)| {
        let mut record = records
            .get(key)
            .filter(|record| record.management.owner != *owner)?
            .clone();
        record.management.owner.clone_from(owner);
        Some((key.clone(), record))
    });
    left_alone.chain(foreign).collect()
}

/// Returns the fields that others took after the last repair, with their current holders.
fn lost(before: &FieldSet, own: &FieldSet, managers: &[Manager]) -> LostFields {
    let mut lost = LostFields::default();
    for path in &before.lost(own) {
        let holder = managers.iter().find(|manager| manager.fields.contains(path));
        let holder = holder.map_or(Holder::Nobody, |manager| Holder::Manager(manager.name.clone()));
        lost.add(path.to_string(), holder);
    }
    lost
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectId {
        ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    fn repaired(times: u32) -> Repaired {
        let now = Timestamp::UNIX_EPOCH;
        let fight = (0..times).fold(None, |before, _| Some(DriftFight::repaired(before, now)));
        Repaired {
            fight: fight.unwrap(),
            fields: Some(FieldSet::new(
                json!({"f:data": {"f:a": {}, "f:b": {}, "f:c": {}}}),
            )),
            lost: LostFields::default(),
        }
    }

    fn record(left_alone: bool) -> Record {
        let management = starling_core::apply::ManagementState {
            left_alone,
            ..Default::default()
        };
        Record {
            digest: "d".into(),
            resource_version: "1".into(),
            fields_digest: "f".into(),
            fields_time: "2026-01-01T00:00:00Z".into(),
            uid: "u".into(),
            management,
        }
    }

    #[test]
    fn a_drift_fight_ends_when_the_object_is_found_in_step_and_not_when_it_could_not_be_seen() {
        let before = DriftState {
            repaired: BTreeMap::from([(key("a"), repaired(4)), (key("b"), repaired(4))]),
            ..DriftState::default()
        };
        let mut report = DriftReport::default();
        report.drifted.insert(key("a"));
        let manager = Manager {
            name: "writer".into(),
            fields: FieldSet::new(json!({"f:data": {"f:a": {}}})),
        };
        let own = FieldSet::new(json!({"f:data": {"f:c": {}}}));
        report.managers.insert(key("a"), (own, vec![manager]));
        let after = after_check(before.clone(), &report, &BTreeMap::new());
        assert_eq!(after.repaired.keys().collect::<Vec<_>>(), [&key("a")]);
        let lost: Vec<_> = after.repaired[&key("a")].lost.iter().collect();
        let writer = Holder::Manager("writer".into());
        assert_eq!(
            lost,
            [
                (&Holder::Nobody, &[".data.b".to_owned()][..]),
                (&writer, &[".data.a".to_owned()][..])
            ]
        );
        let error = starling_member::MemberError::NotServed {
            request: String::new(),
        };
        report.failures.push((key("a").group_kind(), error));
        assert_eq!(after_check(before, &report, &BTreeMap::new()).repaired.len(), 2);
    }

    #[test]
    fn a_check_finds_objects_marked_on_the_member_and_not_those_marked_in_git() {
        let before = DriftState {
            left_alone: BTreeSet::from([key("by-hand"), key("in-git")]),
            ..DriftState::default()
        };
        let records = BTreeMap::from([(key("by-hand"), record(true)), (key("new"), record(false))]);
        let report = DriftReport {
            left_alone: BTreeSet::from([key("new")]),
            ..DriftReport::default()
        };
        let after = after_check(before, &report, &records);
        assert_eq!(
            after.left_alone.iter().collect::<Vec<_>>(),
            [&key("in-git"), &key("new")]
        );
        let changed = observed_records(&report, &records);
        assert!(changed.len() == 1 && changed[&key("new")].management.left_alone);
    }
}
