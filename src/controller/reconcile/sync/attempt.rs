//! The effects: one attempt at a target, one check for drift.
//!
//! The intent, and which records are doubted from then on, are in the ledger before the first request that writes to the member,
//! the outcome after the last one. Whatever happens in between, the next attempt finds the inventory claimed on the member and
//! sends again what it has no record of, which is a no-op there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use starling_api::ConflictPolicy;
use starling_core::apply::{Record, doubted};
use starling_core::object::ObjectKey;
use starling_core::revision::Revision;
use starling_core::step::Wanted;
use tokio::time::Instant;

use super::super::ReconcileError;
use super::lane::{self, Watch};
use super::observe::Observed;
use super::outcome::{Outcome, end, failed, failures_before, interrupted, judge, remembered, schedule_check};
use super::ownership::ownership;
use super::siblings::SiblingsOf;
use super::{health, held, report, standing};
use crate::controller::builds::refname;
use crate::controller::cache;
use crate::controller::context::Context;
use crate::controller::decryption::Keys;
use crate::controller::renders::{RenderFailure, RenderJob, Rendered};
use crate::ledger::{Attempt, AttemptId};
use crate::member::{ApplyJob, ApplyOutcome, DriftReport, Member};
use crate::render::RenderError;

/// Encrypted manifests, or the keys to them, are not as they should be.
const DECRYPTION_FAILED: &str = "DecryptionFailed";

/// Makes the member hold `wanted`.
///
/// # Errors
/// [`ReconcileError`] where the intent could not be recorded: then nothing was begun.
pub(super) async fn apply(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Outcome, ReconcileError> {
    if !held::waits(observed, wanted) {
        return attempt(context, observed, wanted, None).await;
    }
    // Deletions may wait for days. What is rendered is kept in step meanwhile.
    let member = match lane::begin(context, observed, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome),
    };
    let records = load(context, observed).await;
    match look(context, &member, observed, wanted, &records).await {
        Ok((_, repair)) => attempt(context, observed, wanted, Some(repair)).await,
        Err(outcome) => Ok(outcome),
    }
}

/// Looks whether somebody changed what the member holds, and puts it right.
///
/// # Errors
/// As [`apply`].
pub(super) async fn check(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Outcome, ReconcileError> {
    let member = match lane::begin(context, observed, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome),
    };
    context.pace.attempt(&cluster_key(observed)).await;
    schedule_check(context, observed);
    let records = load(context, observed).await;
    // Fewer records than objects: the ledger was lost. An attempt takes them anew, without a write to what is in step.
    let expected = usize::try_from(observed.status.inventory.objects).unwrap_or(usize::MAX);
    if records.len() < expected {
        return attempt(context, observed, wanted, None).await;
    }
    let (report, repair) = match look(context, &member, observed, wanted, &records).await {
        Ok(looked) => looked,
        Err(outcome) => return Ok(outcome),
    };
    if !repair.is_empty() || !report.foreign.is_empty() {
        return attempt(context, observed, wanted, Some(repair)).await;
    }
    if let Some(((_, kind), error)) = report.failures.first() {
        let message = format!("drift of {kind} cannot be looked for: {}", crate::chain(error));
        return Ok(failed(
            context,
            observed,
            wanted,
            "DriftCheckFailed",
            message,
            Vec::new(),
        ));
    }
    health::checked(context, observed, wanted, &records, &report.versions);
    Ok(Outcome::Unchanged)
}

/// Looks for drift and takes in what was found: with what is to be repaired now.
async fn look(
    context: &Context,
    member: &Member,
    observed: &Observed,
    wanted: &Wanted,
    records: &BTreeMap<ObjectKey, Record>,
) -> Result<(DriftReport, BTreeSet<ObjectKey>), Outcome> {
    let watch = Watch::begin(member);
    let report = member
        .find_drift(&observed.owner, records, deadline(observed))
        .await;
    watch.end(context, observed, report.interrupted.as_ref());
    if let Some(error) = &report.interrupted {
        return Err(interrupted(context, member, observed, wanted, error).await);
    }
    let repair = standing::looked(context, observed, &report, records).await;
    if !report.drifted.is_empty() {
        tracing::info!(sync = %observed.key, objects = report.drifted.len(), repaired = repair.len(), "drift found");
    }
    Ok((report, repair))
}

