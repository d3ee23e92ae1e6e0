//! A private copy of a repository, with paths that are checked to stay inside it.

use std::fs;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use super::{Refusal, RenderError};

/// The names under which kustomize looks for its file.
const KUSTOMIZATION_NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// A directory outside of which nothing is read.
pub(super) struct Tree {
    /// Absolute, symbolic links resolved.
    root: PathBuf,
}

/// The file or directory of an entry of a kustomization; absolute, inside the tree, symbolic links resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(PathBuf),
    Directory(PathBuf),
}

impl Tree {
    pub(super) fn open(root: &Path) -> Result<Self, RenderError> {
        let root = fs::canonicalize(root).map_err(|source| RenderError::File {
            file: "the repository".to_owned(),
            source,
        })?;
        Ok(Self { root })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory at the path of a Sync.
    pub(super) fn directory(&self, path: &str) -> Result<PathBuf, RenderError> {
        let plain = |component| matches!(component, Component::CurDir | Component::Normal(_));
        if !Path::new(path).components().all(plain) {
            return Err(RenderError::PathOutside {
                path: path.to_owned(),
            });
        }
        match self.resolve(&self.root, path) {
            Ok(Node::Directory(directory)) => Ok(directory),
            Err(Refusal::Outside) => Err(RenderError::PathOutside {
                path: path.to_owned(),
            }),
            Ok(Node::File(_)) | Err(_) => Err(RenderError::PathMissing {
                path: path.to_owned(),
            }),
        }
    }

    /// Resolves an entry relative to a directory of this tree, as kustomize does: `..` is removed lexically first, then
    /// symbolic links are followed.
    pub(super) fn resolve(&self, directory: &Path, entry: &str) -> Result<Node, Refusal> {
        let mut path = directory.to_owned();
        for component in Path::new(entry).components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) => path.push(name),
                Component::ParentDir => {
                    path.pop();
                }
                Component::RootDir | Component::Prefix(_) => return Err(Refusal::Outside),
            }
        }
        if !path.starts_with(&self.root) {
            return Err(Refusal::Outside);
        }
        let path = fs::canonicalize(path).map_err(|_| Refusal::Missing)?;
        if !path.starts_with(&self.root) {
            return Err(Refusal::Outside);
        }
        let meta = fs::symlink_metadata(&path).map_err(|_| Refusal::Missing)?;
        if meta.is_file() {
            Ok(Node::File(path))
        } else if meta.is_dir() {
            Ok(Node::Directory(path))
        } else {
            // A pipe or a device would block the reader.
            Err(Refusal::WrongType)
        }
    }

    /// The kustomization file of a directory, if there is one.
    pub(super) fn kustomization(&self, directory: &Path) -> Result<Option<PathBuf>, RenderError> {
        let mut found = None;
        for name in KUSTOMIZATION_NAMES {
            // A dangling link counts: kustomize would fail too, and the link must not be overwritten.
            if fs::symlink_metadata(directory.join(name)).is_err() {
                continue;
            }
            let refused = |refusal| RenderError::Refused {
                file: self.name(directory),
                field: "kustomization".to_owned(),
                entry: name.to_owned(),
                refusal,
            };
            if found.is_some() {
                return Err(RenderError::Ambiguous {
                    directory: self.name(directory),
                });
            }
            match self.resolve(directory, name).map_err(refused)? {
                Node::File(path) => found = Some(path),
                Node::Directory(_) => return Err(refused(Refusal::WrongType)),
            }
        }
        Ok(found)
    }

    /// Reads a file, up to a limit in bytes.
    pub(super) fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, RenderError> {
        let mut content = Vec::new();
        let cap = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        fs::File::open(path)
            .and_then(|file| file.take(cap).read_to_end(&mut content))
            .map_err(|source| RenderError::File {
                file: self.name(path),
                source,
            })?;
        if content.len() > limit {
            return Err(RenderError::TooLarge {
                what: "a file in bytes",
                limit,
            });
        }
        Ok(content)
    }

    /// Returns a path for messages, relative to the repository.
    pub(super) fn name(&self, path: &Path) -> String {
        let relative = path.strip_prefix(&self.root).unwrap_or(path);
        if relative.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            relative.display().to_string()
        }
    }
}
