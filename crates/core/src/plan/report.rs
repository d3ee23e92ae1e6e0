//! A plan in the terms of `status`: counts, phase, blockers and problems.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::RolloutPhase;

use super::leaving::{RemovalDecision, RemovalHold};
use super::stages::{Direction, Gate, RolloutVerdict, StagePhase, StagePlan, StageWait, Stop};
use super::types::{
    ClusterView, Decision, FailureReason, HealthProblem, HoldReason, Plan, PlanInput, Progress,
    UnresolvedTarget,
};
use crate::ids::{ClusterName, SyncName};
use crate::plural::counted;

/// The selected clusters by state; every cluster counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Selected clusters.
    pub total: u32,
    /// Clusters that are done.
    pub updated: u32,
    /// Clusters that were started, now or before, and are not done.
    pub progressing: u32,
    /// Clusters that wait to start.
    pub pending: u32,
    /// Failed clusters.
    pub failed: u32,
    /// Clusters that were unreachable before anything was started there.
    pub unreachable: u32,
    /// Clusters on hold.
    pub on_hold: u32,
}

/// A plan in the terms of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The counts.
    pub counts: Counts,
    /// The phase of the rollout.
    pub phase: RolloutPhase,
    /// The first stage that has not passed; empty if all have, and in a group without clusters.
    pub stage: String,
    /// The open stages, by name, in which nothing is in flight but clusters that soak, and when the last of them has
    /// soaked.
    pub soaks: BTreeMap<String, Timestamp>,
    /// The blockers of pending clusters.
    pub blocked_by: Vec<StartBlocker>,
    /// Clusters with problems, worst first.
    pub problems: Vec<ClusterProblem>,
    /// Clusters that are done and no longer healthy. They count as updated, and are among the problems.
    pub degraded: u32,
    /// Whether the release is the last known good one from now on ([`Plan::is_known_good`]).
    pub is_known_good: bool,
}

/// A reason why pending clusters do not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartBlocker {
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// The message.
    pub message: String,
    /// The time of the next evaluation; `None`: only an event causes one.
    pub recheck_at: Option<Timestamp>,
}

/// A cluster with a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterProblem {
    /// The Cluster.
    pub cluster: ClusterName,
    /// The reason, in CamelCase.
    pub reason: String,
    /// The message.
    pub message: String,
    /// The time since which it exists; `None`: not known.
    pub since: Option<Timestamp>,
}

/// The count that a decision adds to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bucket {
    Updated,
    Progressing,
    Pending,
    Failed,
    Unreachable,
    OnHold,
}

pub(crate) fn bucket(decision: &Decision) -> Bucket {
    match decision {
        Decision::Done => Bucket::Updated,
        Decision::Start { .. }
        | Decision::Retry { .. }
        | Decision::Remove { .. }
        | Decision::InFlight { .. }
        | Decision::Soaking { .. } => Bucket::Progressing,
        Decision::Failed { .. } => Bucket::Failed,
        Decision::Hold { reason, .. } => match reason {
            HoldReason::ClusterUnreachable { .. } => Bucket::Unreachable,
            HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::SyncUnreadable { .. }
            | HoldReason::InvalidParameters { .. } => Bucket::OnHold,
            HoldReason::GroupSuspended
            | HoldReason::Paused(_)
            | HoldReason::Aborted(_)
            | HoldReason::MembershipHeld
            | HoldReason::ClusterNotProbed
            | HoldReason::TooManyFailures { .. }
            | HoldReason::StageWaits { .. }
            | HoldReason::WindowClosed
            | HoldReason::Jitter
            | HoldReason::NoSlot
            | HoldReason::TooManyUnavailable
            | HoldReason::InstallationLimit => Bucket::Pending,
        },
    }
}

