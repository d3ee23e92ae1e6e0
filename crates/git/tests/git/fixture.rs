//! Real bare repositories in a temporary folder, with trees that git itself would refuse to write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use git2::{ObjectType, Oid, Repository, Signature, Time};
use starling_git::{Credential, RepoAccess, RepoUrl};
use tempfile::TempDir;

/// One entry of a tree.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    File(Vec<u8>),
    Program(&'static str),
    Link(&'static str),
    Submodule,
    Tree(Vec<(Vec<u8>, Entry)>),
}

pub(crate) fn file(text: &str) -> Entry {
    Entry::File(text.as_bytes().to_vec())
}

pub(crate) fn tree(entries: Vec<(&str, Entry)>) -> Entry {
    Entry::Tree(
        entries
            .into_iter()
            .map(|(name, entry)| (name.as_bytes().to_vec(), entry))
            .collect(),
    )
}

/// A bare repository; `name.git` below a folder of its own.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) repo: Repository,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let repo = Repository::init_bare(folder.path().join("repo.git")).unwrap();
        Self { folder, repo }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("repo.git")
    }

    pub(crate) fn access(&self) -> RepoAccess {
        let url = format!("file://{}", self.path().display());
        RepoAccess::new(RepoUrl::parse(&url, true).unwrap(), Credential::None)
    }

    /// Writes a commit without moving a ref.
    pub(crate) fn commit(&self, parents: &[Oid], root: Entry) -> Oid {
        let (_, root) = self.write(&root);
        self.commit_tree(parents, root)
    }

    pub(crate) fn commit_tree(&self, parents: &[Oid], root: Oid) -> Oid {
        self.commit_with(parents, root, "change")
    }

    /// Writes a commit of a tree that is written without any check: mode, name and ID of each entry.
    pub(crate) fn commit_raw_tree(&self, parents: &[Oid], entries: &[(&str, &str, Oid)]) -> Oid {
        let entry = |(mode, name, id): &(&str, &str, Oid)| {
            [format!("{mode} {name}\0").as_bytes(), id.as_bytes()].concat()
        };
        let raw: Vec<u8> = entries.iter().flat_map(entry).collect();
        let root = self.object(ObjectType::Tree, &raw);
        self.commit_tree(parents, root)
    }

    pub(crate) fn commit_with(&self, parents: &[Oid], root: Oid, message: &str) -> Oid {
        let time = Time::new(1_700_000_000, 0);
        let who = Signature::new("Ann", "ann@example.org", &time).unwrap();
        let text = format!(
            "tree {root}\n{}author {who} 1700000000 +0000\ncommitter {who} 1700000000 +0000\n\n{message}\n",
            parents
                .iter()
                .map(|parent| format!("parent {parent}\n"))
                .collect::<String>()
        );
        self.object(ObjectType::Commit, text.as_bytes())
    }

    /// A commit with one file that differs for each `text`.
    pub(crate) fn simple(&self, parents: &[Oid], text: &str) -> Oid {
        self.commit(parents, tree(vec![("config.yaml", file(text))]))
    }

    pub(crate) fn point(&self, name: &str, to: Oid) {
        self.repo.reference(name, to, true, "").unwrap();
    }

    pub(crate) fn delete(&self, name: &str) {
        self.repo.find_reference(name).unwrap().delete().unwrap();
    }

    /// Creates or moves an annotated tag; returns the tag object's ID.
    pub(crate) fn annotate(&self, name: &str, commit: Oid) -> Oid {
        self.annotate_with(name, commit, "release")
    }

    pub(crate) fn annotate_with(&self, name: &str, commit: Oid, message: &str) -> Oid {
        let who = Signature::now("Ann", "ann@example.org").unwrap();
        let target = self.repo.find_object(commit, None).unwrap();
        self.repo.tag(name, &target, &who, message, true).unwrap()
    }

    fn object(&self, kind: ObjectType, bytes: &[u8]) -> Oid {
        self.repo.odb().unwrap().write(kind, bytes).unwrap()
    }

    /// Writes trees as raw objects, without libgit2's checks and in the order given.
    pub(crate) fn write(&self, entry: &Entry) -> (&'static str, Oid) {
        match entry {
            Entry::File(bytes) => ("100644", self.object(ObjectType::Blob, bytes)),
            Entry::Program(text) => ("100755", self.object(ObjectType::Blob, text.as_bytes())),
            Entry::Link(target) => ("120000", self.object(ObjectType::Blob, target.as_bytes())),
            Entry::Submodule => ("160000", Oid::from_str(&"ab".repeat(20)).unwrap()),
            Entry::Tree(entries) => {
                let mut raw = Vec::new();
                for (name, entry) in entries {
                    let (mode, id) = self.write(entry);
                    raw.extend_from_slice(mode.as_bytes());
                    raw.push(b' ');
                    raw.extend_from_slice(name);
                    raw.push(0);
                    raw.extend_from_slice(id.as_bytes());
                }
                ("40000", self.object(ObjectType::Tree, &raw))
            }
        }
    }
}

/// Returns all entries below a folder: relative path to content, links as `-> target`, folders as `/`.
pub(crate) fn read_folder(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let kind = std::fs::symlink_metadata(&path).unwrap();
            if kind.is_symlink() {
                found.insert(
                    name,
                    format!("-> {}", std::fs::read_link(&path).unwrap().display()),
                );
            } else if kind.is_dir() {
                found.insert(name, "/".into());
                folders.push(path);
            } else {
                found.insert(name, String::from_utf8(std::fs::read(&path).unwrap()).unwrap());
            }
        }
    }
    found
}
