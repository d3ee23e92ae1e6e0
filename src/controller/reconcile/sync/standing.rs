//! Takes in how the objects stand after a look or an attempt, and says so in the status.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::conditions::{self, CONTESTED, Condition, ConditionStatus, ConditionUpdate, READY};
use starling_core::apply::Record;
use starling_core::contest::Contest;
use starling_core::fields::FieldSet;
use starling_core::object::ObjectKey;
use tokio::time::Instant;

use super::observe::Observed;
use crate::controller::context::Context;
use crate::controller::standing::{Repaired, Standing};
use crate::member::{ApplyOutcome, DriftReport, Manager, Member};

/// Objects and fields that a message names at most.
const NAMED: usize = 3;

/// Takes in a look for drift: brings the records up to date, and returns what is to be repaired now.
pub(super) async fn looked(
    context: &Context,
    observed: &Observed,
    report: &DriftReport,
    records: &BTreeMap<ObjectKey, Record>,
) -> BTreeSet<ObjectKey> {
    let standing = context.standings.get(&observed.key).unwrap_or_default();
    let before = if standing.repaired.is_empty() && is_contested(observed) {
        // The program has just started, or a person asked for a look right after it.
        resumed(standing, report)
    } else {
        standing
    };
    let standing = after_look(before, report, records);
    let repair = due(&standing, report, observed, context.now());
    context.standings.set(&observed.key, standing);
    let seen = seen(report, records);
    let saved = context
        .ledger
        .save_records(observed.cluster_id(), &observed.owner, &seen, &BTreeSet::new())
        .await;
    if let Err(error) = saved {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "what was seen of objects not recorded");
    }
    repair
}

/// Objects that were left alone, or somebody else's, and are neither any more. An attempt that nobody has looked before asks
/// about them: where it fails because of them it is made again and again, and no look for drift comes between.
pub(super) async fn returned(
    member: &Member,
    observed: &Observed,
    records: &BTreeMap<ObjectKey, Record>,
    deadline: Instant,
) -> BTreeSet<ObjectKey> {
    let away =
        |(_, record): &(&ObjectKey, &Record)| record.terms.left_alone || !record.terms.owner.is_empty();
    let away: BTreeMap<ObjectKey, Record> = records
        .iter()
        .filter(away)
        .map(|(key, record)| (key.clone(), record.clone()))
        .collect();
    if away.is_empty() {
        return BTreeSet::new();
    }
    // What could not be asked stays as it was; the attempt itself will meet what is wrong with the cluster.
    member.find_drift(&observed.owner, &away, deadline).await.drifted
}

/// Takes in an attempt: what it repaired may be undone again.
pub(super) fn attempted(context: &Context, observed: &Observed, applied: &ApplyOutcome) {
    let mut standing = context.standings.get(&observed.key).unwrap_or_default();
    let now = context.now();
    if applied.interrupted.is_none() {
        standing.left_alone = applied.left_alone.iter().cloned().collect();
    }
    for one in &applied.applied {
        if one.record.terms.left_alone {
            standing.left_alone.insert(one.key.clone());
        }
        if let Some(fields) = &one.fields {
            let before = standing.repaired.get(&one.key).map(|repaired| repaired.contest);
            let taken = standing
                .repaired
                .remove(&one.key)
                .map_or(String::new(), |repaired| repaired.taken);
            let repaired = Repaired {
                contest: Contest::repaired(before, now),
                fields: Some(fields.clone()),
                taken,
            };
            standing.repaired.insert(one.key.clone(), repaired);
        }
    }
    for key in applied.deleted.iter().chain(&applied.released) {
        standing.repaired.remove(key);
    }
    context.standings.set(&observed.key, standing);
}

fn is_contested(observed: &Observed) -> bool {
    conditions::find(&observed.status.conditions, CONTESTED).is_some()
}

fn resumed(standing: Standing, report: &DriftReport) -> Standing {
    let repaired = report.drifted.iter().map(|key| {
        let repaired = Repaired {
            contest: Contest::resumed(),
            fields: None,
            taken: String::new(),
        };
        (key.clone(), repaired)
    });
    Standing {
        repaired: repaired.collect(),
        ..standing
    }
}

