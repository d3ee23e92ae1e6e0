//! Resolves the policy at the origin, and fetches the artifact.

use starling_api::Source;
use starling_core::revision::{
    AdvanceDecision, Ancestry, Revision, advance, depends_on_ancestry, replaced_heads,
};

use super::validate::ValidSource;
use super::{Observed, ResolveResult};
use crate::controller::artifacts::{Artifact, ArtifactError, Origin};
use crate::controller::caches::origins::OriginError;
use crate::controller::context::SourceContext;
use crate::controller::pins;

pub(super) async fn observe(context: SourceContext<'_>, valid: &ValidSource<'_>) -> Observed {
    let source = valid.source;
    let origin = match context
        .origins
        .refresh(context.hub, source, context.allow_insecure_sources)
        .await
    {
        Ok(origin) => origin,
        Err(error) => return unaddressed(&error).into(),
    };
    context.start_rates.wait_for_request(origin.host()).await;
    match follow(context, valid, &origin).await {
        Ok(observed) => observed,
        Err(error) => ResolveResult::Failed {
            reason: error.reason(),
            message: message(source, &error),
        }
        .into(),
    }
}

async fn follow(
    context: SourceContext<'_>,
    valid: &ValidSource<'_>,
    origin: &Origin,
) -> Result<Observed, ArtifactError> {
    let (source, artifacts) = (valid.source, context.artifacts);
    let timeout = source.spec.timeout.as_std();
    let artifact = artifacts.resolve(origin, &valid.policy, timeout).await?;
    artifacts.fetch(&artifact, timeout).await?;
    let (result, replaced) = decide(context, valid, &artifact).await?;
    let lost = pins::restore(context, source, &artifact).await;
    Ok(Observed {
        result,
        lost,
        replaced,
    })
}

/// Decides whether the Source advances to an artifact, and pins it then. Returns also the heads that rewrites have
/// replaced, if the Source advances.
async fn decide(
    context: SourceContext<'_>,
    valid: &ValidSource<'_>,
    artifact: &Artifact,
) -> Result<(ResolveResult, Option<Vec<Revision>>), ArtifactError> {
    let (source, last) = (valid.source, last_revision(valid.source));
    if last.as_ref() == Some(&artifact.revision) {
        return Ok((ResolveResult::Latest(artifact.revision.clone()), None));
    }
    let found = artifact.revision.clone();
    let replaced = last.as_ref().map_or_else(Vec::new, |_| replaced(source));
    let ancestry = match &last {
        Some(last) if depends_on_ancestry(&valid.policy, last, &found) => {
            ancestry(context, last, &replaced, artifact).await?
        }
        Some(_) | None => Ancestry::default(),
    };
    Ok(
        match advance(&valid.policy, last.as_ref(), found, ancestry, valid.rules) {
            AdvanceDecision::Unchanged => (ResolveResult::Latest(artifact.revision.clone()), None),
            AdvanceDecision::Move(revision) => {
                let latest = Artifact {
                    revision,
                    ..artifact.clone()
                };
                pins::pin(context, source, &latest).await?;
                let heads = last.map(|last| replaced_heads(&replaced, &last, &latest.revision, ancestry));
                (
                    ResolveResult::Latest(latest.revision),
                    Some(heads.unwrap_or_default()),
                )
            }
            AdvanceDecision::Hold { keep, reason, found } => {
                let refused = ResolveResult::Refused {
                    reason: reason.as_str(),
                    message: format!("latest revision is {found}; keeping {keep}: {reason}"),
                };
                (refused, None)
            }
        },
    )
}

/// Returns the relation of an artifact to the last revision, and to the heads that rewrites have replaced.
async fn ancestry(
    context: SourceContext<'_>,
    last: &Revision,
    replaced: &[Revision],
    artifact: &Artifact,
) -> Result<Ancestry, ArtifactError> {
    let ancestry = context.artifacts.ancestry(last, artifact).await?;
    if ancestry != Ancestry::Diverged {
        return Ok(ancestry);
    }
    for head in replaced {
        let is_replaced = head.commit() == artifact.revision.commit()
            || context.artifacts.ancestry(head, artifact).await? == Ancestry::Ancestor;
        if is_replaced {
            return Ok(Ancestry::Replaced);
        }
    }
    Ok(ancestry)
}

/// Returns the heads that rewrites have replaced, by status.
fn replaced(source: &Source) -> Vec<Revision> {
    let status = source.status.as_ref();
    let heads = status.map_or(&[][..], |status| &status.replaced_revisions);
    heads.iter().filter_map(|head| head.parse().ok()).collect()
}

/// Returns the revision in status, if it is of this origin: a revision of another repository is not rewritten history.
fn last_revision(source: &Source) -> Option<Revision> {
    let status = source.status.as_ref()?;
    (status.revision_origin == origin(source)).then(|| status.revision.parse().ok())?
}

/// Returns the digest of the address, which shows whether the revision in status is of this origin.
pub(super) fn origin(source: &Source) -> String {
    starling_core::digest::of(&source.spec.url)
}

/// Returns the message of an error. If the origin lacks a matching ref, the message names the revision that is kept.
fn message(source: &Source, error: &ArtifactError) -> String {
    let chain = crate::chain(error);
    let status = source.status.as_ref();
    let kept = status
        .map(|status| status.revision.as_str())
        .filter(|revision| !revision.is_empty());
    match (error, kept) {
        (ArtifactError::Unresolved(_), Some(revision)) => format!("{chain}; keeping {revision}"),
        (ArtifactError::Unresolved(_) | ArtifactError::Git(_), _) => chain,
    }
}

fn unaddressed(error: &OriginError) -> ResolveResult {
    let message = crate::chain(error);
    match error {
        OriginError::Url(_) => ResolveResult::Stalled {
            reason: "InvalidURL",
            message,
        },
        // Secrets are not watched, so the Secret is read again later.
        OriginError::SecretMissing { .. } => ResolveResult::Failed {
            reason: "SecretNotFound",
            message,
        },
        OriginError::SecretUnusable { .. } => ResolveResult::Failed {
            reason: "InvalidSecret",
            message,
        },
        OriginError::Hub(_) => ResolveResult::Failed {
            reason: "ManagementClusterFailed",
            message,
        },
    }
}
