//! What an entry of a release is built to: for the digest that an approval is for, and for whoever wants to see it beforehand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_api::{Source, SyncTemplate};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::ignore::IgnoreRules;
use starling_core::revision::Revision;

use super::decryption::Keys;
use super::hub::Hub;
use super::renders::{RenderJob, Rendered, Renders};
use super::repositories::Repositories;

/// What builds need.
#[derive(Clone, Copy)]
pub struct Builder<'a> {
    /// Where Secrets are.
    pub hub: &'a Hub,
    /// Where commits come from.
    pub repositories: &'a Repositories,
    /// What builds and keeps them.
    pub renders: &'a Renders,
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
    /// The name it is fetched by, in full; `None`: whatever leads to it.
    pub refname: Option<String>,
}

/// The name that a commit is fetched by, in full; `None` where the Source names the commit itself.
#[must_use]
pub fn refname(source: &Source, revision: &Revision) -> Option<String> {
    let folder = if source.spec.reference.branch.is_some() {
        "heads"
    } else {
        "tags"
    };
    (!revision.name().is_empty()).then(|| format!("refs/{folder}/{}", revision.name()))
}

impl Builder<'_> {
    /// What an entry is built to, in a form to be digested. `folders` are the paths and namespaces that it is built from and for.
    ///
    /// # Errors
    /// The text of what cannot be built.
    pub async fn fingerprint<'v>(
        &self,
        at: &EntryAt<'v>,
        template: &SyncTemplate,
        folders: BTreeSet<(String, String)>,
    ) -> Result<EntryBuild<'v>, String> {
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
        let commit = keys.is_some().then(|| {
            let whole = at.revision;
            whole.split_once('@').map_or(whole, |(_, commit)| commit)
        });
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

    /// What one cluster gets: `template` has its parameters resolved.
    ///
    /// # Errors
    /// The text of what cannot be rendered.
    pub async fn render(
        &self,
        at: &EntryAt<'_>,
        template: &SyncTemplate,
        owner: &str,
    ) -> Result<Arc<Rendered>, String> {
        let keys = self.keys(at.source, template).await?;
        self.with_job(at, template, owner, keys.as_ref(), async |job| {
            self.renders.get(job).await
        })
        .await
    }

    async fn keys(&self, source: &Source, template: &SyncTemplate) -> Result<Option<Keys>, String> {
        let Some(decryption) = &template.decryption else {
            return Ok(None);
        };
        let namespace = source.metadata.namespace.as_deref().unwrap_or_default();
        let keys = Keys::read(self.hub, namespace, decryption).await;
        keys.map(Some).map_err(|error| crate::chain(&error))
    }

    async fn with_job<T, E: std::error::Error + 'static>(
        &self,
        at: &EntryAt<'_>,
        template: &SyncTemplate,
        owner: &str,
        keys: Option<&Keys>,
        render: impl AsyncFnOnce(RenderJob<'_>) -> Result<T, E>,
    ) -> Result<T, String> {
        let access = self
            .repositories
            .get(self.hub, at.source, self.allow_insecure)
            .await
            .map_err(|error| crate::chain(&error))?;
        let revision: Revision = at.revision.parse().map_err(|error| crate::chain(&error))?;
        let ignore = IgnoreRules::new(&template.ignore).map_err(|error| error.to_string())?;
        let job = RenderJob {
            access: &access,
            ignore: &at.source.spec.ignore,
            commit: revision.commit().as_str(),
            refname: at.refname.as_deref(),
            timeout: at.source.spec.timeout.as_std(),
            path: &template.path,
            target_namespace: &template.target_namespace,
            values: &template.substitute,
            owner,
            keys,
            left_to_others: &ignore,
        };
        render(job).await.map_err(|error| crate::chain(&error))
    }
}