fn after_look(
    mut standing: Standing,
    report: &DriftReport,
    records: &BTreeMap<ObjectKey, Record>,
) -> Standing {
    let unseen = |key: &ObjectKey| {
        report
            .failures
            .iter()
            .any(|((group, kind), _)| *group == key.group && *kind == key.kind)
    };
    // In step again: the contest is over.
    standing
        .repaired
        .retain(|key, _| report.drifted.contains(key) || unseen(key));
    for (key, repaired) in &mut standing.repaired {
        if let (Some(before), Some((ours, managers))) = (&repaired.fields, report.managers.get(key)) {
            repaired.taken = taken(before, ours, managers);
        }
    }
    // A look sees annotations on the member; what git asks for is known from the last attempt.
    let in_git = |key: &ObjectKey| records.get(key).is_none_or(|record| !record.terms.left_alone);
    standing.left_alone.retain(|key| in_git(key) || unseen(key));
    standing.left_alone.extend(report.left_alone.iter().cloned());
    standing
}

/// The drifted objects whose repair is due. A person who asks for a look wants it put right now.
fn due(
    standing: &Standing,
    report: &DriftReport,
    observed: &Observed,
    now: Timestamp,
) -> BTreeSet<ObjectKey> {
    let interval = observed.spec.template.interval.as_std();
    let is_due = |key: &&ObjectKey| {
        let repaired = standing.repaired.get(*key);
        observed.requested() || repaired.is_none_or(|repaired| repaired.contest.next_repair(interval) <= now)
    };
    report.drifted.iter().filter(is_due).cloned().collect()
}

