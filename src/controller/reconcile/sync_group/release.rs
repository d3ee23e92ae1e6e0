//! Which release rolls: the one in status, or another one, which is put there before anything of it is admitted.

use std::sync::Arc;

use jiff::Timestamp;
use starling_api::conditions::{self, ConditionStatus};
use starling_api::{
    ClusterCounts, EntryRevision, HeldRelease, ReleaseStatus, RolloutDirection, RolloutPhase, RolloutStatus,
    SourceStatus, SyncEntry, SyncGroupStatus,
};
use starling_core::course::{self, Course, CourseInput, Current, Reason};
use starling_core::plan::{Direction, To};
use starling_core::release::{EntryWanted, ReleaseStep, next_release};

use super::super::{ReconcileError, ready};
use super::Planned;
use super::observe::Group;
use super::steer::Wish;
use super::tidy;
use crate::controller::context::Context;
use crate::controller::hub::{Hub, HubError};
use crate::controller::releases::{Releases, Vector};
use crate::controller::wake::By;
use crate::ledger::{Rollout, RolloutOutcome};

/// The rollout that the plan is for.
pub(super) struct Rolling {
    /// As in status.
    pub(super) rollout: RolloutStatus,
    /// The whole status that it was read from or written to.
    pub(super) status: SyncGroupStatus,
    /// What it rolls.
    pub(super) vector: Arc<Vector>,
    /// What clusters get that join while their stage waits; `None`: nothing, or what rolls itself.
    pub(super) known_good: Option<Arc<Vector>>,
}

impl Rolling {
    /// What a cluster is admitted to.
    pub(super) fn vector_to(&self, to: To) -> Option<&Vector> {
        match to {
            To::Release => Some(&self.vector),
            To::LastKnownGood => self.known_good.as_deref(),
        }
    }

