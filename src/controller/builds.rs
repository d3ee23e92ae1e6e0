//! Builds an entry of a release: for previews, and for the digest that an approval names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_api::{Source, SyncTemplate};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::ids::OwnerLabel;
use starling_core::ignore::{IgnoreError, IgnoreRules};
use starling_core::revision::{Revision, RevisionError};

use super::artifacts::Artifact;
use super::caches::origins::{OriginCache, OriginError};
use super::caches::renders::RenderCache;
use super::decryption::{Keys, KeysError};
use super::hub::Hub;
use super::manifests::{RenderFailure, RenderJob, Rendered};

/// The error of the build of an entry.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The origin of the Source cannot be addressed.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// The keys of the encrypted manifests are not available.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The revision contains no commit.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// The template ignores a field that cannot be ignored. The text of the source is complete, so it is not repeated.
    #[error("{0}")]
    Ignore(IgnoreError),
    /// The build of the commit failed.
    #[error(transparent)]
    Render(#[from] RenderFailure),
}

/// The builder of entries.
#[derive(Clone, Copy)]
pub struct Builder<'a> {
    /// The client for Secrets.
    pub hub: &'a Hub,
    /// The origins of Sources.
    pub origins: &'a OriginCache,
    /// The cache that builds and keeps rendered sets.
    pub renders: &'a RenderCache,
    /// Accepts http:// and file:// URLs.
    pub allow_insecure: bool,
}

/// An entry at a revision.
#[derive(Clone)]
pub struct EntryAt<'a> {
    /// The name of the entry.
    pub name: &'a str,
    /// The Source of the entry.
    pub source: &'a Source,
    /// The revision, such as `main@sha1:…`.
    pub revision: &'a str,
    /// The full name of the ref that the artifact is fetched by; `None` if it is fetched by its digest.
    pub reference: Option<String>,
}

impl Builder<'_> {
    /// Builds an entry in a form that can be digested. `directories` contains the path and target namespace of each
    /// build.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn fingerprint<'v>(
        &self,
        at: &EntryAt<'v>,
        template: &SyncTemplate,
        directories: BTreeSet<(String, String)>,
    ) -> Result<EntryBuild<'v>, BuildError> {
        let keys = self.keys(at.source, template).await?;
        let mut builds = BTreeSet::new();
        for (path, target_namespace) in directories {
            // The build excludes substituted values and ignored fields: both are in the template, and the digest covers
            // the template.
            let template = SyncTemplate {
                path,
                target_namespace,
                substitute: BTreeMap::new(),
                ignore: Vec::new(),
                ..template.clone()
            };
            let unlabelled = OwnerLabel::default();
            let built = self
                .with_job(at, &template, &unlabelled, keys.as_ref(), async |job| {
                    self.renders.built(job).await
                })
                .await?;
            builds.insert(fingerprint::of_manifests(
                &built.manifests.objects,
                keys.is_some(),
                &built.manifests.opened,
            ));
        }
        let commit = match keys {
            Some(_) => {
                let revision: Revision = at.revision.parse()?;
                let commit = revision.commit();
                Some(format!("{}:{commit}", commit.algorithm()))
            }
            None => None,
        };
        Ok(EntryBuild {
            name: at.name,
            template: SyncTemplate {
                suspend: false,
                ..template.clone()
            },
            commit,
            values: BTreeMap::new(),
            builds,
        })
    }

    /// Renders an entry for one cluster. The parameters of `template` are resolved.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn render(
        &self,
        at: &EntryAt<'_>,
        template: &SyncTemplate,
        owner: &OwnerLabel,
    ) -> Result<Arc<Rendered>, BuildError> {
        let keys = self.keys(at.source, template).await?;
        self.with_job(at, template, owner, keys.as_ref(), async |job| {
            self.renders.get(job).await
        })
        .await
    }

    async fn keys(&self, source: &Source, template: &SyncTemplate) -> Result<Option<Keys>, BuildError> {
        let Some(decryption) = &template.decryption else {
            return Ok(None);
        };
        let namespace = source.metadata.namespace.as_deref().unwrap_or_default();
        Ok(Some(Keys::read(self.hub, namespace, decryption).await?))
    }

    async fn with_job<T>(
        &self,
        at: &EntryAt<'_>,
        template: &SyncTemplate,
        owner: &OwnerLabel,
        keys: Option<&Keys>,
        render: impl AsyncFnOnce(RenderJob<'_>) -> Result<T, RenderFailure>,
    ) -> Result<T, BuildError> {
        let artifact = Artifact {
            origin: self.origins.get(self.hub, at.source, self.allow_insecure).await?,
            revision: at.revision.parse()?,
            reference: at.reference.clone(),
        };
        let ignore = IgnoreRules::new(&template.ignore).map_err(BuildError::Ignore)?;
        let job = RenderJob {
            namespace: at.source.metadata.namespace.as_deref().unwrap_or_default(),
            artifact: &artifact,
            ignore: &at.source.spec.ignore,
            timeout: at.source.spec.timeout.as_std(),
            path: &template.path,
            target_namespace: &template.target_namespace,
            values: &template.substitute,
            owner,
            keys,
            left_to_others: &ignore,
        };
        Ok(render(job).await?)
    }
}
