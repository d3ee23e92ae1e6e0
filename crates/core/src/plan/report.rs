//! What a plan means to people: counts, phase, what blocks, who is in trouble.

use std::collections::BTreeMap;

use jiff::Timestamp;
use starling_api::RolloutPhase;

use super::types::{ClusterView, Decision, FailureReason, HoldReason, Plan, PlanInput, Progress};

/// Selected clusters by what they are doing; every cluster counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Selected.
    pub total: u32,
    /// Done.
    pub updated: u32,
    /// Started, now or before.
    pub progressing: u32,
    /// Waiting for their turn.
    pub pending: u32,
    /// Failed.
    pub failed: u32,
    /// Unreachable before anything was started there.
    pub unreachable: u32,
    /// Held back by something of their own.
    pub held: u32,
}

/// A plan in the terms of `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Counts.
    pub counts: Counts,
    /// How the rollout stands.
    pub phase: RolloutPhase,
    /// What keeps pending clusters from starting: reason, message, when it is looked at again.
    pub blocked_by: Vec<(&'static str, String, Option<Timestamp>)>,
    /// Clusters in trouble, worst first: name, reason, message, since.
    pub problems: Vec<Problem>,
    /// Clusters that are done and not healthy any more. They count as updated, and are among the problems.
    pub degraded: u32,
}

/// A cluster in trouble: name, reason, message, since.
type Problem = (String, String, String, Option<Timestamp>);

/// Which count a decision adds to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bucket {
    Updated,
    Progressing,
    Pending,
    Failed,
    Unreachable,
    Held,
}

fn bucket(decision: &Decision) -> Bucket {
    match decision {
        Decision::Done => Bucket::Updated,
        Decision::Start { .. } | Decision::InFlight { .. } => Bucket::Progressing,
        Decision::Failed { .. } => Bucket::Failed,
        Decision::Hold { reason, .. } => match reason {
            HoldReason::ClusterUnreachable { .. } => Bucket::Unreachable,
            HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::InvalidParameters { .. } => Bucket::Held,
            HoldReason::GroupSuspended
            | HoldReason::ClusterNotProbed
            | HoldReason::Jitter
            | HoldReason::TooManyFailures
            | HoldReason::NoSlot => Bucket::Pending,
        },
    }
}

impl Plan {
    /// The plan for `input` in the terms of `status`.
    #[must_use]
    pub fn report(&self, input: &PlanInput) -> Report {
        let counts = self.counts();
        let degraded = self.degraded(input);
        Report {
            counts,
            phase: self.phase(counts),
            blocked_by: self.blocked_by(),
            degraded: u32::try_from(degraded.len()).unwrap_or(u32::MAX),
            problems: self.problems(degraded),
        }
    }