    /// When it started. Status that lost it counts from the beginning: no jitter is waited for twice.
    pub(super) fn started_at(&self) -> Timestamp {
        self.rollout.start_time.parse().unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// What the Sources offer with the group's templates.
pub(super) struct Offered {
    pub(super) vector: Arc<Vector>,
    /// When a new release will be formed from what has moved already; until then, what rolls is offered.
    pub(super) settles_at: Option<Timestamp>,
}

/// Forms the release that is offered now.
pub(super) fn offered(now: Timestamp, group: &Group) -> Offered {
    let current = group
        .object
        .status
        .as_ref()
        .and_then(|status| status.rollout.as_ref());
    let wanted = wanted(group);
    let (digest, revisions, settles_at) = match (next_release(current, &wanted, now), current) {
        (ReleaseStep::Start(release), _) => (release.digest, release.revisions, None),
        (ReleaseStep::Keep, Some(current)) => (current.release.clone(), current.revisions.clone(), None),
        (ReleaseStep::Settle { until }, Some(current)) => {
            (current.release.clone(), current.revisions.clone(), Some(until))
        }
        // Without a rollout in status core always starts one.
        (ReleaseStep::Keep | ReleaseStep::Settle { .. }, None) => (String::new(), Vec::new(), None),
    };
    Offered {
        vector: Arc::new(Vector {
            digest,
            revisions,
            entries: group.object.spec.syncs.clone(),
        }),
        settles_at,
    }
}

/// The rollout in status; `None`: there is none yet.
pub(super) async fn current(
    kept: (&Releases, &Hub),
    group: &Group,
    offered: &Offered,
) -> Result<Option<Rolling>, HubError> {
    let status = group.object.status.clone().unwrap_or_default();
    let Some(rollout) = status.rollout.clone() else {
        return Ok(None);
    };
    let vector = vector_of(kept, group, offered, &rollout.release, &rollout.revisions).await?;
    let known_good = known_good_of(kept, group, &status, &rollout).await?;
    Ok(Some(Rolling {
        rollout,
        status,
        vector,
        known_good,
    }))
}

/// The release that clusters hold which join behind a closed stage. Only a strategy with stages lets any do so.
async fn known_good_of(
    (releases, hub): (&Releases, &Hub),
    group: &Group,
    status: &SyncGroupStatus,
    rollout: &RolloutStatus,
) -> Result<Option<Arc<Vector>>, HubError> {
    let good = status
        .last_known_good
        .as_ref()
        .filter(|good| good.release != rollout.release);
    match good.filter(|_| group.strategy.strategy.stages.len() > 1) {
        Some(good) => releases.load(hub, &group.object, &good.release).await,
        None => Ok(None),
    }
}

/// A release by its digest. Where it was not kept, or is not there any more, the templates of today have to do.
async fn vector_of(
    (releases, hub): (&Releases, &Hub),
    group: &Group,
    offered: &Offered,
    digest: &str,
    revisions: &[EntryRevision],
) -> Result<Arc<Vector>, HubError> {
    if offered.vector.digest == digest && offered.settles_at.is_none() {
        return Ok(offered.vector.clone());
    }
    if let Some(kept) = releases.load(hub, &group.object, digest).await? {
        return Ok(kept);
    }
    Ok(Arc::new(Vector {
        digest: digest.to_owned(),
        revisions: revisions.to_vec(),
        entries: group.object.spec.syncs.clone(),
    }))
}

/// What rolls next, from what is offered and what the plan says of what rolls.
pub(super) fn course(
    group: &Group,
    offered: &Offered,
    current: Option<&Planned>,
    wish: Option<&Wish>,
) -> Course {
    let status = group.object.status.as_ref();
    let known = current.map(|planned| &planned.rolling.status).or(status);
    let strategy = &group.object.spec.rollout_strategy;
    let queue: Vec<String> = known.map_or_else(Vec::new, |status| {
        status
            .queue
            .iter()
            .map(|release| release.release.clone())
            .collect()
    });
    let held = known.and_then(|status| status.held_release.as_ref());
    let good = known.and_then(|status| status.last_known_good.as_ref());
    course::course(&CourseInput {
        offered: &offered.vector.digest,
        current: current.map(|planned| Current {
            release: &planned.rolling.rollout.release,
            verdict: &planned.plan.verdict,
            is_over: planned.plan.is_over(),
        }),
        held: held.map(|held| held.release.as_str()),
        known_good: good.map(|good| good.release.as_str()),
        asked: wish.and_then(Wish::known),
        on_new_revision: strategy.on_new_revision,
        rollback: strategy.rollback.type_,
        queue: &queue,
    })
}

fn wanted(group: &Group) -> Vec<EntryWanted<'_>> {
    group
        .object
        .spec
        .syncs
        .iter()
        .map(|sync| EntryWanted {
            name: &sync.name,
            revision: source_status(group, sync).map_or("", |status| status.revision.as_str()),
            revision_time: source_status(group, sync).and_then(|status| status.revision_time.parse().ok()),
            template: &sync.template,
        })
        .collect()
}

fn source_status<'g>(group: &'g Group, entry: &SyncEntry) -> Option<&'g SourceStatus> {
    group
        .sources
        .get(&entry.template.source_ref.name)?
        .status
        .as_ref()
}

/// A rollout that is to begin.
pub(super) struct Beginning<'a> {
    pub(super) release: &'a str,
    pub(super) direction: Direction,
    /// What is not to start again from now on.
    pub(super) hold: Option<String>,
    pub(super) reason: Reason,
}

