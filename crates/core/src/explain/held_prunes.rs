//! Explains prunes, and late ends of Syncs, that a plan held.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::reasons::Explainer;
use super::{ExplainedBlocker, command, names};
use crate::plan::{HoldReason, RemovalDecision, RemovalHold};

/// Whether a Sync is being removed, and why it waits.
type Kind = (bool, RemovalHold);
/// The Syncs that wait, and when time ends that.
type Waiting<'a> = (Vec<&'a str>, Option<Timestamp>);

/// Returns why deletions after what the group admitted have not begun, each reason once, for the Syncs that are asked
/// for.
pub(super) fn held_prunes(
    explainer: &Explainer<'_>,
    is_asked: impl Fn(&str) -> bool,
) -> Vec<ExplainedBlocker> {
    let mut held: BTreeMap<Kind, Waiting<'_>> = BTreeMap::new();
    let ends = |name: &str| {
        let leaving = explainer.input.leaving.get(name);
        leaving.is_some_and(|sync| sync.removing_since.is_some())
    };
    for (name, decision) in explainer.plan.prunes.iter().filter(|(name, _)| is_asked(name)) {
        if let RemovalDecision::Hold { reason, recheck_at } = decision {
            let (syncs, until) = held.entry((ends(name), *reason)).or_default();
            syncs.push(name);
            *until = [*until, *recheck_at].into_iter().flatten().min();
        }
    }
    let blocker = |((ends, reason), (syncs, until)): (Kind, Waiting<'_>)| {
        let (wait, ends_with) = wait(explainer, reason);
        let what = match ends {
            true => "objects of removed Syncs are not deleted",
            false => "objects that left git are not pruned",
        };
        ExplainedBlocker {
            reason: reason.as_str().to_owned(),
            text: format!("{what}: {wait}: {}", names(&syncs)),
            until,
            ends_with,
        }
    };
    held.into_iter().map(blocker).collect()
}

/// Returns what a prune waits for, and what ends that.
fn wait(explainer: &Explainer<'_>, reason: RemovalHold) -> (String, String) {
    let (wait, ends_with) = match reason {
        RemovalHold::MembershipHeld => (
            "too many clusters left the group at once",
            explainer.stopped(&HoldReason::MembershipHeld).1,
        ),
        RemovalHold::GroupSuspended => (
            "the group is suspended",
            explainer.stopped(&HoldReason::GroupSuspended).1,
        ),
        RemovalHold::Paused => (
            "the rollout is paused",
            format!(
                "the rollout is resumed: {}",
                command("resume", &[explainer.group])
            ),
        ),
        RemovalHold::Aborted => ("the rollout was aborted", super::reasons::REPLACED.to_owned()),
        RemovalHold::ClusterNotReady => (
            "the cluster is not ready, or the group does not select it",
            "the cluster is ready".to_owned(),
        ),
        RemovalHold::StageNotOpen => (
            "the stage of the cluster has not opened",
            "the stage opens".to_owned(),
        ),
        RemovalHold::WindowClosed => ("no window of the cluster is open", "the window opens".to_owned()),
        RemovalHold::NoSlot => (
            "all slots are in use",
            "another cluster is done, failed, or has pruned".to_owned(),
        ),
        other => (other.as_str(), "the next plan".to_owned()),
    };
    (wait.to_owned(), ends_with)
}
