//! The beginning of a rollout, and the queue of releases.

use std::sync::Arc;

use jiff::Timestamp;
use starling_api::conditions::{self, ConditionStatus, ConditionUpdate, READY};
use starling_api::{ClusterCounts, HeldRelease, ReleaseStatus, RolloutPhase, RolloutStatus, SyncGroupStatus};

use super::effect::{Action, Outcome, RolloutIntent};
use super::next::{self, Cause};
use super::observe::{Facts, Offer};
use super::snapshot::ReleaseSnapshot;
use super::status::has_succeeded;
use crate::ids::RolloutNumber;
use crate::plan::{Direction, RolloutVerdict};

/// A rollout to begin.
pub(super) struct Beginning {
    pub(super) snapshot: Arc<ReleaseSnapshot>,
    pub(super) direction: Direction,
    /// The release that is held from now on.
    pub(super) hold: Option<String>,
    pub(super) cause: Cause,
    /// The outcome of the previous rollout.
    pub(super) previous: Option<Outcome>,
}

impl Beginning {
    /// Returns the new status, the new rollout, and the writes that come before the status names the rollout.
    pub(super) fn begin(
        self,
        before: &SyncGroupStatus,
        facts: &Facts<'_>,
    ) -> (SyncGroupStatus, RolloutStatus, Vec<Action>) {
        let Self {
            snapshot,
            direction,
            hold,
            cause,
            previous,
        } = self;
        let mut status = before.clone();
        let left = status.rollout.take();
        let rollout = RolloutStatus {
            id: left.as_ref().map_or(0, |left| left.id) + 1,
            release: snapshot.digest.to_string(),
            revisions: snapshot.revisions.clone(),
            direction: direction.into(),
            automatic: cause == Cause::Failed,
            phase: RolloutPhase::Pending,
            start_time: facts.now.to_string(),
            ..RolloutStatus::default()
        };
        let actions = vec![
            Action::StoreRelease {
                rollout: RolloutNumber::of(&rollout),
                snapshot,
            },
            Action::RecordRollout(RolloutIntent {
                id: RolloutNumber::of(&rollout),
                release: rollout.release.clone().into(),
                revisions: rollout.revisions.clone(),
                started_at: facts.now,
                previous,
            }),
        ];
        status.held_release = hold.map(|held| hold_of(held, left.as_ref(), facts.offer, cause, facts.now));
        drop_overtaken(&mut status, facts.offer, &rollout.release, direction);
        status.rollout = Some(rollout.clone());
        // A client that waits for Ready must not read the condition of the last release during this rollout.
        let ready = ConditionUpdate {
            type_: READY,
            status: ConditionStatus::False,
            reason: "Progressing".to_owned(),
            message: format!("rollout {} starts", rollout.id),
        };
        status.conditions = conditions::merge(&status.conditions, vec![ready], facts.generation, facts.now);
        status.clusters = ClusterCounts {
            total: status.clusters.total,
            pending: status.clusters.total,
            ..ClusterCounts::default()
        };
        (status, rollout, actions)
    }
}

/// Returns the outcome of a rollout that another one replaces. A rollout that has succeeded ends so, even if status
/// does not say so yet.
pub(super) fn outcome(
    status: &SyncGroupStatus,
    verdict: Option<&RolloutVerdict>,
    clusters: usize,
    cause: Cause,
) -> Outcome {
    if has_succeeded(status) || (verdict == Some(&RolloutVerdict::Succeeded) && clusters > 0) {
        return Outcome::Succeeded;
    }
    match cause {
        Cause::Failed => Outcome::Failed,
        Cause::Offered | Cause::Requested => Outcome::Superseded,
    }
}

/// Adds the offered release to the queue.
pub(super) fn enqueue(status: &mut SyncGroupStatus, offered: &ReleaseSnapshot) {
    status.queue.truncate(next::QUEUE - 1);
    status.queue.push(ReleaseStatus {
        release: offered.digest.to_string(),
        revisions: offered.revisions.clone(),
    });
}

/// Removes the queued releases that lose their turn to the release that begins.
fn drop_overtaken(status: &mut SyncGroupStatus, offer: &Offer, release: &str, direction: Direction) {
    let queue = status.queue.iter().map(|waiting| waiting.release.clone());
    let queue: Vec<String> = queue.collect();
    let held = status.held_release.as_ref().map(|held| held.release.as_str());
    let offered = offer.snapshot.is_some().then_some(offer.release.as_str());
    let dropped = next::overtaken(&queue, offered, release, direction, held);
    status.queue.drain(..dropped);
}

/// Returns the held release: the release of the previous rollout, or the offer.
fn hold_of(
    held: String,
    left: Option<&RolloutStatus>,
    offer: &Offer,
    cause: Cause,
    now: Timestamp,
) -> HeldRelease {
    let offered = offer.snapshot.as_ref().map(|offered| offered.revisions.clone());
    let revisions = match left.filter(|left| left.release == held) {
        Some(left) => left.revisions.clone(),
        None => offered.unwrap_or_default(),
    };
    let reason = match (cause, left) {
        (Cause::Failed, Some(left)) => format!("rollout {} failed", left.id),
        _ => "an operator rolled it back".to_owned(),
    };
    HeldRelease {
        release: held,
        revisions,
        reason,
        since: now.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_replaces_its_newest_release() {
        let release = |digest: &str| ReleaseSnapshot {
            digest: digest.into(),
            revisions: Vec::new(),
            entries: Vec::new(),
        };
        let mut status = SyncGroupStatus::default();
        for n in 0..next::QUEUE {
            enqueue(&mut status, &release(&n.to_string()));
        }
        enqueue(&mut status, &release("new"));
        let last = status.queue[next::QUEUE - 1].release.as_str();
        assert_eq!((status.queue.len(), last), (next::QUEUE, "new"));
        assert_eq!(
            status.queue[next::QUEUE - 2].release,
            (next::QUEUE - 2).to_string()
        );
    }
}
