//! What each reason means to people, and what ends it.

use jiff::Timestamp;
use starling_api::OnUnreachable;

use super::{Link, command, names};
use crate::plan::{
    Bucket, ClusterView, Decision, Direction, Gate, HoldReason, Plan, PlanInput, StagePlan, StageWait, Tally,
    Word, bucket, trouble_at_rest,
};
use crate::window::{Calendar, Opening, combined};

/// Tells of one plan.
#[derive(Clone, Copy)]
pub(super) struct Teller<'a> {
    /// Name of the group, for commands.
    pub(super) group: &'a str,
    pub(super) input: &'a PlanInput,
    pub(super) plan: &'a Plan,
}

/// The place of a reason among all: they are looked at in this order.
pub(super) fn rank(reason: &HoldReason) -> usize {
    match reason {
        HoldReason::Skipped(_) => 0,
        HoldReason::ClusterSuspended => 1,
        HoldReason::SyncSuspended { .. } => 2,
        HoldReason::InvalidParameters { .. } => 3,
        HoldReason::ClusterNotProbed => 4,
        HoldReason::ClusterUnreachable { .. } => 5,
        HoldReason::GroupSuspended => 6,
        HoldReason::Paused(_) => 7,
        HoldReason::Aborted(_) => 8,
        HoldReason::MembershipHeld => 9,
        HoldReason::TooManyFailures { .. } => 10,
        HoldReason::StageWaits { .. } => 11,
        HoldReason::WindowClosed => 12,
        HoldReason::Jitter => 13,
        HoldReason::NoSlot => 14,
        HoldReason::TooManyUnavailable => 15,
    }
}

/// A text, and what ends it.
type Told = (String, String);

