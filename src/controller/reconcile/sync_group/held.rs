//! Conditions that wait for an approval: held deletions and held deselections.

use std::collections::{BTreeMap, BTreeSet};

use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, DELETION_HELD, MEMBERSHIP_HELD};
use starling_api::{
    APPROVE_DELETIONS, APPROVE_MEMBERSHIP, DeletionHold, GroupDeletionCause, GroupDeletionHold,
    RolloutStatus, SyncGroupStatus, SyncResource, UsedApproval,
};
use starling_core::deletion_approval::Approval;
use starling_core::ids::{ClusterName, SyncName};
use starling_core::membership::HeldDeselection;
use starling_core::plan::LeavingSync;
use starling_core::plural::counted;
use starling_core::rollout::removal_digest;

use super::observe::Group;
use crate::controller::context::GroupContext;
use crate::controller::unmatched_approvals;

/// Returns the conditions for held deletions and held deselections.
pub(super) fn conditions(
    group: &Group,
    deselection: Option<&HeldDeselection>,
    leaving: &BTreeMap<SyncName, LeavingSync>,
) -> Vec<ConditionUpdate> {
    let removal = HeldRemoval::of(leaving);
    let deletions: Vec<&DeletionHold> = group.syncs.values().filter_map(|sync| held_by(sync)).collect();
    if deletions.is_empty() && deselection.is_none() && removal.is_none() {
        return Vec::new();
    }
    let command = format!(
        "starling approve-deletions group {} -n {}",
        group.key.name, group.key.namespace
    );
    let digests = deletions.iter().map(|hold| &*hold.digest);
    let digests = digests.chain(deselection.map(|held| &*held.digest));
    let held: BTreeSet<&str> = digests
        .chain(removal.as_ref().map(|removal| removal.digest))
        .collect();
    let remarks = remarks(group, &held);
    let texts = Texts {
        command: &command,
        remarks: &remarks,
    };
    let deletions = deletion_held(deletions.into_iter(), texts);
    let removal = removal.map(|removal| removal.condition(texts));
    both(deletions, removal)
        .into_iter()
        .chain(deselection.map(|held| membership_held(held, texts)))
        .collect()
}

/// Returns the deletions of the group as a whole that wait for an approval, as status has them.
pub(super) fn deletions(
    deselection: Option<&HeldDeselection>,
    leaving: &BTreeMap<SyncName, LeavingSync>,
) -> Vec<GroupDeletionHold> {
    let hold = |cause, digest: &str| GroupDeletionHold {
        cause,
        digest: digest.to_owned(),
    };
    let deselection = deselection.map(|held| hold(GroupDeletionCause::Deselection, &held.digest));
    let removal = HeldRemoval::of(leaving);
    let removal = removal.map(|held| hold(GroupDeletionCause::Rollback, held.digest));
    deselection.into_iter().chain(removal).collect()
}

/// Returns one condition for deletions and removals that are held.
fn both(deletions: Option<ConditionUpdate>, removal: Option<ConditionUpdate>) -> Option<ConditionUpdate> {
    match (deletions, removal) {
        (Some(deletions), Some(removal)) => Some(ConditionUpdate {
            message: format!("{}. {}", removal.message, deletions.message),
            ..removal
        }),
        (deletions, removal) => deletions.or(removal),
    }
}

/// Entries that an automatic rollback lacks, whose Syncs stay until a person approves their removal.
struct HeldRemoval<'a> {
    digest: &'a str,
    entries: BTreeSet<&'a str>,
    clusters: BTreeSet<&'a str>,
}

impl<'a> HeldRemoval<'a> {
    fn of(leaving: &'a BTreeMap<SyncName, LeavingSync>) -> Option<Self> {
        let held = || leaving.values().filter(|sync| sync.removing_since.is_none());
        let digest = held().find_map(|sync| sync.approval.as_deref())?;
        let held = || held().filter(|sync| sync.approval.is_some());
        Some(Self {
            digest,
            entries: held().map(|sync| &*sync.entry).collect(),
            clusters: held().map(|sync| &*sync.cluster).collect(),
        })
    }

    fn condition(&self, texts: Texts<'_>) -> ConditionUpdate {
        let entries: Vec<&str> = self.entries.iter().copied().collect();
        ConditionUpdate {
            type_: DELETION_HELD,
            status: ConditionStatus::True,
            reason: "ApprovalNeeded".into(),
            message: format!(
                "the release of the automatic rollback lacks entries that {}; to approve their removal: {}{}: {}",
                counted(self.clusters.len(), "cluster has", "clusters have"),
                texts.command(self.digest),
                texts.rest(),
                entries.join(", ")
            ),
        }
    }
}

