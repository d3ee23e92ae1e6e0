//! Explains what blocks a cluster or a group: the reasons in order, what ends each of them, and an estimate of the
//! completion.
//!
//! An explanation follows from the input of the planner, so it can be made for the present, for a time in the journal,
//! and for a simulated fleet. An estimate needs the current rollout, too ([`CurrentRollout`]).

mod forecast;
mod held_prunes;
mod model;
mod reasons;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

pub use crate::durations::{Durations, took};
pub use forecast::{Estimate, NoEstimate, estimate_cluster, estimate_group};
use held_prunes::held_prunes;
pub use model::CurrentRollout;
use reasons::{Explainer, rank};

use crate::plan::{
    Decision, EntryView, HoldReason, Plan, PlanInput, RemovalDecision, RemovalHold, RolloutVerdict,
    StagePhase, StageWait, hold_reasons, pending_retry,
};
use crate::plural::counted;
use crate::rollout::Blocked;

/// The number of clusters that a text names; the others are counted.
const NAMED: usize = 5;

/// The explanation of the state of a cluster or a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The state, as a sentence.
    pub state: String,
    /// The blockers, in the order of precedence. Empty: nothing blocks it.
    pub blockers: Vec<ExplainedBlocker>,
    /// The next event, or what has to happen next; empty: nothing is left to do.
    pub next: String,
    /// The time of that event, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
}

/// A blocker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainedBlocker {
    /// The reason, as in status.
    pub reason: String,
    /// The message.
    pub text: String,
    /// Time at which the blocker ends, if it has such a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The event that ends the blocker.
    pub ends_with: String,
}

/// Explains the state of a cluster; `None`: the group does not select it.
#[must_use]
pub fn cluster(group: &str, input: &PlanInput, plan: &Plan, name: &str) -> Option<Explanation> {
    let view = input.clusters.get(name)?;
    let decision = plan.decisions.get(name)?;
    let explainer = Explainer { group, input, plan };
    let plain = |state: String, next: &str, next_at| Explanation {
        state,
        blockers: Vec::new(),
        next: next.to_owned(),
        next_at,
    };
    Some(match decision {
        Decision::Done => {
            let is_there = |sync: &str| input.prunes.get(sync).is_some_and(|prune| prune.cluster == name);
            waiting("is on this release", held_prunes(&explainer, is_there))
        }
        Decision::Start { entries, .. } => {
            let entries = entries.join(", ");
            plain(
                format!("starts now (entries: {entries})"),
                "the cluster is healthy on this release",
                None,
            )
        }
        Decision::Retry { entries, .. } => {
            let entries = entries.join(", ");
            plain(
                format!("is retried now (entries: {entries})"),
                "the cluster is healthy on this release",
                None,
            )
        }
        Decision::Remove { entries } => plain(
            format!("loses removed entries now ({})", entries.join(", ")),
            "the Syncs of these entries are gone",
            None,
        ),
        Decision::InFlight { deadline, lost } if is_losing(input, name) => {
            let lost = if *lost { " and is unreachable" } else { "" };
            let limit = deadline.map_or_else(String::new, |at| format!("; progress deadline: {at}"));
            plain(
                format!("is losing removed entries{lost}{limit}"),
                "the Syncs of these entries are gone",
                None,
            )
        }
        Decision::InFlight { deadline, lost } => {
            let lost = if *lost {
                " and has been unreachable since its admission"
            } else {
                ""
            };
            let limit = deadline.map_or_else(String::new, |at| format!("; progress deadline: {at}"));
            plain(
                format!("is being updated to this release{lost}{limit}"),
                "the cluster is healthy on this release",
                None,
            )
        }
        Decision::Soaking { until } => plain(
            format!("is healthy on this release and soaks until {until}"),
            "the soak ends",
            Some(*until),
        ),
        Decision::Failed { reason, retry_at } => {
            let mut failed = Explanation {
                state: "failed".to_owned(),
                blockers: vec![ExplainedBlocker {
                    reason: reason.as_str().to_owned(),
                    text: reason.to_string(),
                    until: None,
                    ends_with: format!(
                        "the Sync succeeds on a retry, or a new revision rolls out; retry now: {}",
                        command("retry", &[group, "--cluster", name])
                    ),
                }],
                next: "the Sync is retried".to_owned(),
                next_at: *retry_at,
            };
            if let Some(pending) = pending_retry(input, plan, name) {
                let blocker = explainer.blocker(&pending.reason, None, Some((name, view)));
                failed.state = format!("failed; a retry is requested since {}", pending.requested_at);
                failed.next = format!("the cluster is retried: {}", blocker.ends_with);
                failed.next_at = None;
                failed.blockers.push(blocker);
            }
            failed
        }
        Decision::Hold { reason, recheck_at } => {
            let mut blockers: Vec<ExplainedBlocker> = hold_reasons(input, name)
                .iter()
                .map(|(reason, until)| explainer.blocker(reason, *until, Some((name, view))))
                .collect();
            if blockers.is_empty() {
                blockers.push(explainer.blocker(reason, *recheck_at, Some((name, view))));
            }
            blockers.extend(explainer.afterwards(reason, view));
            waiting("waits to start", blockers)
        }
    })
}

