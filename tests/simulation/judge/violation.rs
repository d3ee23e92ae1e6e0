//! What the judge says.

use std::fmt;

use jiff::Timestamp;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// I1: what a Sync says it holds, the member held.
    Claim,
    /// I1: health is that of the target that is held.
    Health,
    /// I1: a group is done where its clusters are.
    GroupClaim,
    /// I2: whatever was admitted comes to an end, and whatever was pushed is rolled.
    Dangling,
    /// I3: one change per object for a target.
    Doubled,
    /// I3: nothing goes backwards.
    Backwards,
    /// I4: never more in flight than there are slots.
    Concurrency,
    /// I4: nothing starts above the failure budget.
    FailureBudget,
    /// I4: no stage before the one before it.
    StageOrder,
    /// What a person passes over is left alone.
    Skipped,
    /// Nothing starts while a person does not want it.
    Paused,
    /// What was rolled back from does not start again by itself.
    Held,
    /// A rollout goes back to what was good, and only if that was asked for.
    Back,
    /// I5: a cluster that cannot be reached stops no other.
    Isolation,
    /// I6: nothing is deleted without positive knowledge.
    Deletion,
    /// I6: what is written is in the inventory before.
    Unlisted,
    /// I7: every wait has a reason and a time.
    Silent,
    /// I8: one bad thing stops no neighbour, and is named.
    Neighbours,
    /// Nothing is written to a member but what was admitted there.
    NotAdmitted,
    /// Nothing is written to a member that is suspended, or by a Sync that is.
    Suspended,
    /// Where nothing changes, nothing is written to a member.
    Quiet,
}

/// Something that must not be.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    /// The rule that is broken.
    pub(crate) rule: Rule,
    /// When.
    pub(crate) at: Timestamp,
    /// On which cluster, if it is about one.
    pub(crate) cluster: Option<String>,
    /// What was seen, for people.
    pub(crate) words: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            at,
            cluster,
            words,
        } = self;
        write!(f, "{at} {rule:?}")?;
        if let Some(cluster) = cluster {
            write!(f, " on {cluster}")?;
        }
        write!(f, ": {words}")
    }
}
