//! Health checks of Syncs with `wait`.
//!
//! A check sends its requests and ends. The wait between two checks is in the work queue, so that a Sync that waits for
//! an hour occupies no worker. After an attempt and while the Sync waits, every object that was not healthy is read,
//! and once all were healthy, all objects are read together. Afterwards drift checks find the objects that changed, and
//! only these are read.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use starling_api::SyncStatus;
use starling_api::conditions;
use starling_core::apply::Record;
use starling_core::health::{Freshness, Health, HealthRecords, HealthVerdict, Status, judge, waiting_since};
use starling_core::object::{GroupKind, ObjectId, RenderedSet};
use starling_core::progress;
use starling_core::step::{SyncStep, Wanted};
use tokio::time::Instant;

use super::access::{self, ResponseRecorder};
use super::admission;
use super::outcome::Outcome;
use super::validate::ValidSync;
use crate::controller::caches::health::SyncHealth;
use crate::controller::context::SyncContext;
use crate::controller::waits;
use starling_member::{ApplyOutcome, HealthReport, Member, MemberError, ObjectHealth};

/// The result of a health check.
#[derive(Debug)]
pub(super) enum HealthCheck {
    /// The health of the objects.
    Verdict(HealthVerdict),
    /// No request could be sent, or the member did not respond.
    Lost {
        /// The error.
        message: String,
    },
}

/// Starts to watch the health of the objects after an attempt that applied all of them. If the target is new, no health
/// is known: health that was observed with another target does not count (I1).
pub(super) fn applied(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    desired: &RenderedSet,
    records: &BTreeMap<ObjectId, Record>,
    applied: &ApplyOutcome,
) {
    let mut watching = known(context, sync, wanted)
        .unwrap_or_else(|| fresh(sync, wanted, desired.objects.iter().map(|object| &object.key)));
    for (key, record) in records {
        watching.records.applied_at(key, &record.resource_version);
    }
    for object in &applied.applied {
        watching.records.touch(&object.key);
        watching
            .records
            .applied_at(&object.key, &object.record.resource_version);
    }
    watching.cadence.restart();
    context.caches.health.set(&sync.observed.key, watching);
}

/// Marks the objects that changed since they were healthy, after a drift check that found no drift.
pub(super) fn checked(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    records: &BTreeMap<ObjectId, Record>,
    versions: &BTreeMap<ObjectId, String>,
) {
    let mut watching = known(context, sync, wanted).unwrap_or_else(|| fresh(sync, wanted, records.keys()));
    watching.records.now_at(versions);
    context.caches.health.set(&sync.observed.key, watching);
}

/// Returns whether objects have to be read before this target is done.
pub(super) fn is_awaited(context: SyncContext<'_>, sync: &ValidSync<'_>, wanted: &Wanted) -> bool {
    let awaited = |watching: SyncHealth| !watching.records.is_empty();
    sync.spec.template.wait && known(context, sync, wanted).is_none_or(awaited)
}

