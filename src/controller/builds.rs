//! Builds an entry of a release: for the digest that an approval is for, and for previews.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_api::{Source, SyncTemplate};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::ignore::{IgnoreError, IgnoreRules};
use starling_core::revision::{Revision, RevisionError};

use super::artifacts::Artifact;
use super::caches::origins::{OriginCache, OriginError};
use super::caches::renders::RenderCache;
use super::decryption::{Keys, KeysError};
use super::hub::Hub;
use super::manifests::{RenderFailure, RenderJob, Rendered};

/// Why an entry cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The origin of its Source cannot be addressed.
    #[error(transparent)]
    Origin(#[from] OriginError),
    /// There are no keys to its encrypted manifests.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The revision names no commit.
    #[error(transparent)]
    Revision(#[from] RevisionError),
    /// The template ignores what cannot be ignored. The text holds all there is to say.
    #[error("{0}")]
    Ignore(IgnoreError),
    /// The commit does not build.
    #[error(transparent)]
    Render(#[from] RenderFailure),
}

/// Builds entries.
#[derive(Clone, Copy)]
pub struct Builder<'a> {
    /// Where Secrets are.
    pub hub: &'a Hub,
    /// Where artifacts come from.
    pub origins: &'a OriginCache,
    /// What builds and keeps them.
    pub renders: &'a RenderCache,
    /// Whether http:// and file:// are accepted.
    pub allow_insecure: bool,
}

/// An entry at a revision.
#[derive(Clone)]
pub struct EntryAt<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its Source.
    pub source: &'a Source,
    /// `main@sha1:…`.
    pub revision: &'a str,
    /// The full name that the artifact is fetched by; `None`: by its digest.
    pub reference: Option<String>,
}

impl Builder<'_> {
    /// Builds an entry, in a form to be digested. `folders` are the paths and namespaces that it is built from and for.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn fingerprint<'v>(
        &self,
        at: &EntryAt<'v>,
        template: &SyncTemplate,
        folders: BTreeSet<(String, String)>,
    ) -> Result<EntryBuild<'v>, BuildError> {
        let keys = self.keys(at.source, template).await?;
        let mut builds = BTreeSet::new();
        for (path, target_namespace) in folders {
            // Before values are put in, and fields left out: both are in the template, which is digested too.
            let template = SyncTemplate {
                path,
                target_namespace,
                substitute: BTreeMap::new(),
                ignore: Vec::new(),
                ..template.clone()
            };
            let manifests = self
                .with_job(at, &template, "", keys.as_ref(), async |job| {
                    self.renders.manifests(job).await
                })
                .await?;
            builds.insert(fingerprint::of_manifests(&manifests.objects, keys.is_some()));
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
            builds,
        })
    }

    /// Renders an entry for one cluster: `template` has its parameters resolved.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn render(
        &self,
        at: &EntryAt<'_>,
        template: &SyncTemplate,
        owner: &str,
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
        owner: &str,
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
