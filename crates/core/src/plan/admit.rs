//! Which of the clusters that could start do start, and what stands in the way of the others.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::entry::{missing, missing_of_known_good};
use super::openings::Openings;
use super::room::Room;
use super::stages::{Direction, StageWait, Stop};
use super::standing::{Class, Slot, Standing};
use super::types::{Decision, HoldReason, PlanInput, Tally, To};
use super::walk::{Stage, goes_on, stage_of};
use crate::digest::{hash64, spread};
use crate::window::Opening;

/// What admission depends on, beside the cluster itself.
pub(super) struct Desk<'a> {
    input: &'a PlanInput,
    stages: &'a [Stage],
    tally: Tally,
    /// Why nothing starts anywhere.
    stop: Option<HoldReason>,
}

/// What becomes of every cluster.
pub(super) struct Admission {
    pub(super) decisions: BTreeMap<String, Decision>,
    /// When the first calendar ends for which somebody waits: what it does not know yet may change what keeps him back.
    pub(super) known_until: Option<Timestamp>,
}

/// A hold: why, and when time changes that.
type Hold = (HoldReason, Option<Timestamp>);

/// Something that may stand in the way of a cluster.
type Step<'a> = fn(&Desk<'a>, &Standing<'a>, &Wish) -> Option<Hold>;

impl<'a> Desk<'a> {
    pub(super) fn new(input: &'a PlanInput, stages: &'a [Stage], tally: Tally, stop: Option<&Stop>) -> Self {
        Self {
            input,
            stages,
            tally,
            stop: stop.map(|stop| hold_of(stop, stages)),
        }
    }

