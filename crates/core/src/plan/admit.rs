//! Decides which of the startable clusters start, and what blocks the others.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::candidate::Candidate;
use super::entry::missing_of_known_good;
use super::openings::Openings;
use super::retry;
use super::slots::SlotBudget;
use super::stages::{Direction, StageWait, Stop, Tally};
use super::state::{Class, ClusterState, Slot};
use super::types::{AdmittedRelease, Decision, HoldReason, PlanInput};
use super::walk::{StageState, continues_on_failure, stage_of};
use crate::digest::{hash64, spread};
use crate::ids::ClusterName;
use crate::window::Opening;

/// The input of admission, except for the cluster itself.
pub(super) struct Admitter<'a> {
    input: &'a PlanInput,
    stages: &'a [StageState],
    tally: Tally,
    /// The reason why nothing starts in the whole group.
    stop: Option<HoldReason>,
}

/// The result of admission.
pub(super) struct AdmissionResult {
    pub(super) decisions: BTreeMap<ClusterName, Decision>,
    /// Whether a failed cluster waits for a slot to be retried.
    pub(super) retry_waits: bool,
    /// Earliest end of the calendars that clusters wait for: windows after that time are unknown.
    pub(super) known_until: Option<Timestamp>,
}

/// A candidate, its cluster, and the place of its decision among those of all clusters.
struct PlacedCandidate<'s, 'a> {
    place: usize,
    state: &'s ClusterState<'a>,
    candidate: Candidate,
}

/// A hold reason, and when time ends it.
type Hold = (HoldReason, Option<Timestamp>);

/// Returns the hold of a cluster if one condition for its start is not met.
type HoldCheck<'a> = fn(&Admitter<'a>, &ClusterState<'a>, &Candidate) -> Option<Hold>;

impl<'a> Admitter<'a> {
    pub(super) fn new(
        input: &'a PlanInput,
        stages: &'a [StageState],
        tally: Tally,
        stop: Option<&Stop>,
    ) -> Self {
        Self {
            input,
            stages,
            tally,
            stop: stop.map(|stop| hold_of(stop, stages)),
        }
    }