/// Explains the state of a cluster with Syncs that the group no longer selects; `None`: it has none.
#[must_use]
pub fn left_cluster(group: &str, input: &PlanInput, plan: &Plan, name: &str) -> Option<Explanation> {
    let on_cluster = || input.leaving.values().filter(|sync| sync.cluster == name);
    on_cluster().next()?;
    let explainer = Explainer { group, input, plan };
    let is_there = |sync: &str| input.leaving.get(sync).is_some_and(|sync| sync.cluster == name);
    let held = held_removals(&explainer, is_there);
    let why = if input.deleting {
        "its group is being deleted"
    } else {
        "left the group"
    };
    if !held.is_empty() {
        return Some(waiting(&format!("{why}; its Syncs are not removed yet"), held));
    }
    Some(Explanation {
        state: format!("{why}; its Syncs are being removed"),
        blockers: Vec::new(),
        next: "its Syncs are gone".to_owned(),
        next_at: None,
    })
}

fn waiting(state: &str, blockers: Vec<ExplainedBlocker>) -> Explanation {
    let first = blockers.first();
    Explanation {
        state: state.to_owned(),
        next: first.map(|blocker| blocker.ends_with.clone()).unwrap_or_default(),
        next_at: first.and_then(|blocker| blocker.until),
        blockers,
    }
}

/// Explains the state of a group. `stuck`: why a due rollback, or another due transition, cannot be made, if that is
/// known.
#[must_use]
pub fn group(group: &str, input: &PlanInput, plan: &Plan, stuck: Option<&Blocked>) -> Explanation {
    let explainer = Explainer { group, input, plan };
    if input.deleting {
        let removing = input
            .leaving
            .values()
            .filter(|sync| sync.removing_since.is_some());
        let (removing, all) = (removing.count(), counted(input.leaving.len(), "Sync", "Syncs"));
        let state = format!("is being deleted: {removing} of {all} are being removed");
        return waiting(&state, held_removals(&explainer, |_| true));
    }
    let report = plan.report(input);
    let stage = match report.stage.as_str() {
        stage if !stage.is_empty() && plan.stages.len() > 1 => format!(", stage {stage}"),
        _ => String::new(),
    };
    let counts = report.counts;
    let mut state = format!(
        "{:?}{stage}: {} of {} clusters are on this release",
        report.phase, counts.updated, counts.total
    );
    for (count, what) in [
        (counts.progressing, "in flight"),
        (counts.pending, "waiting"),
        (counts.failed, "failed"),
        (counts.unreachable, "unreachable"),
        (counts.on_hold, "on hold (suspended, skipped, missing parameters)"),
    ] {
        if count > 0 {
            state.push_str(&format!(", {count} {what}"));
        }
    }
    let mut removals = held_removals(&explainer, |_| true);
    removals.extend(held_prunes(&explainer, |_| true));
    let stuck = stuck.map(stuck_transition);
    if plan.verdict == RolloutVerdict::Succeeded {
        removals.extend(stuck);
        let mut explanation = waiting("", removals);
        explanation.state = state;
        return explanation;
    }
    let mut blockers = blockers(&explainer);
    if blockers.is_empty() {
        blockers.extend(work_in_progress(&explainer));
    }
    if blockers.is_empty() && input.membership_held {
        blockers.push(explainer.blocker(&HoldReason::MembershipHeld, None, None));
    }
    blockers.extend(stuck);
    blockers.extend(removals);
    let mut explanation = waiting("", blockers);
    explanation.state = state;
    explanation
}

/// Returns the blocker of a due transition that cannot be made.
fn stuck_transition(stuck: &Blocked) -> ExplainedBlocker {
    ExplainedBlocker {
        reason: stuck.reason.to_owned(),
        text: stuck.message.clone(),
        until: None,
        ends_with: "a new revision rolls out".to_owned(),
    }
}

/// Reports whether the entries of the release are done on a cluster, and its removed entries are being removed.
fn is_losing(input: &PlanInput, cluster: &str) -> bool {
    let mut leaving = input.leaving.values();
    let is_losing = leaving.any(|sync| sync.cluster == cluster && sync.removing_since.is_some());
    let is_at_target = |entry: &EntryView| {
        let sync = entry.observed.as_ref();
        sync.is_some_and(|sync| sync.target.is_some() && sync.target.as_ref() == entry.wanted.as_ref().ok())
    };
    let entries = input.clusters.get(cluster).map(|view| view.entries.values());
    is_losing && entries.is_some_and(|mut entries| entries.all(is_at_target))
}