/// Checks the health of the applied objects; `None` if the target is not applied or `wait` is off.
pub(super) async fn check(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    step: &SyncStep,
    done: Option<&Outcome>,
) -> Option<HealthCheck> {
    let observed = sync.observed;
    let (SyncStep::Apply(wanted) | SyncStep::CheckDrift(wanted) | SyncStep::CheckHealth(wanted)) = step
    else {
        return None;
    };
    let is_applied = match done {
        None => matches!(step, SyncStep::CheckHealth(_)),
        Some(done) => matches!(done, Outcome::Applied(_) | Outcome::Unchanged),
    };
    if !is_applied {
        return None;
    }
    if !sync.spec.template.wait {
        context.caches.health.forget(&observed.key);
        return None;
    }
    let mut watching = known(context, sync, wanted)?;
    // The drift check has read the version of every object, so that objects that are not read have not changed.
    let together = !matches!(done, Some(Outcome::Unchanged));
    let found = match access::enter(context, observed, &sync.spec.template.service_account_name) {
        Err(error) => HealthCheck::Lost {
            message: crate::chain(&error),
        },
        Ok(member) => {
            let recorder = ResponseRecorder::begin(&member);
            let reader = Reader {
                context,
                sync,
                member: &member,
            };
            let read = reader.read_all(&mut watching.records, together).await;
            recorder.end(context, &observed.cluster_key(), read.as_ref().err());
            match read {
                Ok(unhealthy) => HealthCheck::Verdict(verdict(context, sync, wanted, unhealthy)),
                Err(error) => lost(context, sync, &error),
            }
        }
    };
    schedule(sync, &mut watching, &found, context.clock.now());
    context.caches.health.set(&observed.key, watching);
    log(sync, &found);
    // The admission is settled before status reports it. After a crash in between, the next check settles it.
    let cluster_id = &observed.cluster_id;
    let settled = progress::is_settled(&observed.status, true, &wanted.target, cluster_id);
    if matches!(found, HealthCheck::Verdict(HealthVerdict::Healthy)) && !settled {
        admission::settle(context, sync, wanted).await;
    }
    Some(found)
}

fn lost(context: SyncContext<'_>, sync: &ValidSync<'_>, error: &MemberError) -> HealthCheck {
    let cluster = sync.observed.cluster_key();
    if let MemberError::Throttled { retry_after, .. } = error {
        context.availability.throttled(&cluster, *retry_after);
    } else {
        // The Cluster loop finds the cause, and enqueues the Syncs when the Cluster changes.
        context.handlers.enqueue_cluster(cluster);
    }
    HealthCheck::Lost {
        message: crate::chain(error),
    }
}

/// Returns whether this process knows the objects to read.
pub(super) fn is_known(context: SyncContext<'_>, sync: &ValidSync<'_>, wanted: &Wanted) -> bool {
    known(context, sync, wanted).is_some()
}

fn known(context: SyncContext<'_>, sync: &ValidSync<'_>, wanted: &Wanted) -> Option<SyncHealth> {
    let observed = sync.observed;
    let cluster_id = &observed.cluster_id;
    context
        .caches
        .health
        .get(&observed.key, &wanted.target, cluster_id)
}

fn fresh<'a>(
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    objects: impl IntoIterator<Item = &'a ObjectId>,
) -> SyncHealth {
    SyncHealth {
        target: wanted.target.to_string(),
        cluster_id: sync.observed.cluster_id.clone(),
        records: HealthRecords::new(objects),
        ..SyncHealth::default()
    }
}

/// A reader of the health of one Sync's objects.
struct Reader<'a> {
    context: SyncContext<'a>,
    sync: &'a ValidSync<'a>,
    member: &'a Member,
}

impl Reader<'_> {
    /// Reads the objects with unknown or bad health. With `together`, the objects are healthy only if one check of all
    /// objects found them healthy: an object that was healthy a minute ago may have failed since.
    async fn read_all(
        &self,
        records: &mut HealthRecords,
        together: bool,
    ) -> Result<BTreeMap<ObjectId, Health>, MemberError> {
        let to_read = records.to_read();
        let unhealthy = self.read(records, &to_read).await?;
        let all = records.all();
        if !unhealthy.is_empty() || !together || to_read.len() == all.len() {
            return Ok(unhealthy);
        }
        self.read(records, &all).await
    }

    async fn read(
        &self,
        records: &mut HealthRecords,
        to_read: &BTreeSet<ObjectId>,
    ) -> Result<BTreeMap<ObjectId, Health>, MemberError> {
        if to_read.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (owner, now) = (&self.sync.observed.owner, self.context.clock.now());
        let deadline = Instant::now() + waits::HEALTH_TIMEOUT;
        let report = self.member.read_health(owner, to_read, now, deadline).await;
        if let Some(error) = report.interrupted.filter(|error| !is_too_slow(error)) {
            return Err(error);
        }
        let HealthReport {
            mut objects,
            failures,
            ..
        } = report;
        let mut health = |key: &ObjectId| match objects.remove(key) {
            Some(read) => current_health(records, key, read),
            None => unread(key, &failures),
        };
        Ok(to_read
            .iter()
            .map(|key| (key.clone(), health(key)))
            .filter(|(_, health)| health.status != Status::Current)
            .collect())
    }
}

