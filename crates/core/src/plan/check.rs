//! The planner's independent opinion: whether a plan keeps the rules.
//!
//! [`check`] knows the rules and not how the planner gets there. It shares the input and output types with it and
//! no code, computes every count again, and does not say which clusters should start: any plan passes that
//! decides what is true of each cluster, stays within the bounds and leaves no slot idle.
//!
//! The rule about time needs no second plan. A plan is right for as long as its decisions are true, so it is
//! checked three times: now, just before `recheck_at` (still true), and at it (no longer). Clusters that the plan
//! starts are in flight then; what becomes of them is reported by events, and each event makes a new plan.

mod facts;
mod violation;

use std::collections::BTreeSet;

use facts::{Facts, State, eligible_at};
use jiff::{SignedDuration, Timestamp};
use starling_api::IntOrPercent;
pub use violation::Violation;

use super::types::{ClusterView, Decision, FailureReason, HoldReason, Plan, PlanInput, Reach, Tally};

/// Whether `plan` is a right answer to `input`.
///
/// # Errors
/// The first rule that it breaks.
pub fn check(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    every_cluster_is_decided(input, plan)?;
    let present = Moment::at(input, plan, input.now);
    for (name, decision) in &plan.decisions {
        if let (Decision::Start { entries }, Some(view)) = (decision, input.clusters.get(name)) {
            present.starts_lawfully(name, view, entries)?;
        }
    }
    present.decisions_are_true()?;
    present.bounds_hold()?;
    if plan.tally != present.tally {
        return Err(Violation::WrongTally {
            said: plan.tally,
            expected: present.tally,
        });
    }
    is_looked_at_again_in_time(input, plan)
}

fn every_cluster_is_decided(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    let selected: BTreeSet<&String> = input.clusters.keys().collect();
    let decided: BTreeSet<&String> = plan.decisions.keys().collect();
    if let Some(&cluster) = selected.difference(&decided).next() {
        return Err(Violation::Undecided {
            cluster: cluster.clone(),
        });
    }
    decided.difference(&selected).next().map_or(Ok(()), |&cluster| {
        Err(Violation::NotSelected {
            cluster: cluster.clone(),
        })
    })
}

fn is_looked_at_again_in_time(input: &PlanInput, plan: &Plan) -> Result<(), Violation> {
    let stale = |at| Moment::at(input, plan, at).decisions_are_true().err();
    let until = match plan.recheck_at {
        Some(at) if at <= input.now => return Err(Violation::RecheckPast { at }),
        Some(at) => at.checked_sub(SignedDuration::from_nanos(1)).unwrap_or(input.now),
        None => Timestamp::MAX,
    };
    if let Some(stale) = stale(until) {
        return Err(Violation::RecheckLate {
            at: plan.recheck_at,
            stale: Box::new(stale),
        });
    }
    match plan.recheck_at {
        Some(at) if stale(at).is_none() => Err(Violation::RecheckEarly { at }),
        _ => Ok(()),
    }
}

/// One plan against the fleet at one time.
struct Moment<'a> {
    input: &'a PlanInput,
    at: Timestamp,
    fleet: Vec<Member<'a>>,
    tally: Tally,
    /// Clusters in flight once the plan is executed.
    in_flight_after: usize,
    /// Clusters that this release has reached and is not through with, before the plan is executed.
    reached: usize,
    /// And once it is.
    reached_after: usize,
}

/// A cluster, what is true of it, and what the plan says of it.
struct Member<'a> {
    name: &'a str,
    view: &'a ClusterView,
    facts: Facts<'a>,
    decision: &'a Decision,
}

impl Member<'_> {
    fn starts(&self) -> bool {
        matches!(self.decision, Decision::Start { .. })
    }
}

