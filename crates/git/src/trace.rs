//! What a reading of a tree has looked up, to tell whether another tree would give the same answers.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use git2::Oid;

use super::error::GitError;
use super::kind::{Kind, kind_of};

/// One entry of a directory, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceEntry {
    pub(super) mode: i32,
    pub(super) id: Oid,
}

/// All look-ups in one tree, also those that found nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    rules: Option<TraceEntry>,
    directories: BTreeMap<PathBuf, Directory>,
    entries: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Directory {
    id: Oid,
    /// Whether all names were read: another ID is another answer.
    listed: bool,
    names: BTreeMap<OsString, Option<TraceEntry>>,
}

impl Trace {
    /// Returns how much is remembered: directories, and names in them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.directories.len() + self.entries
    }

    /// Whether nothing was looked up.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    pub(super) fn with_rules(self, rules: Option<TraceEntry>) -> Self {
        Self { rules, ..self }
    }

    pub(super) fn rules(&self) -> Option<TraceEntry> {
        self.rules
    }

    /// Returns the answer to a look-up; `None` if there was none.
    pub(super) fn entry(&self, directory: &Path, name: &OsStr) -> Option<Option<TraceEntry>> {
        self.directories.get(directory)?.names.get(name).copied()
    }

    pub(super) fn is_listed(&self, directory: &Path) -> bool {
        self.directories
            .get(directory)
            .is_some_and(|directory| directory.listed)
    }

    pub(super) fn enter(&mut self, path: &Path, id: Oid) {
        let directory = self.directories.entry(path.to_path_buf());
        directory.or_insert_with(|| Directory {
            id,
            listed: false,
            names: BTreeMap::new(),
        });
    }

    pub(super) fn list(&mut self, path: &Path, id: Oid) {
        self.enter(path, id);
        if let Some(directory) = self.directories.get_mut(path) {
            directory.listed = true;
        }
    }

    pub(super) fn note(&mut self, path: &Path, id: Oid, name: &OsStr, entry: Option<TraceEntry>) {
        self.enter(path, id);
        if let Some(directory) = self.directories.get_mut(path) {
            directory.names.insert(name.to_owned(), entry);
            self.entries += 1;
        }
    }

    /// Whether another tree gives the same answers. `directory` returns the ID of a directory there, and `entry` the
    /// entry at a path. An error is another answer: whoever reads the tree meets it again, if it matters.
    pub(super) fn is_same(
        &self,
        directory: impl Fn(&Path) -> Result<Option<Oid>, GitError>,
        entry: impl Fn(&Path) -> Result<Option<TraceEntry>, GitError>,
    ) -> bool {
        // Parents come before what is below them, and all of that follows at once.
        let mut equal: Option<&Path> = None;
        for (path, then) in &self.directories {
            if equal.is_some_and(|equal| path.starts_with(equal)) {
                continue;
            }
            match directory(path) {
                Ok(Some(id)) if id == then.id => equal = Some(path),
                Ok(Some(_)) if !then.listed => {
                    let same = |(name, then): (&OsString, &Option<TraceEntry>)| {
                        let path = path.join(name);
                        entry(&path).is_ok_and(|now| self.is_same_entry(&path, *then, now))
                    };
                    if !then.names.iter().all(same) {
                        return false;
                    }
                }
                Ok(_) | Err(_) => return false,
            }
        }
        true
    }

    /// Whether two entries are the same. What is in a directory that was entered is compared by itself.
    fn is_same_entry(&self, path: &Path, then: Option<TraceEntry>, now: Option<TraceEntry>) -> bool {
        let is_directory = |entry: TraceEntry| kind_of(entry.mode) == Kind::Directory;
        then == now
            || (then.is_some_and(is_directory)
                && now.is_some_and(is_directory)
                && self.directories.contains_key(path))
    }
}