/// Returns the health of an object, unless the read state is older than the last write of Starling (I1).
fn current_health(records: &mut HealthRecords, key: &ObjectId, read: ObjectHealth) -> Health {
    let healthy = read.health.status == Status::Current;
    match records.found(key, &read.resource_version, healthy) {
        Freshness::Fresh => read.health,
        Freshness::Stale => Health::new(
            Status::Unknown,
            "the API server returned a state from before the last apply",
        ),
    }
}

/// Returns whether a check timed out, which shows a slow member and not an unreachable one.
fn is_too_slow(error: &MemberError) -> bool {
    matches!(error, MemberError::Deadline { .. })
}

/// Returns the health of an object that was not read.
fn unread(key: &ObjectId, failures: &[(GroupKind, MemberError)]) -> Health {
    let failure = failures.iter().find(|(kind, _)| key.is_of(kind));
    let message = failure.map_or_else(
        || "not read before the health check timed out".to_owned(),
        |(_, error)| crate::chain(error),
    );
    Health::new(Status::Unknown, message)
}

fn verdict(
    context: SyncContext<'_>,
    sync: &ValidSync<'_>,
    wanted: &Wanted,
    unhealthy: BTreeMap<ObjectId, Health>,
) -> HealthVerdict {
    let (now, clock_jumps) = (context.clock.now(), context.clock.jumps());
    let status = &sync.observed.status;
    let applied = if progress::has_applied(status, &wanted.target, &sync.observed.cluster_id) {
        status.last_applied_time.parse().ok()
    } else {
        Some(now)
    };
    let since = waiting_since(&status.conditions, applied, now);
    judge(
        unhealthy,
        since,
        sync.spec.template.timeout.as_std(),
        now,
        &clock_jumps,
    )
}

fn schedule(sync: &ValidSync<'_>, watching: &mut SyncHealth, found: &HealthCheck, now: Timestamp) {
    let (uid, retry) = (sync.observed.uid(), sync.observed.retry_interval());
    match found {
        HealthCheck::Verdict(verdict) => watching.cadence.checked(verdict, retry, uid.as_str(), now),
        HealthCheck::Lost { .. } => watching.cadence.lost(retry, now),
    }
}

/// Logs changes of health.
fn log(sync: &ValidSync<'_>, found: &HealthCheck) {
    let observed = sync.observed;
    let before = reported_reason(&observed.status);
    let (sync, cluster) = (&observed.key, observed.cluster_name());
    match found {
        HealthCheck::Verdict(HealthVerdict::Healthy) if observed.status.healthy_since.is_empty() => {
            tracing::info!(%sync, %cluster, "objects healthy");
        }
        HealthCheck::Verdict(HealthVerdict::Waiting { until, unhealthy })
            if before != progress::PROGRESSING =>
        {
            tracing::info!(%sync, %cluster, objects = unhealthy.len(), %until, "waiting for objects to become healthy");
        }
        HealthCheck::Verdict(HealthVerdict::Failed { unhealthy })
            if before != progress::HEALTH_CHECK_FAILED =>
        {
            let message = starling_core::health::summary(unhealthy);
            tracing::warn!(%sync, %cluster, objects = unhealthy.len(), %message, "objects not healthy");
        }
        HealthCheck::Lost { message } => tracing::warn!(%sync, %cluster, %message, "health not read"),
        HealthCheck::Verdict(_) => {}
    }
}

/// Returns the reason of Healthy as last written; empty without the condition.
fn reported_reason(status: &SyncStatus) -> &str {
    conditions::find(&status.conditions, conditions::HEALTHY).map_or("", |healthy| healthy.reason.as_str())
}