impl Plan {
    /// Returns the report of the plan for `input`.
    #[must_use]
    pub fn report(&self, input: &PlanInput) -> Report {
        let counts = self.counts();
        let degraded = self.degraded(input);
        let soaks = self.soaks(input);
        let stage = self
            .current_stage()
            .filter(|_| self.verdict != RolloutVerdict::Succeeded);
        Report {
            counts,
            phase: self.phase(input, counts),
            blocked_by: self.blocked_by(input, &soaks),
            stage: stage.map(|stage| stage.name.clone()).unwrap_or_default(),
            soaks,
            degraded: u32::try_from(degraded.len()).unwrap_or(u32::MAX),
            problems: self.problems(input, degraded),
            is_known_good: self.is_known_good(),
        }
    }

    /// Returns the problems of clusters that are done. They change no decision: a rollout ends, and later problems are
    /// only reported.
    fn degraded(&self, input: &PlanInput) -> Vec<ClusterProblem> {
        let done = self
            .decisions
            .iter()
            .filter(|(_, decision)| matches!(decision, Decision::Done));
        done.filter_map(|(name, _)| {
            let (reason, message) = health_problem_when_done(input.clusters.get(name)?)?;
            Some(ClusterProblem {
                cluster: name.clone(),
                reason: reason.to_owned(),
                message: message.to_owned(),
                since: None,
            })
        })
        .collect()
    }

    fn soaks(&self, input: &PlanInput) -> BTreeMap<String, Timestamp> {
        let mut busy = vec![false; self.stages.len()];
        let mut ends: Vec<Option<Timestamp>> = vec![None; self.stages.len()];
        let decisions = self.decisions.iter();
        for (name, decision) in decisions.filter(|(name, _)| !input.operator.skipped.contains_key(*name)) {
            let place = input.clusters.get(name).map_or(0, |cluster| cluster.stage);
            let (Some(busy), Some(end)) = (busy.get_mut(place), ends.get_mut(place)) else {
                continue;
            };
            match decision {
                Decision::Start { .. }
                | Decision::Retry { .. }
                | Decision::Remove { .. }
                | Decision::InFlight { .. } => *busy = true,
                Decision::Soaking { until } => *end = Some(end.map_or(*until, |end| end.max(*until))),
                Decision::Done | Decision::Failed { .. } | Decision::Hold { .. } => {}
            }
        }
        let stages = self.stages.iter().zip(busy).zip(ends);
        stages
            .filter(|((stage, busy), _)| stage.phase == StagePhase::Open && !busy)
            .filter_map(|((stage, _), end)| Some((stage.name.clone(), end?)))
            .collect()
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for decision in self.decisions.values() {
            counts.total += 1;
            *match bucket(decision) {
                Bucket::Updated => &mut counts.updated,
                Bucket::Progressing => &mut counts.progressing,
                Bucket::Pending => &mut counts.pending,
                Bucket::Failed => &mut counts.failed,
                Bucket::Unreachable => &mut counts.unreachable,
                Bucket::OnHold => &mut counts.on_hold,
            } += 1;
        }
        counts
    }

    /// Returns the first stage that has not passed.
    #[must_use]
    pub fn current_stage(&self) -> Option<&StagePlan> {
        self.stages
            .iter()
            .find(|stage| !matches!(stage.phase, StagePhase::Passed | StagePhase::Skipped(_)))
    }

    fn phase(&self, input: &PlanInput, counts: Counts) -> RolloutPhase {
        let held_by_people = input.suspended || input.membership_held || input.operator.paused.is_some();
        match &self.verdict {
            RolloutVerdict::Succeeded => return RolloutPhase::Succeeded,
            RolloutVerdict::Stopped(Stop::Aborted(_)) => return RolloutPhase::Failed,
            RolloutVerdict::Stopped(_) | RolloutVerdict::RollBack(_)
                if counts.pending > 0 || counts.progressing > 0 =>
            {
                return RolloutPhase::Paused;
            }
            RolloutVerdict::InProgress if held_by_people && counts.pending > 0 => {
                return RolloutPhase::Paused;
            }
            RolloutVerdict::Stopped(_) | RolloutVerdict::RollBack(_) | RolloutVerdict::InProgress => {}
        }
        // A stage whose clusters are done waits for its gates.
        let waits = self
            .current_stage()
            .is_some_and(|stage| matches!(stage.phase, StagePhase::Waiting(_)));
        if counts.progressing > 0 || counts.pending > 0 || (waits && counts.failed + counts.on_hold == 0) {
            match input.rollout.direction {
                Direction::Back | Direction::BackAtOnce => RolloutPhase::RollingBack,
                Direction::Forward if counts.updated + counts.progressing + counts.failed == 0 => {
                    RolloutPhase::Pending
                }
                Direction::Forward => RolloutPhase::Progressing,
            }
        } else if counts.failed > 0 {
            RolloutPhase::Failed
        } else {
            RolloutPhase::Paused
        }
    }