/// Returns why Syncs that the group no longer wants are not removed yet, each reason once, for the Syncs that are asked
/// for.
fn held_removals(explainer: &Explainer<'_>, is_asked: impl Fn(&str) -> bool) -> Vec<ExplainedBlocker> {
    let mut held: BTreeMap<RemovalHold, (Vec<&str>, Option<Timestamp>)> = BTreeMap::new();
    let removals = explainer.plan.removals.iter();
    for (name, decision) in removals.filter(|(name, _)| is_asked(name)) {
        if let RemovalDecision::Hold { reason, recheck_at } = decision {
            let (names, until) = held.entry(*reason).or_default();
            names.push(name);
            *until = [*until, *recheck_at].into_iter().flatten().min();
        }
    }
    let blockers = held.into_iter().map(|(reason, (syncs, until))| ExplainedBlocker {
        until,
        ..explainer.held_removal(reason, &names(&syncs))
    });
    blockers.collect()
}

/// Returns what blocks clusters of the group: each reason once, with its clusters.
fn blockers(explainer: &Explainer<'_>) -> Vec<ExplainedBlocker> {
    let mut waiting: BTreeMap<usize, (&HoldReason, Vec<&str>, Option<Timestamp>)> = BTreeMap::new();
    for (name, decision) in &explainer.plan.decisions {
        if let Decision::Hold { reason, recheck_at } = decision {
            let known = waiting.entry(rank(reason)).or_insert((reason, Vec::new(), None));
            known.1.push(name);
            known.2 = [known.2, *recheck_at].into_iter().flatten().min();
        }
    }
    // A reason of a single cluster does not block the group: it comes last.
    let (own, shared): (Vec<_>, Vec<_>) = waiting.into_values().partition(|(reason, ..)| is_own(reason));
    let blockers = shared.into_iter().chain(own).map(|(reason, clusters, until)| {
        let example = clusters.first().and_then(|name| {
            let view = explainer.input.clusters.get(*name)?;
            Some((*name, view))
        });
        let mut blocker = explainer.blocker(reason, until, example);
        blocker.text = format!("{} ({})", blocker.text, names(&clusters));
        blocker
    });
    blockers.collect()
}

/// Reports whether a reason blocks one cluster and no other.
fn is_own(reason: &HoldReason) -> bool {
    matches!(
        reason,
        HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::SyncUnreadable { .. }
            | HoldReason::InvalidParameters { .. }
            | HoldReason::ClusterNotProbed
            | HoldReason::ClusterUnreachable { .. }
    )
}

/// Returns what the group waits for if no cluster waits to start: the gate of the stage, or the clusters in flight.
fn work_in_progress(explainer: &Explainer<'_>) -> Option<ExplainedBlocker> {
    let stage = explainer.plan.current_stage()?;
    if let StagePhase::Waiting(wait) = &stage.phase
        && !matches!(wait, StageWait::Clusters { .. })
    {
        return Some(explainer.stage_waits(stage, wait));
    }
    let of = |wanted: fn(&Decision) -> bool| {
        let found = explainer
            .plan
            .decisions
            .iter()
            .filter(|(_, decision)| wanted(decision));
        found.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
    };
    let working = of(|decision| {
        matches!(
            decision,
            Decision::Start { .. }
                | Decision::Retry { .. }
                | Decision::Remove { .. }
                | Decision::InFlight { .. }
                | Decision::Soaking { .. }
        )
    });
    if !working.is_empty() {
        return Some(ExplainedBlocker {
            reason: "Progressing".to_owned(),
            text: format!("clusters in progress: {}", names(&working)),
            until: None,
            ends_with: "these clusters are healthy on this release".to_owned(),
        });
    }
    let failed = of(|decision| matches!(decision, Decision::Failed { .. }));
    (!failed.is_empty()).then(|| ExplainedBlocker {
        reason: "Failed".to_owned(),
        text: format!("failed clusters: {}", names(&failed)),
        until: None,
        ends_with: format!(
            "their Syncs succeed on a retry, or a new revision rolls out; retry now: {}",
            command("retry", &[explainer.group])
        ),
    })
}

/// Returns a command to copy, complete except for the reason, which every operator action needs. It has no namespace,
/// since none is known here.
fn command(verb: &str, arguments: &[&str]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let arguments = arguments.iter().map(|argument| {
        if argument.bytes().all(is_plain) {
            (*argument).to_owned()
        } else {
            // The implicit stage is `*`, which a shell expands to the files of its directory.
            format!("'{argument}'")
        }
    });
    let arguments: Vec<String> = arguments.collect();
    format!("starling {verb} {} --reason \"…\"", arguments.join(" "))
}

/// Returns the command that approves a list of deletions of a group.
fn approve_deletions(group: &str, digest: &str) -> String {
    format!("starling approve-deletions group {group} --digest {digest} --reason \"…\"")
}

/// Returns some names, and the number of the others.
fn names(clusters: &[&str]) -> String {
    let mut named = clusters
        .iter()
        .take(NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if clusters.len() > NAMED {
        named.push_str(&format!(" and {} more", clusters.len() - NAMED));
    }
    named
}

#[cfg(test)]
mod tests;