/// Begins a rollout: the release is kept, the intent recorded, the status written, in this order. `None`: the release is
/// not there any more.
pub(super) async fn begin(
    context: &Context,
    group: &Group,
    offered: &Offered,
    before: Option<&Rolling>,
    beginning: Beginning<'_>,
) -> Result<Option<Rolling>, ReconcileError> {
    let now = context.now();
    let Beginning {
        release,
        direction,
        hold,
        reason,
    } = beginning;
    let mut status = match before {
        Some(before) => before.status.clone(),
        None => group.object.status.clone().unwrap_or_default(),
    };
    let vector = if release == offered.vector.digest {
        offered.vector.clone()
    } else {
        match context
            .releases
            .load(&context.hub, &group.object, release)
            .await?
        {
            Some(vector) => vector,
            None => return Ok(None),
        }
    };
    let before = before.map(|before| before.rollout.clone());
    let id = before.as_ref().map_or(0, |before| before.id) + 1;
    context
        .releases
        .keep(&context.hub, &group.object, id, &vector)
        .await?;
    let rollout = RolloutStatus {
        id,
        release: vector.digest.clone(),
        revisions: vector.revisions.clone(),
        direction: match direction {
            Direction::Forward => RolloutDirection::Forward,
            Direction::Back => RolloutDirection::Back,
            Direction::BackAtOnce => RolloutDirection::BackAtOnce,
        },
        phase: RolloutPhase::Pending,
        start_time: now.to_string(),
        ..RolloutStatus::default()
    };
    let uid = group.object.metadata.uid.clone().unwrap_or_default();
    context
        .ledger
        .begin_rollout(&intent(group, &uid, &rollout, now))
        .await?;
    tracing::info!(group = %group.key, rollout = id, ?direction, ?reason, release = %rollout.release, revisions = %list(&rollout.revisions), "rollout started");
    status.held_release = hold.map(|held| hold_of(&held, before.as_ref(), offered, reason, now));
    leave_behind(&mut status, offered, &rollout.release, direction);
    status.rollout = Some(rollout.clone());
    // Whoever waits for Ready must not see the last release's while this one rolls.
    let message = format!("rollout {id} starts");
    let updates = vec![ready(ConditionStatus::False, "Progressing", message)];
    status.conditions = conditions::merge(&status.conditions, updates, group.object.metadata.generation, now);
    status.clusters = ClusterCounts {
        total: status.clusters.total,
        pending: status.clusters.total,
        ..ClusterCounts::default()
    };
    let written = context.hub.write_status(&*group.object, &status).await?;
    // Before anything else may fail: what is planned next must know of it.
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    if let Some(before) = before {
        let outcome = match reason {
            Reason::Failed => RolloutOutcome::Failed,
            Reason::Offered | Reason::Asked => RolloutOutcome::Superseded,
        };
        // Of one that has succeeded the end is there, unless it had no clusters.
        let ended = context
            .ledger
            .end_rollout(&uid, &before.id.to_string(), outcome, now)
            .await?;
        if ended {
            tidy::tidy(context, group, &status).await;
        }
    }
    let known_good = known_good_of((&context.releases, &context.hub), group, &status, &rollout).await?;
    Ok(Some(Rolling {
        rollout,
        status,
        vector,
        known_good,
    }))
}

/// Drops what has lost its turn by what begins.
fn leave_behind(status: &mut SyncGroupStatus, offered: &Offered, release: &str, direction: Direction) {
    let queue = status.queue.iter().map(|waiting| waiting.release.clone());
    let queue: Vec<String> = queue.collect();
    let held = status.held_release.as_ref().map(|held| held.release.as_str());
    let dropped = course::overtaken(&queue, &offered.vector.digest, release, direction, held);
    status.queue.drain(..dropped);
}

/// What is not to start again: the release that is left behind, or what the Sources offer.
fn hold_of(
    held: &str,
    before: Option<&RolloutStatus>,
    offered: &Offered,
    reason: Reason,
    now: Timestamp,
) -> HeldRelease {
    let revisions = match before.filter(|before| before.release == held) {
        Some(before) => before.revisions.clone(),
        None => offered.vector.revisions.clone(),
    };
    let reason = match (reason, before) {
        (Reason::Failed, Some(before)) => format!("rollout {} failed", before.id),
        _ => "a person asked to go back".to_owned(),
    };
    HeldRelease {
        release: held.to_owned(),
        revisions,
        reason,
        since: now.to_string(),
    }
}

/// Writes down that what is offered waits for its turn.
pub(super) async fn enqueue(
    context: &Context,
    group: &Group,
    offered: &Offered,
    mut rolling: Rolling,
) -> Result<Rolling, ReconcileError> {
    context
        .releases
        .keep(&context.hub, &group.object, rolling.rollout.id, &offered.vector)
        .await?;
    let queue = &mut rolling.status.queue;
    queue.truncate(course::QUEUE - 1);
    queue.push(ReleaseStatus {
        release: offered.vector.digest.clone(),
        revisions: offered.vector.revisions.clone(),
    });
    let written = context.hub.write_status(&*group.object, &rolling.status).await?;
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    Ok(rolling)
}

fn intent(group: &Group, uid: &str, rollout: &RolloutStatus, started_at: Timestamp) -> Rollout {
    Rollout {
        group_uid: uid.to_owned(),
        id: rollout.id.to_string(),
        namespace: group.key.namespace.clone(),
        name: group.key.name.clone(),
        release: rollout.release.clone(),
        revisions: rollout
            .revisions
            .iter()
            .map(|r| (r.sync.clone(), r.revision.clone()))
            .collect(),
        started_at,
    }
}

fn list(revisions: &[EntryRevision]) -> String {
    let texts: Vec<String> = revisions
        .iter()
        .map(|r| format!("{}={}", r.sync, r.revision))
        .collect();
    texts.join(" ")
}
