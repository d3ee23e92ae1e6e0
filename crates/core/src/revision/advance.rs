//! Decides whether a Source may advance from its last revision to the one that was found.

use std::cmp::Ordering;
use std::fmt;

use super::{RefPolicy, Revision};
use crate::range::{Range, parse_version, precedence};

/// The reaction to a rewritten history or a moved tag: `spec.onRewrite`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRewrite {
    /// Follow the ref.
    Follow,
    /// Keep the last revision, and report the change.
    Hold,
}

impl OnRewrite {
    /// Returns the default. Branches are commonly rewritten; a released version is not.
    #[must_use]
    pub fn default_for(policy: &RefPolicy) -> Self {
        match policy {
            RefPolicy::Branch(_) | RefPolicy::Commit(_) => Self::Follow,
            RefPolicy::Tag(_) | RefPolicy::Semver(_) => Self::Hold,
        }
    }
}

/// The relation of the found commit to the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ancestry {
    /// The found commit descends from the last one.
    Descendant,
    /// The found commit is an ancestor of the last one: the branch was reset, or the server lags.
    Ancestor,
    /// Neither descends from the other: the history was rewritten.
    Diverged,
    /// As [`Self::Diverged`], and the found commit is one that a rewrite has replaced, or an ancestor of it: the server
    /// lags behind the rewrite, or the rewrite was undone.
    Replaced,
    /// Unknown: the last commit is no longer available, or nobody asked ([`depends_on_ancestry`]).
    #[default]
    Missing,
    /// Unknown: the history between the commits is too long to be walked.
    TooLong,
}

/// The rules of the Source, with defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvanceRules {
    /// See [`OnRewrite::default_for`].
    pub on_rewrite: OnRewrite,
    /// Whether the version may decrease within the range, and the branch may go back to an ancestor:
    /// `spec.allowDowngrade`.
    pub allow_downgrade: bool,
}

/// The reason why a Source keeps its last revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeepReason {
    /// The head of the branch is an ancestor of the last commit.
    BranchBehind,
    /// The head of the branch and the last commit have diverged.
    HistoryRewritten,
    /// The head of the branch is one that a rewrite has replaced, or an ancestor of it.
    ReplacedHead,
    /// The relation of the head to the last commit is unknown, because the last commit is no longer available.
    AncestryUnknown,
    /// The relation of the head to the last commit is unknown, because the history between them is too long.
    HistoryTooLong,
    /// The tag, or the version, is the same, and the commit is another one.
    TagMoved,
    /// The highest version in the range is lower than the last one, so a tag was removed.
    Downgrade,
}

impl KeepReason {
    /// Returns the reason as in status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BranchBehind => "BranchBehind",
            Self::HistoryRewritten => "HistoryRewritten",
            Self::ReplacedHead => "ReplacedHead",
            Self::AncestryUnknown => "AncestryUnknown",
            Self::HistoryTooLong => "HistoryTooLong",
            Self::TagMoved => "TagMoved",
            Self::Downgrade => "Downgrade",
        }
    }
}

/// The reason as in the message of a condition.
impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BranchBehind => {
                "the branch is behind the last revision: the server lags, or the branch was reset, which \
                 allowDowngrade accepts"
            }
            Self::HistoryRewritten => {
                "the history of the branch was rewritten, which onRewrite: Follow accepts"
            }
            Self::ReplacedHead => {
                "the head is one that a rewrite of the branch has replaced: the server lags, or the rewrite was \
                 undone, which allowDowngrade with onRewrite: Follow accepts"
            }
            Self::AncestryUnknown => {
                "the last revision is no longer available, so the branch may have been reset or rewritten; \
                 allowDowngrade with onRewrite: Follow accepts both"
            }
            Self::HistoryTooLong => {
                "the history between the two is too long to tell whether the branch was reset or rewritten; \
                 allowDowngrade with onRewrite: Follow accepts both"
            }
            Self::TagMoved => "the tag was moved, which onRewrite: Follow accepts",
            Self::Downgrade => "the version is lower, which allowDowngrade accepts",
        })
    }
}