    /// Returns what blocks pending clusters. Without pending clusters: the gate that the last stage waits for, or the
    /// clusters on hold, or the clusters that vanished at once.
    fn blocked_by(&self, input: &PlanInput, soaks: &BTreeMap<String, Timestamp>) -> Vec<StartBlocker> {
        let mut waiting: BTreeMap<&'static str, (&HoldReason, u32, Option<Timestamp>)> = BTreeMap::new();
        for decision in self.decisions.values().filter(|d| bucket(d) == Bucket::Pending) {
            if let Decision::Hold { reason, recheck_at } = decision {
                let entry = waiting.entry(reason.as_str()).or_insert((reason, 0, None));
                entry.1 += 1;
                let at = recheck_at.or_else(|| self.soaked(reason, soaks));
                entry.2 = [entry.2, at].into_iter().flatten().min();
            }
        }
        let mut blockers: Vec<_> = waiting
            .into_iter()
            .map(|(name, (reason, clusters, recheck_at))| StartBlocker {
                reason: name,
                message: self.message(reason, clusters),
                recheck_at,
            })
            .collect();
        if blockers.is_empty()
            && self.verdict != RolloutVerdict::Succeeded
            && let Some(StagePlan {
                name,
                phase: StagePhase::Waiting(wait),
                ..
            }) = self.current_stage()
        {
            let until = match wait {
                StageWait::Gate { until, .. } => *until,
                _ => None,
            };
            blockers.push(StartBlocker {
                reason: wait.as_str(),
                message: waits_for(name, wait),
                recheck_at: until,
            });
        }
        if blockers.is_empty() && self.verdict == RolloutVerdict::InProgress && !input.membership_held {
            blockers.extend(self.on_hold());
        }
        if blockers.is_empty() && input.membership_held {
            let message = "too many clusters left the group at once; the rollout is not complete until they return or the change is approved";
            blockers.push(StartBlocker {
                reason: HoldReason::MembershipHeld.as_str(),
                message: message.to_owned(),
                recheck_at: None,
            });
        }
        blockers
    }

    /// Returns when the stage that is waited for has soaked, if nothing else of it is waited for.
    fn soaked(&self, reason: &HoldReason, soaks: &BTreeMap<String, Timestamp>) -> Option<Timestamp> {
        let HoldReason::StageWaits {
            stage,
            wait: StageWait::Clusters { working: 0, .. },
        } = reason
        else {
            return None;
        };
        soaks.get(&self.stages.get(*stage)?.name).copied()
    }

    /// Returns the clusters on hold without which the rollout is not complete: an operator has to repair, resume or
    /// skip them.
    fn on_hold(&self) -> Vec<StartBlocker> {
        let mut held: BTreeMap<&'static str, Vec<&str>> = BTreeMap::new();
        for (name, decision) in &self.decisions {
            if let Decision::Hold { reason, .. } = decision
                && bucket(decision) == Bucket::OnHold
                && !matches!(reason, HoldReason::Skipped(_))
            {
                held.entry(reason.as_str()).or_default().push(name);
            }
        }
        let blockers = held.into_iter().map(|(reason, clusters)| {
            let message = format!(
                "{} on hold, such as {}; the rollout is complete when they are on this release or skipped",
                counted(clusters.len(), "cluster", "clusters"),
                clusters.first().copied().unwrap_or_default()
            );
            StartBlocker {
                reason,
                message,
                recheck_at: None,
            }
        });
        blockers.collect()
    }