    /// Returns one decision per cluster, in three checks: what follows from the state of the cluster alone, then which
    /// clusters wait for the whole group, a stage or a time, then which clusters get the free slots.
    pub(super) fn admit(&self, states: &[ClusterState<'a>]) -> AdmissionResult {
        let mut openings = Openings::of(self.input);
        let mut known_until = None;
        let mut decisions = Vec::with_capacity(states.len());
        let mut candidates = Vec::new();
        for state in states {
            let Class::Startable { begun } = state.class else {
                decisions.push(own_decision(&state.class));
                continue;
            };
            let candidate = self.candidate(state, begun, &mut openings);
            let hold = self.holds(state, &candidate).next();
            if hold.as_ref().is_none_or(|(reason, _)| depends_on_windows(reason)) {
                known_until = earlier(known_until, candidate.opening.known_until);
            }
            match hold {
                Some((reason, recheck_at)) => decisions.push(Some(Decision::Hold { reason, recheck_at })),
                None => {
                    candidates.push(PlacedCandidate {
                        place: decisions.len(),
                        state,
                        candidate,
                    });
                    decisions.push(None);
                }
            }
        }
        let mut budget = SlotBudget::new(self.input, self.tally, self.stages);
        for (place, decision) in self.fill_slots(candidates, &mut budget) {
            if let Some(free) = decisions.get_mut(place) {
                *free = Some(decision);
            }
        }
        let retry_waits = self.retry(states, &mut decisions, &mut budget);
        // The states are in the order of names, so that the map is built without insertions in between.
        let named = states.iter().zip(decisions);
        let named = named.filter_map(|(state, decision)| Some((state.name.to_owned(), decision?)));
        AdmissionResult {
            decisions: named.collect(),
            retry_waits,
            known_until,
        }
    }

    /// Returns everything that blocks the cluster, except for a missing slot, in the order of precedence.
    pub(super) fn hold_reasons(&self, state: &ClusterState<'a>) -> Vec<Hold> {
        match &state.class {
            Class::Hold(reason) => vec![(reason.clone(), None)],
            Class::Startable { begun } => {
                let candidate = self.candidate(state, *begun, &mut Openings::of(self.input));
                self.holds(state, &candidate).collect()
            }
            Class::Done | Class::InFlight { .. } | Class::Soaking { .. } | Class::Failed(_) => Vec::new(),
        }
    }

    /// Returns the release to start the cluster with, and since when it may start.
    fn candidate(&self, state: &ClusterState<'a>, begun: bool, openings: &mut Openings<'a>) -> Candidate {
        let cluster = state.cluster;
        let stage = self.stages.get(stage_of(self.input, state));
        let open_since = stage.and_then(StageState::open_since);
        let joins = match open_since {
            None if state.lacks_known_good => missing_of_known_good(cluster),
            _ => None,
        };
        let (to, begun, since) = match joins {
            Some(missing) => {
                let begun = missing.len() < cluster.entries.len();
                (
                    AdmittedRelease::LastKnownGood,
                    begun,
                    Some(self.input.rollout.started_at),
                )
            }
            None => (AdmittedRelease::Release, begun, open_since),
        };
        Candidate {
            to,
            begun,
            eligible_at: since.map(|since| self.eligible_at(&cluster.id, since)),
            // Windows are not evaluated while the stage waits.
            opening: since.map_or(Opening::ALWAYS, |_| openings.about(&cluster.windows)),
            is_open: open_since.is_some(),
        }
    }

    /// Returns what blocks a startable cluster, in the order of [`HoldReason`].
    fn holds<'s>(
        &'s self,
        state: &'s ClusterState<'a>,
        candidate: &'s Candidate,
    ) -> impl Iterator<Item = Hold> + 's {
        let checks: [HoldCheck<'a>; 7] = [
            |admitter, _, _| {
                admitter
                    .input
                    .suspended
                    .then_some((HoldReason::GroupSuspended, None))
            },
            |admitter, _, _| {
                let attribution = admitter.input.operator.paused.as_ref()?;
                Some((HoldReason::Paused(attribution.clone()), None))
            },
            |admitter, _, _| match &admitter.stop {
                Some(reason @ HoldReason::Aborted(_)) => Some((reason.clone(), None)),
                _ => None,
            },
            |admitter, _, _| {
                admitter
                    .input
                    .membership_held
                    .then_some((HoldReason::MembershipHeld, None))
            },
            |admitter, _, _| match &admitter.stop {
                Some(HoldReason::Aborted(_)) | None => None,
                Some(reason) => Some((reason.clone(), None)),
            },
            Self::stage_waits,
            Self::time_waits,
        ];
        checks
            .into_iter()
            .filter_map(move |check| check(self, state, candidate))
    }

    fn stage_waits(&self, state: &ClusterState<'a>, candidate: &Candidate) -> Option<Hold> {
        if candidate.eligible_at.is_some() {
            return None;
        }
        let own = stage_of(self.input, state);
        let waits = |(stage, found): (usize, &StageState)| Some((stage, found.wait.clone()?));
        let (stage, wait) = self
            .stages
            .iter()
            .enumerate()
            .take(own.saturating_add(1))
            .find_map(waits)?;
        let until = match &wait {
            StageWait::Gate { until, .. } => *until,
            StageWait::Clusters { .. } | StageWait::Unproven | StageWait::GateFailed { .. } => None,
        };
        Some((HoldReason::StageWaits { stage, wait }, until))
    }

    /// Checks windows and jitter. A window that closes before the jitter is over also ends that wait. An admission that
    /// has begun is completed even in a closed window, since half a release is worse than either.
    fn time_waits(&self, _: &ClusterState<'a>, candidate: &Candidate) -> Option<Hold> {
        let has_started = candidate.begun && candidate.to == AdmittedRelease::Release;
        if !candidate.opening.is_open && !has_started {
            return Some((HoldReason::WindowClosed, candidate.opening.changes_at));
        }
        let eligible_at = candidate.eligible_at.filter(|at| *at > self.input.now)?;
        Some((
            HoldReason::Jitter,
            earlier(Some(eligible_at), candidate.opening.changes_at),
        ))
    }

    /// Returns when the jitter of a cluster is over. It is a hash of cluster and release: nothing is stored, and the
    /// order of clusters differs between releases.
    fn eligible_at(&self, id: &str, from: Timestamp) -> Timestamp {
        let jitter = self.input.strategy.limits.jitter;
        if jitter.is_zero() || self.input.rollout.direction == Direction::BackAtOnce {
            return from;
        }
        let hash = hash64(&[id, &self.input.rollout.release]);
        from.checked_add(spread(jitter, hash)).unwrap_or(from)
    }

    /// Starts clusters with an interrupted admission first, then those that are in flight for older work and keep their
    /// slot, then the others.
    ///
    /// Two limits apply, in the group and in the stage: no more than `slots` clusters are in flight, and this release
    /// has no more than `slots` clusters that are not done with it. The second limit matters when more clusters are in
    /// flight for older releases than there are slots (the limit was lowered, or lost clusters returned): each of them
    /// has a slot, but the new release may be a bad one.
    fn fill_slots<'s>(
        &'s self,
        mut candidates: Vec<PlacedCandidate<'s, 'a>>,
        budget: &'s mut SlotBudget,
    ) -> impl Iterator<Item = (usize, Decision)> + 's {
        candidates.sort_by_key(|PlacedCandidate { state, candidate, .. }| {
            let keeps_slot = state.slot.is_some();
            let stage = stage_of(self.input, state);
            (
                !candidate.begun,
                !keeps_slot,
                stage,
                candidate.eligible_at,
                state.name,
            )
        });
        candidates.into_iter().map(move |start| {
            let PlacedCandidate {
                place,
                state,
                candidate,
            } = start;
            let decision = match budget.take(stage_of(self.input, state), state, &candidate) {
                None => candidate.start(state),
                Some(reason) => Decision::Hold {
                    reason,
                    recheck_at: candidate.opening.changes_at,
                },
            };
            (place, decision)
        })
    }

    /// Gives the remaining slots to failed clusters for which an operator requested a retry. Returns whether one of
    /// them waits for a slot.
    fn retry(
        &self,
        states: &[ClusterState<'a>],
        decisions: &mut [Option<Decision>],
        budget: &mut SlotBudget,
    ) -> bool {
        if self.input.operator.retries.is_empty() || retry::stop(self.input).is_some() {
            return false;
        }
        let mut waits = false;
        for (state, decision) in states.iter().zip(decisions) {
            let place = stage_of(self.input, state);
            let stage = self.stages.get(place).map(|stage| stage.plan.name.as_str());
            let Some(due) = retry::due(self.input, state, stage) else {
                continue;
            };
            if budget.take_retry(place) {
                *decision = Some(Decision::Retry {
                    entries: due.entries,
                    requested_at: due.requested_at,
                });
            } else {
                waits = true;
            }
        }
        waits
    }
}

