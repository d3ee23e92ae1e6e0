//! The message of each reason, and what ends it.

use crate::ids::ClusterName;
use jiff::Timestamp;
use starling_api::{ABANDON, OnUnreachable};

use super::{ExplainedBlocker, approve_deletions, command, names};
use crate::plan::{
    Attribution, Bucket, ClusterView, Decision, Direction, Gate, HoldReason, Plan, PlanInput, RemovalHold,
    StagePlan, StageWait, Tally, bucket, health_problem_when_done,
};
use crate::window::{Calendar, Opening, combined};

/// What ends an abort.
pub(super) const REPLACED: &str =
    "a new revision or a rollback replaces this rollout; to undo: kubectl delete rolloutaction NAME";

/// Explains the reasons of one plan.
#[derive(Clone, Copy)]
pub(super) struct Explainer<'a> {
    /// The name of the group, for commands.
    pub(super) group: &'a str,
    pub(super) input: &'a PlanInput,
    pub(super) plan: &'a Plan,
}

/// Returns the precedence of a reason, which is that of the planner.
pub(super) fn rank(reason: &HoldReason) -> usize {
    match reason {
        HoldReason::Skipped(_) => 0,
        HoldReason::ClusterSuspended => 1,
        HoldReason::SyncSuspended { .. } => 2,
        HoldReason::SyncUnreadable { .. } => 3,
        HoldReason::InvalidParameters { .. } => 4,
        HoldReason::ClusterNotProbed => 5,
        HoldReason::ClusterUnreachable { .. } => 6,
        HoldReason::GroupSuspended => 7,
        HoldReason::Paused(_) => 8,
        HoldReason::Aborted(_) => 9,
        HoldReason::MembershipHeld => 10,
        HoldReason::TooManyFailures { .. } => 11,
        HoldReason::StageWaits { .. } => 12,
        HoldReason::WindowClosed => 13,
        HoldReason::Jitter => 14,
        HoldReason::NoSlot => 15,
        HoldReason::TooManyUnavailable => 16,
        HoldReason::InstallationLimit => 17,
    }
}

/// The message of a reason, and what ends the reason.
type ReasonText = (String, String);