    /// Returns the message about pending clusters that a reason blocks.
    fn message(&self, reason: &HoldReason, clusters: u32) -> String {
        let waiting = counted(clusters, "cluster waits", "clusters wait");
        let name = |stage: usize| self.stages.get(stage).map_or("", |stage| stage.name.as_str());
        match reason {
            HoldReason::TooManyFailures { stage } => {
                let (tally, of) = match stage.and_then(|stage| self.stages.get(stage)) {
                    Some(stage) => (stage.tally, format!(" in stage {}", stage.name)),
                    None => (self.tally, String::new()),
                };
                format!(
                    "{} failed{of} (limit {}); {waiting} until failures are at or below the limit, or for a new revision",
                    tally.failed, tally.failures_allowed
                )
            }
            HoldReason::NoSlot => {
                let slots = self.tally.slots.unwrap_or_default();
                format!("{waiting} for one of {slots} slots (maxConcurrency of the group or their stage)")
            }
            HoldReason::TooManyUnavailable => format!(
                "{} in flight or not healthy (limit {}); {waiting} (maxUnavailable of the group or their stage)",
                counted(self.tally.unavailable, "cluster is", "clusters are"),
                self.tally.unavailable_allowed
            ),
            HoldReason::InstallationLimit => {
                format!("{waiting} for one of the slots of the installation (--max-clusters-in-flight)")
            }
            HoldReason::StageWaits { stage, wait } => {
                format!("{}; {waiting}", waits_for(name(*stage), wait))
            }
            HoldReason::WindowClosed => format!("{waiting} for their window to open"),
            HoldReason::Jitter => format!("{waiting} for their jitter"),
            HoldReason::GroupSuspended => format!("the group is suspended; {waiting}"),
            HoldReason::Paused(attribution) => {
                format!("paused by {} ({}); {waiting}", attribution.by, attribution.reason)
            }
            HoldReason::Aborted(attribution) => format!(
                "aborted by {} ({}); {waiting} for a new revision",
                attribution.by, attribution.reason
            ),
            HoldReason::MembershipHeld => {
                format!("too many clusters left the group at once; {waiting} for an approval")
            }
            HoldReason::ClusterNotProbed => counted(
                clusters,
                "cluster has not been probed yet",
                "clusters have not been probed yet",
            ),
            HoldReason::Skipped(_)
            | HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::SyncUnreadable { .. }
            | HoldReason::InvalidParameters { .. }
            | HoldReason::ClusterUnreachable { .. } => counted(clusters, "cluster", "clusters"),
        }
    }

    /// Returns the clusters that left and cannot lose their objects now.
    fn away(&self, input: &PlanInput) -> Vec<ClusterProblem> {
        let is_away = |name: &SyncName| {
            matches!(
                self.removals.get(name),
                Some(RemovalDecision::Hold {
                    reason: RemovalHold::ClusterNotReady,
                    ..
                })
            )
        };
        let away = input.leaving.iter().filter(|(name, _)| is_away(name));
        let clusters: BTreeSet<&ClusterName> = away.map(|(_, sync)| &sync.cluster).collect();
        let problem = |cluster: &ClusterName| ClusterProblem {
            cluster: cluster.clone(),
            reason: RemovalHold::ClusterNotReady.as_str().to_owned(),
            message: "left the group; its objects are deleted once it is ready".to_owned(),
            since: None,
        };
        clusters.into_iter().map(problem).collect()
    }

    fn problems(&self, input: &PlanInput, degraded: Vec<ClusterProblem>) -> Vec<ClusterProblem> {
        let mut problems: Vec<(u8, ClusterProblem)> =
            degraded.into_iter().map(|problem| (2, problem)).collect();
        problems.extend(self.away(input).into_iter().map(|problem| (4, problem)));
        for (name, decision) in &self.decisions {
            if let Some((rank, reason, message, since)) = problem(decision) {
                let problem = ClusterProblem {
                    cluster: name.clone(),
                    reason: reason.to_owned(),
                    message,
                    since,
                };
                problems.push((rank, problem));
            }
        }
        problems.sort_by(|(a, left), (b, right)| (a, &left.cluster).cmp(&(b, &right.cluster)));
        problems.into_iter().map(|(_, problem)| problem).collect()
    }
}