/// Returns the decision that follows from the state of the cluster alone; `None`: the cluster is startable.
fn own_decision(class: &Class) -> Option<Decision> {
    Some(match class {
        Class::Done => Decision::Done,
        Class::InFlight { deadline, lost } => Decision::InFlight {
            deadline: *deadline,
            lost: *lost,
        },
        Class::Soaking { until } => Decision::Soaking { until: *until },
        Class::Failed(failed) => Decision::Failed {
            reason: failed.reason.clone(),
            retry_at: failed.retry_at,
        },
        Class::Hold(reason) => Decision::Hold {
            reason: reason.clone(),
            recheck_at: None,
        },
        Class::Startable { .. } => return None,
    })
}

/// Reports whether an opening or closing window ends the hold.
fn depends_on_windows(reason: &HoldReason) -> bool {
    matches!(reason, HoldReason::WindowClosed | HoldReason::Jitter)
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
}

/// Returns the hold reason of each cluster when the rollout is stopped.
fn hold_of(stop: &Stop, stages: &[StageState]) -> HoldReason {
    match stop {
        Stop::TooManyFailures { stage, .. } => HoldReason::TooManyFailures { stage: *stage },
        Stop::GateFailed { stage, .. } => HoldReason::StageWaits {
            stage: *stage,
            wait: stages
                .get(*stage)
                .and_then(|stage| stage.wait.clone())
                .unwrap_or(StageWait::Unproven),
        },
        Stop::Aborted(attribution) => HoldReason::Aborted(attribution.clone()),
    }
}

/// Returns why the rollout is stopped, if it is: an operator aborted it, too many clusters failed, or a gate failed.
pub(super) fn stop(input: &PlanInput, stages: &[StageState], tally: Tally) -> Option<Stop> {
    if let Some(attribution) = &input.operator.aborted {
        return Some(Stop::Aborted(attribution.clone()));
    }
    if continues_on_failure(input) {
        return None;
    }
    if tally.too_many_failures() {
        return Some(Stop::TooManyFailures {
            stage: None,
            failed: tally.failed,
            allowed: tally.failures_allowed,
        });
    }
    let overdrawn = stages.iter().enumerate().find(|(_, stage)| stage.is_overdrawn());
    if let Some((place, stage)) = overdrawn {
        return Some(Stop::TooManyFailures {
            stage: Some(place),
            failed: stage.plan.tally.failed,
            allowed: stage.plan.tally.failures_allowed,
        });
    }
    stages
        .iter()
        .enumerate()
        .find_map(|(stage, found)| match &found.wait {
            Some(StageWait::GateFailed { message, .. }) => Some(Stop::GateFailed {
                stage,
                message: message.clone(),
            }),
            _ => None,
        })
}

/// Returns when older work ends at its deadline, which may release a slot for a waiting cluster. `others_wait`: for a
/// retry, or for a cluster that left.
pub(super) fn leftover_ends<'a>(
    states: &'a [ClusterState<'_>],
    decisions: &'a BTreeMap<ClusterName, Decision>,
    others_wait: bool,
) -> impl Iterator<Item = Timestamp> + 'a {
    let someone_waits = others_wait || decisions.values().any(waits_for_slot);
    states
        .iter()
        .filter(move |_| someone_waits)
        .filter_map(|state| match state.slot {
            Some(Slot::Leftover { until }) => Some(until),
            Some(Slot::Release) | None => None,
        })
}

fn waits_for_slot(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Hold {
            reason: HoldReason::NoSlot | HoldReason::TooManyUnavailable | HoldReason::InstallationLimit,
            ..
        }
    )
}