impl Explainer<'_> {
    /// Returns the blocker of this reason; `about`: the cluster, or one of the clusters, that it blocks.
    pub(super) fn blocker(
        &self,
        reason: &HoldReason,
        until: Option<Timestamp>,
        about: Option<(&str, &ClusterView)>,
    ) -> ExplainedBlocker {
        let cluster = about.map_or("the cluster", |(name, _)| name);
        let (text, ends_with) = match reason {
            HoldReason::StageWaits { stage, wait } => match self.plan.stages.get(*stage) {
                Some(stage) => return self.stage_waits(stage, wait),
                None => (
                    "an earlier stage is not complete".to_owned(),
                    "that stage completes".to_owned(),
                ),
            },
            HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::SyncUnreadable { .. }
            | HoldReason::InvalidParameters { .. }
            | HoldReason::ClusterNotProbed
            | HoldReason::ClusterUnreachable { .. } => own(cluster, reason),
            HoldReason::GroupSuspended
            | HoldReason::Paused(_)
            | HoldReason::Aborted(_)
            | HoldReason::MembershipHeld
            | HoldReason::TooManyFailures { .. } => self.stopped(reason),
            HoldReason::WindowClosed => self.window(about.map(|(_, view)| view), until),
            HoldReason::Jitter => (
                format!("jitter delays the start{}", at(until)),
                "the jitter delay ends".to_owned(),
            ),
            HoldReason::NoSlot | HoldReason::TooManyUnavailable => self.slots(reason, about),
            HoldReason::InstallationLimit => (
                "as many clusters of all groups are in flight as the controller allows, or half of them in this \
                 namespace (--max-clusters-in-flight)"
                    .to_owned(),
                "a cluster of any group is done or failed; groups with fewer clusters in flight come first".to_owned(),
            ),
        };
        ExplainedBlocker {
            reason: reason.as_str().to_owned(),
            text,
            until,
            ends_with,
        }
    }

    /// Returns the command that approves the removals of an automatic rollback, which have one digest.
    fn approval(&self) -> String {
        let mut leaving = self.input.leaving.values();
        let digest = leaving.find_map(|sync| sync.approval.as_deref());
        approve_deletions(self.group, digest.unwrap_or_default())
    }

    /// Returns why these Syncs, which the group no longer wants, are not removed yet.
    pub(super) fn held_removal(&self, reason: RemovalHold, syncs: &str) -> ExplainedBlocker {
        let of = if self.input.deleting {
            "Syncs of the deleted group"
        } else {
            "Syncs of clusters that left the group"
        };
        let (text, ends_with) = match reason {
            RemovalHold::MembershipHeld => (
                format!("Syncs are not removed, because too many clusters left the group at once: {syncs}"),
                self.stopped(&HoldReason::MembershipHeld).1,
            ),
            RemovalHold::Settling => (
                format!("Syncs of clusters that left the group are not removed yet: {syncs}"),
                "spec.unselectedGrace ends, and no more clusters leave the group for a moment; a cluster that returns \
                 before that keeps its objects"
                    .to_owned(),
            ),
            RemovalHold::AutomaticRollback => (
                format!("Syncs of entries that the automatic rollback lacks are not removed: {syncs}"),
                format!("this is approved: {}", self.approval()),
            ),
            RemovalHold::ClusterNotDone => (
                format!("Syncs of entries that left the group are not removed yet: {syncs}"),
                "the other entries on their clusters are done: one of them may take over their objects"
                    .to_owned(),
            ),
            RemovalHold::ClusterWaits => (
                format!(
                    "Syncs of entries that left the group wait for what a start on their cluster waits for: {syncs}"
                ),
                "see the clusters".to_owned(),
            ),
            RemovalHold::SyncSuspended if self.input.deleting => (
                format!("{of} are suspended, and what they depend on goes first: {syncs}"),
                "the Syncs that they depend on are released".to_owned(),
            ),
            RemovalHold::SyncSuspended => (
                format!("Syncs of clusters that left the group are suspended: {syncs}"),
                "the Syncs are resumed".to_owned(),
            ),
            RemovalHold::DependentStays => (
                format!("Syncs that depend on these are suspended and stay on clusters that left the group: {syncs}"),
                "the Syncs that depend on them are resumed".to_owned(),
            ),
            RemovalHold::GroupSuspended => (
                format!(
                    "{of} are not removed, because the group is suspended: {syncs}"
                ),
                self.stopped(&HoldReason::GroupSuspended).1,
            ),
            RemovalHold::Paused => (
                format!(
                    "{of} are not removed, because the rollout is paused: {syncs}"
                ),
                format!("the rollout is resumed: {}", command("resume", &[self.group])),
            ),
            RemovalHold::Aborted => (
                format!("{of} are not removed, because the rollout was aborted: {syncs}"),
                REPLACED.to_owned(),
            ),
            RemovalHold::ClusterNotReady => (
                format!("{of} are not removed, because the clusters are not ready: {syncs}"),
                format!(
                    "the clusters are ready; to leave the objects on a cluster that does not return, set {ABANDON}: \
                     \"true\" on its Syncs"
                ),
            ),
            RemovalHold::StageNotOpen if self.input.deleting => (
                format!("{of} wait for the clusters of earlier stages to lose theirs: {syncs}"),
                "the clusters of earlier stages have lost their Syncs".to_owned(),
            ),
            RemovalHold::StageNotOpen => (
                format!("Syncs of clusters that left the group wait for the stage of their cluster: {syncs}"),
                "the stage opens".to_owned(),
            ),
            RemovalHold::DeletionBudget => (
                format!("Syncs of clusters that left the group wait for the deletion budget: {syncs}"),
                "the deletion budget of the group allows more deletions; to allow them sooner, raise \
                 spec.deletionBudget of the group"
                    .to_owned(),
            ),
            RemovalHold::WindowClosed => (
                format!("{of} wait for a window of their cluster: {syncs}"),
                "the window opens".to_owned(),
            ),
            RemovalHold::NoSlot => (
                format!("{of} wait for a slot: {syncs}"),
                "another cluster is done, failed, or has left".to_owned(),
            ),
        };
        ExplainedBlocker {
            reason: reason.as_str().to_owned(),
            text,
            until: None,
            ends_with,
        }
    }

    pub(super) fn stopped(&self, reason: &HoldReason) -> ReasonText {
        let group = self.group;
        match reason {
            HoldReason::Paused(attribution) => (
                format!("the rollout is paused {}", attributed(attribution)),
                format!("the rollout is resumed: {}", command("resume", &[group])),
            ),
            HoldReason::Aborted(attribution) => (
                format!("the rollout was aborted {}", attributed(attribution)),
                REPLACED.to_owned(),
            ),
            HoldReason::MembershipHeld => (
                "too many clusters left the group at once".to_owned(),
                "the clusters return, or the removal is approved (condition MembershipHeld of the SyncGroup)"
                    .to_owned(),
            ),
            HoldReason::TooManyFailures { stage } => {
                let stage = stage.and_then(|stage| self.plan.stages.get(stage));
                let (tally, of) = match stage {
                    Some(stage) => (stage.tally, format!(" of stage {}", stage.name)),
                    None => (self.plan.tally, String::new()),
                };
                let failed = self.failed(stage);
                // A stage that others wait for also counts clusters that broke since; a retry does nothing for those.
                let more = tally.failed > failed.len();
                let broken = stage
                    .filter(|_| more)
                    .map_or_else(Vec::new, |stage| self.broken(stage));
                let next = match failed.is_empty() {
                    true => "these clusters recover, or a new revision rolls out".to_owned(),
                    false => format!(
                        "failures are at or below the limit, or a new revision rolls out; retry now: {}",
                        command("retry", &[group])
                    ),
                };
                (
                    format!(
                        "{}{of} failed (limit {}): {}",
                        counted(tally.failed),
                        tally.failures_allowed,
                        names(&[failed, broken].concat())
                    ),
                    next,
                )
            }
            _ => (
                "the group is suspended".to_owned(),
                "spec.suspend of the SyncGroup is set to false".to_owned(),
            ),
        }
    }

    /// Returns the failed clusters of a stage, or of the group.
    fn failed(&self, stage: Option<&StagePlan>) -> Vec<&str> {
        self.counted(stage, |decision| matches!(decision, Decision::Failed { .. }))
    }

    /// Returns the clusters of a stage that were done and broke since.
    fn broken(&self, stage: &StagePlan) -> Vec<&str> {
        let mut done = self.counted(Some(stage), |decision| matches!(decision, Decision::Done));
        done.retain(|name| {
            let view = self.input.clusters.get(*name);
            view.is_some_and(|view| health_problem_when_done(view).is_some())
        });
        done
    }

    /// Returns the same as [`Self::clusters`] without skipped clusters, which do not count.
    fn counted(&self, stage: Option<&StagePlan>, is: impl Fn(&Decision) -> bool) -> Vec<&str> {
        let mut counted = self.clusters(stage, is);
        counted.retain(|name| !self.input.operator.skipped.contains_key(*name));
        counted
    }

    /// Returns the clusters of a stage, or of the group, with such a decision.
    fn clusters(&self, stage: Option<&StagePlan>, is: impl Fn(&Decision) -> bool) -> Vec<&str> {
        let of_stage =
            |name: &ClusterName| stage.is_none_or(|stage| self.stage_of(name) == Some(&stage.name));
        let decisions = self.plan.decisions.iter();
        let found = decisions.filter(|(name, decision)| is(decision) && of_stage(name));
        found.map(|(name, _)| name.as_str()).collect()
    }

    fn stage_of(&self, cluster: &str) -> Option<&String> {
        let view = self.input.clusters.get(cluster)?;
        Some(&self.plan.stages.get(view.stage)?.name)
    }

    /// Returns the blocker of an earlier stage.
    pub(super) fn stage_waits(&self, stage: &StagePlan, wait: &StageWait) -> ExplainedBlocker {
        let (name, group) = (&stage.name, self.group);
        let (text, ends_with, until) = match wait {
            StageWait::Clusters { working, soaking } => {
                let missing = self.incomplete(stage);
                let count = working + soaking;
                let (text, ends) = match working {
                    0 => ("is soaking", "the soak of these clusters ends"),
                    _ => (
                        "is in progress",
                        "these clusters are healthy on this release and soaked",
                    ),
                };
                (
                    format!(
                        "stage {name} {text}, {} required: {}",
                        counted_more(count),
                        names(&missing)
                    ),
                    ends.to_owned(),
                    self.soaked(&missing),
                )
            }
            StageWait::Unproven => (
                format!("stage {name} is unproven: none of its clusters is on this release"),
                format!(
                    "one of its clusters succeeds, or the stage is promoted: {}",
                    command("promote", &[group, "--stage", name])
                ),
                None,
            ),
            StageWait::Gate { gate, until } => {
                let (text, ends) = gate_text(*gate, name, group, *until);
                (text, ends, *until)
            }
            StageWait::GateFailed { message, .. } => (
                format!("a task of stage {name} failed: {message}"),
                format!(
                    "the task is retried: {}",
                    command("retry", &[group, "--stage", name])
                ),
                None,
            ),
        };
        ExplainedBlocker {
            reason: wait.as_str().to_owned(),
            text,
            until,
            ends_with,
        }
    }

    /// Returns the clusters that keep a stage from completing: not those that failed or are on hold.
    fn incomplete(&self, stage: &StagePlan) -> Vec<&str> {
        let waits_for_unreachable = self.input.strategy.on_unreachable == OnUnreachable::Wait
            && self.input.rollout.direction != Direction::BackAtOnce;
        self.counted(Some(stage), |decision| match bucket(decision) {
            Bucket::Updated | Bucket::Failed | Bucket::OnHold => false,
            Bucket::Unreachable => waits_for_unreachable,
            Bucket::Progressing | Bucket::Pending => true,
        })
    }

    /// Returns when the last of these clusters has soaked, if all of them soak.
    fn soaked(&self, clusters: &[&str]) -> Option<Timestamp> {
        let soaks = clusters.iter().map(|name| match self.plan.decisions.get(*name) {
            Some(Decision::Soaking { until }) => Some(*until),
            _ => None,
        });
        soaks.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Returns which windows of a cluster block it, in their time zone.
    fn window(&self, view: Option<&ClusterView>, until: Option<Timestamp>) -> ReasonText {
        let all = &self.input.strategy.windows;
        let about = view.map_or(&[][..], |view| &view.windows);
        let windows: Vec<_> = about.iter().filter_map(|place| all.get(*place)).collect();
        let denied = windows
            .iter()
            .find(|window| !window.allow && window.is_open(self.input.now));
        let allows: Vec<String> = windows
            .iter()
            .filter(|window| window.allow)
            .map(ToString::to_string)
            .collect();
        let zone = denied.or(windows.iter().find(|window| window.allow));
        let until = until.map_or_else(
            || " for weeks".to_owned(),
            |until| match zone {
                Some(window) => {
                    let local = until.to_zoned(window.zone.clone());
                    format!(" until {}", local.strftime("%Y-%m-%dT%H:%M %Q"))
                }
                None => format!(" until {until}"),
            },
        );
        let text = match denied {
            Some(window) => format!("the window \"{window}\" blocks starts{until}"),
            None => format!("the window \"{}\" is closed{until}", allows.join("\" or \"")),
        };
        (text, "the window opens".to_owned())
    }

    fn slots(&self, reason: &HoldReason, about: Option<(&str, &ClusterView)>) -> ReasonText {
        if *reason == HoldReason::TooManyUnavailable {
            let stage = about.and_then(|(_, view)| self.plan.stages.get(view.stage));
            let own = stage.filter(|stage| {
                let is_own = stage.tally.unavailable_allowed != self.plan.tally.unavailable_allowed;
                is_own && self.unavailable(Some(stage), &stage.tally) >= stage.tally.unavailable_allowed
            });
            let (tally, of) = match own {
                Some(stage) => (stage.tally, format!(" of stage {}", stage.name)),
                None => (self.plan.tally, String::new()),
            };
            return (
                format!(
                    "{} in flight or not healthy (maxUnavailable {}{of})",
                    counted(self.unavailable(own, &tally)),
                    tally.unavailable_allowed
                ),
                "one of these clusters is healthy".to_owned(),
            );
        }
        let stage = about.and_then(|(_, view)| self.plan.stages.get(view.stage));
        let busy = self.busy(None);
        let of_stage = stage.and_then(|stage| {
            let busy = self.busy(Some(stage));
            let slots = stage
                .tally
                .slots
                .filter(|slots| is_full(&stage.tally, &busy, *slots))?;
            Some((format!("maxConcurrency {slots} of stage {}", stage.name), busy))
        });
        let (bound, busy) = of_stage.unwrap_or_else(|| match self.plan.tally.slots {
            Some(slots) => (format!("maxConcurrency {slots}"), busy),
            None => ("maxConcurrency of the group".to_owned(), busy),
        });
        (
            format!("all slots are in use ({bound}): {}", names(&busy)),
            "one of these clusters is done or failed".to_owned(),
        )
    }

    /// Returns the number of unavailable clusters, with those that this plan starts. A cluster may be both; the plan
    /// never exceeds the limit.
    fn unavailable(&self, stage: Option<&StagePlan>, tally: &Tally) -> usize {
        let starts = self.clusters(stage, |decision| {
            matches!(decision, Decision::Start { .. } | Decision::Remove { .. })
        });
        let after = tally.unavailable + starts.len();
        after.min(tally.unavailable_allowed.max(tally.unavailable))
    }

    /// Returns the clusters of a stage, or of the group, that are being updated to this release.
    fn busy(&self, stage: Option<&StagePlan>) -> Vec<&str> {
        self.clusters(stage, |decision| {
            matches!(
                decision,
                Decision::Start { .. }
                    | Decision::Retry { .. }
                    | Decision::Remove { .. }
                    | Decision::InFlight { .. }
                    | Decision::Soaking { .. }
            )
        })
    }

    /// Returns what blocks a cluster after `reason` has ended, as far as it is known already.
    pub(super) fn afterwards(&self, reason: &HoldReason, view: &ClusterView) -> Vec<ExplainedBlocker> {
        let (waits, needs_slot) = match reason {
            HoldReason::StageWaits { .. } => (true, true),
            HoldReason::WindowClosed | HoldReason::Jitter => (false, true),
            _ => (false, false),
        };
        let mut blockers = Vec::new();
        // The windows of a cluster are not evaluated while its stage waits.
        if waits {
            let opening = self.opening(view);
            if !opening.is_open {
                blockers.push(self.blocker(&HoldReason::WindowClosed, opening.changes_at, Some(("", view))));
            }
        }
        if needs_slot && let Some(slots) = self.plan.tally.slots {
            blockers.push(ExplainedBlocker {
                reason: HoldReason::NoSlot.as_str().to_owned(),
                text: format!("a slot: {} of {slots} in use now", self.plan.tally.in_flight),
                until: None,
                ends_with: "a slot is free".to_owned(),
            });
        }
        blockers
    }

    fn opening(&self, view: &ClusterView) -> Opening {
        if view.windows.is_empty() || self.input.rollout.direction == Direction::BackAtOnce {
            return Opening::ALWAYS;
        }
        let all = &self.input.strategy.windows;
        let about = view.windows.iter().filter_map(|place| all.get(*place));
        let calendars: Vec<Calendar> = about.map(|window| Calendar::of(window, self.input.now)).collect();
        combined(&calendars.iter().collect::<Vec<_>>(), self.input.now)
    }
}