/// `drifted` is what a look for drift has just found to be repaired; `None` if nobody has looked.
async fn attempt(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    drifted: Option<BTreeSet<ObjectKey>>,
) -> Result<Outcome, ReconcileError> {
    let member = match lane::begin(context, observed, wanted) {
        Ok(member) => member,
        Err(outcome) => return Ok(outcome),
    };
    context.pace.attempt(&cluster_key(observed)).await;
    let rendered = match render(context, observed, wanted).await {
        Ok(rendered) => rendered,
        Err((reason, message)) => {
            return Ok(failed(context, observed, wanted, reason, message, Vec::new()));
        }
    };
    let records = load(context, observed).await;
    let drifted = match drifted {
        Some(drifted) => drifted,
        None => standing::returned(&member, observed, &records, deadline(observed)).await,
    };
    let ownership = ownership(context, observed, &rendered.set, &records, &drifted).await;
    let drifted = &drifted | &ownership.handed_over;
    let id = begin(
        context,
        observed,
        wanted,
        &doubted(&rendered.set, &records, &drifted),
    )
    .await?;
    let watch = Watch::begin(&member);
    let template = &observed.spec.template;
    let job = ApplyJob {
        owner: &observed.owner,
        desired: &rendered.set,
        records: &records,
        drifted: &drifted,
        kept: &ownership.kept,
        prune: template.prune,
        allow_empty: template.allow_empty,
        conflicts_override: template.conflicts == ConflictPolicy::Override,
        recreate: template.force,
        siblings: &SiblingsOf { context, observed },
        approved: &held::approved(context, observed),
        deadline: deadline(observed),
    };
    let applied = member.apply(job).await;
    watch.end(context, observed, applied.interrupted.as_ref());
    standing::attempted(context, observed, &applied);
    let outcome = match &applied.interrupted {
        Some(error) => interrupted(context, &member, observed, wanted, error).await,
        None => judge(context, observed, wanted, &applied, rendered.plain),
    };
    if matches!(outcome, Outcome::Holds(_)) {
        health::applied(context, observed, wanted, &rendered.set, &records, &applied);
    }
    finish(context, observed, wanted, id, &outcome, &applied).await;
    Ok(outcome)
}

/// Records that an attempt begins, and what is not known of the member from then on: one commit, as the writer takes all that is
/// queued.
async fn begin(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    doubted: &BTreeMap<ObjectKey, Record>,
) -> Result<AttemptId, ReconcileError> {
    let intent = Attempt {
        sync_uid: observed.sync.metadata.uid.clone().unwrap_or_default(),
        namespace: observed.key.namespace.clone(),
        name: observed.key.name.clone(),
        cluster: observed.spec.cluster_ref.name.clone(),
        target: wanted.target.clone(),
        revision: wanted.revision.clone(),
        number: failures_before(observed, wanted) + 1,
        started_at: context.now(),
    };
    let none = BTreeSet::new();
    let (id, ()) = tokio::try_join!(
        context.ledger.begin_attempt(&intent),
        context
            .ledger
            .save_records(observed.cluster_id(), &observed.owner, doubted, &none),
    )?;
    Ok(id)
}

