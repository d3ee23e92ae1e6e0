//! Computes the release digest of a rollout.
//!
//! The digest is computed for each rollout whose strategy has an Approval task, after the admission of its first
//! clusters: they need the same builds, which are cached. The digest is computed again when clusters add or remove
//! directories, or change the values of parameters: an approval is for the content that was shown.

use std::time::Duration;

use kube::ResourceExt as _;
use starling_api::{StageTaskType, SyncEntry};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::revision::{Revision, RevisionError};
use starling_core::rollout::{ReleaseSnapshot, Rolling};

use super::keep_memo;
use super::observe::Group;
use crate::controller::artifacts::reference;
use crate::controller::builds::{BuildError, Builder, EntryAt};
use crate::controller::caches::plan_memo::{CoveredEntry, Digested};
use crate::controller::context::GroupContext;
use crate::controller::waits;

/// Computes the digest if it is unknown. Returns the time until the next pass, if one is required: a pass that follows
/// at once writes a new digest to status.
pub(super) async fn ensure(context: GroupContext<'_>, group: &Group, rolling: &Rolling) -> Option<Duration> {
    let id = rolling.number();
    let mut memo = context.caches.plan_memos.take(&group.key);
    let over = memo.covered_by(&rolling.snapshot);
    let is_known = memo.digested.as_ref().is_some_and(|digested| {
        digested.is_of(&group.object, id, &rolling.snapshot.digest) && digested.over == over
    });
    if is_known {
        keep_memo(context, group, memo);
        return None;
    }
    let digest = of_release(context, group, &rolling.snapshot, &over).await;
    let again = match digest {
        Ok(digest) => {
            let before = &rolling.rollout.release_digest;
            let is_new = *before != digest;
            if is_new {
                tracing::info!(group = %group.key, rollout = id.get(), %before, %digest, "release digest computed");
            }
            memo.digested = Some(Digested {
                group_uid: group.object.uid().unwrap_or_default(),
                release: rolling.snapshot.digest.clone(),
                rollout: id,
                over,
                digest,
            });
            // An approval may already exist.
            is_new.then_some(Duration::ZERO)
        }
        Err(error) => {
            tracing::warn!(group = %group.key, rollout = id.get(), error = %crate::chain(&error), "release digest not computed");
            Some(waits::BUILD_RETRY)
        }
    };
    keep_memo(context, group, memo);
    again
}

/// The error of the computation.
#[derive(Debug, thiserror::Error)]
#[error("entry {entry}")]
struct ReleaseDigestError {
    /// The entry that cannot be built.
    entry: String,
    #[source]
    source: EntryError,
}

/// The error of the build of an entry.
#[derive(Debug, thiserror::Error)]
enum EntryError {
    #[error("Source {name:?} not found")]
    SourceNotFound { name: String },
    #[error(transparent)]
    Revision(#[from] RevisionError),
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Returns whether a rollout of the group needs an approval of its content.
pub(super) fn is_needed(group: &Group) -> bool {
    let mut stages = group.object.spec.rollout_strategy.stages.iter();
    stages.any(|stage| {
        let mut tasks = stage.before_stage_tasks.iter().chain(&stage.after_stage_tasks);
        tasks.any(|task| task.type_ == StageTaskType::Approval)
    })
}

async fn of_release(
    context: GroupContext<'_>,
    group: &Group,
    snapshot: &ReleaseSnapshot,
    over: &[CoveredEntry],
) -> Result<String, ReleaseDigestError> {
    let mut entries = Vec::new();
    for (entry, covered) in snapshot.entries.iter().zip(over) {
        let build = of_entry(context, group, snapshot, entry, covered).await;
        entries.push(build.map_err(|source| ReleaseDigestError {
            entry: entry.name.clone(),
            source,
        })?);
    }
    Ok(fingerprint::of_release(&entries))
}

async fn of_entry<'v>(
    context: GroupContext<'_>,
    group: &'v Group,
    snapshot: &'v ReleaseSnapshot,
    entry: &'v SyncEntry,
    covered: &CoveredEntry,
) -> Result<EntryBuild<'v>, EntryError> {
    let template = &entry.template;
    let source = group
        .sources
        .get(&template.source_ref.name)
        .ok_or_else(|| EntryError::SourceNotFound {
            name: template.source_ref.name.clone(),
        })?;
    let builder = Builder {
        hub: context.hub,
        origins: context.origins,
        renders: context.renders,
        allow_insecure: context.allow_insecure_sources,
    };
    let revision = snapshot.revision(&entry.name);
    let parsed: Revision = revision.parse()?;
    let at = EntryAt {
        name: &entry.name,
        source,
        revision,
        reference: reference(source, &parsed),
    };
    let CoveredEntry { directories, values } = covered.clone();
    let build = builder.fingerprint(&at, template, directories).await?;
    Ok(EntryBuild { values, ..build })
}
