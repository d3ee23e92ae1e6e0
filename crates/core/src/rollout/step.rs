//! One step of the machine.

use std::borrow::Cow;
use std::collections::BTreeSet;

use starling_api::conditions::{ConditionStatus, ConditionUpdate, READY};
use starling_api::{ReleaseStatus, SyncGroupStatus};

use super::actions::{ReleaseRequest, retry_counts_at};
use super::begin::{self, Beginning};
use super::choose::{Choice, Chosen};
use super::effect::{Action, Durable};
use super::finish;
use super::garbage::garbage;
use super::next::{self, Cause, Next};
use super::observe::{Facts, Known, Observations, Offer, Rolling};
use super::pass::Pass;
use super::planned::{InStatus, Planned};
use super::status::{self, Parts};
use super::transition::{Began, Blocked, Decided, PlannerInput, Preview, StepError, Transition};
use crate::ids::RolloutNumber;
use crate::plan::{Direction, InFlightAfter, Report, StartBlocker, in_flight_after};

/// Returns the input of the planner, without a decision about another rollout.
///
/// # Errors
/// [`StepError`].
pub fn preview(
    known: Known<'_>,
    facts: &Facts<'_>,
    observed: &mut dyn Observations,
) -> Result<Preview, StepError> {
    let mut pass = Pass {
        known,
        facts,
        observed,
    };
    Ok(match pass.in_status(known.status)? {
        InStatus::Planned(planned) => {
            let Planned { rolling, input, .. } = *planned;
            Preview::Planned(Box::new(PlannerInput { rolling, input }))
        }
        InStatus::None => Preview::NotBegun,
        InStatus::Lost(_) => Preview::Blocked(lost(None)),
    })
}

/// Returns why a rollout whose release is no longer stored cannot be planned.
fn lost(stuck: Option<&Blocked>) -> Blocked {
    let why = stuck.map(|why| format!("; {}", why.message)).unwrap_or_default();
    Blocked {
        reason: "ReleaseNotFound",
        message: format!(
            "the ControllerRevision of the current release was deleted or changed; \
             push a new revision, or roll back to another release{why}"
        ),
    }
}

fn not_ready(blocked: &Blocked) -> ConditionUpdate {
    ConditionUpdate {
        type_: READY,
        status: ConditionStatus::False,
        reason: blocked.reason.to_owned(),
        message: blocked.message.clone(),
    }
}

/// Returns the status without the queued releases that are no longer stored.
fn without_absent<'a>(
    status: Cow<'a, SyncGroupStatus>,
    absent: &BTreeSet<String>,
) -> Cow<'a, SyncGroupStatus> {
    if !absent.iter().any(|release| is_in(&status.queue, release)) {
        return status;
    }
    let mut status = status.into_owned();
    status.queue.retain(|waiting| !absent.contains(&waiting.release));
    Cow::Owned(status)
}

/// Returns the status without the queued releases that the Sources took back. Nothing is known of that while an offer
/// settles.
fn without_withdrawn<'a>(status: &'a SyncGroupStatus, offer: &Offer) -> Cow<'a, SyncGroupStatus> {
    let queue = status.queue.iter().map(|waiting| waiting.release.as_str());
    let current = status.rollout.as_ref().map(|rollout| rollout.release.as_str());
    let standing = match &offer.snapshot {
        Some(_) => next::standing(queue, &offer.release, current),
        None => queue.len(),
    };
    if standing == status.queue.len() {
        return Cow::Borrowed(status);
    }
    let mut status = status.clone();
    status.queue.truncate(standing);
    Cow::Owned(status)
}

fn is_in(queue: &[ReleaseStatus], release: &str) -> bool {
    queue.iter().any(|waiting| waiting.release == release)
}

/// Decides one step: from the recorded state and the observations to the effects.
///
/// # Errors
/// [`StepError`].
pub fn step(
    known: Known<'_>,
    facts: &Facts<'_>,
    observed: &mut dyn Observations,
) -> Result<Transition, StepError> {
    let mut pass = Pass {
        known,
        facts,
        observed,
    };
    let in_status = pass.in_status(known.status)?;
    let mut transition = pass.proceed(in_status)?;
    // The marks name the rollout that status has had so far; the actions of a rollout that begins now are marked next.
    if pass.observed.awaits_marks(known.status) {
        transition.effects.extend(pass.effects([Action::WriteMarks]));
    }
    Ok(transition)
}