impl<'a> Moment<'a> {
    fn at(input: &'a PlanInput, plan: &'a Plan, at: Timestamp) -> Self {
        let fleet: Vec<Member<'a>> = input
            .clusters
            .iter()
            .filter_map(|(name, view)| {
                Some(Member {
                    name,
                    view,
                    facts: Facts::of(input, view, at),
                    decision: plan.decisions.get(name)?,
                })
            })
            .collect();
        let count = |wanted: fn(&Member<'_>) -> bool| fleet.iter().filter(|m| wanted(m)).count();
        let total = input.clusters.len();
        let tally = Tally {
            slots: share(input.limits.max_concurrency, total, 99).max(1),
            in_flight: count(|m| m.facts.holds_slot()),
            failed: count(|m| matches!(m.facts.state, State::Failed(_))),
            failures_allowed: share(input.limits.max_failures, total, 0),
        };
        Self {
            input,
            at,
            in_flight_after: count(|m| m.starts() || m.facts.holds_slot()),
            reached: count(|m| m.facts.is_reached()),
            reached_after: count(|m| m.starts() || m.facts.is_reached()),
            tally,
            fleet,
        }
    }

    /// What is forbidden about a start, whatever else is true of the cluster.
    fn starts_lawfully(&self, name: &str, view: &ClusterView, entries: &[String]) -> Result<(), Violation> {
        let cluster = name.to_owned();
        if entries.is_empty() {
            return Err(Violation::StartsNothing { cluster });
        }
        let mut named = BTreeSet::new();
        for entry in entries {
            let (cluster, again) = (name.to_owned(), !named.insert(entry));
            let violation = match view.entries.get(entry) {
                None => Violation::StartsUnknownEntry {
                    cluster,
                    entry: entry.clone(),
                },
                Some(_) if again => Violation::StartsEntryTwice {
                    cluster,
                    entry: entry.clone(),
                },
                Some(found) if facts::at_target(found) => Violation::StartsEntryAgain {
                    cluster,
                    entry: entry.clone(),
                },
                Some(_) => continue,
            };
            return Err(violation);
        }
        for (entry_name, found) in &view.entries {
            let (cluster, entry) = (name.to_owned(), entry_name.clone());
            if found.wanted.is_err() {
                return Err(Violation::StartsInvalid { cluster, entry });
            }
            if found.observed.as_ref().is_some_and(|sync| sync.suspended) {
                return Err(Violation::StartsSuspendedSync { cluster, entry });
            }
            if !facts::at_target(found) && !named.contains(entry_name) {
                return Err(Violation::LeavesEntryOut { cluster, entry });
            }
        }
        if view.reach != Reach::Ready {
            return Err(Violation::StartsUnready { cluster });
        }
        self.group_may_start(name, view)
    }

    fn group_may_start(&self, name: &str, view: &ClusterView) -> Result<(), Violation> {
        let cluster = name.to_owned();
        if self.input.suspended {
            return Err(Violation::StartsWhileSuspended { cluster });
        }
        if self.input.membership_held {
            return Err(Violation::StartsWhileMembershipHeld { cluster });
        }
        if self.overdrawn() {
            return Err(Violation::StartsBeyondBudget {
                cluster,
                failed: self.tally.failed,
                allowed: self.tally.failures_allowed,
            });
        }
        let eligible = eligible_at(self.input, view);
        if eligible > self.at {
            return Err(Violation::StartsBeforeJitter { cluster, eligible });
        }
        Ok(())
    }

    /// Every decision but a start says what is so at this time.
    fn decisions_are_true(&self) -> Result<(), Violation> {
        self.fleet.iter().try_for_each(|member| match member.decision {
            Decision::Start { .. } => Ok(()),
            Decision::Done => done_is_true(member),
            _ if matches!(member.facts.state, State::Done) => Err(Violation::DoneUnnoticed {
                cluster: member.name.to_owned(),
            }),
            Decision::InFlight { deadline, lost } => in_flight_is_true(member, *deadline, *lost),
            Decision::Failed { reason, retry_at } => failed_is_true(member, reason, *retry_at),
            Decision::Hold { reason, recheck_at } => self.hold_is_true(member, reason, *recheck_at),
        })
    }

    fn hold_is_true(
        &self,
        member: &Member<'_>,
        reason: &HoldReason,
        recheck_at: Option<Timestamp>,
    ) -> Result<(), Violation> {
        let cluster = member.name.to_owned();
        match member.facts.state {
            State::UnderWay { .. } => return Err(Violation::UnderWayUnnoticed { cluster }),
            State::Failed(_) => return Err(Violation::FailureUnnoticed { cluster }),
            State::Done | State::Obstructed | State::Startable { .. } => {}
        }
        if !self.reason_is_true(member, reason) {
            return Err(Violation::WrongHold {
                cluster,
                reason: reason.clone(),
            });
        }
        let expected = matches!(reason, HoldReason::Jitter).then(|| eligible_at(self.input, member.view));
        if recheck_at != expected {
            return Err(Violation::WrongHoldRecheck {
                cluster,
                said: recheck_at,
                expected,
            });
        }
        if matches!(reason, HoldReason::NoSlot) && self.has_slot_for(&member.facts) {
            return Err(Violation::IdleSlot { cluster });
        }
        Ok(())
    }

    /// What concerns the cluster itself comes first: a reason of the whole group is true only of a cluster that
    /// could start but for it.
    fn reason_is_true(&self, member: &Member<'_>, reason: &HoldReason) -> bool {
        let (view, facts) = (member.view, &member.facts);
        let could_start = matches!(facts.state, State::Startable { .. });
        let in_jitter = || eligible_at(self.input, view) > self.at;
        match reason {
            HoldReason::InvalidParameters { entry, message } => view
                .entries
                .get(entry)
                .is_some_and(|entry| entry.wanted.as_ref().err() == Some(message)),
            HoldReason::SyncSuspended { entry } => view
                .entries
                .get(entry)
                .and_then(|entry| entry.observed.as_ref())
                .is_some_and(|sync| sync.suspended),
            HoldReason::ClusterSuspended => view.reach == Reach::Suspended,
            HoldReason::ClusterNotProbed => view.reach == Reach::Unprobed,
            HoldReason::ClusterUnreachable {
                reason,
                message,
                since,
            } => {
                view.reach
                    == Reach::Unreachable {
                        reason: reason.clone(),
                        message: message.clone(),
                        since: *since,
                    }
            }
            HoldReason::GroupSuspended => could_start && self.input.suspended,
            HoldReason::MembershipHeld => could_start && self.input.membership_held,
            HoldReason::TooManyFailures => could_start && self.overdrawn(),
            HoldReason::Jitter => could_start && in_jitter(),
            HoldReason::NoSlot => {
                let paused = self.input.suspended || self.input.membership_held;
                could_start && !paused && !self.overdrawn() && !in_jitter()
            }
        }
    }

    /// Whether a cluster could start beside everything that the plan starts: in the slot that it has or a free
    /// one, and where the release has been before or may spread to.
    fn has_slot_for(&self, facts: &Facts<'_>) -> bool {
        (facts.holds_slot() || self.in_flight_after < self.tally.slots)
            && (facts.is_reached() || self.reached_after < self.tally.slots)
    }

    fn bounds_hold(&self) -> Result<(), Violation> {
        let (after, bound) = (self.in_flight_after, self.tally.slots.max(self.tally.in_flight));
        if after > bound {
            return Err(Violation::TooManyInFlight { after, bound });
        }
        let (after, bound) = (self.reached_after, self.tally.slots.max(self.reached));
        if after > bound {
            return Err(Violation::ReleaseTooWide { after, bound });
        }
        Ok(())
    }

    fn overdrawn(&self) -> bool {
        self.tally.failed > self.tally.failures_allowed
    }
}

fn done_is_true(member: &Member<'_>) -> Result<(), Violation> {
    let not_done = member
        .view
        .entries
        .iter()
        .find(|(_, entry)| !facts::is_done(entry));
    not_done.map_or(Ok(()), |(entry, _)| {
        Err(Violation::NotDone {
            cluster: member.name.to_owned(),
            entry: entry.clone(),
        })
    })
}

fn in_flight_is_true(member: &Member<'_>, said: Option<Timestamp>, lost: bool) -> Result<(), Violation> {
    let cluster = member.name.to_owned();
    match member.facts.state {
        State::UnderWay { deadline } if said != Some(deadline) => Err(Violation::WrongDeadline {
            cluster,
            said,
            expected: Some(deadline),
        }),
        State::UnderWay { .. } if lost == (member.view.reach == Reach::Ready) => {
            Err(Violation::WrongLost { cluster, said: lost })
        }
        State::UnderWay { .. } => Ok(()),
        State::Failed(_) => Err(Violation::FailureUnnoticed { cluster }),
        State::Done | State::Obstructed | State::Startable { .. } => {
            Err(Violation::NothingUnderWay { cluster })
        }
    }
}

fn failed_is_true(
    member: &Member<'_>,
    reason: &FailureReason,
    retry_at: Option<Timestamp>,
) -> Result<(), Violation> {
    let cluster = member.name.to_owned();
    match &member.facts.state {
        State::Failed(causes) if causes.contains(&(reason.clone(), retry_at)) => Ok(()),
        State::Failed(_) => Err(Violation::WrongFailure { cluster }),
        State::Done | State::UnderWay { .. } | State::Obstructed | State::Startable { .. } => {
            Err(Violation::NothingFailed { cluster })
        }
    }
}

/// So many clusters, or that percentage of `total` after `up` hundredths of a cluster were added.
fn share(limit: IntOrPercent, total: usize, up: usize) -> usize {
    match limit {
        IntOrPercent::Int(clusters) => clusters as usize,
        IntOrPercent::Percent(percent) => (total * percent as usize + up) / 100,
    }
}

#[cfg(test)]
mod tests;