/// Records how an attempt ended and what is known of the member again, and says so in the status.
async fn finish(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
    id: AttemptId,
    outcome: &Outcome,
    applied: &ApplyOutcome,
) {
    let end = end(outcome, applied, context.now());
    let (upserts, deletes) = remembered(applied);
    // One commit: the writer takes all that is queued. Losing this record costs requests, not correctness, so the
    // status is written all the same.
    let (finished, saved, ()) = tokio::join!(
        context.ledger.finish_attempt(id, &end),
        context
            .ledger
            .save_records(observed.cluster_id(), &observed.owner, &upserts, &deletes),
        report::settle_at_once(context, observed, wanted, outcome),
    );
    for error in [finished.map(|_| ()), saved].into_iter().filter_map(Result::err) {
        tracing::error!(sync = %observed.key, error = %crate::chain(&error), "outcome of an attempt not recorded");
    }
}

pub(super) async fn render(
    context: &Context,
    observed: &Observed,
    wanted: &Wanted,
) -> Result<Arc<Rendered>, (&'static str, String)> {
    let source = observed.source.as_ref().ok_or_else(|| {
        let message = format!("there is no Source {:?}", observed.spec.template.source_ref.name);
        ("SourceNotFound", message)
    })?;
    let access = context
        .repositories
        .get(&context.hub, source, context.allow_insecure_sources)
        .await
        .map_err(|error| ("SourceNotReady", crate::chain(&error)))?;
    let revision: Revision = wanted.revision.parse().map_err(|error| {
        (
            "InvalidRevision",
            format!("spec.revision: {}", crate::chain(&error)),
        )
    })?;
    let refname = refname(source, &revision);
    let keys = keys(context, observed).await?;
    let job = RenderJob {
        access: &access,
        ignore: &source.spec.ignore,
        commit: revision.commit().as_str(),
        refname: refname.as_deref(),
        timeout: source.spec.timeout.as_std(),
        path: &observed.spec.template.path,
        target_namespace: &observed.spec.template.target_namespace,
        values: &observed.spec.template.substitute,
        owner: &observed.owner,
        keys: keys.as_ref(),
        left_to_others: &observed.ignore,
    };
    context.renders.get(job).await.map_err(|error| {
        let reason = match &error {
            RenderFailure::Tree(_) => "SourceNotReady",
            RenderFailure::Copy(_) => "StorageFailed",
            RenderFailure::Render(error) if matches!(**error, RenderError::Encrypted { .. }) => {
                DECRYPTION_FAILED
            }
            RenderFailure::Render(_) => "BuildFailed",
        };
        (reason, crate::chain(&error))
    })
}

/// What opens this Sync's encrypted manifests, if it says that there are any.
async fn keys(context: &Context, observed: &Observed) -> Result<Option<Keys>, (&'static str, String)> {
    let Some(decryption) = &observed.spec.template.decryption else {
        return Ok(None);
    };
    Keys::read(&context.hub, &observed.key.namespace, decryption)
        .await
        .map(Some)
        .map_err(|error| (DECRYPTION_FAILED, crate::chain(&error)))
}

pub(super) fn cluster_key(observed: &Observed) -> cache::ObjectKey {
    cache::ObjectKey::new(&observed.key.namespace, &observed.spec.cluster_ref.name)
}

pub(super) fn deadline(observed: &Observed) -> Instant {
    Instant::now()
        + observed
            .spec
            .template
            .timeout
            .as_std()
            .max(Duration::from_secs(1))
}

/// What is known of the objects on the member. A ledger that cannot be read is as good as a lost one: everything is
/// looked at, nothing in step is written. The same where this Sync is new: records of an earlier one (the cluster left
/// the group and came back) say nothing about what happened meanwhile.
async fn load(context: &Context, observed: &Observed) -> BTreeMap<ObjectKey, Record> {
    if observed.status.last_attempted_target.is_empty() {
        return BTreeMap::new();
    }
    context
        .ledger
        .load_records(observed.cluster_id(), &observed.owner)
        .await
        .unwrap_or_else(|error| {
            tracing::error!(sync = %observed.key, error = %crate::chain(&error), "records not read");
            BTreeMap::new()
        })
}