/// The effects around a plan that stays in force.
#[derive(Default)]
struct Prelude {
    /// The writes before the status.
    before: Vec<Action>,
    /// A reason why the status must be durable, in addition to its own.
    durable: Option<Durable>,
    /// The end of the previous rollout.
    ended: Option<Action>,
    /// Why a due transition cannot be made.
    stuck: Option<Blocked>,
}

impl Pass<'_, '_> {
    /// Keeps the rollout in status, or replaces it.
    fn proceed(&mut self, mut in_status: InStatus) -> Result<Transition, StepError> {
        let actions = match &in_status {
            InStatus::None => None,
            InStatus::Lost(actions) => Some(&**actions),
            InStatus::Planned(planned) => Some(&planned.actions),
        };
        let request = actions.map_or(Ok(None), |actions| ReleaseRequest::of(actions, self.known.loaded));
        let request = match request {
            Ok(request) => request,
            Err(need) => return Err(self.needs(need, in_status)),
        };
        let status = without_withdrawn(self.known.status, self.facts.offer);
        let planned = match &in_status {
            InStatus::Planned(planned) => Some(&**planned),
            InStatus::None | InStatus::Lost(_) => None,
        };
        let is_lost = matches!(in_status, InStatus::Lost(_));
        let chosen = match self.choose(&status, planned, is_lost, request.as_ref()) {
            Ok(chosen) => chosen,
            Err(need) => return Err(self.needs(need, in_status)),
        };
        let Chosen { next, stuck, absent } = chosen;
        let queued = |status: &SyncGroupStatus| -> BTreeSet<String> {
            status
                .queue
                .iter()
                .map(|waiting| waiting.release.clone())
                .collect()
        };
        let withdrawn = &queued(self.known.status) - &queued(&status);
        let status = without_absent(status, &absent);
        if let InStatus::Planned(planned) = &mut in_status {
            planned.status.queue.clone_from(&status.queue);
        }
        let mut transition = self.transition(next, in_status, &status, stuck)?;
        // While a report is not due yet, the queue is as it was.
        let (before, after) = (&self.known.status.queue, &transition.status.queue);
        let dropped = absent
            .into_iter()
            .filter(|release| is_in(before, release) && !is_in(after, release));
        transition.dropped = dropped.collect();
        let taken_back = before.iter().map(|waiting| &waiting.release);
        let taken_back = taken_back.filter(|release| withdrawn.contains(*release) && !is_in(after, release));
        transition.withdrawn = taken_back.cloned().collect();
        Ok(transition)
    }

    /// Makes the chosen transition. `status`: without the queued releases that are no longer stored.
    fn transition(
        &mut self,
        next: Choice,
        in_status: InStatus,
        status: &SyncGroupStatus,
        stuck: Option<Blocked>,
    ) -> Result<Transition, StepError> {
        let planned = match &in_status {
            InStatus::Planned(planned) => Some(&**planned),
            InStatus::None | InStatus::Lost(_) => None,
        };
        match next {
            Choice::Keep => self.keep(in_status, status, stuck),
            Choice::Enqueue => self.enqueue(in_status, stuck),
            // A success is reported before another rollout starts: clients wait for it, and the next rollout may be a
            // rollback to this release. A release that an operator rolls back is not one to return to.
            Choice::Start { cause, direction, .. }
                if !(cause == Cause::Requested && direction != Direction::Forward)
                    && planned.is_some_and(Planned::is_unreported_success) =>
            {
                let mut transition = self.keep(in_status, status, stuck)?;
                transition.again = true;
                Ok(transition)
            }
            Choice::Start {
                snapshot,
                direction,
                hold,
                cause,
            } => {
                let verdict = planned.map(|planned| &planned.plan.verdict);
                let clusters = planned.map_or(0, |planned| planned.input.clusters.len());
                let has_previous = status.rollout.is_some();
                let previous = has_previous.then(|| begin::outcome(status, verdict, clusters, cause));
                let beginning = Beginning {
                    snapshot,
                    direction,
                    hold,
                    cause,
                    previous,
                };
                self.start(in_status, status, beginning)
            }
        }
    }

    /// Keeps the rollout in status.
    fn keep(
        &mut self,
        in_status: InStatus,
        status: &SyncGroupStatus,
        stuck: Option<Blocked>,
    ) -> Result<Transition, StepError> {
        match in_status {
            InStatus::None => Ok(self.nothing(None)),
            InStatus::Lost(_) => {
                let blocked = lost(stuck.as_ref());
                let after = status::blocked_status(status, vec![not_ready(&blocked)], self.facts.of_pass());
                // No gate of a lost release is open.
                let mut actions = vec![Action::EvaluateGates(Vec::new())];
                actions
                    .extend((after != *self.known.status).then(|| Action::write_status(after.clone(), None)));
                Ok(Transition {
                    effects: self.effects(actions),
                    status: after,
                    stuck,
                    ..self.nothing(Some(blocked))
                })
            }
            InStatus::Planned(planned) => {
                let prelude = Prelude {
                    stuck,
                    ..Prelude::default()
                };
                self.finish(*planned, prelude)
            }
        }
    }

