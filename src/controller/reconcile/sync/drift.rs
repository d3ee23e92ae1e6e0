//! Keeps the drift state of a Sync: what a check or an attempt found, and what is repaired when.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::conditions::{self, CONTESTED};
use starling_core::apply::Record;
use starling_core::drift_fight::DriftFight;
use starling_core::fields::FieldSet;
use starling_core::object::ObjectId;

use super::observe::Observed;
use super::validate::ValidSync;
use crate::controller::caches::drift_states::{DriftState, Holder, LostFields, Repaired};
use crate::controller::context::SyncContext;
use starling_member::{ApplyOutcome, DriftReport, Manager, Member};

/// Records what a check for drift found, and returns what is to be repaired now.
pub(super) async fn checked(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    report: &DriftReport,
    records: &BTreeMap<ObjectId, Record>,
) -> BTreeSet<ObjectId> {
    let observed = sync.observed;
    let state = context.caches.drift.get(&observed.key).unwrap_or_default();
    let before = if state.repaired.is_empty() && was_fought_over(observed) {
        // The program has just started, or a person asked for a reconcile right after it.
        resumed(state, report)
    } else {
        state
    };
    let state = after_check(before, report, records);
    let repair = due(&state, report, sync, context.clock.now());
    context.caches.drift.set(&observed.key, state);
    let changed = observed_records(report, records);
    let (cluster_id, owner) = (observed.cluster_id.as_str(), observed.owner.as_str());
    let saved = context
        .ledger
        .save_records(cluster_id, owner, &changed, &BTreeSet::new())
        .await;
    if let Err(error) = saved {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "records of objects not saved");
    }
    repair
}

/// Objects that were left alone, or had another owner, and are neither any more. An attempt without a check before it
/// reads them: where it fails because of them it is made again and again, and no check for drift comes between.
pub(super) async fn returned(
    member: &Member,
    observed: &Observed,
    records: &BTreeMap<ObjectId, Record>,
) -> BTreeSet<ObjectId> {
    let is_away =
        |(_, record): &(&ObjectId, &Record)| record.terms.left_alone || !record.terms.owner.is_empty();
    let away: BTreeMap<ObjectId, Record> = records
        .iter()
        .filter(is_away)
        .map(|(key, record)| (key.clone(), record.clone()))
        .collect();
    if away.is_empty() {
        return BTreeSet::new();
    }
    // What could not be asked stays as it was; the attempt itself will meet what is wrong with the cluster.
    member
        .find_drift(observed.owner.as_str(), &away, observed.deadline())
        .await
        .drifted
}

/// Takes in an attempt: what it repaired may be undone again.
pub(super) fn attempted(context: SyncContext<'_>, observed: &Observed, applied: &ApplyOutcome) {
    let mut state = context.caches.drift.get(&observed.key).unwrap_or_default();
    let now = context.clock.now();
    if applied.interrupted.is_none() {
        state.left_alone = applied.left_alone.iter().cloned().collect();
    }
    for one in &applied.applied {
        if one.record.terms.left_alone {
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
        .chain(&applied.let_go)
    {
        state.repaired.remove(key);
    }
    context.caches.drift.set(&observed.key, state);
}

fn was_fought_over(observed: &Observed) -> bool {
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
    let unseen = |key: &ObjectId| report.failures.iter().any(|(kind, _)| key.is_of(kind));
    // In step again: the drift fight is over.
    state
        .repaired
        .retain(|key, _| report.drifted.contains(key) || unseen(key));
    for (key, repaired) in &mut state.repaired {
        if let (Some(before), Some((ours, managers))) = (&repaired.fields, report.managers.get(key)) {
            repaired.lost = lost(before, ours, managers);
        }
    }
    // A check sees annotations on the member; those in git are known from the last attempt.
    let in_git = |key: &ObjectId| records.get(key).is_none_or(|record| !record.terms.left_alone);
    state.left_alone.retain(|key| in_git(key) || unseen(key));
    state.left_alone.extend(report.left_alone.iter().cloned());
    state
}

/// The drifted objects whose repair is due. A requested reconcile repairs at once.
fn due(state: &DriftState, report: &DriftReport, sync: &ValidSync<'_>, now: Timestamp) -> BTreeSet<ObjectId> {
    let interval = sync.spec.template.interval.as_std();
    let is_due = |key: &&ObjectId| {
        let repaired = state.repaired.get(*key);
        sync.observed.requested()
            || repaired.is_none_or(|repaired| repaired.fight.next_repair(interval) <= now)
    };
    report.drifted.iter().filter(is_due).cloned().collect()
}

/// Records whose terms the check found different. What was left alone or given away stays so until it is applied
/// again: only then is it in step.
fn observed_records(
    report: &DriftReport,
    records: &BTreeMap<ObjectId, Record>,
) -> BTreeMap<ObjectId, Record> {
    let left_alone = report.left_alone.iter().filter_map(|key| {
        let mut record = records
            .get(key)
            .filter(|record| !record.terms.left_alone)?
            .clone();
        record.terms.left_alone = true;
        Some((key.clone(), record))
    });
    let foreign = report.foreign.iter().filter_map(|(key, owner)| {
        let mut record = records
            .get(key)
            .filter(|record| record.terms.owner != *owner)?
            .clone();
        record.terms.owner.clone_from(owner);
        Some((key.clone(), record))
    });
    left_alone.chain(foreign).collect()
}

/// Which fields somebody took since the last repair, and who holds them now.
fn lost(before: &FieldSet, ours: &FieldSet, managers: &[Manager]) -> LostFields {
    let mut lost = LostFields::default();
    for path in &before.lost(ours) {
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
        let terms = starling_core::apply::ManagementState {
            left_alone,
            ..Default::default()
        };
        Record {
            digest: "d".into(),
            resource_version: "1".into(),
            fields_digest: "f".into(),
            uid: "u".into(),
            terms,
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
        let ours = FieldSet::new(json!({"f:data": {"f:c": {}}}));
        report.managers.insert(key("a"), (ours, vec![manager]));
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
        assert!(changed.len() == 1 && changed[&key("new")].terms.left_alone);
    }
}