    /// One decision per cluster, in three steps: what each cluster's own standing says, then who waits for the
    /// whole group, a stage or time, then who gets the free slots.
    pub(super) fn admit(&self, standings: &[Standing<'a>]) -> Admission {
        let mut openings = Openings::of(self.input);
        let mut known_until = None;
        let mut decisions = Vec::with_capacity(standings.len());
        let mut candidates = Vec::new();
        for standing in standings {
            let Class::Startable { begun } = standing.class else {
                decisions.push(own_decision(&standing.class));
                continue;
            };
            let wish = self.wish(standing, begun, &mut openings);
            let hold = self.obstacles(standing, &wish).next();
            if hold.as_ref().is_none_or(|(reason, _)| depends_on_windows(reason)) {
                known_until = earlier(known_until, wish.opening.known_until);
            }
            match hold {
                Some((reason, recheck_at)) => decisions.push(Some(Decision::Hold { reason, recheck_at })),
                None => {
                    candidates.push((decisions.len(), standing, wish));
                    decisions.push(None);
                }
            }
        }
        for (place, decision) in self.fill_slots(candidates) {
            if let Some(free) = decisions.get_mut(place) {
                *free = Some(decision);
            }
        }
        // In the order of their names already, so that the map is built in one go.
        let named = standings.iter().zip(decisions);
        let named = named.filter_map(|(standing, decision)| Some((standing.name.to_owned(), decision?)));
        Admission {
            decisions: named.collect(),
            known_until,
        }
    }

    /// Everything but room that keeps a cluster back, the first first.
    pub(super) fn everything_in_the_way(&self, standing: &Standing<'a>) -> Vec<Hold> {
        match &standing.class {
            Class::Held(reason) => vec![(reason.clone(), None)],
            Class::Startable { begun } => {
                let wish = self.wish(standing, *begun, &mut Openings::of(self.input));
                self.obstacles(standing, &wish).collect()
            }
            Class::Done | Class::InFlight { .. } | Class::Soaking { .. } | Class::Failed(_) => Vec::new(),
        }
    }

    /// What the cluster would be started with, and since when it may.
    fn wish(&self, standing: &Standing<'a>, begun: bool, openings: &mut Openings<'a>) -> Wish {
        let cluster = standing.cluster;
        let stage = self.stages.get(stage_of(self.input, standing));
        let open_since = stage.and_then(Stage::open_since);
        let joins = match open_since {
            None if standing.lacks_known_good => missing_of_known_good(cluster),
            _ => None,
        };
        let (to, begun, since) = match joins {
            Some(missing) => {
                let begun = missing.len() < cluster.entries.len();
                (To::LastKnownGood, begun, Some(self.input.rollout.started_at))
            }
            None => (To::Release, begun, open_since),
        };
        Wish {
            to,
            begun,
            eligible_at: since.map(|since| self.eligible_at(&cluster.uid, since)),
            // Who waits for a stage does not look at windows yet.
            opening: since.map_or(Opening::ALWAYS, |_| openings.about(cluster)),
            is_open: open_since.is_some(),
        }
    }

    /// What keeps a startable cluster back, in the order of [`HoldReason`].
    fn obstacles<'s>(
        &'s self,
        standing: &'s Standing<'a>,
        wish: &'s Wish,
    ) -> impl Iterator<Item = Hold> + 's {
        let steps: [Step<'a>; 7] = [
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
        if wish.eligible_at.is_some() {
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

    /// Windows and jitter. A window that closes before the jitter is over ends that wait, too. What was begun has started, and
    /// finishes: half a release through a freeze would be worse than either.
    fn not_now(&self, _: &Standing<'a>, wish: &Wish) -> Option<Hold> {
        let has_started = wish.begun && wish.to == To::Release;
        if !wish.opening.is_open && !has_started {
            return Some((HoldReason::WindowClosed, wish.opening.changes_at));
        }
        let eligible_at = wish.eligible_at.filter(|at| *at > self.input.now)?;
        Some((
            HoldReason::Jitter,
            earlier(Some(eligible_at), wish.opening.changes_at),
        ))
    }

    /// When a cluster's share of the jitter is over. A hash of cluster and release: it needs no memory, and the
    /// same cluster is not always the first.
    fn eligible_at(&self, uid: &str, from: Timestamp) -> Timestamp {
        let jitter = self.input.strategy.limits.jitter;
        if jitter.is_zero() || self.input.rollout.direction == Direction::BackAtOnce {
            return from;
        }
        let hash = hash64(&[uid, &self.input.rollout.release]);
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
        mut candidates: Vec<(usize, &'s Standing<'a>, Wish)>,
    ) -> impl Iterator<Item = (usize, Decision)> + 's {
        candidates.sort_by_key(|(_, standing, wish)| {
            let goes_on = standing.slot.is_some();
            let stage = stage_of(self.input, standing);
            (!wish.begun, !goes_on, stage, wish.eligible_at, standing.name)
        });
        let mut room = Room::new(self.input, self.tally, self.stages);
        candidates.into_iter().map(move |(place, standing, wish)| {
            let decision = match room.take(stage_of(self.input, standing), standing, &wish) {
                None => wish.start(standing),
                Some(reason) => Decision::Hold {
                    reason,
                    recheck_at: wish.opening.changes_at,
                },
            };
            (place, decision)
        })
    }
}

/// The decision on a cluster that its own standing makes; `None`: it could start.
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
        Class::Held(reason) => Decision::Hold {
            reason: reason.clone(),
            recheck_at: None,
        },
        Class::Startable { .. } => return None,
    })
}

/// What a cluster would be started with.
pub(super) struct Wish {
    pub(super) to: To,
    /// That was begun before.
    pub(super) begun: bool,
    /// When its share of the jitter is over; `None`: its stage has not opened.
    eligible_at: Option<Timestamp>,
    /// The windows about it.
    opening: Opening,
    /// Whether its stage is open.
    pub(super) is_open: bool,
}

impl Wish {
    fn start(&self, standing: &Standing<'_>) -> Decision {
        let entries = match self.to {
            To::Release => missing(standing.cluster).cloned().collect(),
            To::LastKnownGood => {
                let missing = missing_of_known_good(standing.cluster).unwrap_or_default();
                missing.into_iter().cloned().collect()
            }
        };
        Decision::Start { entries, to: self.to }
    }
}

/// Whether a window that opens or closes changes it.
fn depends_on_windows(reason: &HoldReason) -> bool {
    matches!(reason, HoldReason::WindowClosed | HoldReason::Jitter)
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    [a, b].into_iter().flatten().min()
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
