//! The files of a repository, with paths that are checked to stay inside it, and a record of those that a build reads.
//!
//! All paths are relative to the root of the repository.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use super::files::{FileKind, Files};
use super::{Refusal, RenderError};

/// The names under which kustomize looks for its file.
const KUSTOMIZATION_NAMES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
/// Maximum links that are followed for one path; the limit of Linux.
const MAX_HOPS: usize = 40;

/// Files outside of which nothing is read.
pub(super) struct Tree<'a> {
    files: &'a dyn Files,
    reached: RefCell<BTreeSet<PathBuf>>,
}

/// The file or directory of an entry of a kustomization; symbolic links resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(PathBuf),
    Directory(PathBuf),
}

/// A resolved entry, and what the kernel reads to get there: links, and directories on the way.
struct Resolved {
    node: Node,
    on_the_way: Vec<PathBuf>,
}

impl<'a> Tree<'a> {
    pub(super) fn new(files: &'a dyn Files) -> Self {
        Self {
            files,
            reached: RefCell::default(),
        }
    }

    /// Returns everything that [`Self::resolve`] has found: files, links, and directories.
    pub(super) fn into_reached(self) -> BTreeSet<PathBuf> {
        self.reached.into_inner()
    }

    /// Returns the directory at the path of a Sync.
    pub(super) fn directory(&self, path: &str) -> Result<PathBuf, RenderError> {
        let plain = |component| matches!(component, Component::CurDir | Component::Normal(_));
        if !Path::new(path).components().all(plain) {
            return Err(RenderError::PathOutside {
                path: path.to_owned(),
            });
        }
        match self.resolve(Path::new(""), path) {
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
    /// symbolic links are followed. What is found counts as read by the build.
    pub(super) fn resolve(&self, directory: &Path, entry: &str) -> Result<Node, Refusal> {
        let Resolved { node, on_the_way } = self.find(directory, entry)?;
        let mut reached = self.reached.borrow_mut();
        reached.extend(on_the_way);
        let (Node::File(path) | Node::Directory(path)) = &node;
        if !path.as_os_str().is_empty() {
            reached.insert(path.clone());
        }
        Ok(node)
    }

    /// Resolves an entry that the build does not read.
    pub(super) fn inspect(&self, directory: &Path, entry: &str) -> Result<Node, Refusal> {
        self.find(directory, entry).map(|resolved| resolved.node)
    }

    fn find(&self, directory: &Path, entry: &str) -> Result<Resolved, Refusal> {
        let mut path = directory.to_owned();
        for component in Path::new(entry).components() {
            match component {
                Component::CurDir => {}
                Component::Normal(name) => path.push(name),
                Component::ParentDir => {
                    if !path.pop() {
                        return Err(Refusal::Outside);
                    }
                }
                Component::RootDir | Component::Prefix(_) => return Err(Refusal::Outside),
            }
        }
        self.follow(&path)
    }

    /// Follows the symbolic links of a path as the kernel would, but never beyond the root.
    fn follow(&self, path: &Path) -> Result<Resolved, Refusal> {
        let mut at = PathBuf::new();
        let mut ahead: VecDeque<OsString> = path.iter().map(OsStr::to_owned).collect();
        let (mut on_the_way, mut hops) = (Vec::new(), 0);
        while let Some(step) = ahead.pop_front() {
            if step == "." {
                continue;
            }
            if step == ".." {
                if !at.pop() {
                    return Err(Refusal::Outside);
                }
                continue;
            }
            at.push(&step);
            match self.files.kind(&at).map_err(|_| Refusal::Missing)? {
                Some(FileKind::Directory) => on_the_way.push(at.clone()),
                Some(FileKind::Link(target)) => {
                    hops += 1;
                    if hops > MAX_HOPS {
                        return Err(Refusal::Missing);
                    }
                    on_the_way.push(at.clone());
                    at.pop();
                    prepend(&mut ahead, &target)?;
                }
                None => return Err(Refusal::Missing),
                // `file/` and `file/..` are no paths.
                Some(FileKind::File | FileKind::Other) if !ahead.is_empty() => return Err(Refusal::Missing),
                Some(FileKind::Other) => return Err(Refusal::WrongType),
                Some(FileKind::File) => {
                    let node = Node::File(at);
                    return Ok(Resolved { node, on_the_way });
                }
            }
        }
        let node = Node::Directory(at);
        Ok(Resolved { node, on_the_way })
    }

    /// Whether the path itself is a symbolic link.
    pub(super) fn is_link(&self, path: &Path) -> bool {
        matches!(self.files.kind(path), Ok(Some(FileKind::Link(_))))
    }

    /// The kustomization file of a directory, if there is one.
    pub(super) fn kustomization(&self, directory: &Path) -> Result<Option<PathBuf>, RenderError> {
        let mut found = None;
        for name in KUSTOMIZATION_NAMES {
            // A dangling link counts: kustomize would fail too, and the link must not be overwritten.
            if !matches!(self.files.kind(&directory.join(name)), Ok(Some(_))) {
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

    /// Returns the names in a directory, in any order.
    pub(super) fn names(&self, directory: &Path) -> Result<Vec<OsString>, RenderError> {
        self.files
            .names(directory)
            .map_err(|source| self.unreadable(directory, source))
    }

    /// Reads a file, up to a limit in bytes.
    pub(super) fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, RenderError> {
        let content = self
            .files
            .read(path, limit)
            .map_err(|source| self.unreadable(path, source))?;
        content.ok_or(RenderError::TooLarge {
            what: "a file in bytes",
            limit,
        })
    }

    fn unreadable(&self, path: &Path, source: std::io::Error) -> RenderError {
        RenderError::File {
            file: self.name(path),
            source,
        }
    }

    /// Returns a path for messages.
    pub(super) fn name(&self, path: &Path) -> String {
        if path.as_os_str().is_empty() {
            ".".to_owned()
        } else {
            path.display().to_string()
        }
    }
}

/// Puts the steps of the target of a link before those that are left. A final `/` stays, as `.`.
fn prepend(ahead: &mut VecDeque<OsString>, target: &Path) -> Result<(), Refusal> {
    let target = target.as_os_str().as_bytes();
    if target.is_empty() {
        return Err(Refusal::Missing);
    }
    if target.starts_with(b"/") {
        return Err(Refusal::Outside);
    }
    for step in target.split(|byte| *byte == b'/').rev() {
        let step: &[u8] = if step.is_empty() { b"." } else { step };
        ahead.push_front(OsStr::from_bytes(step).to_owned());
    }
    Ok(())
}
