//! The workspace of a preview: a temporary directory with commits and builds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use starling_core::account::AccountRules;
use starling_core::expand::{self, ClusterFacts};
use starling_core::fingerprint::{self, EntryBuild};
use starling_core::object::GroupKind;
use tempfile::TempDir;

use super::group::GroupScope;
use super::revision::{self, ResolvedRevision};
use super::{PreviewOptions, ToolOptions, by_source};
use crate::cli::caller::Caller;
use crate::controller::artifacts::{ArtifactStores, Origin};
use crate::controller::builds::{Builder, EntryAt};
use crate::controller::caches::origins::OriginCache;
use crate::controller::caches::renders::RenderCache;
use crate::controller::hub::Hub;
use crate::controller::tree_renderer::TreeRenderer;
use starling_core::ids::InstallationId;
use starling_git::{GitLimits, GitStore};
use starling_render::{BuildTool, RenderLimits, Renderer, Sops};

/// The tools of a preview. The directory is removed when this is dropped.
pub(super) struct Workspace {
    /// The management cluster, with the caller's rights.
    pub(super) hub: Hub,
    /// ID of this installation, for owner labels.
    pub(super) installation: InstallationId,
    /// The kinds that the controller adds to those whose deletion requires an approval.
    pub(super) confirm: BTreeSet<GroupKind>,
    /// The rules of the controller for the accounts of Syncs.
    pub(super) accounts: AccountRules,
    origins: OriginCache,
    renders: RenderCache,
    git: GitStore,
    allow_insecure: bool,
    directory: TempDir,
}

/// Reason why there is no release digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry}: {message}")]
pub(super) struct DigestError {
    /// The entry that cannot be built.
    entry: String,
    /// Reason.
    message: String,
}

impl Workspace {
    /// Prepares the tools. With `--path`, local directories replace repositories.
    pub(super) async fn open(
        caller: &Caller,
        scope: &GroupScope,
        options: &PreviewOptions,
    ) -> anyhow::Result<Self> {
        let workspace = Self::prepare(caller, &options.tools).await?;
        let names: Vec<&str> = scope.sources.keys().map(String::as_str).collect();
        for (name, given) in by_source(&options.path, &names, "--path")? {
            let Some(source) = scope.sources.get(&name) else {
                continue;
            };
            let copy = workspace.directory.path().join(format!("tree-{name}"));
            let access =
                revision::of_directory(given.as_ref(), &copy).with_context(|| format!("--path {given}"))?;
            workspace.origins.set(source, Origin::Git(access));
        }
        Ok(workspace)
    }

    /// Prepares the tools, for the repositories of the Sources.
    pub(super) async fn prepare(caller: &Caller, options: &ToolOptions) -> anyhow::Result<Self> {
        let hub = Hub::new(caller.client.clone());
        let installation = hub
            .known_installation()
            .await?
            .context("ConfigMap starling-system/starling-installation not found: no controller has run on this management cluster yet")?;
        let directory = tempfile::Builder::new().prefix("starling-plan-").tempdir()?;
        let git = GitStore::new(directory.path().join("git"), GitLimits::default());
        let artifacts = ArtifactStores { git: git.clone() };
        let tool = BuildTool::discover(options.kustomize.clone()).context("--kustomize")?;
        let sops = Sops::discover(options.sops.clone()).context("--sops")?;
        let renderer = Renderer::new(tool, RenderLimits::default()).with_sops(sops);
        let labels = hub.known_label_rules().await?;
        Ok(Self {
            confirm: hub.known_confirmed_kinds().await?,
            accounts: hub.known_account_rules().await?,
            hub,
            installation,
            origins: OriginCache::default(),
            renders: RenderCache::new(Arc::new(TreeRenderer::new(artifacts, renderer, labels))),
            git,
            allow_insecure: options.allow_insecure_sources,
            directory,
        })
    }

    /// The revision to preview of each entry.
    pub(super) async fn revisions(
        &self,
        scope: &GroupScope,
        options: &PreviewOptions,
    ) -> anyhow::Result<BTreeMap<String, ResolvedRevision>> {
        let names: Vec<&str> = scope.sources.keys().map(String::as_str).collect();
        let (asked, local) = (
            by_source(&options.revision, &names, "--revision")?,
            by_source(&options.path, &names, "--path")?,
        );
        let mut of_source = BTreeMap::new();
        for (name, source) in &scope.sources {
            let revision = if local.contains_key(name) {
                let origin = self.origins.get(&self.hub, source, true).await?;
                revision::newest(&self.git, &origin, source).await?
            } else if let Some(text) = asked.get(name) {
                let origin = self.origins.get(&self.hub, source, self.allow_insecure).await?;
                revision::find(&self.git, &origin, source, text)
                    .await
                    .with_context(|| format!("--revision {text}"))?
            } else {
                revision::latest(source)?
            };
            of_source.insert(name.clone(), revision);
        }
        let entries = scope.group.spec.syncs.iter();
        Ok(entries
            .filter_map(|entry| {
                let revision = of_source.get(&entry.template.source_ref.name)?;
                Some((entry.name.clone(), revision.clone()))
            })
            .collect())
    }

    /// The release digest of these revisions.
    pub(super) async fn digest(
        &self,
        scope: &GroupScope,
        revisions: &BTreeMap<String, ResolvedRevision>,
    ) -> Result<String, DigestError> {
        let mut builds = Vec::new();
        for entry in &scope.group.spec.syncs {
            let Some(at) = self.at(scope, revisions, &entry.name) else {
                continue;
            };
            let (mut directories, mut values) = (BTreeSet::new(), BTreeMap::new());
            for (name, cluster) in &scope.clusters {
                let Ok(template) = expand::resolve(&entry.template, &ClusterFacts::of(cluster)) else {
                    continue;
                };
                let of_cluster = expand::cluster_values(&entry.template, &template);
                if !of_cluster.is_empty() {
                    values.insert(name.clone(), of_cluster);
                }
                directories.insert((template.path, template.target_namespace));
            }
            let build = self
                .builder()
                .fingerprint(&at, &entry.template, directories)
                .await;
            let build = build.map_err(|error| DigestError {
                entry: entry.name.clone(),
                message: crate::chain(&error),
            })?;
            builds.push(EntryBuild { values, ..build });
        }
        Ok(fingerprint::of_release(&builds))
    }

    /// The builder of entries.
    pub(super) fn builder(&self) -> Builder<'_> {
        Builder {
            hub: &self.hub,
            origins: &self.origins,
            renders: &self.renders,
            allow_insecure: self.allow_insecure,
        }
    }

    /// An entry of the group at its revision.
    pub(super) fn at<'a>(
        &self,
        scope: &'a GroupScope,
        revisions: &'a BTreeMap<String, ResolvedRevision>,
        entry: &'a str,
    ) -> Option<EntryAt<'a>> {
        let template = scope.group.spec.syncs.iter().find(|known| known.name == entry)?;
        let revision = revisions.get(entry)?;
        Some(EntryAt {
            name: entry,
            source: scope.sources.get(&template.template.source_ref.name)?,
            revision: &revision.text,
            reference: revision.reference.clone(),
        })
    }
}
