//! Plain directories without a kustomization: all YAML files below them are included.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::manifest;
use super::tree::{Node, Tree};
use super::{Refusal, RenderError, RenderLimits, yaml};

/// Maximum files and directories below one plain directory.
const MAX_ENTRIES: usize = 100_000;

/// The names of what a plain directory includes, ordered.
#[derive(Default)]
pub(super) struct Names {
    /// YAML files.
    pub(super) files: Vec<PathBuf>,
    /// Subdirectories with a kustomization.
    pub(super) kustomizations: Vec<PathBuf>,
}

impl Names {
    /// Lists a plain directory. Skips hidden files and directories, and files that are not YAML.
    pub(super) fn of(tree: &Tree<'_>, directory: &Path) -> Result<Self, RenderError> {
        let mut scan = Scan {
            tree,
            count: 0,
            names: Self::default(),
        };
        let mut ahead = vec![directory.to_owned()];
        while let Some(directory) = ahead.pop() {
            let mut below = scan.directory(&directory)?;
            below.reverse();
            ahead.append(&mut below);
        }
        Ok(scan.names)
    }
}

/// The content of a plain directory, ordered by name.
pub(super) struct Listing {
    /// YAML files with at least one document.
    pub(super) files: Vec<(PathBuf, Vec<Value>)>,
    /// Subdirectories with a kustomization.
    pub(super) kustomizations: Vec<PathBuf>,
}

impl Listing {
    /// Reads a plain directory.
    ///
    /// A YAML file that is not a manifest is an error and not skipped: if it were skipped by mistake, its objects would
    /// be pruned.
    pub(super) fn of(tree: &Tree<'_>, directory: &Path, limits: &RenderLimits) -> Result<Self, RenderError> {
        let names = Names::of(tree, directory)?;
        let mut read = Read {
            tree,
            limits,
            bytes: 0,
            nodes: yaml::MAX_NODES,
            files: Vec::new(),
        };
        for path in names.files {
            read.file(path)?;
        }
        Ok(Self {
            files: read.files,
            kustomizations: names.kustomizations,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.kustomizations.is_empty()
    }

    /// Writes a kustomization that lists the whole content.
    pub(super) fn generate(&self, root: &Path, directory: &Path) -> Result<Generated, RenderError> {
        let paths = self
            .files
            .iter()
            .map(|(path, _)| path)
            .chain(&self.kustomizations);
        // The leading `./` keeps a directory called `github.com` from being taken for an address.
        let resources: Vec<String> = paths
            .map(|path| format!("./{}", path.strip_prefix(directory).unwrap_or(path).display()))
            .collect();
        let content = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": resources,
        });
        let name = directory.join("kustomization.yaml");
        let path = root.join(&name);
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
            let generated = Generated(path.clone());
            file.write_all(content.to_string().as_bytes())?;
            Ok(generated)
        };
        write().map_err(|source| RenderError::File {
            file: name.display().to_string(),
            source,
        })
    }

    /// Returns the objects of a directory that needs no kustomize.
    pub(super) fn objects(self, tree: &Tree<'_>, limit: usize) -> Result<Vec<Value>, RenderError> {
        if let Some(directory) = self.kustomizations.first() {
            return Err(RenderError::NoKustomize {
                what: tree.name(directory),
            });
        }
        let mut objects = Vec::new();
        for (path, documents) in self.files {
            objects.append(&mut manifest::objects(documents, &tree.name(&path), limit)?);
            if objects.len() > limit {
                return Err(RenderError::TooLarge {
                    what: "the number of objects",
                    limit,
                });
            }
        }
        Ok(objects)
    }
}

/// A generated kustomization. Removed on drop, so that a later build of a parent directory reads only files of git.
pub(super) struct Generated(PathBuf);

impl Drop for Generated {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "generated kustomization was not removed");
        }
    }
}

struct Scan<'a> {
    tree: &'a Tree<'a>,
    count: usize,
    names: Names,
}

impl Scan<'_> {
    /// Lists one directory and returns the directories below it that are plain too.
    fn directory(&mut self, directory: &Path) -> Result<Vec<PathBuf>, RenderError> {
        let mut names = self.tree.names(directory)?;
        self.count += names.len();
        if self.count > MAX_ENTRIES {
            return Err(RenderError::TooLarge {
                what: "the files of a plain directory",
                limit: MAX_ENTRIES,
            });
        }
        names.sort();
        let mut below = Vec::new();
        for name in names {
            // A name that is not UTF-8 cannot be written into a kustomization; it is shown with replacements.
            let text = name.to_string_lossy();
            if !text.starts_with('.') {
                below.extend(self.entry(directory, &text)?);
            }
        }
        Ok(below)
    }

    /// Lists one entry; returns it if it is a plain directory to descend into.
    fn entry(&mut self, directory: &Path, name: &str) -> Result<Option<PathBuf>, RenderError> {
        let path = directory.join(name);
        let wanted = name.ends_with(".yaml") || name.ends_with(".yml");
        let refused = |refusal| RenderError::Refused {
            file: self.tree.name(directory),
            field: "directory".to_owned(),
            entry: name.to_owned(),
            refusal,
        };
        match self.tree.inspect(directory, name) {
            Ok(Node::File(_)) if wanted => {
                self.tree.resolve(directory, name).map_err(refused)?;
                self.names.files.push(path);
                Ok(None)
            }
            // Following the link could form a cycle, and ignoring it would lose objects.
            Ok(Node::Directory(_)) if self.tree.is_link(&path) => Err(refused(Refusal::WrongType)),
            Ok(Node::Directory(path)) if self.tree.kustomization(&path)?.is_some() => {
                self.names.kustomizations.push(path);
                Ok(None)
            }
            Ok(Node::Directory(path)) => Ok(Some(path)),
            Err(refusal) if wanted || refusal == Refusal::Outside => Err(refused(refusal)),
            Ok(Node::File(_)) | Err(_) => Ok(None),
        }
    }
}

/// Reads the files of a plain directory within limits that hold for all of them together.
struct Read<'a> {
    tree: &'a Tree<'a>,
    limits: &'a RenderLimits,
    bytes: usize,
    /// The sequences, mappings and scalars that the remaining files may have: all files are in memory together.
    nodes: usize,
    files: Vec<(PathBuf, Vec<Value>)>,
}

impl Read<'_> {
    fn file(&mut self, path: PathBuf) -> Result<(), RenderError> {
        let limit = self.limits.output_bytes;
        let content = self.tree.read(&path, limit)?;
        self.bytes += content.len();
        if self.bytes > limit {
            return Err(RenderError::TooLarge {
                what: "the bytes of a plain directory",
                limit,
            });
        }
        let origin = self.tree.name(&path);
        let documents = yaml::read_within(&content, self.limits.objects, self.nodes).map_err(|source| {
            RenderError::Yaml {
                origin: origin.clone(),
                source,
            }
        })?;
        let nodes: usize = documents.iter().map(yaml::nodes).sum();
        self.nodes = self.nodes.saturating_sub(nodes);
        for (index, document) in documents.iter().enumerate() {
            for missing in ["apiVersion", "kind"] {
                if !document[missing].is_string() {
                    return Err(RenderError::Incomplete {
                        origin,
                        document: index + 1,
                        missing,
                    });
                }
            }
        }
        if !documents.is_empty() {
            self.files.push((path, documents));
        }
        Ok(())
    }
}