/// The decision whether a Source advances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdvanceDecision {
    /// The revision is the same.
    Unchanged,
    /// The Source advances to the found revision.
    Move(Revision),
    /// The Source keeps its last revision until a person decides.
    Hold {
        /// The last revision.
        keep: Revision,
        /// The reason.
        reason: KeepReason,
        /// The found revision.
        found: Revision,
    },
}

/// Returns whether [`advance`] needs the ancestry of the two commits, which takes a walk through history.
#[must_use]
pub fn depends_on_ancestry(policy: &RefPolicy, last: &Revision, found: &Revision) -> bool {
    let same_branch = matches!(policy, RefPolicy::Branch(_)) && last.name() == found.name();
    same_branch && last.commit() != found.commit()
}

/// Heads that rewrites have replaced and that are remembered: rewrites within the time that a server may lag.
const REPLACED: usize = 8;

/// Returns the heads that rewrites have replaced, newest first, after the Source has moved from `last` to `now`.
#[must_use]
pub fn replaced_heads(
    before: &[Revision],
    last: &Revision,
    now: &Revision,
    ancestry: Ancestry,
) -> Vec<Revision> {
    let is_rewrite = matches!(ancestry, Ancestry::Diverged | Ancestry::Replaced);
    let newest = is_rewrite.then_some(last);
    let mut heads: Vec<Revision> = Vec::new();
    for head in newest.into_iter().chain(before) {
        // Heads of another branch say nothing about this one.
        if head.name() == now.name() && head.commit() != now.commit() && !heads.contains(head) {
            heads.push(head.clone());
        }
    }
    heads.truncate(REPLACED);
    heads
}

/// Decides whether a Source advances from `last` to `found`, which [`resolve`](super::resolve) returned for `policy`.
///
/// A changed policy is intended and never held: another branch, another tag, or a range that no longer contains the
/// last version. A suspicious change under the same policy is held.
#[must_use]
pub fn advance(
    policy: &RefPolicy,
    last: Option<&Revision>,
    found: Revision,
    ancestry: Ancestry,
    rules: AdvanceRules,
) -> AdvanceDecision {
    let Some(last) = last else {
        return AdvanceDecision::Move(found);
    };
    if *last == found {
        return AdvanceDecision::Unchanged;
    }
    let objection = match policy {
        RefPolicy::Branch(_) if depends_on_ancestry(policy, last, &found) => {
            branch_objection(ancestry, rules)
        }
        RefPolicy::Tag(_) => tag_objection(last, &found, rules),
        RefPolicy::Semver(range) => semver_objection(range, last, &found, rules),
        RefPolicy::Branch(_) | RefPolicy::Commit(_) => None,
    };
    match objection {
        Some(reason) => AdvanceDecision::Hold {
            keep: last.clone(),
            reason,
            found,
        },
        None => AdvanceDecision::Move(found),
    }
}

/// A lagging server and a reset of the branch are indistinguishable, so an ancestor is never followed because rewrites
/// are. A head whose relation is unknown may be an ancestor.
fn branch_objection(ancestry: Ancestry, rules: AdvanceRules) -> Option<KeepReason> {
    let follows_rewrite = rules.on_rewrite == OnRewrite::Follow;
    let (accepted, reason) = match ancestry {
        Ancestry::Descendant => return None,
        Ancestry::Ancestor => (rules.allow_downgrade, KeepReason::BranchBehind),
        Ancestry::Diverged => (follows_rewrite, KeepReason::HistoryRewritten),
        // After a rewrite, a lagging server shows the old head at each second listing, and each of them would be a new
        // rewrite.
        Ancestry::Replaced => (follows_rewrite && rules.allow_downgrade, KeepReason::ReplacedHead),
        Ancestry::Missing => (
            follows_rewrite && rules.allow_downgrade,
            KeepReason::AncestryUnknown,
        ),
        Ancestry::TooLong => (
            follows_rewrite && rules.allow_downgrade,
            KeepReason::HistoryTooLong,
        ),
    };
    (!accepted).then_some(reason)
}

