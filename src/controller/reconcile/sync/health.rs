//! With `wait`: whether what the member holds is healthy too.
//!
//! A look takes its requests and ends; the wait between two looks is in the requeue table, so a Sync that waits for an
//! hour keeps no worker. After an attempt and while it waits, everything that was not found healthy is read, and once
//! all of it is, all objects together. At rest the search for drift tells what moved, and only that is read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use starling_api::SyncStatus;
use starling_core::apply::Record;
use starling_core::health::{Health, Read, Status, Verdict, Watched, judge, waiting_since};
use starling_core::object::{ObjectKey, RenderedSet};
use starling_core::progress;
use starling_core::step::{Step, Wanted};
use tokio::time::Instant;

use super::super::ReconcileError;
use super::attempt::{self, cluster_key};
use super::lane::{self, Watch};
use super::observe::Observed;
use super::outcome::Outcome;
use super::report;
use crate::controller::context::Context;
use crate::controller::healths::Watching;
use crate::member::{ApplyOutcome, HealthReport, Member, MemberError, Seen};

/// Limit of one look. It ends on time however slow the member is, and the next one goes on where it ended.
const LOOK: Duration = Duration::from_secs(30);

/// What a look found.
#[derive(Debug)]
pub(super) enum Look {
    /// How the objects are.
    Verdict(Verdict),
    /// The member could not be asked.
    Lost {
        /// What happened.
        message: String,
    },
}

/// After an attempt that got everything there: these objects are watched from now on. Nothing is known of them where
/// the target is new, for health that was observed with another one says nothing (I1).
pub(super) fn applied(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectKey, Record>,
    applied: &ApplyOutcome,
) {
    let mut watching = known(context, observed, wanted)
        .unwrap_or_else(|| fresh(observed, wanted, desired.objects.iter().map(|object| &object.key)));
    for (key, record) in records {
        watching.watched.applied_at(key, &record.resource_version);
    }
    for object in &applied.applied {
        watching.watched.touch(&object.key);
        watching
            .watched
            .applied_at(&object.key, &object.record.resource_version);
    }
    watching.cadence.restart();
    context.healths.set(&observed.key, watching);
}

/// After a check that found no drift: what moved since it was healthy is in question.
pub(super) fn checked(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    records: &BTreeMap<ObjectKey, Record>,
    versions: &BTreeMap<ObjectKey, String>,
) {
    let mut watching =
        known(context, observed, wanted).unwrap_or_else(|| fresh(observed, wanted, records.keys()));
    watching.watched.now_at(versions);
    context.healths.set(&observed.key, watching);
}

/// Whether objects have to be read before this target is done.
pub(super) fn is_awaited(context: &Context, observed: &Observed, wanted: &Wanted) -> bool {
    let awaited = |watching: Watching| !watching.watched.is_empty();
    observed.spec.template.wait && known(context, observed, wanted).is_none_or(awaited)
}

/// What has to come before a look: where it is not known which objects there are, a check tells.
///
/// # Errors
/// As those of the check.
pub(super) async fn prepare(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Option<Outcome>, ReconcileError> {
    if known(context, observed, wanted).is_some() {
        return Ok(None);
    }
    attempt::check(context, observed, wanted).await.map(Some)
}

/// Looks at the health of what the member holds; `None` where it does not hold it, or nobody waits for it.
pub(super) async fn look(
    context: &Context,
    observed: &Observed,
    step: &Step,
    done: Option<&Outcome>,
) -> Option<Look> {
    let (Step::Apply(wanted) | Step::CheckDrift(wanted) | Step::CheckHealth(wanted)) = step else {
        return None;
    };
    let holds = match done {
        None => matches!(step, Step::CheckHealth(_)),
        Some(done) => matches!(done, Outcome::Holds(_) | Outcome::Unchanged),
    };
    if !holds {
        return None;
    }
    if !observed.spec.template.wait {
        context.healths.forget(&observed.key);
        return None;
    }
    let mut watching = known(context, observed, wanted)?;
    // A search for drift has told the version of every object, so those that are not read did not move.
    let together = !matches!(done, Some(Outcome::Unchanged));
    let look = match lane::enter(context, observed) {
        Err(closed) => Look::Lost {
            message: closed.message(),
        },
        Ok(member) => {
            let watch = Watch::begin(&member);
            let read = read_all((context, observed), &member, &mut watching.watched, together).await;
            watch.end(context, observed, read.as_ref().err());
            match read {
                Ok(unhealthy) => Look::Verdict(verdict(observed, wanted, unhealthy, context.now())),
                Err(error) => lost(context, observed, &error),
            }
        }
    };
    schedule(observed, &mut watching, &look, context.now());
    context.healths.set(&observed.key, watching);
    note(observed, &look);
    // The record comes before the status that says so: a crash in between is made good by the next look.
    let settled = progress::is_settled(&observed.status, true, &wanted.target, observed.cluster_id());
    if matches!(look, Look::Verdict(Verdict::Healthy)) && !settled {
        report::settle(context, observed, wanted).await;
    }
    Some(look)
}

fn lost(context: &Context, observed: &Observed, error: &MemberError) -> Look {
    if let MemberError::Throttled { retry_after, .. } = error {
        lane::throttled(context, observed, *retry_after);
    } else {
        // The Cluster loop finds out what is the matter, and wakes its Syncs when that changes.
        context.queues.clusters.add(cluster_key(observed));
    }
    Look::Lost {
        message: crate::chain(error),
    }
}

fn known(context: &Context, observed: &Observed, wanted: &Wanted) -> Option<Watching> {
    context
        .healths
        .get(&observed.key, &wanted.target, observed.cluster_id())
}

fn fresh<'a>(
    observed: &Observed,
    wanted: &Wanted,
    objects: impl IntoIterator<Item = &'a ObjectKey>,
) -> Watching {
    Watching {
        target: wanted.target.clone(),
        cluster_id: observed.cluster_id().to_owned(),
        watched: Watched::new(objects),
        ..Watching::default()
    }
}

