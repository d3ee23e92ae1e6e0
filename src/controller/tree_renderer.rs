//! Renders the trees of artifacts. [`RenderCache`](super::caches::renders::RenderCache) keeps the results.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::controlled_label::LabelRules;
use starling_core::digest_key::DigestKey;
use starling_core::object::RenderedSet;
use starling_render::{BuildTurn, RenderError, Renderer, finish_within};
use tempfile::TempDir;

use super::artifacts::{ArtifactStores, Artifacts as _};
use super::manifests::{BuildNotes, Built, ManifestBuilder, RenderFailure, RenderJob, Rendered};

/// A builder that exports a tree into a private directory and renders it there.
pub(crate) struct TreeRenderer {
    artifacts: ArtifactStores,
    renderer: Renderer,
    labels: LabelRules,
    /// The key of the digests of objects with secret values; `None`: they are kept nowhere.
    key: Option<DigestKey>,
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
            key: None,
            _directory: None,
        }
    }

    /// Keys the digests of objects with secret values.
    pub(crate) fn with_key(self, key: DigestKey) -> Self {
        Self {
            key: Some(key),
            ..self
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
        self.artifacts
            .fetch(job.artifact, job.timeout)
            .await
            .map_err(|error| RenderFailure::Tree(Arc::new(error)))?;
        let renderer = self.renderer.clone().with_tenant(job.namespace);
        let no_turn = |error| RenderFailure::Render(Arc::new(error));
        let mut turn = renderer.turn().await.map_err(no_turn)?;
        loop {
            let built = self.build_in(&renderer, &turn, job).await;
            match &built {
                Err(RenderFailure::Render(error) | RenderFailure::WithoutSubmodules { error, .. })
                    if matches!(**error, RenderError::TurnOver) =>
                {
                    turn = renderer.turn_after(turn).await.map_err(no_turn)?;
                }
                _ => return built,
            }
        }
    }

    /// Exports the tree and builds it. Only a build with a turn has a tree on disk.
    async fn build_in(
        &self,
        renderer: &Renderer,
        turn: &BuildTurn,
        job: RenderJob<'_>,
    ) -> Result<Arc<Built>, RenderFailure> {
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
            .map_err(|error| RenderFailure::Tree(Arc::new(error)))?;
        let identities = job.keys.map(|keys| &keys.identities);
        let built = renderer
            .build_in(turn, &tree, job.path, job.target_namespace, identities)
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

fn keyed(key: Option<&DigestKey>, set: RenderedSet) -> RenderedSet {
    match key {
        Some(key) => key.apply_to(set),
        None => set,
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
        let key = self.key.clone();
        // Serialization of thousands of objects takes time and must not block the runtime.
        let finished = tokio::task::spawn_blocking(move || {
            finish_within(&labels, &built.manifests, &values, &owner).map(|set| Rendered {
                set: keyed(key.as_ref(), left_to_others.apply_to(set)),
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
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::time::Duration;

    use starling_core::ids::OwnerLabel;
    use starling_core::ignore::IgnoreRules;
    use starling_git::{Credential, GitLimits, GitStore, RepoAccess, RepoUrl};
    use starling_render::{BuildTool, RenderLimits};
    use starling_testkit::{Change, GitRepo, wait};

    use super::super::artifacts::{Artifact, Origin};
    use super::*;

    /// A repository with one kustomization for each name.
    fn kustomizations(names: &[&str]) -> (GitRepo, String) {
        let repository = GitRepo::init().unwrap();
        let files: Vec<(String, String)> = names
            .iter()
            .flat_map(|name| {
                let map = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
                [
                    (
                        format!("{name}/kustomization.yaml"),
                        "resources: [map.yaml]\n".to_owned(),
                    ),
                    (format!("{name}/map.yaml"), map),
                ]
            })
            .collect();
        let changes: Vec<Change<'_>> = files
            .iter()
            .map(|(path, text)| Change::Write(path, text.as_bytes()))
            .collect();
        let commit = repository.commit_to("main", &changes, "one").unwrap();
        (repository, commit)
    }

    /// A kustomize that leaves a line in `log` for each start, and takes as long as `gate` exists for directories that
    /// are called `long`.
    fn program(folder: &Path) -> BuildTool {
        let (log, gate) = (folder.join("log"), folder.join("gate"));
        std::fs::write(&gate, "").unwrap();
        let text = format!(
            "#!/bin/sh\nfor target; do :; done\nname=$(cd \"$target\" && pwd -P)\nname=${{name##*/}}\necho \"$name\" >> '{log}'\n\
             while [ $name = long ] && [ -e '{gate}' ]; do :; done\n\
             printf 'apiVersion: v1\\nkind: ConfigMap\\nmetadata: {{name: %s}}\\n' \"$name\"\n",
            log = log.display(),
            gate = gate.display(),
        );
        let path = folder.join("kustomize");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        BuildTool::Kustomize(path)
    }

    /// Guards against a neighbour that waits for the end of a long build, and against trees of builds that only wait.
    #[tokio::test]
    async fn tenant_a_long_build_gives_its_turn_up_and_builds_that_wait_have_no_tree() {
        let folder = tempfile::tempdir().unwrap();
        let builds = tempfile::tempdir().unwrap();
        let (repository, commit) = kustomizations(&["long", "short"]);
        let url = RepoUrl::parse(&repository.url(), true).unwrap();
        let access = RepoAccess::new(url, Credential::None).with_reader("ns/app".to_owned());
        let artifact = Artifact {
            origin: Origin::Git(access),
            revision: format!("main@sha1:{commit}").parse().unwrap(),
            reference: Some("refs/heads/main".to_owned()),
        };
        let limits = RenderLimits {
            builds: 1,
            turn: Duration::from_millis(300),
            directory: builds.path().to_owned(),
            ..RenderLimits::default()
        };
        let builder = TreeRenderer::new(
            ArtifactStores {
                git: GitStore::new(folder.path().join("mirrors"), GitLimits::default()),
            },
            Renderer::new(program(folder.path()), limits),
            LabelRules::default(),
        );
        let (values, owner, ignored) = Default::default();
        let job = |namespace: &'static str, path: &'static str| RenderJob {
            namespace,
            artifact: &artifact,
            ignore: "",
            timeout: Duration::from_secs(30),
            path,
            target_namespace: "",
            values: &values,
            owner: &owner,
            keys: None,
            left_to_others: &ignored,
        };
        let trees = || {
            let entries = std::fs::read_dir(builds.path()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.filter(|name| name.starts_with("starling-tree-")).count()
        };
        let started = || std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
        let long = builder.build(job("team-a", "long"));
        let mut long = std::pin::pin!(futures::future::join_all(
            std::iter::once(long).chain((0..4).map(|_| builder.build(job("team-a", "short"))))
        ));
        let mut neighbour = std::pin::pin!(async {
            wait::until(Duration::from_secs(20), "the long build runs", async || {
                started().contains("long")
            })
            .await
            .unwrap();
            builder.build(job("team-b", "short")).await
        });
        let mut most = 0;
        let built = loop {
            tokio::select! {
                biased;
                built = &mut neighbour => break built,
                _ = &mut long => panic!("the long build ends before its gate opens"),
                () = tokio::time::sleep(Duration::from_millis(10)) => most = trees().max(most),
            }
        };
        assert_eq!(built.unwrap().manifests.objects.len(), 1);
        assert_eq!(most, 1, "one turn, one tree");
        std::fs::remove_file(folder.path().join("gate")).unwrap();
        let all = long.await;
        assert_eq!(all.iter().filter(|built| built.is_ok()).count(), 5);
        let begun = started().lines().filter(|line| *line == "long").count();
        assert!(begun >= 2, "begun anew: {}", started());
    }

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
