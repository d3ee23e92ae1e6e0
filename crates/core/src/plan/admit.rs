//! Which of the clusters that could start do start, and what stands in the way of the others.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::classify::{Class, Slot, Standing, missing_of_known_good};
use super::openings::Openings;
use super::room::Room;
use super::stages::{Direction, StageWait, Stop};
use super::types::{Decision, HoldReason, PlanInput, Tally, To};
use super::walk::{Stage, goes_on, stage_of};
use crate::digest::{hash64, spread};

/// What admission depends on, beside the cluster itself.
pub(super) struct Desk<'a> {
    input: &'a PlanInput,
    stages: &'a [Stage],
    tally: Tally,
    openings: &'a Openings<'a>,
    /// Why nothing starts anywhere.
    stop: Option<HoldReason>,
}

/// A hold: why, and when time changes that.
type Hold = (HoldReason, Option<Timestamp>);

impl<'a> Desk<'a> {
    pub(super) fn new(
        input: &'a PlanInput,
        stages: &'a [Stage],
        tally: Tally,
        stop: Option<&Stop>,
        openings: &'a Openings<'a>,
    ) -> Self {
        Self {
            input,
            stages,
            tally,
            openings,
            stop: stop.map(|stop| hold_of(stop, stages)),
        }
    }

    /// One decision per cluster, in three steps: what each cluster's own standing says, then who waits for the
    /// whole group, a stage or time, then who gets the free slots.
    pub(super) fn admit(&self, standings: &[Standing<'a>]) -> BTreeMap<String, Decision> {
        let mut decisions = BTreeMap::new();
        let mut candidates = Vec::new();
        for standing in standings {
            let decision = match &standing.class {
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
                Class::Held(reason) => Decision::Hold {
                    reason: reason.clone(),
                    recheck_at: None,
                },
                Class::Startable { entries, begun } => {
                    let wish = self.wish(standing, entries, *begun);
                    let first = self.obstacles(standing, &wish).next();
                    let Some((reason, recheck_at)) = first else {
                        candidates.push((standing, wish));
                        continue;
                    };
                    Decision::Hold { reason, recheck_at }
                }
            };
            decisions.insert(standing.name.to_owned(), decision);
        }
        decisions.extend(self.fill_slots(candidates));
        decisions
    }

    /// Everything but room that keeps a cluster back, the first first.
    pub(super) fn everything_in_the_way(&self, standing: &Standing<'a>) -> Vec<Hold> {
        match &standing.class {
            Class::Held(reason) => vec![(reason.clone(), None)],
            Class::Startable { entries, begun } => {
                let wish = self.wish(standing, entries, *begun);
                self.obstacles(standing, &wish).collect()
            }
            Class::Done | Class::InFlight { .. } | Class::Soaking { .. } | Class::Failed(_) => Vec::new(),
        }
    }

    /// What the cluster would be started with, and since when it may.
    fn wish(&self, standing: &Standing<'a>, entries: &[String], begun: bool) -> Wish {
        let stage = self.stages.get(stage_of(self.input, standing));
        let open_since = stage.and_then(Stage::open_since);
        let joins = match open_since {
            None => missing_of_known_good(standing.cluster),
            Some(_) => None,
        };
        let rollout = &self.input.rollout;
        match joins {
            Some(entries) => Wish {
                begun: entries.len() < standing.cluster.entries.len(),
                entries,
                to: To::LastKnownGood,
                open_since: Some(rollout.started_at),
                is_open: false,
            },
            None => Wish {
                entries: entries.to_vec(),
                to: To::Release,
                begun,
                open_since,
                is_open: open_since.is_some(),
            },
        }
    }

    /// What keeps a startable cluster back, in the order of [`HoldReason`].
    fn obstacles<'s>(
        &'s self,
        standing: &'s Standing<'a>,
        wish: &'s Wish,
    ) -> impl Iterator<Item = Hold> + 's {
        let steps: [fn(&Self, &Standing<'a>, &Wish) -> Option<Hold>; 7] = [
            |desk, _, _| desk.input.suspended.then_some((HoldReason::GroupSuspended, None)),
            |desk, _, _| {
                let word = desk.input.steering.paused.as_ref()?;
                Some((HoldReason::Paused(word.clone()), None))
            },
            |desk, _, _| match &desk.stop {
                Some(reason @ HoldReason::Aborted(_)) => Some((reason.clone(), None)),
                _ => None,
            },
            |desk, _, _| {
                desk.input
                    .membership_held
                    .then_some((HoldReason::MembershipHeld, None))
            },
            |desk, _, _| match &desk.stop {
                Some(HoldReason::Aborted(_)) | None => None,
                Some(reason) => Some((reason.clone(), None)),
            },
            Self::stage_waits,
            Self::not_now,
        ];
        steps
            .into_iter()
            .filter_map(move |step| step(self, standing, wish))
    }

