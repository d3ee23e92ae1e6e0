//! Pins the artifacts of stored releases again, and finds those that are lost.
//!
//! Pins are lost with the disk, with a damaged mirror, and with a mirror of another repository. Most of their commits
//! are still upstream. The others are lost: no rollback to their releases is possible.

use std::collections::BTreeSet;

use starling_api::Source;
use starling_core::revision::Revision;
use starling_git::GitError;

use super::super::artifacts::{Artifact, ArtifactError, Origin, digest};
use super::super::caches::pins::Search;
use super::super::context::SourceContext;
use crate::controller::object_key::ObjectKey;

/// Pins the artifacts that stored releases need of a Source, and returns the revisions that are lost; `None` if this is
/// not known. `latest`: the artifact that was just resolved and fetched.
///
/// Searches for pins that the store lacks once, and again if the latest revision changes.
pub async fn restore(
    context: SourceContext<'_>,
    source: &Source,
    latest: &Artifact,
) -> Option<BTreeSet<Revision>> {
    let key = ObjectKey::of(source);
    let needed = context.pins.needed(&key)?;
    let restored = unpinned(context, &latest.origin, needed).await;
    match restored {
        Ok(absent) if absent.is_empty() => Some(absent),
        Ok(absent) => search(context, source, latest, absent).await,
        Err(error) => {
            tracing::warn!(source = %key, error = %crate::chain(&error), "cannot restore pins");
            None
        }
    }
}

/// Fetches everything that the origin offers, and pins what was absent. Returns what still is.
async fn search(
    context: SourceContext<'_>,
    source: &Source,
    latest: &Artifact,
    absent: BTreeSet<Revision>,
) -> Option<BTreeSet<Revision>> {
    let (key, origin) = (ObjectKey::of(source), &latest.origin);
    let search = Search {
        latest: latest.revision.clone(),
        absent: absent.clone(),
    };
    if let Some(is_complete) = context.pins.searched(&key, &search) {
        return is_complete.then_some(absent);
    }
    context.start_rates.wait_for_request(origin.host()).await;
    let timeout = source.spec.timeout.as_std();
    let searched = match context.artifacts.fetch_all(origin, timeout).await {
        Ok(()) => pin_all(context, origin, absent).await,
        Err(error) => Err(error),
    };
    match searched {
        Ok(lost) => {
            if !lost.is_empty() {
                let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
                tracing::warn!(source = %key, ?lost, "revisions of stored releases are lost");
            }
            let absent = lost.clone();
            context
                .pins
                .record_search(&key, Search { absent, ..search }, true);
            Some(lost)
        }
        Err(error) => {
            tracing::warn!(source = %key, error = %crate::chain(&error), "cannot search for revisions of stored releases");
            context.pins.record_search(&key, search, false);
            None
        }
    }
}

/// Pins what is needed and not pinned. Returns what the store lacks.
async fn unpinned(
    context: SourceContext<'_>,
    origin: &Origin,
    needed: BTreeSet<Revision>,
) -> Result<BTreeSet<Revision>, ArtifactError> {
    let kept = context.artifacts.kept(origin).await?;
    let unpinned = needed
        .into_iter()
        .filter(|revision| !kept.contains(digest(revision)));
    pin_all(context, origin, unpinned.collect()).await
}

/// Pins what the store has of these revisions. Returns the others.
async fn pin_all(
    context: SourceContext<'_>,
    origin: &Origin,
    revisions: BTreeSet<Revision>,
) -> Result<BTreeSet<Revision>, ArtifactError> {
    let mut absent = BTreeSet::new();
    for revision in revisions {
        let artifact = Artifact {
            origin: origin.clone(),
            revision,
            reference: None,
        };
        match context.artifacts.keep(&artifact).await {
            Ok(()) => {}
            Err(ArtifactError::Git(GitError::NotFound { .. })) => {
                absent.insert(artifact.revision);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(absent)
}