    /// Keeps the rollout in status and queues the offered release.
    fn enqueue(&mut self, in_status: InStatus, stuck: Option<Blocked>) -> Result<Transition, StepError> {
        let (InStatus::Planned(mut planned), Some(offered)) = (in_status, self.facts.offer.snapshot.clone())
        else {
            return Ok(self.nothing(None));
        };
        begin::enqueue(&mut planned.status, &offered);
        let store = Action::StoreRelease {
            rollout: planned.rolling.number(),
            snapshot: offered.clone(),
        };
        let prelude = Prelude {
            before: vec![store],
            durable: Some(Durable::ReleaseQueued),
            stuck,
            ..Prelude::default()
        };
        let mut transition = self.finish(*planned, prelude)?;
        transition.queued = Some(offered.digest.to_string());
        Ok(transition)
    }

    /// Starts another rollout. If its own plan calls for yet another release, the next pass starts that one, and
    /// nothing of this one is admitted.
    fn start(
        &mut self,
        in_status: InStatus,
        status: &SyncGroupStatus,
        beginning: Beginning,
    ) -> Result<Transition, StepError> {
        let (previous, direction, cause) = (beginning.previous, beginning.direction, beginning.cause);
        let left_id = status.rollout.as_ref().map(RolloutNumber::of);
        let (begun, rollout, mut before) = beginning.begin(status, self.facts);
        // A held release may never have rolled out, and a release that status names must be stored.
        let held = begun.held_release.as_ref();
        before.extend(held.and_then(|held| self.store_offered(&held.release, RolloutNumber::of(&rollout))));
        // The inputs of the new plan are requested before the observations are given back.
        if let Err(need) = self.known_good(&begun, &rollout.release) {
            return Err(self.needs(need, in_status));
        }
        let mut actions = Vec::new();
        let left = match in_status {
            InStatus::Planned(planned) => {
                // The final plan of the previous rollout. Failed admissions are settled now: no later plan includes
                // them, and the next admission would settle them as superseded.
                actions.extend(finish::last_settlements(&planned, self.observed));
                let Planned {
                    rolling, input, plan, ..
                } = *planned;
                actions.extend(self.journal(rolling.number(), &input, &plan)?);
                self.observed.give_back(input.clusters);
                Some(Box::new(plan))
            }
            InStatus::None | InStatus::Lost(_) => None,
        };
        actions.extend(before);
        let began = Began {
            rollout: RolloutNumber::of(&rollout),
            release: rollout.release.clone().into(),
            direction,
            cause,
        };
        let ended = left_id
            .zip(previous)
            .map(|(rollout, outcome)| Action::EndRollout { rollout, outcome });
        let mut transition = match self.in_status(&begun)? {
            InStatus::Planned(planned) => {
                let next = self.next_by_itself(&planned);
                let is_left = matches!(next, Next::Start { .. }) && !planned.is_unreported_success();
                let mut transition = if is_left {
                    self.observed.give_back(planned.input.clusters);
                    self.written(begun, actions, ended)
                } else {
                    let prelude = Prelude {
                        before: actions,
                        durable: Some(Durable::RolloutBegan),
                        ended,
                        stuck: None,
                    };
                    self.finish(*planned, prelude)?
                };
                // Another release follows at once, or the release that was offered since joins the queue.
                transition.again = matches!(next, Next::Start { .. } | Next::Enqueue { .. });
                transition
            }
            InStatus::None | InStatus::Lost(_) => self.written(begun, actions, ended),
        };
        let more = garbage(RolloutNumber::of(&rollout), &transition.status);
        transition.effects.extend(self.effects([more]));
        transition.left = left;
        transition.began = Some(began);
        Ok(transition)
    }

    /// Writes the status of a rollout that has begun, without a decision in this pass.
    fn written(&self, begun: SyncGroupStatus, mut actions: Vec<Action>, ended: Option<Action>) -> Transition {
        actions.push(Action::write_status(begun.clone(), Some(Durable::RolloutBegan)));
        actions.extend(ended);
        Transition {
            effects: self.effects(actions),
            status: begun,
            again: true,
            ..self.nothing(None)
        }
    }

