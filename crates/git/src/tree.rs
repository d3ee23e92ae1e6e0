//! Reads single entries of the tree of a commit, without writing any, and remembers which ones.
//!
//! What was not looked up does not matter: it may break every rule for exported trees.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use git2::{ObjectType, Odb, Oid, Tree};
use ignore::gitignore::Gitignore;

use super::access::RepoAccess;
use super::error::{GitError, Refusal, printable};
use super::export::{IGNORE_FILE, MAX_LINK_BYTES, is_forbidden, read_rules};
use super::files::{TreeFile, TreeFiles};
use super::interrupt::Interrupt;
use super::kind::{Kind, kind_of};
use super::limits::{ExportLimits, MAX_DIRECTORY_BYTES};
use super::mirror::Mirror;
use super::trace::{Trace, TraceEntry};

/// Bytes of the directories that are kept in memory. libgit2 itself keeps only those below 4 KiB, and a directory of a
/// monorepo is read once for each file in it.
const MAX_KEPT_BYTES: u64 = 64 << 20;

/// What is at a path of a tree. Links are not followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, and its target as stored.
    Link(PathBuf),
}

/// The tree of a commit, without what ignore rules exclude. Paths are relative to its root, and must not lead through
/// links.
///
/// The first error ends the reading: all later calls fail too, and the call that opened the tree returns that error.
pub struct TreeReader<'a> {
    mirror: &'a Mirror<'a>,
    odb: Odb<'a>,
    access: &'a RepoAccess,
    limits: &'a ExportLimits,
    interrupt: &'a Interrupt,
    root: Oid,
    rules: Gitignore,
    /// The file of the ignore rules.
    rules_file: Option<TraceEntry>,
    state: RefCell<State<'a>>,
}

#[derive(Default)]
struct State<'a> {
    kept: HashMap<PathBuf, Rc<Tree<'a>>>,
    kept_bytes: u64,
    entries: u64,
    bytes: u64,
    trace: Trace,
    submodules: BTreeSet<PathBuf>,
    failure: Option<GitError>,
}

impl<'a> TreeReader<'a> {
    /// Opens the tree of a commit.
    pub(super) fn open(
        mirror: &'a Mirror<'a>,
        access: &'a RepoAccess,
        commit: Oid,
        ignore: Option<&str>,
        limits: &'a ExportLimits,
        interrupt: &'a Interrupt,
    ) -> Result<Self, GitError> {
        if !mirror.contains(commit)? {
            return Err(GitError::not_found(access, format!("commit {commit}")));
        }
        let unreadable = |error: git2::Error| GitError::from_mirror(access, &error);
        let root = mirror.repo.find_commit(commit).map_err(unreadable)?.tree_id();
        let mut reader = Self {
            mirror,
            odb: mirror.repo.odb().map_err(unreadable)?,
            access,
            limits,
            interrupt,
            root,
            rules: Gitignore::empty(),
            rules_file: None,
            state: RefCell::default(),
        };
        let file = reader.raw(Path::new(IGNORE_FILE))?;
        reader.rules_file = file.filter(|file| kind_of(file.mode) == Kind::File);
        let text = match &reader.rules_file {
            Some(file) => Some(read_rules(&reader.odb, access, file.id)?),
            None => None,
        };
        reader.rules = super::export::rules(access, text.as_deref(), ignore)?;
        reader.forget();
        Ok(reader)
    }

    /// Returns what is at a path; `None` if nothing is there, if it is ignored, or if it is a submodule.
    ///
    /// # Errors
    /// If the tree cannot be read, or the entry is refused.
    pub fn kind(&self, path: &Path) -> io::Result<Option<TreeKind>> {
        self.noted(self.kind_at(path))
    }

