//! What a preview works with: a folder of its own for commits and builds, which goes with the process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;
use kube::ResourceExt;
use starling_core::expand::{self, ClusterFacts};
use starling_core::fingerprint;
use tempfile::TempDir;

use super::fleet::Fleet;
use super::revision::{self, Wanted};
use super::{WhatArguments, of_sources};
use crate::cli::caller::Caller;
use crate::controller::builds::{Builder, EntryAt};
use crate::controller::hub::Hub;
use crate::controller::renders::Renders;
use crate::controller::repositories::Repositories;
use crate::controller::trees::Trees;
use crate::git::{GitLimits, GitStore};
use crate::render::{BuildTool, RenderLimits, Renderer, Sops};

/// The tools.
pub(super) struct Bench {
    /// The management cluster, with the caller's rights.
    pub(super) hub: Hub,
    /// Of this installation: it goes into owner labels.
    pub(super) installation: String,
    repositories: Repositories,
    renders: Renders,
    git: GitStore,
    allow_insecure: bool,
    _folder: TempDir,
}

impl Bench {
    /// Gets the tools ready. With `--path`, folders of this machine take the place of repositories.
    pub(super) async fn open(caller: &Caller, fleet: &Fleet, what: &WhatArguments) -> anyhow::Result<Self> {
        let hub = Hub::new(caller.client.clone());
        let installation = hub
            .known_installation()
            .await?
            .context("no controller has worked on this management cluster yet: there is no ConfigMap starling-system/starling-installation")?;
        let folder = tempfile::Builder::new().prefix("starling-plan-").tempdir()?;
        let git = GitStore::new(folder.path().join("git"), GitLimits::default());
        let tool = BuildTool::discover(what.kustomize.clone()).context("--kustomize")?;
        let sops = Sops::discover(what.sops.clone()).context("--sops")?;
        let renderer = Renderer::new(tool, RenderLimits::default()).with_sops(sops);
        let repositories = Repositories::default();
        let names: Vec<&str> = fleet.sources.keys().map(String::as_str).collect();
        for (name, given) in of_sources(&what.path, &names, "--path")? {
            let Some(source) = fleet.sources.get(&name) else {
                continue;
            };
            let copy = folder.path().join(format!("tree-{name}"));
            let access =
                revision::of_folder(given.as_ref(), &copy).with_context(|| format!("--path {given}"))?;
            repositories.know(source, access);
        }
        Ok(Self {
            hub,
            installation,
            repositories,
            renders: Renders::new(Arc::new(Trees::new(git.clone(), renderer))),
            git,
            allow_insecure: what.allow_insecure_sources,
            _folder: folder,
        })
    }

    /// What each entry is previewed at.
    pub(super) async fn revisions(
        &self,
        fleet: &Fleet,
        what: &WhatArguments,
    ) -> anyhow::Result<BTreeMap<String, Wanted>> {
        let names: Vec<&str> = fleet.sources.keys().map(String::as_str).collect();
        let (asked, local) = (
            of_sources(&what.revision, &names, "--revision")?,
            of_sources(&what.path, &names, "--path")?,
        );
        let mut of_source = BTreeMap::new();
        for (name, source) in &fleet.sources {
            let wanted = if local.contains_key(name) {
                let access = self.repositories.get(&self.hub, source, true).await?;
                revision::newest(&self.git, &access, source).await?
            } else if let Some(text) = asked.get(name) {
                let access = self
                    .repositories
                    .get(&self.hub, source, self.allow_insecure)
                    .await?;
                revision::find(&self.git, &access, source, text)
                    .await
                    .with_context(|| format!("--revision {text}"))?
            } else {
                revision::offered(source)?
            };
            of_source.insert(name.clone(), wanted);
        }
        let entries = fleet.group.spec.syncs.iter();
        Ok(entries
            .filter_map(|entry| {
                let wanted = of_source.get(&entry.template.source_ref.name)?;
                Some((entry.name.clone(), wanted.clone()))
            })
            .collect())
    }

    /// The digest that an approval of this is for; an error where something of it cannot be built.
    pub(super) async fn digest(
        &self,
        fleet: &Fleet,
        revisions: &BTreeMap<String, Wanted>,
    ) -> Result<String, String> {
        let mut builds = Vec::new();
        for entry in &fleet.group.spec.syncs {
            let Some(at) = self.at(fleet, revisions, &entry.name) else {
                continue;
            };
            let folders: BTreeSet<(String, String)> = fleet
                .clusters
                .values()
                .filter_map(|cluster| expand::resolve(&entry.template, &ClusterFacts::of(cluster)).ok())
                .map(|template| (template.path, template.target_namespace))
                .collect();
            let build = self.builder().fingerprint(&at, &entry.template, folders).await;
            builds.push(build.map_err(|message| format!("entry {}: {message}", entry.name))?);
        }
        Ok(fingerprint::of_release(&builds))
    }

    /// What builds entries.
    pub(super) fn builder(&self) -> Builder<'_> {
        Builder {
            hub: &self.hub,
            repositories: &self.repositories,
            renders: &self.renders,
            allow_insecure: self.allow_insecure,
        }
    }

    /// An entry of the group, at its revision.
    pub(super) fn at<'a>(
        &self,
        fleet: &'a Fleet,
        revisions: &'a BTreeMap<String, Wanted>,
        entry: &'a str,
    ) -> Option<EntryAt<'a>> {
        let template = fleet.group.spec.syncs.iter().find(|known| known.name == entry)?;
        let wanted = revisions.get(entry)?;
        Some(EntryAt {
            name: entry,
            source: fleet.sources.get(&template.template.source_ref.name)?,
            revision: &wanted.text,
            refname: wanted.refname.clone(),
        })
    }
}

/// For errors.
pub(super) fn named(source: &starling_api::Source) -> String {
    format!("Source {}", source.name_any())
}
