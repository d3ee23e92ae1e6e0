//! Chooses the release of a pass among the available releases.

use std::collections::BTreeSet;
use std::sync::Arc;

use starling_api::SyncGroupStatus;

use super::actions::ReleaseRequest;
use super::next::{self, Candidates, Cause, Current, Next, RequestedRelease};
use super::observe::Need;
use super::pass::Pass;
use super::planned::Planned;
use super::snapshot::ReleaseSnapshot;
use super::transition::Blocked;
use crate::plan::{Direction, RolloutVerdict};

/// The choice of a pass.
pub(super) struct Chosen {
    pub(super) next: Choice,
    /// The reason why a due transition cannot be made.
    pub(super) stuck: Option<Blocked>,
    /// The releases that would have been chosen, and are no longer stored.
    pub(super) absent: BTreeSet<String>,
}

/// As [`Next`], with the snapshot of the release.
pub(super) enum Choice {
    /// Keep the current rollout.
    Keep,
    /// Keep the current rollout and queue the offered release.
    Enqueue,
    /// Start another rollout.
    Start {
        snapshot: Arc<ReleaseSnapshot>,
        direction: Direction,
        hold: Option<String>,
        cause: Cause,
    },
}

impl Pass<'_, '_> {
    /// Chooses the next release among the available releases. A release that is no longer stored is passed over, so
    /// that it does not block a newer one. A queued release has lost its turn then, and nothing waits for it.
    pub(super) fn choose(
        &self,
        status: &SyncGroupStatus,
        planned: Option<&Planned>,
        is_lost: bool,
        request: Option<&ReleaseRequest>,
    ) -> Result<Chosen, Need> {
        let mut stuck = request.and_then(ReleaseRequest::impossible);
        let mut absent = BTreeSet::new();
        loop {
            let next = match self.next(status, planned, is_lost, request, &absent) {
                Next::Keep => Choice::Keep,
                Next::NothingToRollBackTo => {
                    stuck.get_or_insert_with(|| {
                        Blocked::nothing_to_go_back_to("no release has succeeded on the whole group yet")
                    });
                    Choice::Keep
                }
                Next::Enqueue { .. } => Choice::Enqueue,
                Next::Start {
                    release,
                    direction,
                    hold,
                    cause,
                } => match self.snapshot(&release)? {
                    Some(snapshot) => Choice::Start {
                        snapshot,
                        direction,
                        hold,
                        cause,
                    },
                    None => {
                        let is_queued = status.queue.iter().any(|waiting| waiting.release == release);
                        match direction {
                            Direction::Forward if is_queued => {}
                            Direction::Forward => stuck = Some(Blocked::release_not_found(&release)),
                            Direction::Back | Direction::BackAtOnce => {
                                let message = format!("release {release} is no longer stored");
                                stuck = Some(Blocked::nothing_to_go_back_to(message));
                            }
                        }
                        // An absent release is no longer a candidate, so it cannot be chosen again.
                        if absent.insert(release.into_string()) {
                            continue;
                        }
                        Choice::Keep
                    }
                },
            };
            return Ok(Chosen { next, stuck, absent });
        }
    }

    fn next(
        &self,
        status: &SyncGroupStatus,
        planned: Option<&Planned>,
        is_lost: bool,
        request: Option<&ReleaseRequest>,
        absent: &BTreeSet<String>,
    ) -> Next {
        let is_there = |release: &&str| !absent.contains(*release);
        let queue = status.queue.iter().map(|of| of.release.as_str());
        let queue: Vec<String> = queue.filter(is_there).map(str::to_owned).collect();
        let known_good = status.last_known_good.as_ref();
        let request = request.and_then(ReleaseRequest::known);
        let current = match (planned, status.rollout.as_ref().filter(|_| is_lost)) {
            (Some(planned), _) => Some(Current {
                release: &planned.rolling.rollout.release,
                verdict: &planned.plan.verdict,
                is_over: planned.plan.is_over(),
            }),
            // A lost release cannot be admitted any more.
            (None, Some(lost)) => Some(Current {
                release: &lost.release,
                verdict: &RolloutVerdict::InProgress,
                is_over: true,
            }),
            (None, None) => None,
        };
        next::next_release(&Candidates {
            offered: &self.facts.offer.release,
            current,
            held: status.held_release.as_ref().map(|held| held.release.as_str()),
            known_good: known_good.map(|good| good.release.as_str()).filter(is_there),
            requested: request.filter(|request| match request {
                RequestedRelease::RollBack(Some(to)) => is_there(to),
                RequestedRelease::RollBack(None) | RequestedRelease::ResumeHeld => true,
            }),
            on_new_revision: self.facts.on_new_revision,
            rollback: self.facts.rollback,
            queue: &queue,
        })
    }

    /// Returns the next release by the plan of a rollout that has just begun, for which there are no requests yet.
    pub(super) fn next_by_itself(&self, planned: &Planned) -> Next {
        self.next(&planned.status, Some(planned), false, None, &BTreeSet::new())
    }
}
