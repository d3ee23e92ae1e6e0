//! The findings of the judge.

use std::fmt;

use jiff::Timestamp;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// I1: a target that a Sync reports as applied was applied.
    Claim,
    /// I1: reported health is that of the applied target.
    Health,
    /// I1: a group reports a cluster as done only if the cluster is.
    GroupClaim,
    /// I2: every admission finishes, and every push is rolled out.
    Unfinished,
    /// I3: one change per object for a target.
    Repeated,
    /// I3: no older target after a newer one.
    Backwards,
    /// I4: never more clusters in flight than slots.
    Concurrency,
    /// I4: no admission above the failure limit.
    FailureLimit,
    /// I4: no stage before the previous one has passed.
    StageOrder,
    /// No admission on a skipped cluster.
    Skipped,
    /// No admission while a rollout is paused or aborted.
    Paused,
    /// A held release does not start again by itself.
    HeldRelease,
    /// A rollback returns to the last known good release, and only on request.
    Rollback,
    /// I5: an unreachable cluster stops no other.
    Isolation,
    /// I6: no deletion without positive knowledge.
    Deletion,
    /// I6: a deletion is counted before it is sent.
    Uncounted,
    /// I6: no budget of deletions is exceeded.
    Budget,
    /// I6: what needs an approval is deleted under one that is of this list, once.
    Unapproved,
    /// I6: a group deletes a Sync only when its removal may begin.
    Removal,
    /// I6: a group deletes a Sync only after a plan that removes it, and an object is pruned after a grace only if a
    /// plan allowed that.
    Unplanned,
    /// I6: what confirms the removal of a Sync is read just before.
    LiveRead,
    /// I6: an object that another Sync has is handed over.
    HandOver,
    /// I6: the objects of a deleted Sync go in the order of their steps.
    DeletionOrder,
    /// I6: what was there before Starling is not deleted where its deletion deletes others.
    Adopted,
    /// I6: what contains an object that stays is not deleted.
    Contents,
    /// I6: an object is in the inventory before it is written.
    NotListed,
    /// I7: every wait has a reason and a time.
    Unexplained,
    /// I8: one failure stops nothing else, and is reported.
    FailureIsolation,
    /// Only admitted targets are written to a member.
    NotAdmitted,
    /// No write to a suspended member, or by a suspended Sync.
    Suspended,
    /// No object goes while its group is stopped, or late in a closed window.
    Stopped,
    /// No write for an admission whose slot was given back.
    WithoutSlot,
    /// No write to a member after a restore, until a person releases it.
    AfterRestore,
    /// No write to a member without a change.
    Idle,
}

#[cfg(test)]
impl Rule {
    /// All rules.
    pub(crate) const ALL: [Self; 34] = [
        Self::Claim,
        Self::Health,
        Self::GroupClaim,
        Self::Unfinished,
        Self::Repeated,
        Self::Backwards,
        Self::Concurrency,
        Self::FailureLimit,
        Self::StageOrder,
        Self::Skipped,
        Self::Paused,
        Self::HeldRelease,
        Self::Rollback,
        Self::Isolation,
        Self::Deletion,
        Self::Uncounted,
        Self::Budget,
        Self::Unapproved,
        Self::Removal,
        Self::Unplanned,
        Self::LiveRead,
        Self::HandOver,
        Self::DeletionOrder,
        Self::Adopted,
        Self::Contents,
        Self::NotListed,
        Self::Unexplained,
        Self::FailureIsolation,
        Self::NotAdmitted,
        Self::Suspended,
        Self::Stopped,
        Self::WithoutSlot,
        Self::AfterRestore,
        Self::Idle,
    ];

    /// The rules about deletions.
    pub(crate) const OF_DELETIONS: [Self; 13] = [
        Self::Deletion,
        Self::Uncounted,
        Self::Budget,
        Self::Unapproved,
        Self::Removal,
        Self::Unplanned,
        Self::LiveRead,
        Self::HandOver,
        Self::DeletionOrder,
        Self::Adopted,
        Self::Contents,
        Self::Stopped,
        Self::AfterRestore,
    ];
}

#[cfg(test)]
#[test]
fn all_rules_are_listed() {
    for (place, rule) in Rule::ALL.iter().enumerate() {
        assert_eq!(*rule as usize, place, "{rule:?}");
    }
    assert_eq!(Rule::ALL.len(), Rule::Idle as usize + 1, "the last rule");
}

/// A violation of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// The violated rule.
    pub(crate) rule: Rule,
    /// When.
    pub(crate) at: Timestamp,
    /// The cluster, if the violation concerns one.
    pub(crate) cluster: Option<String>,
    /// A description of the violation.
    pub(crate) message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            at,
            cluster,
            message,
        } = self;
        write!(f, "{at} {rule:?}")?;
        if let Some(cluster) = cluster {
            write!(f, " on {cluster}")?;
        }
        write!(f, ": {message}")
    }
}
