//! Reports drift in the status of a Sync: `leftAlone` and the condition Contested.

use std::time::Duration;

use starling_api::conditions::{self, CONTESTED, ConditionStatus, ConditionUpdate};
use starling_api::{LeftAlone, SyncStatus};
use starling_core::object::ObjectId;

use super::super::repeated;
use crate::controller::caches::drift_states::{DriftState, Holder, LostFields, Repaired};

/// Maximum number of objects and fields in a message: the message of a condition has space for three long names.
const NAMED: usize = 3;

/// Writes the drift state to status, and returns the condition during a drift fight. Without a `state`, before the
/// first check of this process, the reported values stay.
pub(super) fn write(
    after: &mut SyncStatus,
    state: Option<&DriftState>,
    interval: Duration,
) -> Option<ConditionUpdate> {
    let Some(state) = state else {
        let before = conditions::find(&after.conditions, CONTESTED)?;
        return Some(repeated(CONTESTED, before));
    };
    after.left_alone = (!state.left_alone.is_empty()).then(|| LeftAlone {
        count: u32::try_from(state.left_alone.len()).unwrap_or(u32::MAX),
        objects: state
            .left_alone
            .iter()
            .take(NAMED)
            .map(ToString::to_string)
            .collect(),
    });
    let fights: Vec<String> = state
        .repaired
        .iter()
        .filter(|(_, repaired)| repaired.fight.is_fight())
        .map(|(key, repaired)| describe_fight(key, repaired, interval))
        .collect();
    (!fights.is_empty()).then(|| ConditionUpdate {
        type_: CONTESTED,
        status: ConditionStatus::True,
        reason: "RepairsUndone".into(),
        message: fights.join("; "),
    })
}

/// Returns the part of the message of Ready about objects with reconcile disabled.
pub(super) fn remark(left_alone: &LeftAlone) -> String {
    let count = usize::try_from(left_alone.count).unwrap_or(usize::MAX);
    format!(
        "reconcile disabled ({count}): {}",
        listed(&left_alone.objects, NAMED, count)
    )
}

fn describe_fight(key: &ObjectId, repaired: &Repaired, interval: Duration) -> String {
    let Repaired {
        fight,
        fields: _,
        lost,
    } = repaired;
    let lost = if lost.is_empty() {
        "changed or deleted".to_owned()
    } else {
        describe(lost)
    };
    format!(
        "{key}: {lost} after each of {} repairs in a row; next repair not before {}",
        fight.repairs,
        fight.next_repair(interval)
    )
}

fn describe(lost: &LostFields) -> String {
    let parts = lost.iter().map(|(holder, fields)| {
        let fields = listed(fields, NAMED, fields.len());
        match holder {
            Holder::Nobody => format!("{fields} removed"),
            Holder::Manager(name) => format!("{fields} owned by {name:?}"),
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Returns the first of `count` names, at most `limit`.
pub(super) fn listed(names: &[String], limit: usize, count: usize) -> String {
    let named = names.iter().take(limit).map(String::as_str).collect::<Vec<_>>();
    match count.saturating_sub(named.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use starling_core::drift_fight::DriftFight;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    fn key(name: &str) -> ObjectId {
        ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    fn fought(lost: LostFields) -> DriftState {
        let fight = (0..3).fold(None, |before, _| {
            Some(DriftFight::repaired(before, Timestamp::UNIX_EPOCH))
        });
        let repaired = Repaired {
            fight: fight.unwrap(),
            fields: None,
            lost,
        };
        DriftState {
            repaired: [(key("b"), repaired)].into(),
            ..DriftState::default()
        }
    }

    #[test]
    fn objects_that_are_left_alone_are_counted_and_three_are_named() {
        let mut status = SyncStatus::default();
        let state = |names: &[&str]| DriftState {
            left_alone: names.iter().map(|name| key(name)).collect(),
            ..DriftState::default()
        };
        assert_eq!(
            write(&mut status, Some(&state(&["d", "c", "b", "a"])), INTERVAL),
            None
        );
        let left_alone = status.left_alone.clone().unwrap();
        assert_eq!(
            remark(&left_alone),
            "reconcile disabled (4): ConfigMap shop/a, ConfigMap shop/b, ConfigMap shop/c and 1 more"
        );
        // A process that has just started has no drift state and repeats the reported one.
        write(&mut status, None, INTERVAL);
        assert_eq!(status.left_alone, Some(left_alone));
        write(&mut status, Some(&state(&[])), INTERVAL);
        assert_eq!(status.left_alone, None);
    }

    #[test]
    fn a_drift_fight_is_reported_until_a_check_finds_it_over() {
        let mut status = SyncStatus::default();
        let found = write(&mut status, Some(&fought(LostFields::default())), INTERVAL).unwrap();
        assert_eq!(
            found.message,
            "ConfigMap shop/b: changed or deleted after each of 3 repairs in a row; next repair not before \
             1970-01-01T00:02:00Z"
        );
        status.conditions = conditions::merge(&[], vec![found.clone()], None, Timestamp::UNIX_EPOCH);
        assert_eq!(write(&mut status, None, INTERVAL), Some(found));
        assert_eq!(write(&mut status, Some(&DriftState::default()), INTERVAL), None);
    }

    /// Guards against the interpretation of an empty manager name, which clients may choose, as a field without a
    /// manager.
    #[test]
    fn a_manager_without_a_name_holds_fields_all_the_same() {
        let mut lost = LostFields::default();
        lost.add(".data.a".into(), Holder::Manager(String::new()));
        lost.add(".data.b".into(), Holder::Nobody);
        assert_eq!(describe(&lost), ".data.b removed, .data.a owned by \"\"");
    }
}