    /// What is wrong with clusters that are done. It changes no decision: a rollout ends, and what breaks later is told.
    fn degraded(&self, input: &PlanInput) -> Vec<Problem> {
        let done = self
            .decisions
            .iter()
            .filter(|(_, decision)| matches!(decision, Decision::Done));
        done.filter_map(|(name, _)| {
            let (reason, message) = trouble_at_rest(input.clusters.get(name)?)?;
            Some((name.clone(), reason.to_owned(), message.to_owned(), None))
        })
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
                Bucket::Held => &mut counts.held,
            } += 1;
        }
        counts
    }

    fn phase(&self, counts: Counts) -> RolloutPhase {
        let holds = |reason: &HoldReason| {
            self.decisions
                .values()
                .any(|d| matches!(d, Decision::Hold { reason: r, .. } if r == reason))
        };
        if counts.progressing == 0 && counts.pending == 0 && counts.failed == 0 && counts.held == 0 {
            RolloutPhase::Succeeded
        } else if holds(&HoldReason::GroupSuspended) || holds(&HoldReason::TooManyFailures) {
            RolloutPhase::Paused
        } else if counts.progressing > 0 || counts.pending > 0 {
            if counts.updated + counts.progressing + counts.failed == 0 {
                RolloutPhase::Pending
            } else {
                RolloutPhase::Progressing
            }
        } else if counts.failed > 0 {
            RolloutPhase::Failed
        } else {
            RolloutPhase::Paused
        }
    }

    fn blocked_by(&self) -> Vec<(&'static str, String, Option<Timestamp>)> {
        let mut waiting: BTreeMap<&'static str, (&HoldReason, u32, Option<Timestamp>)> = BTreeMap::new();
        for decision in self.decisions.values().filter(|d| bucket(d) == Bucket::Pending) {
            if let Decision::Hold { reason, recheck_at } = decision {
                let entry = waiting.entry(reason.as_str()).or_insert((reason, 0, None));
                entry.1 += 1;
                entry.2 = [entry.2, *recheck_at].into_iter().flatten().min();
            }
        }
        waiting
            .into_iter()
            .map(|(word, (reason, clusters, at))| (word, self.blocker(reason, clusters), at))
            .collect()
    }

    fn blocker(&self, reason: &HoldReason, clusters: u32) -> String {
        let tally = &self.tally;
        match reason {
            HoldReason::TooManyFailures => format!(
                "{} of at most {} allowed failures; {clusters} clusters wait until fewer fail or a new revision comes",
                tally.failed, tally.failures_allowed
            ),
            HoldReason::NoSlot => {
                format!(
                    "{clusters} clusters wait for one of {} slots (maxConcurrency)",
                    tally.slots
                )
            }
            HoldReason::Jitter => format!("{clusters} clusters wait for their share of the jitter"),
            HoldReason::GroupSuspended => format!("the group is suspended; {clusters} clusters wait"),
            HoldReason::ClusterNotProbed => format!("{clusters} clusters have not been probed yet"),
            HoldReason::ClusterSuspended
            | HoldReason::SyncSuspended { .. }
            | HoldReason::InvalidParameters { .. }
            | HoldReason::ClusterUnreachable { .. } => format!("{clusters} clusters"),
        }
    }

    fn problems(&self, degraded: Vec<Problem>) -> Vec<Problem> {
        let mut problems: Vec<(u8, String, String, String, Option<Timestamp>)> = degraded
            .into_iter()
            .map(|(name, reason, message, since)| (2, name, reason, message, since))
            .collect();
        for (name, decision) in &self.decisions {
            let (rank, reason, message, since) = match decision {
                Decision::Failed { reason, .. } => {
                    let rank = u8::from(!matches!(reason, FailureReason::LostAfterAdmission));
                    (rank, reason.as_str(), reason.to_string(), None)
                }
                Decision::Hold {
                    reason: reason @ HoldReason::InvalidParameters { entry, message },
                    ..
                } => (3, reason.as_str(), format!("entry {entry}: {message}"), None),
                Decision::InFlight { lost: true, deadline } => (
                    4,
                    "Unreachable",
                    match deadline {
                        Some(at) => format!("unreachable since it was admitted; counts as failed at {at}"),
                        None => "unreachable since it was admitted".into(),
                    },
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
                    format!("the Sync of entry {entry} is suspended"),
                    None,
                ),
                Decision::Done
                | Decision::Start { .. }
                | Decision::InFlight { .. }
                | Decision::Hold { .. } => {
                    continue;
                }
            };
            problems.push((rank, name.clone(), reason.to_owned(), message, since));
        }
        problems.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
        problems
            .into_iter()
            .map(|(_, name, reason, message, since)| (name, reason, message, since))
            .collect()
    }
}

/// The reason and message of the first entry that broke after it was done.
fn trouble_at_rest(cluster: &ClusterView) -> Option<(&str, &str)> {
    let observed = cluster.entries.values().filter_map(|view| view.observed.as_ref());
    observed
        .filter_map(|sync| match &sync.progress {
            Progress::Degraded { reason, message } => Some((reason.as_str(), message.as_str())),
            Progress::Working | Progress::Done | Progress::Failing { .. } => None,
        })
        .next()
}