fn tag_objection(last: &Revision, found: &Revision, rules: AdvanceRules) -> Option<KeepReason> {
    let moved = last.name() == found.name() && last.commit() != found.commit();
    (moved && rules.on_rewrite == OnRewrite::Hold).then_some(KeepReason::TagMoved)
}

/// Compares versions, not names: `1.2.3` in addition to `v1.2.3` is the same version, and with another commit it is as
/// suspicious as a moved tag. Build metadata counts, as in the choice of the highest version.
fn semver_objection(
    range: &Range,
    last: &Revision,
    found: &Revision,
    rules: AdvanceRules,
) -> Option<KeepReason> {
    // Without a version on both sides, the last revision is from another policy.
    let (before, now) = (parse_version(last.name())?, parse_version(found.name())?);
    match precedence(&now, &before).then_with(|| now.build.cmp(&before.build)) {
        Ordering::Greater => None,
        Ordering::Equal => (last.commit() != found.commit() && rules.on_rewrite == OnRewrite::Hold)
            .then_some(KeepReason::TagMoved),
        // The commit may be the same: without the hold, the next lower version would look like an upgrade.
        Ordering::Less => (range.matches(&before) && !rules.allow_downgrade).then_some(KeepReason::Downgrade),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{CommitId, RefName};
    use super::Ancestry::{Ancestor, Descendant, Diverged, Missing, Replaced, TooLong};
    use super::*;

    const FOLLOW: AdvanceRules = AdvanceRules {
        on_rewrite: OnRewrite::Follow,
        allow_downgrade: false,
    };
    const HOLD: AdvanceRules = AdvanceRules {
        on_rewrite: OnRewrite::Hold,
        allow_downgrade: false,
    };
    const DOWN: AdvanceRules = AdvanceRules {
        on_rewrite: OnRewrite::Hold,
        allow_downgrade: true,
    };
    const FREE: AdvanceRules = AdvanceRules {
        on_rewrite: OnRewrite::Follow,
        allow_downgrade: true,
    };

    /// Returns a revision from `name@n`, where n is the number of the commit; `@n` has no name.
    fn mk_revision(text: &str) -> Revision {
        let (name, n) = text.rsplit_once('@').unwrap();
        let name = (!name.is_empty()).then(|| RefName::new(name).unwrap());
        Revision::new(name, CommitId::new(&format!("{n:0>40}")).unwrap())
    }

    /// Guards against two servers behind one name after a rewrite, of which one lags: each listing was a new rewrite,
    /// and the Source went back and forth.
    #[test]
    fn a_head_that_a_rewrite_replaced_is_not_a_new_rewrite() {
        let main = RefPolicy::branch("main").unwrap();
        for (rules, expected) in [
            (FOLLOW, "ReplacedHead"),
            (HOLD, "ReplacedHead"),
            (DOWN, "ReplacedHead"),
            (FREE, "move"),
        ] {
            assert_eq!(
                outcome(&main, "main@2", "main@1", Replaced, rules),
                expected,
                "{rules:?}"
            );
        }
        let all = |texts: &[&str]| -> Vec<Revision> { texts.iter().map(|text| mk_revision(text)).collect() };
        for (before, last, now, ancestry, expected) in [
            (&[][..], "main@1", "main@2", Diverged, &["main@1"][..]),
            (&["main@1"], "main@2", "main@3", Descendant, &["main@1"]),
            (&["main@1"], "main@3", "main@4", Diverged, &["main@3", "main@1"]),
            // The rewrite was undone, and a person accepted it.
            (&["main@1"], "main@2", "main@1", Replaced, &["main@2"]),
            (&["main@1"], "main@2", "next@3", Missing, &[]),
        ] {
            let heads = replaced_heads(&all(before), &mk_revision(last), &mk_revision(now), ancestry);
            assert_eq!(heads, all(expected), "{before:?} {last} {now} {ancestry:?}");
        }
        let mut heads = Vec::new();
        for n in 1..50 {
            let (last, now) = (format!("main@{n}"), format!("main@{}", n + 1));
            heads = replaced_heads(&heads, &mk_revision(&last), &mk_revision(&now), Diverged);
        }
        assert_eq!((heads.len(), &heads[0]), (REPLACED, &mk_revision("main@49")));
    }

    /// Returns `move`, `unchanged` or the reason of a hold, and checks the fields of the decision.
    fn outcome(
        policy: &RefPolicy,
        last: &str,
        found: &str,
        ancestry: Ancestry,
        rules: AdvanceRules,
    ) -> &'static str {
        let (last, found) = (mk_revision(last), mk_revision(found));
        match advance(policy, Some(&last), found.clone(), ancestry, rules) {
            AdvanceDecision::Unchanged => {
                assert_eq!(last, found);
                "unchanged"
            }
            AdvanceDecision::Move(to) => {
                assert_eq!(to, found);
                "move"
            }
            AdvanceDecision::Hold {
                keep,
                reason,
                found: held,
            } => {
                assert_eq!((keep, held), (last, found));
                reason.as_str()
            }
        }
    }

    #[test]
    fn the_first_revision_is_always_accepted() {
        for policy in [
            RefPolicy::branch("main"),
            RefPolicy::tag("v1"),
            RefPolicy::semver("1.x"),
        ] {
            let found = mk_revision("v1@1");
            let decision = advance(&policy.unwrap(), None, found.clone(), Missing, HOLD);
            assert_eq!(decision, AdvanceDecision::Move(found));
        }
    }

    #[test]
    fn branches() {
        let policy = RefPolicy::branch("main").unwrap();
        for (last, found, ancestry, rules, wanted) in [
            ("main@1", "main@1", Missing, HOLD, "unchanged"),
            ("main@1", "main@2", Descendant, HOLD, "move"),
            ("main@1", "main@2", Ancestor, HOLD, "BranchBehind"),
            ("main@1", "main@2", Diverged, HOLD, "HistoryRewritten"),
            ("main@1", "main@2", Missing, HOLD, "AncestryUnknown"),
            ("main@1", "main@2", TooLong, HOLD, "HistoryTooLong"),
            ("main@1", "main@2", Descendant, FOLLOW, "move"),
            ("main@1", "main@2", Ancestor, FOLLOW, "BranchBehind"),
            ("main@1", "main@2", Diverged, FOLLOW, "move"),
            ("main@1", "main@2", Missing, FOLLOW, "AncestryUnknown"),
            ("main@1", "main@2", TooLong, FOLLOW, "HistoryTooLong"),
            // A person has reset the branch, and does not accept rewrites.
            ("main@1", "main@2", Ancestor, DOWN, "move"),
            ("main@1", "main@2", Diverged, DOWN, "HistoryRewritten"),
            ("main@1", "main@2", Missing, DOWN, "AncestryUnknown"),
            ("main@1", "main@2", TooLong, DOWN, "HistoryTooLong"),
            ("main@1", "main@2", Ancestor, FREE, "move"),
            ("main@1", "main@2", Diverged, FREE, "move"),
            ("main@1", "main@2", Missing, FREE, "move"),
            ("main@1", "main@2", TooLong, FREE, "move"),
            // The policy was another one before.
            ("dev@1", "main@2", Ancestor, HOLD, "move"),
            ("dev@1", "main@2", Diverged, HOLD, "move"),
            ("dev@1", "main@1", Missing, HOLD, "move"),
            ("@1", "main@2", Missing, HOLD, "move"),
        ] {
            let got = outcome(&policy, last, found, ancestry, rules);
            assert_eq!(got, wanted, "{last} -> {found}, {ancestry:?}, {rules:?}");
        }
    }

    #[test]
    fn ancestry_is_needed_for_another_commit_of_the_same_branch_only() {
        let branch = || RefPolicy::branch("main").unwrap();
        for (policy, last, found, wanted) in [
            (branch(), "main@1", "main@2", true),
            (branch(), "main@1", "main@1", false),
            (branch(), "dev@1", "main@2", false),
            (RefPolicy::tag("main").unwrap(), "main@1", "main@2", false),
            (RefPolicy::semver("1.x").unwrap(), "v1.0.0@1", "v1.0.0@2", false),
        ] {
            let got = depends_on_ancestry(&policy, &mk_revision(last), &mk_revision(found));
            assert_eq!(got, wanted, "{policy}: {last} -> {found}");
        }
    }

    #[test]
    fn tags() {
        let policy = RefPolicy::tag("v1").unwrap();
        for (last, found, rules, wanted) in [
            ("v1@1", "v1@1", HOLD, "unchanged"),
            ("v1@1", "v1@2", HOLD, "TagMoved"),
            ("v1@1", "v1@2", FOLLOW, "move"),
            // The user requested another tag.
            ("v2@1", "v1@2", HOLD, "move"),
            ("v2@1", "v1@1", HOLD, "move"),
        ] {
            // A tag that moved forward has moved, too.
            let got = outcome(&policy, last, found, Descendant, rules);
            assert_eq!(got, wanted, "{last} -> {found}, {rules:?}");
        }
    }

    #[test]
    fn ranges() {
        let range = |text| RefPolicy::semver(text).unwrap();
        for (policy, last, found, rules, wanted) in [
            (range("1.x"), "v1.2.0@1", "v1.2.0@1", HOLD, "unchanged"),
            (range("1.x"), "v1.2.0@1", "v1.10.0@2", HOLD, "move"),
            (range("1.x"), "v1.2.0@1", "v1.2.0@2", HOLD, "TagMoved"),
            (range("1.x"), "v1.2.0@1", "v1.2.0@2", FOLLOW, "move"),
            (range("1.x"), "v1.2.0@1", "v1.2.0@2", DOWN, "TagMoved"),
            (range("1.x"), "v1.2.0@1", "v1.1.0@2", HOLD, "Downgrade"),
            (range("1.x"), "v1.2.0@1", "v1.1.0@2", FOLLOW, "Downgrade"),
            (range("1.x"), "v1.2.0@1", "v1.1.0@1", HOLD, "Downgrade"),
            (range("1.x"), "v1.2.0@1", "v1.1.0@2", FREE, "move"),
            (range("1.x"), "v1.2.0@1", "v1.1.0@2", DOWN, "move"),
            // The same version with another name.
            (range("1.x"), "1.2.0@1", "v1.2.0@1", HOLD, "move"),
            (range("1.x"), "1.2.0@1", "v1.2.0@2", HOLD, "TagMoved"),
            (range("1.x"), "1.2.0@1", "v1.2.0@2", FOLLOW, "move"),
            // Build metadata is ordered here as in the choice of the highest version.
            (range("1.x"), "1.2.0+1@1", "1.2.0+2@2", HOLD, "move"),
            (range("1.x"), "1.2.0+2@1", "1.2.0+1@2", HOLD, "Downgrade"),
            (range("1.x-0"), "1.2.0@1", "1.2.0-rc.1@2", HOLD, "Downgrade"),
            // The user chose another range, or had another policy before.
            (range("1.x"), "v2.0.0@1", "v1.1.0@2", HOLD, "move"),
            (range("<1.2"), "v1.2.0@1", "v1.1.0@2", HOLD, "move"),
            (range("1.x"), "main@1", "v1.1.0@2", HOLD, "move"),
            (range("1.x"), "@1", "v1.1.0@2", HOLD, "move"),
        ] {
            let got = outcome(&policy, last, found, Missing, rules);
            assert_eq!(got, wanted, "{policy}: {last} -> {found}, {rules:?}");
        }
    }

    #[test]
    fn a_commit_is_never_held() {
        let policy = RefPolicy::commit(&"0".repeat(40)).unwrap();
        assert_eq!(outcome(&policy, "@1", "@0", Ancestor, HOLD), "move");
        assert_eq!(outcome(&policy, "main@0", "@0", Missing, HOLD), "move");
        assert_eq!(outcome(&policy, "@0", "@0", Missing, HOLD), "unchanged");
    }

    #[test]
    fn branches_follow_and_releases_hold_by_default() {
        for (policy, wanted) in [
            (RefPolicy::branch("main"), OnRewrite::Follow),
            (RefPolicy::commit(&"0".repeat(40)), OnRewrite::Follow),
            (RefPolicy::tag("v1"), OnRewrite::Hold),
            (RefPolicy::semver("1.x"), OnRewrite::Hold),
        ] {
            assert_eq!(OnRewrite::default_for(&policy.unwrap()), wanted);
        }
    }

    /// A revision of a small repository whose tags are all in the range `*-0`.
    fn mk_release() -> impl Strategy<Value = Revision> {
        "v?[0-2]\\.[0-2]\\.[0-2](-[a-c])?(\\+[a-c])?@[0-4]".prop_map(|text| mk_revision(&text))
    }

    fn mk_policy() -> impl Strategy<Value = RefPolicy> {
        prop_oneof![
            Just(RefPolicy::branch("1.0.0").unwrap()),
            Just(RefPolicy::tag("1.0.0").unwrap()),
            Just(RefPolicy::semver(">=0-0").unwrap()),
            Just(RefPolicy::commit(&"0".repeat(40)).unwrap()),
        ]
    }

    fn mk_ancestry() -> impl Strategy<Value = Ancestry> {
        prop::sample::select(vec![Descendant, Ancestor, Diverged, Missing, TooLong])
    }

    proptest! {
        #[test]
        fn nothing_is_held_if_everything_is_allowed(
            policy in mk_policy(), last in mk_release(), found in mk_release(), ancestry in mk_ancestry(),
        ) {
            let wanted = if last == found { AdvanceDecision::Unchanged } else { AdvanceDecision::Move(found.clone()) };
            prop_assert_eq!(advance(&policy, Some(&last), found, ancestry, FREE), wanted);
        }

        #[test]
        fn a_decision_that_was_executed_is_not_made_again(
            policy in mk_policy(), last in mk_release(), found in mk_release(),
            ancestry in mk_ancestry(), hold: bool, allow_downgrade: bool,
        ) {
            let on_rewrite = if hold { OnRewrite::Hold } else { OnRewrite::Follow };
            let rules = AdvanceRules { on_rewrite, allow_downgrade };
            match advance(&policy, Some(&last), found.clone(), ancestry, rules) {
                AdvanceDecision::Unchanged => prop_assert_eq!(last, found),
                AdvanceDecision::Move(now) => {
                    prop_assert_eq!(advance(&policy, Some(&now), found, ancestry, rules), AdvanceDecision::Unchanged);
                }
                hold @ AdvanceDecision::Hold { .. } => {
                    prop_assert_eq!(advance(&policy, Some(&last), found, ancestry, rules), hold);
                }
            }
        }

        #[test]
        fn versions_never_go_down_nor_change_their_commit(found in prop::collection::vec(mk_release(), 1..20)) {
            let policy = RefPolicy::semver(">=0-0").unwrap();
            let mut last: Option<Revision> = None;
            for found in found {
                let AdvanceDecision::Move(now) = advance(&policy, last.as_ref(), found, Missing, HOLD) else { continue };
                if let Some(last) = &last {
                    let versions = (parse_version(now.name()).unwrap(), parse_version(last.name()).unwrap());
                    prop_assert!(precedence(&versions.0, &versions.1).is_ge(), "{last} -> {now}");
                    if versions.0 == versions.1 {
                        prop_assert_eq!(now.commit(), last.commit());
                    }
                }
                last = Some(now);
            }
        }
    }
}
