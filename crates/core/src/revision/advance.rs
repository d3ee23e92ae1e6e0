//! Whether a Source may move from the revision it has to the one that was found.

use std::cmp::Ordering;
use std::fmt;

use super::{RefPolicy, Revision};
use crate::range::{Range, parse_version, precedence};

/// What to do when history was rewritten or a tag was moved: `spec.onRewrite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRewrite {
    /// Go where the ref points to.
    Follow,
    /// Stay, and say so.
    Hold,
}

impl OnRewrite {
    /// What an unset field means. Branches are rewritten as a matter of course; a released version is not.
    #[must_use]
    pub fn default_for(policy: &RefPolicy) -> Self {
        match policy {
            RefPolicy::Branch(_) | RefPolicy::Commit(_) => Self::Follow,
            RefPolicy::Tag(_) | RefPolicy::Semver(_) => Self::Hold,
        }
    }
}

/// What the caller found out about the two commits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether the commit found descends from the last one; none if nobody looked or history is too shallow.
    /// Only a branch with [`OnRewrite::Hold`] asks for it.
    pub is_descendant: Option<bool>,
}

/// What the Source allows, defaults resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// See [`OnRewrite::default_for`].
    pub on_rewrite: OnRewrite,
    /// Whether the version may go down within the range: `spec.allowDowngrade`.
    pub allow_downgrade: bool,
}

/// Why a Source stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HoldReason {
    /// The head of the branch does not descend from the last commit.
    HistoryRewritten,
    /// It is not known whether the head descends from the last commit, and the Source wants to be sure.
    AncestryUnknown,
    /// The tag, or the version, is the same and the commit another.
    TagMoved,
    /// The highest version in the range is lower than the last one, so a tag is gone.
    Downgrade,
}

impl HoldReason {
    /// The reason as it stands in conditions and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HistoryRewritten => "HistoryRewritten",
            Self::AncestryUnknown => "AncestryUnknown",
            Self::TagMoved => "TagMoved",
            Self::Downgrade => "Downgrade",
        }
    }
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a Source goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing new.
    Unchanged,
    /// To the revision found.
    Move(Revision),
    /// Nowhere until somebody decides.
    Hold {
        /// The revision that stays.
        keep: Revision,
        /// Why.
        reason: HoldReason,
        /// The revision that was found.
        found: Revision,
    },
}

/// Decides whether a Source moves from `last` to `found`, which [`resolve`](super::resolve) found for `policy`.
///
/// A changed policy is a wish of the user and never held: another branch, another tag, or a range that no longer
/// contains the last version. What is held is the same wish with a suspicious answer.
#[must_use]
pub fn advance(
    policy: &RefPolicy,
    last: Option<&Revision>,
    found: Revision,
    facts: Facts,
    rules: Rules,
) -> Verdict {
    let Some(last) = last else {
        return Verdict::Move(found);
    };
    if *last == found {
        return Verdict::Unchanged;
    }
    let objection = match policy {
        RefPolicy::Branch(_) => branch_objection(last, &found, facts, rules),
        RefPolicy::Tag(_) => tag_objection(last, &found, rules),
        RefPolicy::Semver(range) => semver_objection(range, last, &found, rules),
        RefPolicy::Commit(_) => None,
    };
    match objection {
        Some(reason) => Verdict::Hold {
            keep: last.clone(),
            reason,
            found,
        },
        None => Verdict::Move(found),
    }
}

fn branch_objection(last: &Revision, found: &Revision, facts: Facts, rules: Rules) -> Option<HoldReason> {
    if last.name() != found.name() || rules.on_rewrite == OnRewrite::Follow {
        return None;
    }
    match facts.is_descendant {
        Some(true) => None,
        Some(false) => Some(HoldReason::HistoryRewritten),
        None => Some(HoldReason::AncestryUnknown),
    }
}

fn tag_objection(last: &Revision, found: &Revision, rules: Rules) -> Option<HoldReason> {
    let moved = last.name() == found.name() && last.commit() != found.commit();
    (moved && rules.on_rewrite == OnRewrite::Hold).then_some(HoldReason::TagMoved)
}

/// Compares versions, not names: `1.2.3` that appears beside `v1.2.3` is the same version, and with another
/// commit it is as suspicious as a moved tag. Build metadata counts, as it does when the highest is chosen.
fn semver_objection(range: &Range, last: &Revision, found: &Revision, rules: Rules) -> Option<HoldReason> {
    // Without a version on both sides the last revision came from another policy.
    let (before, now) = (parse_version(last.name())?, parse_version(found.name())?);
    match precedence(&now, &before).then_with(|| now.build.cmp(&before.build)) {
        Ordering::Greater => None,
        Ordering::Equal => (last.commit() != found.commit() && rules.on_rewrite == OnRewrite::Hold)
            .then_some(HoldReason::TagMoved),
        // The commit may be the same: without the hold, the next lower version would look like a step up.
        Ordering::Less => (range.matches(&before) && !rules.allow_downgrade).then_some(HoldReason::Downgrade),
    }
}
