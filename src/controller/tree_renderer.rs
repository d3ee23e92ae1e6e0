//! Renders the trees of artifacts. [`RenderCache`](super::caches::renders::RenderCache) keeps the results.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::controlled_label::LabelRules;
use starling_render::{Renderer, finish_within};
use tempfile::TempDir;

use super::artifacts::{ArtifactStores, Artifacts as _};
use super::manifests::{BuildNotes, Built, ManifestBuilder, RenderFailure, RenderJob, Rendered};

/// A builder that exports a tree into a private directory and renders it there.
pub(crate) struct TreeRenderer {
    artifacts: ArtifactStores,
    renderer: Renderer,
    labels: LabelRules,
    /// Kept for as long as builds may use it.
    _directory: Option<TempDir>,
}

impl TreeRenderer {
    /// Creates a builder that renders trees of `artifacts` with `renderer`, with labels within `labels`.
    pub(crate) fn new(artifacts: ArtifactStores, renderer: Renderer, labels: LabelRules) -> Self {
        Self {
            artifacts,
            renderer,
            labels,
            _directory: None,
        }
    }

    /// Deletes `directory`, in which `renderer` builds, with this builder.
    pub(crate) fn owning(self, directory: TempDir) -> Self {
        Self {
            _directory: Some(directory),
            ..self
        }
    }

    async fn render(&self, job: RenderJob<'_>) -> Result<Arc<Built>, RenderFailure> {
        let tree_failed = |error| RenderFailure::Tree(Arc::new(error));
        self.artifacts
            .fetch(job.artifact, job.timeout)
            .await
            .map_err(tree_failed)?;
        let copy = tempfile::Builder::new()
            .prefix("starling-tree-")
            .tempdir_in(&self.renderer.limits().directory)
            .map_err(|error| RenderFailure::Copy(Arc::new(error)))?;
        let tree = copy.path().join("tree");
        let ignore = (!job.ignore.is_empty()).then_some(job.ignore);
        let submodules = self
            .artifacts
            .export(job.artifact, &tree, ignore)
            .await
            .map_err(tree_failed)?;
        let identities = job.keys.map(|keys| &keys.identities);
        let built = self
            .renderer
            .clone()
            .with_tenant(job.namespace)
            .build(&tree, job.path, job.target_namespace, identities)
            .await;
        match (built, submodules) {
            (Ok(manifests), submodules) => Ok(Arc::new(Built {
                manifests,
                submodules,
            })),
            (Err(error), Some(submodules)) => Err(RenderFailure::WithoutSubmodules {
                submodules,
                error: Arc::new(error),
            }),
            (Err(error), None) => Err(RenderFailure::Render(Arc::new(error))),
        }
    }
}

impl ManifestBuilder for TreeRenderer {
    fn build<'a>(&'a self, job: RenderJob<'a>) -> BoxFuture<'a, Result<Arc<Built>, RenderFailure>> {
        self.render(job).boxed()
    }

    fn finish<'a>(
        &'a self,
        built: Arc<Built>,
        job: RenderJob<'a>,
    ) -> BoxFuture<'a, Result<Rendered, RenderFailure>> {
        let (values, owner) = (job.values.clone(), job.owner.to_owned());
        let (left_to_others, labels) = (job.left_to_others.clone(), self.labels.clone());
        // Serialization of thousands of objects takes time and must not block the runtime.
        let finished = tokio::task::spawn_blocking(move || {
            finish_within(&labels, &built.manifests, &values, &owner).map(|set| Rendered {
                set: left_to_others.apply_to(set),
                notes: BuildNotes {
                    plain: built.manifests.plain,
                    submodules: built.submodules.clone(),
                },
            })
        });
        async move {
            match finished.await {
                Ok(result) => result.map_err(|error| RenderFailure::Render(Arc::new(error))),
                Err(gone) => Err(RenderFailure::Copy(Arc::new(std::io::Error::other(gone)))),
            }
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use starling_core::ids::OwnerLabel;
    use starling_core::ignore::IgnoreRules;
    use starling_git::{Credential, GitLimits, GitStore, RepoAccess, RepoUrl};
    use starling_render::{BuildTool, RenderLimits};
    use starling_testkit::{Change, GitRepo};

    use super::super::artifacts::{Artifact, Origin};
    use super::*;

    /// Guards against a build that lacks a directory, and nobody learns that it is in another repository.
    #[tokio::test]
    async fn tenant_submodules_are_found_and_named_by_a_build_that_fails() {
        let folder = tempfile::tempdir().unwrap();
        let repository = GitRepo::init().unwrap();
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        let changes = [
            Change::Write("app/map.yaml", map.as_bytes()),
            Change::Submodule("lib", &"1".repeat(40)),
        ];
        let commit = repository.commit_to("main", &changes, "one").unwrap();

        let url = RepoUrl::parse(&repository.url(), true).unwrap();
        let access = RepoAccess::new(url, Credential::None).with_reader("ns/app".to_owned());
        let artifact = Artifact {
            origin: Origin::Git(access),
            revision: format!("main@sha1:{commit}").parse().unwrap(),
            reference: Some("refs/heads/main".to_owned()),
        };
        let store = GitStore::new(folder.path().join("mirrors"), GitLimits::default());
        let builder = TreeRenderer::new(
            ArtifactStores { git: store },
            Renderer::new(BuildTool::None, RenderLimits::default()),
            LabelRules::default(),
        );
        let build = async |path: &str| {
            let job = RenderJob {
                namespace: "ns",
                artifact: &artifact,
                ignore: "",
                timeout: Duration::from_secs(30),
                path,
                target_namespace: "",
                values: &BTreeMap::new(),
                owner: &OwnerLabel::default(),
                keys: None,
                left_to_others: &IgnoreRules::default(),
            };
            builder.build(job).await
        };
        let submodules = build("app").await.unwrap().submodules.clone();
        assert_eq!(submodules.unwrap().to_string(), "submodule lib");
        let error = crate::chain(&build("lib").await.err().unwrap());
        assert!(error.contains("without submodule lib"), "{error}");
    }
}