/// Records whose terms the look found different. What was left alone or given away stays so until it is applied
/// again: only then is it in step.
fn seen(report: &DriftReport, records: &BTreeMap<ObjectKey, Record>) -> BTreeMap<ObjectKey, Record> {
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

/// Which fields somebody took, and who holds them now: `.data.a is held by writer`.
fn taken(before: &FieldSet, ours: &FieldSet, managers: &[Manager]) -> String {
    let lost = before.lost(ours);
    let mut by: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for path in &lost {
        let holder = managers.iter().find(|manager| manager.fields.holds(path));
        by.entry(holder.map_or("", |manager| manager.name.as_str()))
            .or_default()
            .push(path.to_string());
    }
    let parts = by.iter().map(|(holder, fields)| match *holder {
        "" => format!("{} is taken away", listed(fields)),
        holder => format!("{} is held by {holder:?}", listed(fields)),
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn listed(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    text
}

/// What the status says about objects that are not simply in step.
pub(super) enum Remarks {
    /// This process has not looked yet: what the status said stays.
    AsBefore,
    /// What is known.
    Known {
        /// Names of objects that are left alone.
        left_alone: Vec<String>,
        /// What is contested, in words, one object each.
        contested: Vec<String>,
    },
}

pub(super) fn remarks(context: &Context, observed: &Observed) -> Remarks {
    let Some(standing) = context.standings.get(&observed.key) else {
        return Remarks::AsBefore;
    };
    let interval = observed.spec.template.interval.as_std();
    let contested = standing
        .repaired
        .iter()
        .filter(|(_, repaired)| repaired.contest.is_contested());
    Remarks::Known {
        left_alone: standing.left_alone.iter().map(ToString::to_string).collect(),
        contested: contested
            .map(|(key, repaired)| contest(key, repaired, interval))
            .collect(),
    }
}

fn contest(key: &ObjectKey, repaired: &Repaired, interval: std::time::Duration) -> String {
    let Repaired {
        contest,
        fields: _,
        taken,
    } = repaired;
    let taken = if taken.is_empty() {
        "it is changed or deleted"
    } else {
        taken
    };
    format!(
        "{key}: {taken} after each of {} repairs in a row; the next not before {}",
        contest.repairs,
        contest.next_repair(interval)
    )
}

impl Remarks {
    /// Adds the remarks to what is about to be said.
    pub(super) fn add_to(&self, updates: &mut Vec<ConditionUpdate>, before: &[Condition]) {
        let ready = updates
            .iter_mut()
            .find(|update| update.type_ == READY && update.status == ConditionStatus::True);
        match self {
            Self::AsBefore => {
                let said = conditions::find(before, READY).map(|condition| &condition.message);
                if let (Some(ready), Some(said)) = (ready, said)
                    && said.starts_with(&ready.message)
                {
                    ready.message.clone_from(said);
                }
                let known = conditions::find(before, CONTESTED);
                updates.extend(known.map(|condition| contested(condition.message.clone())));
            }
            Self::Known {
                left_alone,
                contested: objects,
            } => {
                if let (Some(ready), false) = (ready, left_alone.is_empty()) {
                    let count = left_alone.len();
                    ready
                        .message
                        .push_str(&format!("; left alone ({count}): {}", listed(left_alone)));
                }
                if !objects.is_empty() {
                    updates.push(contested(objects.join("; ")));
                }
            }
        }
    }
}

fn contested(message: String) -> ConditionUpdate {
    ConditionUpdate {
        type_: CONTESTED,
        status: ConditionStatus::True,
        reason: "RepairsUndone".into(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    fn repaired(times: u32) -> Repaired {
        let now = Timestamp::UNIX_EPOCH;
        let contest = (0..times).fold(None, |before, _| Some(Contest::repaired(before, now)));
        Repaired {
            contest: contest.unwrap(),
            fields: Some(FieldSet::new(
                json!({"f:data": {"f:a": {}, "f:b": {}, "f:c": {}}}),
            )),
            taken: String::new(),
        }
    }

    fn record(left_alone: bool) -> Record {
        let terms = starling_core::apply::Terms {
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
    fn a_contest_ends_when_the_object_is_found_in_step_and_not_when_it_could_not_be_seen() {
        let before = Standing {
            repaired: BTreeMap::from([(key("a"), repaired(4)), (key("b"), repaired(4))]),
            ..Standing::default()
        };
        let mut report = DriftReport::default();
        report.drifted.insert(key("a"));
        let manager = Manager {
            name: "writer".into(),
            fields: FieldSet::new(json!({"f:data": {"f:a": {}}})),
        };
        let ours = FieldSet::new(json!({"f:data": {"f:c": {}}}));
        report.managers.insert(key("a"), (ours, vec![manager]));
        let after = after_look(before.clone(), &report, &BTreeMap::new());
        assert_eq!(after.repaired.keys().collect::<Vec<_>>(), [&key("a")]);
        assert_eq!(
            after.repaired[&key("a")].taken,
            ".data.b is taken away, .data.a is held by \"writer\""
        );
        let error = crate::member::MemberError::NotServed {
            request: String::new(),
        };
        report.failures.push(((String::new(), "ConfigMap".into()), error));
        assert_eq!(after_look(before, &report, &BTreeMap::new()).repaired.len(), 2);
    }

    #[test]
    fn a_look_knows_what_is_left_alone_there_and_not_what_git_asks() {
        let before = Standing {
            left_alone: BTreeSet::from([key("by-hand"), key("in-git")]),
            ..Standing::default()
        };
        let records = BTreeMap::from([(key("by-hand"), record(true)), (key("new"), record(false))]);
        let report = DriftReport {
            left_alone: BTreeSet::from([key("new")]),
            ..DriftReport::default()
        };
        let after = after_look(before, &report, &records);
        assert_eq!(
            after.left_alone.iter().collect::<Vec<_>>(),
            [&key("in-git"), &key("new")]
        );
        let seen = seen(&report, &records);
        assert!(seen.len() == 1 && seen[&key("new")].terms.left_alone);
    }

    #[test]
    fn remarks_join_what_is_said() {
        let ready = |message: &str| {
            vec![ConditionUpdate {
                type_: READY,
                status: ConditionStatus::True,
                reason: "Succeeded".into(),
                message: message.into(),
            }]
        };
        let known = Remarks::Known {
            left_alone: vec!["ConfigMap shop/a".into()],
            contested: vec!["ConfigMap shop/b: words".into()],
        };
        let mut said = ready("holds main@sha1:a");
        known.add_to(&mut said, &[]);
        assert_eq!(
            said[0].message,
            "holds main@sha1:a; left alone (1): ConfigMap shop/a"
        );
        assert_eq!(
            (said[1].type_, said[1].message.as_str()),
            (CONTESTED, "ConfigMap shop/b: words")
        );
        // A process that has just started repeats it, unless the revision is another.
        let before = conditions::merge(&[], said.clone(), Some(1), Timestamp::UNIX_EPOCH);
        let mut again = ready("holds main@sha1:a");
        Remarks::AsBefore.add_to(&mut again, &before);
        assert_eq!(again, said);
        let mut other = ready("holds main@sha1:b");
        Remarks::AsBefore.add_to(&mut other, &before);
        assert_eq!(other[0].message, "holds main@sha1:b");
        let nothing = Remarks::Known {
            left_alone: Vec::new(),
            contested: Vec::new(),
        };
        let mut over = ready("holds main@sha1:a");
        nothing.add_to(&mut over, &before);
        assert_eq!(over, ready("holds main@sha1:a"));
    }
}