/// The parts that the messages of both conditions share.
#[derive(Clone, Copy)]
struct Texts<'a> {
    /// The command that approves, without the digest and the reason.
    command: &'a str,
    /// Why approvals approve nothing.
    remarks: &'a str,
}

impl Texts<'_> {
    /// Returns the command that approves a list.
    fn command(self, digest: &str) -> String {
        format!("{} --digest {digest} --reason \"…\"", self.command)
    }

    /// Returns the remarks as the rest of a sentence.
    fn rest(self) -> String {
        match self.remarks {
            "" => String::new(),
            remarks => format!("; {remarks}"),
        }
    }
}

fn held_by(sync: &SyncResource) -> Option<&DeletionHold> {
    sync.status.as_ref()?.held_deletions.as_ref()
}

fn used_by(sync: &SyncResource) -> &[UsedApproval] {
    let status = sync.status.as_ref();
    let deletions = status.and_then(|status| status.deletions.as_ref());
    deletions.map_or(&[], |deletions| &deletions.used)
}

/// Returns why approvals of the group approve none of the lists that are held now.
fn remarks(group: &Group, held: &BTreeSet<&str>) -> String {
    let approvals = group.approvals_with(&[APPROVE_DELETIONS, APPROVE_MEMBERSHIP]);
    // Thousands of Syncs have used the same few approvals.
    let used: BTreeMap<(&str, &str, &str), &UsedApproval> = group
        .syncs
        .values()
        .flat_map(|sync| used_by(sync))
        .map(|used| ((&*used.name, &*used.uid, &*used.digest), used))
        .collect();
    let mut waiting: BTreeMap<&str, Vec<&SyncResource>> = BTreeMap::new();
    for sync in group.syncs.values() {
        if let Some(hold) = held_by(sync) {
            waiting.entry(&*hold.digest).or_default().push(sync);
        }
    }
    // A Sync that has not carried the list out yet is about to.
    let is_awaited = |approval: &Approval| {
        let waiting = waiting.get(&*approval.digest).into_iter().flatten();
        let mut waiting = waiting.filter(|sync| !used_by(sync).iter().any(|used| approval.is(used)));
        waiting.next().is_some()
    };
    approvals
        .also_used(used.into_values().cloned())
        .without(is_awaited)
        .remarks(held)
}

/// Returns one condition for all Syncs. Syncs that would lose the same objects have the same digest, so that one
/// approval is usually enough; otherwise each digest needs one.
fn deletion_held<'a>(
    holds: impl Iterator<Item = &'a DeletionHold>,
    texts: Texts<'_>,
) -> Option<ConditionUpdate> {
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
    let why = match (first.budget.as_str(), first.until.as_str()) {
        ("", _) => "require an approval; to approve".to_owned(),
        (budget, "") => format!("exceed a deletion budget ({budget}); to approve"),
        (budget, until) => {
            format!("exceed a deletion budget ({budget}), which allows them at {until}. To approve now")
        }
    };
    let message = format!(
        "{} that {why}: {}{others}{}: {}",
        counted(total, "Sync has deletions", "Syncs have deletions"),
        texts.command(&first.digest),
        texts.rest(),
        first.objects.join(", ")
    );
    let needs_approval = lists.iter().any(|(_, hold)| hold.until.is_empty());
    let reason = if needs_approval {
        "ApprovalNeeded"
    } else {
        "BudgetExhausted"
    };
    Some(ConditionUpdate {
        type_: DELETION_HELD,
        status: ConditionStatus::True,
        reason: reason.into(),
        message,
    })
}