    /// Returns the names in a directory, in the order of git. The whole directory counts as looked up.
    ///
    /// # Errors
    /// If the directory does not exist, cannot be read, or has a name twice or one that no file may have.
    pub fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        self.noted(self.names_in(directory))
    }

    /// Returns the content of a regular file; `None` if it has more than `limit` bytes.
    ///
    /// # Errors
    /// If there is no file, or it cannot be read.
    pub fn read(&self, path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
        self.noted(self.content(path, limit))
    }

    /// Returns the entries at these paths, to be written later.
    ///
    /// # Errors
    /// If one of them does not exist.
    pub fn files<'p>(&self, paths: impl IntoIterator<Item = &'p PathBuf>) -> io::Result<TreeFiles> {
        let files = paths.into_iter().map(|path| self.file(path)).collect();
        let files: Vec<TreeFile> = self.noted(files)?;
        Ok(TreeFiles::new(files))
    }

    /// Returns the submodules that were found: where a path leads, or in a listed directory.
    #[must_use]
    pub fn submodules(&self) -> BTreeSet<PathBuf> {
        self.state.borrow().submodules.clone()
    }

    /// Returns what was looked up so far.
    #[must_use]
    pub fn trace(&self) -> Trace {
        let trace = self.state.borrow().trace.clone();
        trace.with_rules(self.rules_file)
    }

    /// Whether all that `trace` has looked up is the same in this tree. Directories with the same ID are not read.
    #[must_use]
    pub fn is_unchanged(&self, trace: &Trace) -> bool {
        let unchanged = trace.rules() == self.rules_file
            && trace.is_same(|path| self.directory_id(path), |path| self.raw(path));
        self.forget();
        unchanged
    }

    /// Forgets what was looked up for other reasons than a reading of the tree.
    fn forget(&self) {
        let mut state = self.state.borrow_mut();
        state.trace = Trace::default();
        state.entries = 0;
    }

    /// Returns the error that ended the reading.
    pub(super) fn finish(self) -> Result<(), GitError> {
        self.state.into_inner().failure.map_or(Ok(()), Err)
    }

    /// Remembers the first error.
    fn noted<T>(&self, outcome: Result<T, GitError>) -> io::Result<T> {
        let mut state = self.state.borrow_mut();
        match outcome {
            Ok(value) if state.failure.is_none() => Ok(value),
            Ok(_) => Err(io::Error::other("an earlier error ended the reading")),
            Err(error) => {
                let text = error.to_string();
                state.failure.get_or_insert(error);
                Err(io::Error::other(text))
            }
        }
    }

    fn kind_at(&self, path: &Path) -> Result<Option<TreeKind>, GitError> {
        // Also for entries that are known: links may lead through the same ones again and again.
        self.check_deadline()?;
        if path.as_os_str().is_empty() {
            return Ok(Some(TreeKind::Directory));
        }
        let Some(entry) = self.raw(path)? else {
            return Ok(None);
        };
        if path.file_name().is_none_or(is_forbidden) {
            return Err(self.refused(Refusal::Name {
                path: printable(path),
            }));
        }
        let kind = kind_of(entry.mode);
        if self.rules.matched(path, kind == Kind::Directory).is_ignore() {
            return Ok(None);
        }
        match kind {
            Kind::File => Ok(Some(TreeKind::File)),
            Kind::Directory => {
                self.check_depth(path)?;
                Ok(Some(TreeKind::Directory))
            }
            Kind::Link => {
                self.check_size(entry.id, ObjectType::Blob, path, MAX_LINK_BYTES)?;
                let target = self.odb.read(entry.id).map_err(|error| self.unreadable(&error))?;
                Ok(Some(TreeKind::Link(PathBuf::from(OsStr::from_bytes(
                    target.data(),
                )))))
            }
            Kind::Submodule => {
                self.state.borrow_mut().submodules.insert(path.to_path_buf());
                Ok(None)
            }
            Kind::Unknown => Err(self.refused(Refusal::Kind {
                path: printable(path),
            })),
        }
    }

    fn names_in(&self, directory: &Path) -> Result<Vec<OsString>, GitError> {
        let Some(tree) = self.directory(directory)? else {
            return Err(self.missing(directory));
        };
        self.state.borrow_mut().trace.list(directory, tree.id());
        let mut seen = BTreeSet::new();
        for entry in &*tree {
            let name = OsStr::from_bytes(entry.name_bytes()).to_owned();
            let path = directory.join(&name);
            if is_forbidden(&name) {
                return Err(self.refused(Refusal::Name {
                    path: printable(&path),
                }));
            }
            self.count()?;
            if !seen.insert(name) {
                return Err(self.refused(Refusal::Duplicate {
                    path: printable(&path),
                }));
            }
        }
        Ok(seen.into_iter().collect())
    }

    fn content(&self, path: &Path, limit: usize) -> Result<Option<Vec<u8>>, GitError> {
        let entry = self.raw(path)?.filter(|entry| kind_of(entry.mode) == Kind::File);
        let Some(entry) = entry else {
            return Err(self.missing(path));
        };
        let size = self.check_size(entry.id, ObjectType::Blob, path, self.limits.max_file_bytes)?;
        if usize::try_from(size).is_ok_and(|size| size > limit) {
            return Ok(None);
        }
        let total = self.state.borrow().bytes + size;
        if total > self.limits.max_total_bytes {
            return Err(self.refused(Refusal::TotalBytes {
                limit: self.limits.max_total_bytes,
            }));
        }
        self.state.borrow_mut().bytes = total;
        let object = self.odb.read(entry.id).map_err(|error| self.unreadable(&error))?;
        Ok(Some(object.data().to_vec()))
    }

    fn file(&self, path: &Path) -> Result<TreeFile, GitError> {
        let entry = self.raw(path)?.ok_or_else(|| self.missing(path))?;
        Ok(TreeFile::new(path.to_path_buf(), entry.mode, entry.id))
    }

    /// Returns the entry at a path, whether or not it is ignored.
    fn raw(&self, path: &Path) -> Result<Option<TraceEntry>, GitError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(None);
        };
        // No name in a tree has this byte, and libgit2 cannot be asked for one that has.
        if name.as_bytes().contains(&0) {
            return Ok(None);
        }
        if let Some(known) = self.state.borrow().trace.entry(parent, name) {
            return Ok(known);
        }
        let Some(directory) = self.directory(parent)? else {
            return Ok(None);
        };
        let entry = directory.get_name_bytes(name.as_bytes()).map(|entry| TraceEntry {
            mode: entry.filemode_raw(),
            id: entry.id(),
        });
        // The names of a listed directory have been counted. Never more are counted than the tree has.
        if entry.is_some() && !self.state.borrow().trace.is_listed(parent) {
            self.count()?;
        }
        let mut state = self.state.borrow_mut();
        state.trace.note(parent, directory.id(), name, entry);
        Ok(entry)
    }

    fn directory_id(&self, path: &Path) -> Result<Option<Oid>, GitError> {
        if path.as_os_str().is_empty() {
            return Ok(Some(self.root));
        }
        let entry = self.raw(path)?;
        Ok(entry
            .filter(|entry| kind_of(entry.mode) == Kind::Directory)
            .map(|entry| entry.id))
    }

    /// Returns a directory; `None` if there is none at this path.
    fn directory(&self, path: &Path) -> Result<Option<Rc<Tree<'a>>>, GitError> {
        if let Some(kept) = self.state.borrow().kept.get(path) {
            return Ok(Some(kept.clone()));
        }
        let Some(id) = self.directory_id(path)? else {
            return Ok(None);
        };
        self.check_depth(path)?;
        let bytes = self.check_size(id, ObjectType::Tree, path, MAX_DIRECTORY_BYTES)?;
        let tree = self.mirror.repo.find_tree(id);
        let tree = Rc::new(tree.map_err(|error| self.unreadable(&error))?);
        let mut state = self.state.borrow_mut();
        if state.kept_bytes + bytes > MAX_KEPT_BYTES {
            state.kept.clear();
            state.kept_bytes = 0;
        }
        state.kept_bytes += bytes;
        state.kept.insert(path.to_path_buf(), tree.clone());
        state.trace.enter(path, id);
        Ok(Some(tree))
    }

    fn check_deadline(&self) -> Result<(), GitError> {
        match self.interrupt.stopped() {
            Some(_) => Err(GitError::timeout(self.access, self.interrupt.after())),
            None => Ok(()),
        }
    }

    /// Counts one more entry, and checks the deadline.
    fn count(&self) -> Result<(), GitError> {
        self.check_deadline()?;
        let mut state = self.state.borrow_mut();
        state.entries += 1;
        let limit = self.limits.max_entries;
        if state.entries > limit {
            return Err(self.refused(Refusal::Entries { limit }));
        }
        Ok(())
    }

    fn check_depth(&self, directory: &Path) -> Result<(), GitError> {
        let limit = self.limits.max_depth;
        if directory.iter().count() > limit {
            return Err(self.refused(Refusal::Depth {
                path: printable(directory),
                limit,
            }));
        }
        Ok(())
    }

    fn check_size(&self, id: Oid, expected: ObjectType, path: &Path, limit: u64) -> Result<u64, GitError> {
        super::export::check_size(&self.odb, self.access, id, expected, path, limit)
    }

    fn missing(&self, path: &Path) -> GitError {
        GitError::not_found(self.access, format!("{} in this commit", printable(path)))
    }

    fn refused(&self, reason: Refusal) -> GitError {
        GitError::refused(self.access, reason)
    }

    fn unreadable(&self, error: &git2::Error) -> GitError {
        GitError::from_mirror(self.access, error)
    }
}