/// Reads what is in question. With `together` nothing counts as healthy but what was healthy in one look at all of it:
/// what was found so a minute ago may have broken since.
async fn read_all(
    of: (&Context, &Observed),
    member: &Member,
    watched: &mut Watched,
    together: bool,
) -> Result<BTreeMap<ObjectKey, Health>, MemberError> {
    let asked = watched.in_question();
    let unhealthy = read(of, member, watched, &asked).await?;
    let all = watched.all();
    if !unhealthy.is_empty() || !together || asked.len() == all.len() {
        return Ok(unhealthy);
    }
    read(of, member, watched, &all).await
}

async fn read(
    (context, observed): (&Context, &Observed),
    member: &Member,
    watched: &mut Watched,
    asked: &BTreeSet<ObjectKey>,
) -> Result<BTreeMap<ObjectKey, Health>, MemberError> {
    if asked.is_empty() {
        return Ok(BTreeMap::new());
    }
    let deadline = Instant::now() + LOOK;
    let report = member
        .read_health(&observed.owner, asked, context.now(), deadline)
        .await;
    if let Some(error) = report.interrupted.filter(|error| !is_too_slow(error)) {
        return Err(error);
    }
    let HealthReport {
        mut seen, failures, ..
    } = report;
    let mut health = |key: &ObjectKey| match seen.remove(key) {
        Some(seen) => believed(watched, key, seen),
        None => unread(key, &failures),
    };
    Ok(asked
        .iter()
        .map(|key| (key.clone(), health(key)))
        .filter(|(_, health)| health.status != Status::Current)
        .collect())
}

/// The health of an object as it was read, unless it was read in a state that is older than our last write (I1).
fn believed(watched: &mut Watched, key: &ObjectKey, seen: Seen) -> Health {
    let healthy = seen.health.status == Status::Current;
    match watched.found(key, &seen.resource_version, healthy) {
        Read::Fresh => seen.health,
        Read::Stale => Health::new(
            Status::Unknown,
            "the API server answered with a state of before the last apply",
        ),
    }
}

/// A look that ran out of time met a slow member, not a lost one.
fn is_too_slow(error: &MemberError) -> bool {
    matches!(error, MemberError::Deadline { .. })
}

/// The health of an object that was not read.
fn unread(key: &ObjectKey, failures: &[((String, String), MemberError)]) -> Health {
    let failure = failures
        .iter()
        .find(|((group, kind), _)| *group == key.group && *kind == key.kind);
    let message = failure.map_or_else(
        || "not read within the time of one look".to_owned(),
        |(_, error)| crate::chain(error),
    );
    Health::new(Status::Unknown, message)
}

fn verdict(
    observed: &Observed,
    wanted: &Wanted,
    unhealthy: BTreeMap<ObjectKey, Health>,
    now: Timestamp,
) -> Verdict {
    let SyncStatus {
        conditions,
        last_applied_time,
        ..
    } = &observed.status;
    let held = progress::holds(&observed.status, &wanted.target, observed.cluster_id());
    let applied = if held {
        last_applied_time.parse().ok()
    } else {
        Some(now)
    };
    let since = waiting_since(conditions, applied, now);
    judge(unhealthy, since, observed.spec.template.timeout.as_std(), now)
}

fn schedule(observed: &Observed, watching: &mut Watching, look: &Look, now: Timestamp) {
    let seed = observed.sync.metadata.uid.as_deref().unwrap_or_default();
    let retry = observed.spec.template.retry_interval.as_std();
    match look {
        Look::Verdict(verdict) => watching.cadence.looked(verdict, retry, seed, now),
        Look::Lost { .. } => watching.cadence.lost(retry, now),
    }
}

/// Logs what is new.
fn note(observed: &Observed, look: &Look) {
    let (sync, cluster) = (&observed.key, &observed.spec.cluster_ref.name);
    let before = report::healthy_reason(&observed.status);
    match look {
        Look::Verdict(Verdict::Healthy) if observed.status.healthy_since.is_empty() => {
            tracing::info!(%sync, %cluster, "healthy");
        }
        Look::Verdict(Verdict::Waiting { until, unhealthy }) if before != progress::PROGRESSING => {
            tracing::info!(%sync, %cluster, objects = unhealthy.len(), %until, "waiting for health");
        }
        Look::Verdict(Verdict::Failed { unhealthy }) if before != progress::HEALTH_CHECK_FAILED => {
            let message = starling_core::health::summary(unhealthy);
            tracing::warn!(%sync, %cluster, objects = unhealthy.len(), %message, "not healthy");
        }
        Look::Lost { message } => tracing::warn!(%sync, %cluster, %message, "health not read"),
        Look::Verdict(_) => {}
    }
}