impl Teller<'_> {
    /// What stands in the way by this reason; `about`: of which cluster, or of which one for example.
    pub(super) fn link(
        &self,
        reason: &HoldReason,
        until: Option<Timestamp>,
        about: Option<(&str, &ClusterView)>,
    ) -> Link {
        let cluster = about.map_or("the cluster", |(name, _)| name);
        let (text, ends_with) = match reason {
            HoldReason::StageWaits { stage, wait } => match self.plan.stages.get(*stage) {
                Some(stage) => return self.stage_waits(stage, wait),
                None => ("an earlier stage is not through".to_owned(), "it is".to_owned()),
            },
            HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
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
                format!("its share of the jitter is not over{}", at(until)),
                "its share of the jitter is over".to_owned(),
            ),
            HoldReason::NoSlot | HoldReason::TooManyUnavailable => self.room(reason, about),
        };
        Link {
            reason: reason.as_str().to_owned(),
            text,
            until,
            ends_with,
        }
    }

    fn stopped(&self, reason: &HoldReason) -> Told {
        let group = self.group;
        match reason {
            HoldReason::Paused(word) => (
                format!("the rollout is paused: {}", said(word)),
                format!("somebody resumes it: {}", command("resume", &[group])),
            ),
            HoldReason::Aborted(word) => (
                format!("the rollout was given up: {}", said(word)),
                "a new revision comes, somebody rolls back, or whoever may deletes that RolloutAction"
                    .to_owned(),
            ),
            HoldReason::MembershipHeld => (
                "too many clusters left the group at once".to_owned(),
                "they come back, or somebody says that it is meant (condition MembershipHeld of the group)"
                    .to_owned(),
            ),
            HoldReason::TooManyFailures { stage } => {
                let stage = stage.and_then(|stage| self.plan.stages.get(stage));
                let (tally, of) = match stage {
                    Some(stage) => (stage.tally, format!(" of stage {}", stage.name)),
                    None => (self.plan.tally, String::new()),
                };
                let failed = self.failed(stage);
                // A stage that is waited for counts what broke since, too, and of that there is nothing to retry.
                let more = tally.failed > failed.len();
                let broken = stage
                    .filter(|_| more)
                    .map_or_else(Vec::new, |stage| self.broken(stage));
                let next = match failed.is_empty() {
                    true => "they are healthy again, or a new revision comes".to_owned(),
                    false => format!(
                        "fewer fail, or a new revision comes; at once: {}",
                        command("retry", &[group])
                    ),
                };
                (
                    format!(
                        "{}{of} failed, and {} may: {}",
                        counted(tally.failed),
                        tally.failures_allowed,
                        names(&[failed, broken].concat())
                    ),
                    next,
                )
            }
            _ => (
                "the group is suspended".to_owned(),
                "somebody sets spec.suspend of the group to false".to_owned(),
            ),
        }
    }

    /// The failed clusters of a stage, or of the group.
    fn failed(&self, stage: Option<&StagePlan>) -> Vec<&str> {
        self.counted(stage, |decision| matches!(decision, Decision::Failed { .. }))
    }

    /// The clusters of a stage that are done and broke since.
    fn broken(&self, stage: &StagePlan) -> Vec<&str> {
        let mut done = self.counted(Some(stage), |decision| matches!(decision, Decision::Done));
        done.retain(|name| {
            let view = self.input.clusters.get(*name);
            view.is_some_and(|view| trouble_at_rest(view).is_some())
        });
        done
    }

    /// As [`Self::clusters`], without those that a person passed over: they count for nothing.
    fn counted(&self, stage: Option<&StagePlan>, is: impl Fn(&Decision) -> bool) -> Vec<&str> {
        let mut counted = self.clusters(stage, is);
        counted.retain(|name| !self.input.steering.skipped.contains_key(*name));
        counted
    }

    /// The clusters of a stage, or of the group, with such a decision.
    fn clusters(&self, stage: Option<&StagePlan>, is: impl Fn(&Decision) -> bool) -> Vec<&str> {
        let of_stage = |name: &String| stage.is_none_or(|stage| self.stage_of(name) == Some(&stage.name));
        let decisions = self.plan.decisions.iter();
        let found = decisions.filter(|(name, decision)| is(decision) && of_stage(name));
        found.map(|(name, _)| name.as_str()).collect()
    }

    fn stage_of(&self, cluster: &str) -> Option<&String> {
        let view = self.input.clusters.get(cluster)?;
        Some(&self.plan.stages.get(view.stage)?.name)
    }

    /// What an earlier stage waits for.
    pub(super) fn stage_waits(&self, stage: &StagePlan, wait: &StageWait) -> Link {
        let (name, group) = (&stage.name, self.group);
        let (text, ends_with, until) = match wait {
            StageWait::Clusters { working, soaking } => {
                let missing = self.not_through(stage);
                let count = working + soaking;
                let (text, ends) = match working {
                    0 => ("has to soak", "their soak ends"),
                    _ => ("is not through", "they are healthy with this release, and soaked"),
                };
                (
                    format!(
                        "stage {name} {text}: it needs {count} more of its clusters: {}",
                        names(&missing)
                    ),
                    ends.to_owned(),
                    self.soaked(&missing),
                )
            }
            StageWait::Unproven => (
                format!("none of the clusters of stage {name} took this release, which proves nothing"),
                format!(
                    "one of them does, or somebody lets the next stage go: {}",
                    command("promote", &[group, "--stage", name])
                ),
                None,
            ),
            StageWait::Gate { gate, until } => {
                let (text, ends) = gate_told(*gate, name, group, *until);
                (text, ends, *until)
            }
            StageWait::GateFailed { message, .. } => (
                format!("a task of stage {name} failed: {message}"),
                format!(
                    "somebody has it tried again: {}",
                    command("retry", &[group, "--stage", name])
                ),
                None,
            ),
        };
        Link {
            reason: wait.as_str().to_owned(),
            text,
            until,
            ends_with,
        }
    }

    /// Clusters that keep a stage from being through: not those that failed or are held by something of their own.
    fn not_through(&self, stage: &StagePlan) -> Vec<&str> {
        let waits_for_unreachable = self.input.strategy.on_unreachable == OnUnreachable::Wait
            && self.input.rollout.direction != Direction::BackAtOnce;
        self.counted(Some(stage), |decision| match bucket(decision) {
            Bucket::Updated | Bucket::Failed | Bucket::Held => false,
            Bucket::Unreachable => waits_for_unreachable,
            Bucket::Progressing | Bucket::Pending => true,
        })
    }

    /// When the last of these clusters soaked, where all of them do.
    fn soaked(&self, clusters: &[&str]) -> Option<Timestamp> {
        let soaks = clusters.iter().map(|name| match self.plan.decisions.get(*name) {
            Some(Decision::Soaking { until }) => Some(*until),
            _ => None,
        });
        soaks.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Which of a cluster's windows keep it back, in the time of their zone.
    fn window(&self, view: Option<&ClusterView>, until: Option<Timestamp>) -> Told {
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
            Some(window) => format!("the window \"{window}\" keeps it closed{until}"),
            None => format!("the window \"{}\" is closed{until}", allows.join("\" or \"")),
        };
        (text, "the window opens".to_owned())
    }

    fn room(&self, reason: &HoldReason, about: Option<(&str, &ClusterView)>) -> Told {
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
                    "{} in flight or not healthy, and {} may be (maxUnavailable{of})",
                    counted(self.unavailable(own, &tally)),
                    tally.unavailable_allowed
                ),
                "one of them is healthy".to_owned(),
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
            Some((format!("{slots} of stage {}", stage.name), busy))
        });
        let (bound, busy) = of_stage.unwrap_or_else(|| match self.plan.tally.slots {
            Some(slots) => (format!("{slots} (maxConcurrency)"), busy),
            None => ("those of the group".to_owned(), busy),
        });
        (
            format!("all slots are taken, {bound}: {}", names(&busy)),
            "one of them is healthy, and soaked, or failed".to_owned(),
        )
    }

    /// Clusters that are not available, with those that this plan starts. Of these few are among the first already; the bound is passed
    /// by none of them.
    fn unavailable(&self, stage: Option<&StagePlan>, tally: &Tally) -> usize {
        let starts = self.clusters(stage, |decision| matches!(decision, Decision::Start { .. }));
        let after = tally.unavailable + starts.len();
        after.min(tally.unavailable_allowed.max(tally.unavailable))
    }

    /// The clusters of a stage, or of the group, that this release is under way on.
    fn busy(&self, stage: Option<&StagePlan>) -> Vec<&str> {
        self.clusters(stage, |decision| {
            matches!(
                decision,
                Decision::Start { .. } | Decision::InFlight { .. } | Decision::Soaking { .. }
            )
        })
    }

    /// What a cluster that is held for `reason` will meet then. Only what can be said already.
    pub(super) fn afterwards(&self, reason: &HoldReason, view: &ClusterView) -> Vec<Link> {
        let (waits, room) = match reason {
            HoldReason::StageWaits { .. } => (true, true),
            HoldReason::WindowClosed | HoldReason::Jitter => (false, true),
            _ => (false, false),
        };
        let mut links = Vec::new();
        // Who waits for a stage does not look at windows yet, and will have to.
        if waits {
            let opening = self.opening(view);
            if !opening.is_open {
                links.push(self.link(&HoldReason::WindowClosed, opening.changes_at, Some(("", view))));
            }
        }
        if room && let Some(slots) = self.plan.tally.slots {
            links.push(Link {
                reason: HoldReason::NoSlot.as_str().to_owned(),
                text: format!(
                    "then a slot: {} of {slots} are taken now",
                    self.plan.tally.in_flight
                ),
                until: None,
                ends_with: "one is free".to_owned(),
            });
        }
        links
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

/// Whether no slot is left: of those that were taken before the plan some may be held by older releases, of those that are at work with
/// this one some are started by the plan itself.
fn is_full(tally: &Tally, busy: &[&str], slots: usize) -> bool {
    tally.in_flight.max(busy.len()) >= slots
}

fn own(cluster: &str, reason: &HoldReason) -> Told {
    match reason {
        HoldReason::Skipped(word) => (
            format!("it was taken out of this rollout: {}", said(word)),
            "the next rollout begins, or whoever may deletes that RolloutAction".to_owned(),
        ),
        HoldReason::SyncSuspended { entry } => (
            format!("its Sync of entry {entry} is suspended, or being deleted"),
            "somebody sets spec.suspend of that Sync to false".to_owned(),
        ),
        HoldReason::InvalidParameters { entry, message } => (
            format!("entry {entry} cannot be made for it: {message}"),
            format!("Cluster {cluster} gets what is missing, or the entry no longer asks for it"),
        ),
        HoldReason::ClusterNotProbed => (
            "it has not been probed yet".to_owned(),
            "its first probe, in a moment".to_owned(),
        ),
        HoldReason::ClusterUnreachable {
            reason,
            message,
            since,
        } => (
            format!("it cannot be reached since {since} ({reason}): {message}"),
            "it answers again".to_owned(),
        ),
        _ => (
            format!("Cluster {cluster} is suspended"),
            format!("somebody sets spec.suspend of Cluster {cluster} to false"),
        ),
    }
}

fn gate_told(gate: Gate, stage: &str, group: &str, until: Option<Timestamp>) -> Told {
    match gate {
        Gate::TimedWait(_) => (
            format!("stage {stage} waits{}", at(until)),
            "its wait ends".to_owned(),
        ),
        Gate::Approval => (
            format!("stage {stage} waits for an approval"),
            format!(
                "somebody approves it: {}",
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

fn at(until: Option<Timestamp>) -> String {
    until.map_or_else(String::new, |until| format!(" until {until}"))
}

fn said(word: &Word) -> String {
    let Word { by, reason, at } = word;
    if reason.is_empty() {
        format!("by {by} at {at}")
    } else {
        format!("by {by} at {at} ({reason})")
    }
}
