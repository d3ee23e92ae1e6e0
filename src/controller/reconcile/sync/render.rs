//! Renders a Sync: builds the objects of its path at a revision.

use std::sync::Arc;

use starling_api::{Source, SyncTemplate};
use starling_core::ignore::IgnoreRules;
use starling_core::revision::{Revision, RevisionError};

use crate::controller::artifacts::{Artifact, reference};
use crate::controller::caches::origins::OriginError;
use crate::controller::context::SyncContext;
use crate::controller::decryption::{Keys, KeysError};
use crate::controller::manifests::{RenderFailure, RenderJob, Rendered};
use starling_core::ids::OwnerLabel;
use starling_render::RenderError;

/// The reason of Ready if encrypted manifests cannot be decrypted.
const DECRYPTION_FAILED: &str = "DecryptionFailed";

/// The inputs of a render.
pub(super) struct Render<'a> {
    /// Namespace of the Sync, for the Secrets that it names.
    pub(super) namespace: &'a str,
    /// The template with resolved parameters.
    pub(super) template: &'a SyncTemplate,
    /// The Source that the template names, if it exists.
    pub(super) source: Option<&'a Source>,
    pub(super) revision: &'a str,
    pub(super) owner: &'a OwnerLabel,
    /// Rules for fields that are not applied.
    pub(super) ignore: &'a IgnoreRules,
}

/// The error of a render.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncRenderError {
    /// The Source that the template names does not exist.
    #[error("Source {name:?} not found")]
    SourceNotFound { name: String },
    /// The origin of the Source cannot be addressed.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The revision cannot be parsed.
    #[error("spec.revision")]
    Revision(#[source] RevisionError),
    /// The keys of encrypted manifests cannot be read.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The artifact cannot be fetched, or its build failed.
    #[error(transparent)]
    Render(#[from] RenderFailure),
}

impl SyncRenderError {
    /// Reports whether the same template and revision cannot be rendered later either: they are broken in git, or name
    /// a Source that does not exist.
    pub(super) fn is_permanent(&self) -> bool {
        match self {
            Self::SourceNotFound { .. } | Self::Revision(_) => true,
            Self::Render(RenderFailure::Render(error) | RenderFailure::WithoutSubmodules { error, .. }) => {
                is_permanent(error)
            }
            Self::Origin(_)
            | Self::Keys(_)
            | Self::Render(RenderFailure::Tree(_) | RenderFailure::Copy(_)) => false,
        }
    }

    /// Returns the reason of Ready.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::SourceNotFound { .. } => "SourceNotFound",
            Self::Origin(_) | Self::Render(RenderFailure::Tree(_)) => "SourceNotReady",
            Self::Revision(_) => "InvalidRevision",
            Self::Keys(_) => DECRYPTION_FAILED,
            Self::Render(RenderFailure::Copy(_)) => "StorageFailed",
            Self::Render(RenderFailure::Render(error) | RenderFailure::WithoutSubmodules { error, .. }) => {
                match **error {
                    RenderError::Encrypted { .. } => DECRYPTION_FAILED,
                    _ => "BuildFailed",
                }
            }
        }
    }
}

/// Reports whether a build fails whenever it is tried again. All other errors pass: a commit that is fetched again, a
/// Source that is ready again, a process with more time or memory.
fn is_permanent(error: &RenderError) -> bool {
    matches!(
        error,
        RenderError::PathOutside { .. }
            | RenderError::PathMissing { .. }
            | RenderError::BadNamespace { .. }
            | RenderError::Refused { .. }
            | RenderError::Ambiguous { .. }
            | RenderError::Yaml { .. }
            | RenderError::Incomplete { .. }
            | RenderError::Duplicate { .. }
            | RenderError::SameObject(_)
            | RenderError::OfStarling { .. }
            | RenderError::ControlledLabel { .. }
            | RenderError::NotAMapping { .. }
            | RenderError::TooLarge { .. }
            | RenderError::Failed { .. }
    )
}

/// Returns the rendered set from the cache, or renders it.
///
/// # Errors
/// [`SyncRenderError`].
pub(super) async fn render(
    context: SyncContext<'_>,
    render: &Render<'_>,
) -> Result<Arc<Rendered>, SyncRenderError> {
    let template = render.template;
    let source = render.source.ok_or_else(|| SyncRenderError::SourceNotFound {
        name: template.source_ref.name.clone(),
    })?;
    let origin = context
        .origins
        .get(context.hub, source, context.allow_insecure_sources)
        .await?;
    let revision: Revision = render.revision.parse().map_err(SyncRenderError::Revision)?;
    let artifact = Artifact {
        origin,
        reference: reference(source, &revision),
        revision,
    };
    let keys = match &template.decryption {
        None => None,
        Some(decryption) => Some(Keys::read(context.hub, render.namespace, decryption).await?),
    };
    let job = RenderJob {
        namespace: render.namespace,
        artifact: &artifact,
        ignore: &source.spec.ignore,
        timeout: source.spec.timeout.as_std(),
        path: &template.path,
        target_namespace: &template.target_namespace,
        values: &template.substitute,
        owner: render.owner,
        keys: keys.as_ref(),
        left_to_others: render.ignore,
    };
    Ok(context.renders.get(job).await?)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_passes_is_not_permanent() {
        let build = |error| SyncRenderError::Render(RenderFailure::Render(Arc::new(error)));
        let (program, limit) = ("kustomize", Duration::from_secs(1));
        let path = || "app".to_owned();
        for (error, expected) in [
            (build(RenderError::PathMissing { path: path() }), true),
            (SyncRenderError::SourceNotFound { name: path() }, true),
            (build(RenderError::TimedOut { program, limit }), false),
            (build(RenderError::Abandoned), false),
            (
                SyncRenderError::Render(RenderFailure::Copy(Arc::new(io::Error::other("disk")))),
                false,
            ),
        ] {
            assert_eq!(error.is_permanent(), expected, "{error}");
        }
    }
}
