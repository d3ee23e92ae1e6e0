//! The sample repository: a shop with a web server and its settings.

use std::path::{Path, PathBuf};

use anyhow::Context;
use git2::{IndexEntry, IndexTime, Repository as Git, Signature};

const KUSTOMIZATION: &str = "\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: shop
resources:
- namespace.yaml
- settings.yaml
- web.yaml
";
const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n";
const SETTINGS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  cluster: ${CLUSTER}
  region: ${REGION}
";

/// A bare repository with one branch.
pub(super) struct Repository {
    git: Git,
    path: PathBuf,
    url: String,
}

impl Repository {
    /// Makes the repository and its first commit.
    pub(super) fn make(path: &Path) -> anyhow::Result<Self> {
        let mut options = git2::RepositoryInitOptions::new();
        options.bare(true).initial_head("main");
        let git = Git::init_opts(path, &options).context("make the sample repository")?;
        let repository = Self {
            git,
            path: path.to_owned(),
            url: format!("file://{}", path.display()),
        };
        repository.commit("1.27", "A shop")?;
        Ok(repository)
    }

    pub(super) fn second_commit(&self) -> anyhow::Result<String> {
        self.commit("1.28", "A newer web server")
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn head(&self) -> anyhow::Result<String> {
        Ok(self.git.head()?.peel_to_commit()?.id().to_string())
    }

    fn commit(&self, version: &str, message: &str) -> anyhow::Result<String> {
        let mut index = git2::Index::new()?;
        let web = web(version);
        for (path, content) in [
            ("deploy/kustomization.yaml", KUSTOMIZATION),
            ("deploy/namespace.yaml", NAMESPACE),
            ("deploy/settings.yaml", SETTINGS),
            ("deploy/web.yaml", &web),
        ] {
            let mut entry = file(path);
            entry.id = self.git.blob(content.as_bytes())?;
            index.add(&entry)?;
        }
        let tree = self.git.find_tree(index.write_tree_to(&self.git)?)?;
        let author = Signature::now("Starling demo", "demo@example.com")?;
        let parent = self.git.head().ok().and_then(|head| head.peel_to_commit().ok());
        let parents: Vec<_> = parent.iter().collect();
        let id = self
            .git
            .commit(Some("HEAD"), &author, &author, message, &tree, &parents)?;
        Ok(id.to_string())
    }
}

fn web(version: &str) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: web
        image: nginx:{version}
---
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  selector: {{app: web}}
  ports: [{{port: 80}}]
"
    )
}

fn file(path: &str) -> IndexEntry {
    IndexEntry {
        ctime: IndexTime::new(0, 0),
        mtime: IndexTime::new(0, 0),
        dev: 0,
        ino: 0,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        file_size: 0,
        id: git2::Oid::ZERO_SHA1,
        flags: 0,
        flags_extended: 0,
        path: path.as_bytes().to_vec(),
    }
}