/// Reports whether no slot is free. Older releases may have some of the slots that were in use before the plan, and the
/// plan itself starts some of the busy clusters.
fn is_full(tally: &Tally, busy: &[&str], slots: usize) -> bool {
    tally.in_flight.max(busy.len()) >= slots
}

fn own(cluster: &str, reason: &HoldReason) -> ReasonText {
    match reason {
        HoldReason::Skipped(attribution) => (
            format!(
                "the cluster is skipped in this rollout {}",
                attributed(attribution)
            ),
            "the next rollout starts; to undo: kubectl delete rolloutaction NAME".to_owned(),
        ),
        HoldReason::SyncSuspended { entry } => (
            format!("the Sync of entry {entry} is suspended or being deleted"),
            "spec.suspend of that Sync is set to false".to_owned(),
        ),
        HoldReason::SyncUnreadable { entry, sync } => (
            format!("Sync {sync} of entry {entry} cannot be read, so it is not written"),
            format!(
                "the controller is updated to the version that wrote Sync {sync}, or the value that it cannot read is \
                 corrected (the log of the controller names it: \"object not readable\")"
            ),
        ),
        HoldReason::InvalidParameters { entry, message } => (
            format!("entry {entry} cannot be resolved: {message}"),
            format!("Cluster {cluster} has the missing parameter, or the entry no longer uses it"),
        ),
        HoldReason::ClusterNotProbed => (
            "the cluster has not been probed yet".to_owned(),
            "the first probe".to_owned(),
        ),
        HoldReason::ClusterUnreachable {
            reason,
            message,
            since,
        } => (
            format!("the cluster has been unreachable since {since} ({reason}): {message}"),
            "the cluster is reachable again".to_owned(),
        ),
        _ => (
            format!("Cluster {cluster} is suspended"),
            format!("spec.suspend of Cluster {cluster} is set to false"),
        ),
    }
}

