//! What a rollout renders to: the digest that an approval is for.
//!
//! Worked out for each rollout whose strategy has an Approval task, after its first clusters were admitted: they need the same
//! builds, which are kept for both. And once more when clusters bring folders with them, or take them away: an approval is for what
//! was looked at.

use std::time::Duration;

use starling_api::{RolloutPhase, StageTaskType, SyncEntry};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::revision::Revision;

use super::super::ReconcileError;
use super::Decided;
use super::observe::Group;
use super::release::Rolling;
use crate::controller::builds::{Builder, EntryAt, refname};
use crate::controller::context::{Context, Next};
use crate::controller::releases::Vector;
use crate::controller::targets::Folders;
use crate::controller::wake::By;

/// Wait after something could not be built: its clusters are told why, and so is the log.
const RETRY: Duration = Duration::from_secs(30);

/// Works the digest out and writes it, where it is needed and not known. `Some`: it could not be, and this is when to look again.
pub(super) async fn ensure(
    context: &Context,
    group: &Group,
    Decided { rolling, said, .. }: &Decided,
    membership_held: bool,
) -> Result<Option<Next>, ReconcileError> {
    // A fleet of which nobody is there has no folders: its digest would cover nothing of what comes with the clusters.
    let nobody = group.clusters.is_empty();
    // What has succeeded may go on: a cluster joins, or the strategy has another stage.
    if !is_needed(group) || membership_held || nobody || said.phase == RolloutPhase::Succeeded {
        return Ok(None);
    }
    let mut known = context.targets.take(&group.key);
    let entries = rolling.vector.entries.iter();
    let folders: Vec<Folders> = entries.map(|entry| known.folders_of(&entry.name)).collect();
    let over = Some((rolling.rollout.id, folders));
    let is_known = known.digested == over && !rolling.rollout.release_digest.is_empty();
    let digest = if is_known {
        None
    } else {
        let worked_out = of_release(context, group, &rolling.vector, over.as_ref()).await;
        known.digested = over.filter(|_| worked_out.is_ok());
        Some(worked_out)
    };
    context.targets.put(&group.key, known);
    match digest {
        None => Ok(None),
        Some(Ok(digest)) => write(context, group, rolling, digest).await,
        Some(Err(message)) => {
            tracing::warn!(group = %group.key, rollout = rolling.rollout.id, %message, "what the rollout renders to is not known");
            Ok(Some(Next::After(RETRY)))
        }
    }
}

async fn write(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    digest: String,
) -> Result<Option<Next>, ReconcileError> {
    // What this look has written since is in the cache.
    let newest = context.groups.get(&group.key);
    let status = newest.as_ref().and_then(|group| group.status.clone());
    let Some(mut status) = status else { return Ok(None) };
    match &mut status.rollout {
        Some(rollout) if rollout.id == rolling.rollout.id && rollout.release_digest != digest => {
            tracing::info!(group = %group.key, rollout = rollout.id, before = %rollout.release_digest, %digest, "what the rollout renders to is known");
            rollout.release_digest = digest;
        }
        _ => return Ok(None),
    }
    let written = context.hub.write_status(&*group.object, &status).await?;
    if let Some(change) = context.groups.observe_write(written) {
        context.wake_for_group(&change, By::Us);
    }
    // An approval may be there already.
    Ok(Some(Next::After(Duration::ZERO)))
}

/// Whether somebody is to approve what a rollout of the group renders to.
pub(super) fn is_needed(group: &Group) -> bool {
    let mut stages = group.object.spec.rollout_strategy.stages.iter();
    stages.any(|stage| {
        let mut tasks = stage.before_stage_tasks.iter().chain(&stage.after_stage_tasks);
        tasks.any(|task| task.type_ == StageTaskType::Approval)
    })
}

async fn of_release(
    context: &Context,
    group: &Group,
    vector: &Vector,
    over: Option<&(i64, Vec<Folders>)>,
) -> Result<String, String> {
    let mut entries = Vec::new();
    let folders = over.into_iter().flat_map(|(_, folders)| folders);
    for (entry, folders) in vector.entries.iter().zip(folders) {
        let build = of_entry(context, group, vector, entry, folders).await;
        entries.push(build.map_err(|message| format!("entry {}: {message}", entry.name))?);
    }
    Ok(fingerprint::of_release(&entries))
}

async fn of_entry<'v>(
    context: &Context,
    group: &'v Group,
    vector: &'v Vector,
    entry: &'v SyncEntry,
    folders: &Folders,
) -> Result<EntryBuild<'v>, String> {
    let template = &entry.template;
    let source = group
        .sources
        .get(&template.source_ref.name)
        .ok_or_else(|| format!("there is no Source {:?}", template.source_ref.name))?;
    let builder = Builder {
        hub: &context.hub,
        repositories: &context.repositories,
        renders: &context.renders,
        allow_insecure: context.allow_insecure_sources,
    };
    let revision = vector.revision(&entry.name);
    let parsed: Revision = revision.parse().map_err(|error| crate::chain(&error))?;
    let at = EntryAt {
        name: &entry.name,
        source,
        revision,
        refname: refname(source, &parsed),
    };
    builder.fingerprint(&at, template, folders.clone()).await
}