    /// Records and executes a plan that stays in force.
    fn finish(&mut self, planned: Planned, prelude: Prelude) -> Result<Transition, StepError> {
        let Prelude {
            before,
            durable,
            ended,
            stuck,
        } = prelude;
        let (known, facts, id) = (self.known.status, self.facts, planned.rolling.number());
        let mut report = planned.plan.report(&planned.input);
        report.blocked_by.extend(stuck.as_ref().map(|stuck| StartBlocker {
            reason: stuck.reason,
            message: stuck.message.clone(),
            recheck_at: None,
        }));
        let after = self.status_after(&planned, &report);
        let stages = || finish::records_stages(known, &after).then_some(Durable::StagesRecorded);
        let durable = durable.or_else(stages);
        let changes = after != *known;
        let late = finish::too_early(known, &after, facts).filter(|_| changes && durable.is_none());
        // The outcomes of rollouts directly follow the status that reports them, so that a later failure does not lose
        // them.
        let succeeds = finish::succeeds(&report, &planned.status, id);
        let ends: Vec<Action> = succeeds.into_iter().chain(ended).collect();
        let mut garbage = (!ends.is_empty()).then(|| garbage(id, &after));
        let writes = changes && late.is_none();
        let status = (durable.is_some() || writes).then(|| Action::write_status(after.clone(), durable));
        let written: Vec<Action> = status.into_iter().chain(ends).collect();
        let (first, last) = match durable {
            Some(_) => (written, Vec::new()),
            None => (Vec::new(), written),
        };
        // If a rollout begins, unused objects are collected once the transition is complete.
        if durable == Some(Durable::RolloutBegan) {
            garbage = None;
        }
        let mut actions = finish::settlements(&planned, self.observed);
        actions.extend(finish::resumed(&report, &planned.status, id));
        actions.extend(self.store_again(&planned.rolling, &before));
        actions.extend(before);
        actions.extend(first);
        actions.extend(self.journal(id, &planned.input, &planned.plan)?);
        actions.extend(finish::actions(&planned, facts));
        actions.extend(last);
        actions.extend(finish::digest(&report, &planned.input));
        actions.extend(garbage);
        let status = if late.is_some() { known.clone() } else { after };
        let retries = &planned.actions.input.retries;
        let recheck_at = [
            planned.plan.recheck_at,
            facts.offer.settles_at,
            retry_counts_at(retries, facts.now),
            late,
        ];
        let Planned {
            rolling, input, plan, ..
        } = planned;
        // Only a limit needs the counts.
        let limited = self.observed.installation_slots().is_some();
        let in_flight = if limited {
            in_flight_after(&input, &plan)
        } else {
            InFlightAfter::default()
        };
        self.observed.give_back(input.clusters);
        Ok(Transition {
            effects: self.effects(actions),
            status,
            decided: Some(Decided {
                rolling,
                plan,
                in_flight,
            }),
            stuck,
            recheck_at: recheck_at.into_iter().flatten().min(),
            ..self.nothing(None)
        })
    }

    /// Stores the current release again while the Sources still offer it: an operator may have deleted the stored
    /// release, and a later rollback needs it.
    fn store_again(&self, rolling: &Rolling, before: &[Action]) -> Option<Action> {
        let digest = &rolling.rollout.release;
        let is_stored_now = before.iter().any(
            |action| matches!(action, Action::StoreRelease { snapshot, .. } if snapshot.digest == *digest),
        );
        let store = || self.store_offered(digest, rolling.number());
        (!is_stored_now).then(store).flatten()
    }

    /// Stores an offered release that is not stored.
    fn store_offered(&self, digest: &str, rollout: RolloutNumber) -> Option<Action> {
        let offered = self.facts.offer.snapshot.as_ref()?;
        (offered.digest == digest && !self.observed.is_stored(digest)).then(|| Action::StoreRelease {
            rollout,
            snapshot: offered.clone(),
        })
    }

    /// Returns the status that follows from a plan in force.
    fn status_after(&self, planned: &Planned, report: &Report) -> SyncGroupStatus {
        let parts = Parts {
            rollout: &planned.rolling.rollout,
            plan: &planned.plan,
            report,
            conditions: self.observed.conditions(&planned.input),
            held_deletions: self.observed.held_deletions(&planned.input),
        };
        let mut after = status::status(&planned.status, parts, self.facts);
        if let Some(rollout) = &mut after.rollout {
            self.observed
                .gate_messages(RolloutNumber::of(rollout), &mut rollout.stages);
        }
        after
    }
}
