//! The sample repository: a shop with a web server and its settings.

use std::path::Path;

use anyhow::Context;
use git2::{IndexEntry, IndexTime, Repository as Git, Signature};

const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: shop\n";
const SETTINGS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  namespace: shop
data:
  cluster: ${CLUSTER}
  region: ${REGION}
";
/// The minor version of the web server in the first commit; each further commit has the next.
const FIRST: usize = 27;

/// A bare repository with one branch.
pub(super) struct Repository {
    git: Git,
    url: String,
}

impl Repository {
    /// Opens the repository, or creates it with its first commit.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let is_new = !path.exists();
        let git = if is_new {
            let mut options = git2::RepositoryInitOptions::new();
            options.bare(true).initial_head("main");
            Git::init_opts(path, &options).context("create the sample repository")?
        } else {
            Git::open_bare(path).with_context(|| format!("open the sample repository {}", path.display()))?
        };
        let repository = Self {
            git,
            url: format!("file://{}", path.display()),
        };
        if is_new {
            repository.commit(FIRST, "A shop")?;
        }
        Ok(repository)
    }

    /// Commits a newer version of the web server.
    pub(super) fn next_commit(&self) -> anyhow::Result<String> {
        let mut commits = self.git.revwalk()?;
        commits.push_head()?;
        self.commit(FIRST + commits.count(), "A newer web server")
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn head(&self) -> anyhow::Result<String> {
        Ok(self.git.head()?.peel_to_commit()?.id().to_string())
    }

    fn commit(&self, version: usize, message: &str) -> anyhow::Result<String> {
        let mut index = git2::Index::new()?;
        let web = web(version);
        for (path, content) in [
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

fn web(version: usize) -> String {
    format!(
        "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: shop
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers:
      - name: web
        image: nginx:1.{version}
---
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
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