    fn stage_waits(&self, standing: &Standing<'a>, wish: &Wish) -> Option<Hold> {
        if wish.open_since.is_some() {
            return None;
        }
        let own = stage_of(self.input, standing);
        let waits = |(stage, found): (usize, &Stage)| Some((stage, found.wait.clone()?));
        let (stage, wait) = self.stages.iter().enumerate().take(own + 1).find_map(waits)?;
        let until = match &wait {
            StageWait::Gate { until, .. } => *until,
            StageWait::Clusters { .. } | StageWait::Unproven | StageWait::GateFailed { .. } => None,
        };
        Some((HoldReason::StageWaits { stage, wait }, until))
    }

    /// Windows and jitter. A window that closes before the jitter is over ends that wait, too.
    fn not_now(&self, standing: &Standing<'a>, wish: &Wish) -> Option<Hold> {
        let windows = self.openings.about(standing.cluster);
        if !windows.is_open {
            return Some((HoldReason::WindowClosed, windows.changes_at));
        }
        let eligible = self.eligible_at(standing, wish);
        let sooner = windows.changes_at.map_or(eligible, |change| change.min(eligible));
        (eligible > self.input.now).then_some((HoldReason::Jitter, Some(sooner)))
    }

    /// When a cluster's share of the jitter is over. A hash of cluster and release: it needs no memory, and the
    /// same cluster is not always the first.
    fn eligible_at(&self, standing: &Standing<'a>, wish: &Wish) -> Timestamp {
        let from = wish.open_since.unwrap_or(self.input.rollout.started_at);
        let jitter = self.input.strategy.limits.jitter;
        if jitter.is_zero() || self.input.rollout.direction == Direction::BackAtOnce {
            return from;
        }
        let hash = hash64(&[&standing.cluster.uid, &self.input.rollout.release]);
        from.checked_add(spread(jitter, hash)).unwrap_or(from)
    }

    /// Starts first what was begun, then what goes on from older work in the slot it has, then others.
    ///
    /// Several bounds hold at once, in the group and in the stage: no more than `slots` clusters are in flight, and this
    /// release has reached no more than `slots` that are not through with it. The second matters where more clusters are at
    /// work on older releases than there are slots (the bound was lowered, or lost clusters came back): they all have a
    /// slot, but it is the new release that may be bad.
    fn fill_slots<'s>(
        &'s self,
        mut candidates: Vec<(&'s Standing<'a>, Wish)>,
    ) -> impl Iterator<Item = (String, Decision)> + 's {
        candidates.sort_by_cached_key(|(standing, wish)| {
            let stage = stage_of(self.input, standing);
            let goes_on = standing.slot.is_some();
            (
                !wish.begun,
                !goes_on,
                stage,
                self.eligible_at(standing, wish),
                standing.name,
            )
        });
        let mut room = Room::new(self.input, self.tally, self.stages);
        candidates.into_iter().map(move |(standing, wish)| {
            let decision = match room.take(stage_of(self.input, standing), standing, &wish) {
                None => Decision::Start {
                    entries: wish.entries,
                    to: wish.to,
                },
                Some(reason) => Decision::Hold {
                    reason,
                    recheck_at: self.openings.about(standing.cluster).changes_at,
                },
            };
            (standing.name.to_owned(), decision)
        })
    }
}

/// What a cluster would be started with.
pub(super) struct Wish {
    entries: Vec<String>,
    pub(super) to: To,
    /// That was begun before.
    pub(super) begun: bool,
    /// Since when; `None`: its stage has not opened.
    open_since: Option<Timestamp>,
    /// Whether its stage is open.
    pub(super) is_open: bool,
}

/// Why nothing more starts, as each cluster is told.
fn hold_of(stop: &Stop, stages: &[Stage]) -> HoldReason {
    match stop {
        Stop::TooManyFailures { stage, .. } => HoldReason::TooManyFailures { stage: *stage },
        Stop::GateFailed { stage, .. } => HoldReason::StageWaits {
            stage: *stage,
            wait: stages
                .get(*stage)
                .and_then(|stage| stage.wait.clone())
                .unwrap_or(StageWait::Unproven),
        },
        Stop::Aborted(word) => HoldReason::Aborted(word.clone()),
    }
}

/// Why nothing more starts of this rollout, if that is so: a person gave it up, too many failed, or a gate did.
pub(super) fn stop(input: &PlanInput, stages: &[Stage], tally: Tally) -> Option<Stop> {
    if let Some(word) = &input.steering.aborted {
        return Some(Stop::Aborted(word.clone()));
    }
    if goes_on(input) {
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

/// When leftover work ends by its deadline, which may give room to somebody who waits for it.
pub(super) fn leftover_ends<'a>(
    standings: &'a [Standing<'_>],
    decisions: &'a BTreeMap<String, Decision>,
) -> impl Iterator<Item = Timestamp> + 'a {
    let someone_waits = decisions.values().any(waits_for_room);
    standings
        .iter()
        .filter(move |_| someone_waits)
        .filter_map(|standing| match standing.slot {
            Some(Slot::Leftover { until }) => Some(until),
            Some(Slot::Release) | None => None,
        })
}

fn waits_for_room(decision: &Decision) -> bool {
    matches!(
        decision,
        Decision::Hold {
            reason: HoldReason::NoSlot | HoldReason::TooManyUnavailable,
            ..
        }
    )
}