fn membership_held(held: &HeldDeselection, texts: Texts<'_>) -> ConditionUpdate {
    let names: Vec<&str> = held.lost.iter().map(ClusterName::as_str).collect();
    let before = match held.recent {
        0 => String::new(),
        recent => format!(", after {recent} that left before and lost their objects"),
    };
    let until = held.until.map(|until| format!(", or {until} has passed"));
    let message = format!(
        "{} of {} clusters are no longer selected{before}; no cluster leaves and no more clusters start until their \
         labels are restored{}, or this is approved: {}{}: {}",
        held.lost.len(),
        held.of,
        until.unwrap_or_default(),
        texts.command(&held.digest),
        texts.rest(),
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

/// Records an event for approvals while nothing is held that they could approve. What an automatic rollback removes is
/// not held any more once it is approved.
pub(super) async fn tell_unmatched(
    context: GroupContext<'_>,
    group: &Group,
    rollout: Option<&RolloutStatus>,
) {
    let current = context.objects.groups.get(&group.key);
    let status = current.as_ref().and_then(|group| group.status.as_ref());
    let conditions = status.map_or(&[][..], |status| &*status.conditions);
    let is_held = [DELETION_HELD, MEMBERSHIP_HELD].map(|type_| conditions::find(conditions, type_).is_some());
    let approvals = group.approvals_with(&[APPROVE_DELETIONS, APPROVE_MEMBERSHIP]);
    // Most groups have no approvals, and some have thousands of Syncs.
    let used = || group.syncs.values().flat_map(|sync| used_by(sync)).cloned();
    let removal = || rollout.map(|rollout| removal_digest(&group.id, rollout));
    let unmatched = match is_held {
        [false, false] if !approvals.are_none() => approvals
            .also_used(used())
            .without(|approval| removal().as_ref() == Some(&approval.digest))
            .unmatched(context.clock.now()),
        _ => String::new(),
    };
    let reported = &context.caches.reported_approvals;
    unmatched_approvals::report(context.events, &*group.object, reported, unmatched).await;
}

#[cfg(test)]
mod tests {
    use starling_api::DeletionPolicy;
    use starling_core::plan::LeavingCause;

    use super::*;

    const TEXTS: Texts<'static> = Texts {
        command: "starling approve-deletions group shop -n fleet",
        remarks: "",
    };

    fn hold(digest: &str) -> DeletionHold {
        DeletionHold {
            digest: digest.into(),
            deletions: 2,
            of: 3,
            objects: vec!["Namespace shop".into()],
            ..DeletionHold::default()
        }
    }

    #[test]
    fn the_digest_of_most_syncs_is_named_and_the_others_are_counted() {
        assert_eq!(deletion_held(std::iter::empty(), TEXTS), None);
        let holds = [hold("sha256:a"), hold("sha256:b"), hold("sha256:b")];
        let message = deletion_held(holds.iter(), TEXTS).unwrap().message;
        assert!(
            message.starts_with("3 Syncs")
                && message.contains("--digest sha256:b --reason \"…\" (1 other digest on"),
            "{message}"
        );
        assert!(message.ends_with("Namespace shop"), "{message}");
    }

    #[test]
    fn a_budget_is_named_with_its_end() {
        let until = DeletionHold {
            budget: "the SyncGroup allows 100 objects within 1h".into(),
            until: "2026-07-01T11:00:00Z".into(),
            ..hold("sha256:a")
        };
        let condition = deletion_held([&until].into_iter(), TEXTS).unwrap();
        assert_eq!(condition.reason, "BudgetExhausted");
        for part in [&until.budget, &until.until, &until.digest] {
            assert!(condition.message.contains(part.as_str()), "{}", condition.message);
        }
        let both = [until, hold("sha256:b")];
        assert_eq!(
            deletion_held(both.iter(), TEXTS).unwrap().reason,
            "ApprovalNeeded"
        );
    }

    fn deselection(digest: &str) -> HeldDeselection {
        HeldDeselection {
            lost: (0..500).map(|n| format!("cluster-{n}").into()).collect(),
            of: 500,
            recent: 0,
            until: None,
            digest: digest.to_owned(),
        }
    }

    /// Programs read the digests there, and not in the messages of conditions.
    #[test]
    fn status_has_the_digests_of_the_lists_of_the_group() {
        let leaves = LeavingSync {
            not_ready: false,
            entry: "db".into(),
            cluster: "a".into(),
            cause: LeavingCause::EntryRemoved,
            policy: DeletionPolicy::Delete,
            depends_on: BTreeSet::new(),
            removing_since: None,
            suspended: false,
            budget_until: None,
            approval: Some("sha256:b".into()),
        };
        let leaving = BTreeMap::from([("shop-db-a".into(), leaves)]);
        let found = deletions(Some(&deselection("sha256:a")), &leaving);
        let hold = |cause, digest: &str| GroupDeletionHold {
            cause,
            digest: digest.into(),
        };
        let expected = [
            hold(GroupDeletionCause::Deselection, "sha256:a"),
            hold(GroupDeletionCause::Rollback, "sha256:b"),
        ];
        assert_eq!(found, expected);
        assert_eq!(deletions(None, &BTreeMap::new()), []);
    }

    /// The digest is never truncated, however many clusters there are.
    #[test]
    fn a_digest_survives_the_cut() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let held = deselection(&digest);
        let cut = conditions::cut(&membership_held(&held, TEXTS).message, conditions::MESSAGE_LIMIT);
        assert!(cut.contains(&digest), "{cut}");
    }
}
