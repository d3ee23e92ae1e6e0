//! Conditions that wait for an approval: held deletions and held deselections.

use std::collections::BTreeMap;

use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, DELETION_HELD, MEMBERSHIP_HELD};
use starling_api::{APPROVE_DELETIONS, APPROVE_MEMBERSHIP, DeletionHold, SyncGroupStatus};
use starling_core::membership::HeldDeselection;

use super::observe::Group;
use crate::controller::context::GroupContext;

/// Returns the conditions for held deletions and held deselections.
pub(super) fn conditions(group: &Group, deselection: Option<&HeldDeselection>) -> Vec<ConditionUpdate> {
    let deletions = group.syncs.values().filter_map(|sync| {
        sync.status
            .as_ref()
            .and_then(|status| status.held_deletions.as_ref())
    });
    deletion_held(deletions)
        .into_iter()
        .chain(deselection.map(membership_held))
        .collect()
}

/// Returns one condition for all Syncs. Syncs that would lose the same objects have the same digest, so that one
/// approval is usually enough; otherwise the annotation takes several digests.
fn deletion_held<'a>(holds: impl Iterator<Item = &'a DeletionHold>) -> Option<ConditionUpdate> {
    let mut by_digest: BTreeMap<&str, (u32, &DeletionHold)> = BTreeMap::new();
    for hold in holds {
        by_digest.entry(&hold.digest).or_insert((0, hold)).0 += 1;
    }
    let mut lists: Vec<(u32, &DeletionHold)> = by_digest.into_values().collect();
    lists.sort_by_key(|(syncs, hold)| (std::cmp::Reverse(*syncs), &hold.digest));
    let (_, first) = lists.first()?;
    let total: u32 = lists.iter().map(|(syncs, _)| syncs).sum();
    let others = match lists.len() - 1 {
        0 => String::new(),
        1 => " (1 other digest on other Syncs)".to_owned(),
        more => format!(" ({more} other digests on other Syncs)"),
    };
    let message = format!(
        "{total} Syncs have deletions that require an approval; to approve, annotate the SyncGroup with \
         {APPROVE_DELETIONS}={}{others}: {}",
        first.digest,
        first.objects.join(", ")
    );
    Some(ConditionUpdate {
        type_: DELETION_HELD,
        status: ConditionStatus::True,
        reason: "ApprovalNeeded".into(),
        message,
    })
}

fn membership_held(held: &HeldDeselection) -> ConditionUpdate {
    let names: Vec<&str> = held.lost.iter().map(String::as_str).collect();
    let message = format!(
        "{} of {} clusters are no longer selected; no cluster leaves and no more clusters start until their labels are \
         restored, or the group has {APPROVE_MEMBERSHIP}={}: {}",
        held.lost.len(),
        held.of,
        held.digest,
        names.join(", ")
    );
    ConditionUpdate {
        type_: MEMBERSHIP_HELD,
        status: ConditionStatus::True,
        reason: "ApprovalNeeded".into(),
        message,
    }
}

/// Records events for new conditions.
pub(super) async fn report(
    context: GroupContext<'_>,
    group: &Group,
    before: &SyncGroupStatus,
    after: &SyncGroupStatus,
) {
    for type_ in [DELETION_HELD, MEMBERSHIP_HELD] {
        let known = conditions::find(&before.conditions, type_).is_some();
        if let (false, Some(condition)) = (known, conditions::find(&after.conditions, type_)) {
            let note = condition.message.clone();
            context.events.warning(&*group.object, type_, note).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(digest: &str) -> DeletionHold {
        DeletionHold {
            digest: digest.into(),
            deletions: 2,
            of: 3,
            objects: vec!["Namespace shop".into()],
        }
    }

    #[test]
    fn the_digest_of_most_syncs_is_named_and_the_others_are_counted() {
        assert_eq!(deletion_held(std::iter::empty()), None);
        let holds = [hold("sha256:a"), hold("sha256:b"), hold("sha256:b")];
        let message = deletion_held(holds.iter()).unwrap().message;
        assert!(
            message.starts_with("3 Syncs") && message.contains("deletions=sha256:b (1 other digest on"),
            "{message}"
        );
        assert!(message.ends_with("Namespace shop"), "{message}");
    }

    /// The digest is never truncated, however many clusters there are.
    #[test]
    fn a_digest_survives_the_cut() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let held = HeldDeselection {
            lost: (0..500).map(|n| format!("cluster-{n}")).collect(),
            of: 500,
            digest: digest.clone(),
        };
        let cut = conditions::cut(&membership_held(&held).message, conditions::MESSAGE_LIMIT);
        assert!(cut.contains(&digest), "{cut}");
    }
}