/// Returns the problem of a cluster with this decision: severity, reason, message, since.
fn problem(decision: &Decision) -> Option<(u8, &str, String, Option<Timestamp>)> {
    Some(match decision {
        Decision::Failed { reason, .. } => {
            let rank = u8::from(!matches!(reason, FailureReason::LostAfterAdmission));
            (rank, reason.as_str(), reason.to_string(), None)
        }
        Decision::Hold {
            reason: reason @ HoldReason::InvalidParameters { entry, message },
            ..
        } => (3, reason.as_str(), format!("entry {entry}: {message}"), None),
        Decision::Hold {
            reason: reason @ HoldReason::SyncUnreadable { entry, sync },
            ..
        } => {
            let error = UnresolvedTarget::UnreadableSync { sync: sync.clone() };
            (3, reason.as_str(), format!("entry {entry}: {error}"), None)
        }
        Decision::InFlight {
            lost: true,
            deadline: Some(deadline),
        } => (
            4,
            "Unreachable",
            format!("unreachable since it was admitted; counts as failed at {deadline}"),
            None,
        ),
        Decision::Hold {
            reason:
                HoldReason::ClusterUnreachable {
                    reason,
                    message,
                    since,
                },
            ..
        } => (5, reason.as_str(), message.clone(), Some(*since)),
        Decision::Hold {
            reason: reason @ HoldReason::ClusterSuspended,
            ..
        } => (6, reason.as_str(), "its Cluster is suspended".into(), None),
        Decision::Hold {
            reason: reason @ HoldReason::SyncSuspended { entry },
            ..
        } => (
            6,
            reason.as_str(),
            format!("the Sync of entry {entry} is suspended or being deleted"),
            None,
        ),
        Decision::Hold {
            reason: reason @ HoldReason::Skipped(attribution),
            ..
        } => (
            7,
            reason.as_str(),
            format!("skipped by {} ({})", attribution.by, attribution.reason),
            Some(attribution.at),
        ),
        Decision::Done
        | Decision::Start { .. }
        | Decision::Retry { .. }
        | Decision::Remove { .. }
        | Decision::InFlight { .. }
        | Decision::Soaking { .. }
        | Decision::Hold { .. } => return None,
    })
}

/// Returns the reason and message of the first entry that broke after it was done.
pub(crate) fn health_problem_when_done(cluster: &ClusterView) -> Option<(&str, &str)> {
    cluster
        .entries
        .values()
        .filter_map(|view| view.observed.as_ref())
        .find_map(|sync| match &sync.progress {
            Progress::Applied(applied) => {
                let HealthProblem { reason, message } = applied.problem.as_ref()?;
                Some((reason.as_str(), message.as_str()))
            }
            Progress::Working | Progress::Failing { .. } => None,
        })
}

/// Returns the message of what a stage waits for.
fn waits_for(stage: &str, wait: &StageWait) -> String {
    match wait {
        StageWait::Clusters { working, soaking } => {
            format!("stage {stage} waits for {working} of its clusters, and {soaking} that soak")
        }
        StageWait::Unproven => format!(
            "no cluster of stage {stage} is on this release, so the stage is unproven: repair one of its clusters, or promote the stage"
        ),
        StageWait::Gate { gate, until } => match (gate, until) {
            (Gate::TimedWait(_), Some(until)) => format!("stage {stage} waits until {until}"),
            (Gate::TimedWait(_), None) => format!("stage {stage} waits for ever: its waitTime is too long"),
            (Gate::Approval, _) => format!("stage {stage} waits for an approval"),
            (Gate::Effect(kind), _) => format!("stage {stage} waits for its {kind:?}"),
        },
        StageWait::GateFailed { gate, message } => match gate {
            Gate::Effect(kind) => format!("the {kind:?} of stage {stage} failed: {message}"),
            Gate::TimedWait(_) | Gate::Approval => format!("a task of stage {stage} failed: {message}"),
        },
    }
}

#[cfg(test)]
mod tests;
