//! The port that builds manifests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use starling_core::ids::OwnerLabel;
use starling_core::ignore::IgnoreRules;
use starling_core::object::RenderedSet;
use starling_render::{Manifests, RenderError};

use super::artifacts::{Artifact, ArtifactError, Submodules};
use super::decryption::Keys;

/// The builder of manifests from artifacts.
pub trait ManifestBuilder: Send + Sync {
    /// Builds the objects of a directory of an artifact, without substituted values.
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Built>, RenderFailure>>;

    /// Returns the rendered set of a cluster with the values and the owner of `job`.
    fn finish<'a>(
        &'a self,
        built: Arc<Built>,
        job: RenderJob<'a>,
    ) -> BoxFuture<'a, Result<Rendered, RenderFailure>>;
}

/// The error of a build.
#[derive(Debug, thiserror::Error)]
pub enum RenderFailure {
    /// The artifact cannot be fetched.
    #[error("cannot read the revision")]
    Tree(#[source] Arc<ArtifactError>),
    /// The private copy of the tree cannot be created.
    #[error("cannot copy the tree")]
    Copy(#[source] Arc<std::io::Error>),
    /// The build failed.
    #[error("build failed")]
    Render(#[source] Arc<RenderError>),
    /// The build of a tree with submodules failed. It may need them.
    #[error("build failed without {submodules}, whose files are not read")]
    WithoutSubmodules {
        /// The submodules.
        submodules: Submodules,
        /// The error.
        #[source]
        error: Arc<RenderError>,
    },
}

impl Clone for RenderFailure {
    fn clone(&self) -> Self {
        match self {
            Self::Tree(error) => Self::Tree(error.clone()),
            Self::Copy(error) => Self::Copy(error.clone()),
            Self::Render(error) => Self::Render(error.clone()),
            Self::WithoutSubmodules { submodules, error } => Self::WithoutSubmodules {
                submodules: submodules.clone(),
                error: error.clone(),
            },
        }
    }
}

/// The inputs of a build.
#[derive(Clone, Copy, Debug)]
pub struct RenderJob<'a> {
    /// The namespace of the Source, whose builds share turns.
    pub namespace: &'a str,
    /// The artifact.
    pub artifact: &'a Artifact,
    /// The ignore patterns of the Source.
    pub ignore: &'a str,
    /// Timeout of a fetch, if one is necessary.
    pub timeout: Duration,
    /// The directory in the artifact.
    pub path: &'a str,
    /// The namespace of namespaced objects; empty to keep their namespaces.
    pub target_namespace: &'a str,
    /// Values for `${NAME}`.
    pub values: &'a BTreeMap<String, String>,
    /// The value of the owner label.
    pub owner: &'a OwnerLabel,
    /// The keys of encrypted manifests; `None` if encrypted manifests are an error.
    pub keys: Option<&'a Keys>,
    /// The fields that are not applied.
    pub left_to_others: &'a IgnoreRules,
}

/// The manifests of a directory, and what its tree lacks. Manifests may have Secrets, and do not print.
pub struct Built {
    /// The manifests.
    pub manifests: Manifests,
    /// The submodules of the tree.
    pub submodules: Option<Submodules>,
}

/// What people should know of a build that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildNotes {
    /// True if a plain directory was read without kustomize, because kustomize is not installed.
    pub plain: bool,
    /// The submodules of the tree.
    pub submodules: Option<Submodules>,
}

/// A rendered set, and what people should know of its build.
#[derive(Debug)]
pub struct Rendered {
    /// The objects.
    pub set: RenderedSet,
    /// The notes.
    pub notes: BuildNotes,
}