fn gate_text(gate: Gate, stage: &str, group: &str, until: Option<Timestamp>) -> ReasonText {
    match gate {
        Gate::TimedWait(_) => (
            format!("stage {stage} waits{}", at(until)),
            "the wait ends".to_owned(),
        ),
        Gate::Approval => (
            format!("stage {stage} waits for an approval"),
            format!(
                "the stage is approved: {}",
                command("approve", &[group, "--stage", stage])
            ),
        ),
        Gate::Effect(kind) => (
            format!("stage {stage} waits for its {kind:?} task"),
            "the task succeeds".to_owned(),
        ),
    }
}

fn counted(clusters: usize) -> String {
    match clusters {
        1 => "1 cluster".to_owned(),
        count => format!("{count} clusters"),
    }
}

fn counted_more(clusters: usize) -> String {
    match clusters {
        1 => "1 more cluster".to_owned(),
        count => format!("{count} more clusters"),
    }
}

fn at(until: Option<Timestamp>) -> String {
    until.map_or_else(String::new, |until| format!(" until {until}"))
}

fn attributed(attribution: &Attribution) -> String {
    let Attribution { by, reason, at } = attribution;
    if reason.is_empty() {
        format!("by {by} at {at}")
    } else {
        format!("by {by} at {at} ({reason})")
    }
}
