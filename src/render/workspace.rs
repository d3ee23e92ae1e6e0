//! Everything that has to be in place before the build program runs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::check::{Unshown, check};
use super::plain::{Generated, Listing};
use super::tree::Tree;
use super::{RenderError, RenderLimits, complaint};

/// The link through which the build program reaches the folder. With it no text that a user chose is ever an
/// argument, and no folder name can be taken for an address.
const BASE: &str = "base";
/// The folder of the kustomization that sets the target namespace.
const WRAPPER: &str = "wrapper";
/// The longest name of a namespace.
const MAX_NAMESPACE: usize = 63;

/// A folder that is ready to be built, or its objects if there is nothing to build.
pub(super) enum Prepared {
    /// No program is needed (nothing there) or at hand.
    Direct(Vec<Value>),
    Build(Workspace),
}

/// The private folder of one build: working, home and temporary folder of the program.
pub(super) struct Workspace {
    home: TempDir,
    target: &'static str,
    root: PathBuf,
    unshown: Unshown,
    _generated: Option<Generated>,
}

impl Workspace {
    pub(super) fn home(&self) -> &Path {
        self.home.path()
    }

    /// What to build, relative to [`Workspace::home`].
    pub(super) fn target(&self) -> &'static str {
        self.target
    }

    /// What the program complained about, fit for a status.
    pub(super) fn shown(&self, stderr: &str) -> String {
        complaint::shown(stderr, &[&self.root, self.home.path()], &self.unshown)
    }
}

/// Checks a folder and prepares its build.
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
    let tree = Tree::open(tree)?;
    let folder = tree.folder(path)?;
    let mut generated = None;
    if tree.kustomization(&folder)?.is_none() {
        let listing = Listing::of(&tree, &folder, limits)?;
        if !with_tool && !namespace.is_empty() && !listing.is_empty() {
            // Only kustomize knows which kinds have a namespace and which fields name one.
            return Err(RenderError::NoKustomize {
                what: "targetNamespace".to_owned(),
            });
        }
        if !with_tool || listing.is_empty() {
            return Ok(Prepared::Direct(listing.objects(&tree, limits.objects)?));
        }
        generated = Some(listing.generate(&tree, &folder)?);
    } else if !with_tool {
        return Err(RenderError::NoKustomize {
            what: tree.name(&folder),
        });
    }
    let unshown = check(&tree, &folder)?;
    let (home, target) = furnish(&folder, namespace).map_err(|source| RenderError::File {
        file: "the folder of the build".to_owned(),
        source,
    })?;
    let root = tree.root().to_owned();
    Ok(Prepared::Build(Workspace {
        home,
        target,
        root,
        unshown,
        _generated: generated,
    }))
}

fn furnish(folder: &Path, namespace: &str) -> std::io::Result<(TempDir, &'static str)> {
    let home = tempfile::Builder::new().prefix("starling-build-").tempdir()?;
    if namespace.is_empty() {
        symlink(folder, home.path().join(BASE))?;
        return Ok((home, BASE));
    }
    let wrapper = home.path().join(WRAPPER);
    fs::create_dir(&wrapper)?;
    symlink(folder, wrapper.join(BASE))?;
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace,
        "resources": [BASE],
    });
    fs::write(wrapper.join("kustomization.yaml"), kustomization.to_string())?;
    Ok((home, WRAPPER))
}

/// A DNS label, as Kubernetes wants a namespace to be.
fn is_namespace(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= MAX_NAMESPACE
        && edge(name.chars().next())
        && edge(name.chars().next_back())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
