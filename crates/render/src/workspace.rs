//! Prepares a build before the build program runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::check::{SecretLiterals, check};
use super::files::Folder;
use super::plain::{Generated, Listing};
use super::tree::Tree;
use super::{RenderError, RenderLimits, redact};

/// The link to the directory of the build. With a fixed name, no text of a user is an argument of the program, and no
/// directory name can be taken for an address.
const BASE: &str = "base";
/// The directory of the kustomization that sets the target namespace.
const WRAPPER: &str = "wrapper";
/// The maximum length of a namespace name.
const MAX_NAMESPACE: usize = 63;

/// A directory that is ready to be built, or its objects if there is nothing to build.
pub(super) enum Prepared {
    /// No program is needed (an empty directory), or none was found.
    Direct(Vec<Value>),
    Build(Workspace),
}

/// The private directory of one build: working, home and temporary directory of the program.
pub(super) struct Workspace {
    home: TempDir,
    target: &'static str,
    root: PathBuf,
    secret_literals: SecretLiterals,
    _generated: Option<Generated>,
}

impl Workspace {
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    /// The directory to build, relative to [`Workspace::home`].
    pub(super) fn target(&self) -> &'static str {
        self.target
    }

    /// Returns the error output of the program, redacted for a status.
    pub(super) fn shown(&self, stderr: &str) -> String {
        redact::message(stderr, &[&self.root, self.home.path()], &self.secret_literals)
    }
}

/// Checks a directory and prepares its build.
pub(super) fn prepare(
    tree: &Path,
    path: &str,
    namespace: &str,
    limits: &RenderLimits,
    with_tool: bool,
) -> Result<Prepared, RenderError> {
    if !namespace.is_empty() && !is_namespace(namespace) {
        return Err(RenderError::BadNamespace {
            namespace: namespace.to_owned(),
        });
    }
    let folder = Folder::open(tree).map_err(|source| RenderError::File {
        file: "the repository".to_owned(),
        source,
    })?;
    let tree = Tree::new(&folder);
    let directory = tree.directory(path)?;
    let mut generated = None;
    if tree.kustomization(&directory)?.is_none() {
        let listing = Listing::of(&tree, &directory, limits)?;
        if !with_tool && !namespace.is_empty() && !listing.is_empty() {
            // Only kustomize knows which kinds are namespaced and which fields contain a namespace.
            return Err(RenderError::NoKustomize {
                what: "targetNamespace".to_owned(),
            });
        }
        if !with_tool || listing.is_empty() {
            return Ok(Prepared::Direct(listing.objects(&tree, limits.objects)?));
        }
        generated = Some(listing.generate(folder.root(), &directory)?);
    } else if !with_tool {
        return Err(RenderError::NoKustomize {
            what: tree.name(&directory),
        });
    }
    let secret_literals = check(&tree, std::slice::from_ref(&directory))?;
    let root = folder.root().to_owned();
    let (home, target) =
        create_directory(&limits.directory, &root.join(&directory), namespace).map_err(|source| {
            RenderError::File {
                file: "the directory of the build".to_owned(),
                source,
            }
        })?;
    Ok(Prepared::Build(Workspace {
        home,
        target,
        root,
        secret_literals,
        _generated: generated,
    }))
}

fn create_directory(
    parent: &Path,
    directory: &Path,
    namespace: &str,
) -> std::io::Result<(TempDir, &'static str)> {
    let home = tempfile::Builder::new()
        .prefix("starling-build-")
        .tempdir_in(parent)?;
    if namespace.is_empty() {
        symlink(directory, home.path().join(BASE))?;
        return Ok((home, BASE));
    }
    let wrapper = home.path().join(WRAPPER);
    fs::create_dir(&wrapper)?;
    symlink(directory, wrapper.join(BASE))?;
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [BASE],
    });
    fs::write(wrapper.join("kustomization.yaml"), kustomization.to_string())?;
    Ok((home, WRAPPER))
}

/// Whether a name is a DNS label, as Kubernetes requires for a namespace.
fn is_namespace(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= MAX_NAMESPACE
        && edge(name.chars().next())
        && edge(name.chars().next_back())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
