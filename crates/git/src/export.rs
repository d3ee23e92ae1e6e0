//! Writes the tree of a commit into a directory, object by object. All functions block.
//!
//! git's checkout is not used, because it obeys the links, attributes, filters and submodules of a tree. Here, files
//! and directories are created, never opened, and links are created last, so that nothing is ever written through a
//! link.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use git2::{ObjectType, Odb, Oid, TreeEntry};
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::access::RepoAccess;
use super::error::{GitError, Refusal, printable};
use super::files::TreeFile;
use super::interrupt::Interrupt;
use super::kind::{Kind, kind_of};
use super::limits::{ExportLimits, MAX_DIRECTORY_BYTES};
use super::links::{Layout, Node};
use super::mirror::Mirror;

/// The file with ignore rules in the root of a repository. The name is that of Flux.
pub(super) const IGNORE_FILE: &str = ".sourceignore";

/// Maximum bytes of ignore rules. They are compiled to one automaton, which is many times larger.
const MAX_IGNORE_BYTES: u64 = 64 << 10;

/// Maximum bytes of the target of a symbolic link: PATH_MAX of Linux without the final NUL.
pub(super) const MAX_LINK_BYTES: u64 = 4095;

/// The number of written and skipped entries of an export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportStats {
    /// Regular files written.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Directories created, without the root.
    pub directories: u64,
    /// Symbolic links created.
    pub symlinks: u64,
    /// Submodules skipped; their content is in another repository.
    pub submodules: u64,
    /// The path of the first of them, printable; empty without one.
    pub first_submodule: String,
    /// Entries skipped by ignore rules. An ignored directory counts once.
    pub ignored: u64,
}

/// Writes the tree of `commit` into `destination`, which must be an empty directory or not exist.
///
/// After an error the directory is empty again, as far as the disk allows.
pub(super) fn export(
    mirror: &Mirror<'_>,
    access: &RepoAccess,
    commit: Oid,
    destination: &Path,
    ignore: Option<&str>,
    limits: &ExportLimits,
    interrupt: &Interrupt,
) -> Result<ExportStats, GitError> {
    if !mirror.contains(commit)? {
        return Err(GitError::not_found(access, format!("commit {commit}")));
    }
    let unreadable = |error: git2::Error| GitError::from_mirror(access, &error);
    let root = mirror.repo.find_commit(commit).map_err(unreadable)?.tree_id();
    let export = Export::new(mirror, access, destination, limits, interrupt)?;
    export.run(|export| export.whole(root, ignore))
}

/// Writes these files of a tree into `destination`, as [`export`] writes all of them and within the same limits.
///
/// Links must lead to what is in the list.
pub(super) fn write_files(
    mirror: &Mirror<'_>,
    access: &RepoAccess,
    files: &[TreeFile],
    destination: &Path,
    limits: &ExportLimits,
    interrupt: &Interrupt,
) -> Result<ExportStats, GitError> {
    let export = Export::new(mirror, access, destination, limits, interrupt)?;
    export.run(|export| export.selected(files))
}

/// Creates the directory, or uses an empty one, and removes the access of other users.
fn claim(destination: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(destination) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !fs::symlink_metadata(destination)?.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            if fs::read_dir(destination)?.next().is_some() {
                return Err(io::ErrorKind::DirectoryNotEmpty.into());
            }
            fs::set_permissions(destination, std::os::unix::fs::PermissionsExt::from_mode(0o700))
        }
        other => other,
    }
}

/// Removes the written files after an error. A failure here makes the next export into the directory fail.
fn clear(destination: &Path) {
    let Ok(entries) = fs::read_dir(destination) else {
        return;
    };
    for entry in entries.flatten() {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let _ = if is_directory {
            fs::remove_dir_all(entry.path())
        } else {
            fs::remove_file(entry.path())
        };
    }
}

struct Export<'a> {
    mirror: &'a Mirror<'a>,
    odb: Odb<'a>,
    access: &'a RepoAccess,
    destination: &'a Path,
    limits: &'a ExportLimits,
    interrupt: &'a Interrupt,
    rules: Gitignore,
    layout: Layout,
    entries: u64,
    stats: ExportStats,
}

/// A directory whose content is still to be written.
struct Directory {
    tree: Oid,
    path: PathBuf,
    depth: usize,
}

impl<'a> Export<'a> {
    /// Prepares the destination.
    fn new(
        mirror: &'a Mirror<'a>,
        access: &'a RepoAccess,
        destination: &'a Path,
        limits: &'a ExportLimits,
        interrupt: &'a Interrupt,
    ) -> Result<Self, GitError> {
        let odb = mirror.repo.odb();
        let odb = odb.map_err(|error| GitError::from_mirror(access, &error))?;
        claim(destination).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists => GitError::refused(access, Refusal::Destination),
            _ => GitError::disk(access, "the exported tree", error),
        })?;
        Ok(Self {
            mirror,
            odb,
            access,
            destination,
            limits,
            interrupt,
            rules: Gitignore::empty(),
            layout: Layout::default(),
            entries: 0,
            stats: ExportStats::default(),
        })
    }

    /// Writes files, and removes them after an error.
    fn run(mut self, write: impl FnOnce(&mut Self) -> Result<(), GitError>) -> Result<ExportStats, GitError> {
        let outcome = write(&mut self).and_then(|()| self.write_links());
        if outcome.is_err() {
            clear(self.destination);
        }
        outcome.map(|()| self.stats)
    }

    /// Writes a list of files, which is ordered: a directory comes before what is in it.
    fn selected(&mut self, files: &[TreeFile]) -> Result<(), GitError> {
        for file in files {
            self.count()?;
            let path = file.path().to_path_buf();
            self.check_name(&path)?;
            match kind_of(file.mode()) {
                Kind::Directory => self.create_directory(&path, path.iter().count())?,
                Kind::File => self.write_file(file.id(), file.mode(), path)?,
                Kind::Link => self.note_link(file.id(), &path)?,
                Kind::Submodule | Kind::Unknown => {
                    return Err(self.refused(Refusal::Kind {
                        path: printable(&path),
                    }));
                }
            }
        }
        Ok(())
    }

    fn whole(&mut self, root: Oid, ignore: Option<&str>) -> Result<(), GitError> {
        self.rules = self.read_rules(root, ignore)?;
        let mut directories = vec![Directory {
            tree: root,
            path: PathBuf::new(),
            depth: 0,
        }];
        while let Some(directory) = directories.pop() {
            self.check_size(
                directory.tree,
                ObjectType::Tree,
                &directory.path,
                MAX_DIRECTORY_BYTES,
            )?;
            let tree = self
                .mirror
                .repo
                .find_tree(directory.tree)
                .map_err(|error| self.unreadable(&error))?;
            for entry in tree.iter() {
                directories.extend(self.write_entry(&directory, &entry)?);
            }
        }
        Ok(())
    }

    fn read_rules(&self, root: Oid, ignore: Option<&str>) -> Result<Gitignore, GitError> {
        self.check_size(root, ObjectType::Tree, Path::new(""), MAX_DIRECTORY_BYTES)?;
        let tree = self
            .mirror
            .repo
            .find_tree(root)
            .map_err(|error| self.unreadable(&error))?;
        let file = tree
            .get_name(IGNORE_FILE)
            .filter(|entry| kind(entry) == Kind::File);
        let text = match file {
            Some(entry) => Some(read_rules(&self.odb, self.access, entry.id())?),
            None => None,
        };
        rules(self.access, text.as_deref(), ignore)
    }

    /// Writes one entry; a directory is created and returned.
    fn write_entry(
        &mut self,
        parent: &Directory,
        entry: &TreeEntry<'_>,
    ) -> Result<Option<Directory>, GitError> {
        self.count()?;
        let name = OsStr::from_bytes(entry.name_bytes());
        let path = parent.path.join(name);
        if is_forbidden(name) {
            return Err(self.refused(Refusal::Name {
                path: printable(&path),
            }));
        }
        let kind = kind(entry);
        if self.rules.matched(&path, kind == Kind::Directory).is_ignore() {
            self.stats.ignored += 1;
            return Ok(None);
        }
        match kind {
            Kind::Directory => return self.write_directory(parent, entry.id(), path).map(Some),
            Kind::File => self.write_file(entry.id(), entry.filemode_raw(), path)?,
            Kind::Link => self.note_link(entry.id(), &path)?,
            Kind::Submodule => {
                if self.stats.submodules == 0 {
                    self.stats.first_submodule = printable(&path);
                }
                self.stats.submodules += 1;
            }
            Kind::Unknown => {
                return Err(self.refused(Refusal::Kind {
                    path: printable(&path),
                }));
            }
        }
        Ok(None)
    }

    fn write_directory(
        &mut self,
        parent: &Directory,
        tree: Oid,
        path: PathBuf,
    ) -> Result<Directory, GitError> {
        let depth = parent.depth + 1;
        self.create_directory(&path, depth)?;
        Ok(Directory { tree, path, depth })
    }

    fn create_directory(&mut self, path: &Path, depth: usize) -> Result<(), GitError> {
        if depth > self.limits.max_depth {
            return Err(self.refused(Refusal::Depth {
                path: printable(path),
                limit: self.limits.max_depth,
            }));
        }
        self.note(path, Node::Directory)?;
        let created = DirBuilder::new().mode(0o700).create(self.destination.join(path));
        created.map_err(|error| self.disk(error))?;
        self.stats.directories += 1;
        Ok(())
    }

    /// Counts one more entry, and checks the deadline.
    fn count(&mut self) -> Result<(), GitError> {
        if self.interrupt.stopped().is_some() {
            return Err(GitError::timeout(self.access, self.interrupt.after()));
        }
        self.entries += 1;
        if self.entries > self.limits.max_entries {
            return Err(self.refused(Refusal::Entries {
                limit: self.limits.max_entries,
            }));
        }
        Ok(())
    }

    fn check_name(&self, path: &Path) -> Result<(), GitError> {
        if path.file_name().is_none_or(is_forbidden) {
            return Err(self.refused(Refusal::Name {
                path: printable(path),
            }));
        }
        Ok(())
    }

    fn write_file(&mut self, id: Oid, mode: i32, path: PathBuf) -> Result<(), GitError> {
        let size = self.check_size(id, ObjectType::Blob, &path, self.limits.max_file_bytes)?;
        if self.stats.bytes + size > self.limits.max_total_bytes {
            return Err(self.refused(Refusal::TotalBytes {
                limit: self.limits.max_total_bytes,
            }));
        }
        self.note(&path, Node::File)?;
        let content = self.read(id)?;
        let mode = if mode & 0o111 == 0 { 0o600 } else { 0o700 };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(self.destination.join(path));
        let written = file.and_then(|mut file| file.write_all(&content));
        written.map_err(|error| self.disk(error))?;
        self.stats.files += 1;
        self.stats.bytes += size;
        Ok(())
    }

    fn note_link(&mut self, blob: Oid, path: &Path) -> Result<(), GitError> {
        self.check_size(blob, ObjectType::Blob, path, MAX_LINK_BYTES)?;
        let target = OsString::from(OsStr::from_bytes(&self.read(blob)?));
        self.note(path, Node::Link(target))
    }

    /// Checks every link before the first one is created; one invalid link fails the whole export.
    fn write_links(&mut self) -> Result<(), GitError> {
        for (path, target) in self.layout.links() {
            if self.interrupt.stopped().is_some() {
                return Err(GitError::timeout(self.access, self.interrupt.after()));
            }
            self.layout.resolve(path, target).map_err(|problem| {
                self.refused(Refusal::Link {
                    path: printable(path),
                    problem,
                })
            })?;
        }
        let mut created = 0;
        for (path, target) in self.layout.links() {
            symlink(target, self.destination.join(path)).map_err(|error| self.disk(error))?;
            created += 1;
        }
        self.stats.symlinks = created;
        Ok(())
    }

    fn note(&mut self, path: &Path, node: Node) -> Result<(), GitError> {
        if self.layout.insert(path.to_path_buf(), node) {
            Ok(())
        } else {
            Err(self.refused(Refusal::Duplicate {
                path: printable(path),
            }))
        }
    }

    fn check_size(&self, id: Oid, expected: ObjectType, path: &Path, limit: u64) -> Result<u64, GitError> {
        check_size(&self.odb, self.access, id, expected, path, limit)
    }

    fn read(&self, id: Oid) -> Result<Vec<u8>, GitError> {
        let object = self.odb.read(id).map_err(|error| self.unreadable(&error))?;
        Ok(object.data().to_vec())
    }

    fn refused(&self, reason: Refusal) -> GitError {
        GitError::refused(self.access, reason)
    }

    fn unreadable(&self, error: &git2::Error) -> GitError {
        GitError::from_mirror(self.access, error)
    }

    fn disk(&self, error: io::Error) -> GitError {
        GitError::disk(self.access, "the exported tree", error)
    }
}

/// Checks the size of an object before the object is read: a few bytes in a pack may decompress to any size.
pub(super) fn check_size(
    odb: &Odb<'_>,
    access: &RepoAccess,
    id: Oid,
    expected: ObjectType,
    path: &Path,
    limit: u64,
) -> Result<u64, GitError> {
    let header = odb.read_header(id);
    let (size, found) = header.map_err(|error| GitError::from_mirror(access, &error))?;
    if found != expected {
        // An ID is the digest of the kind and the content: the directory is wrong, and the mirror is not damaged.
        return Err(GitError::refused(
            access,
            Refusal::OtherKind {
                path: printable(path),
            },
        ));
    }
    let bytes = size as u64;
    if bytes > limit {
        return Err(GitError::refused(
            access,
            Refusal::FileBytes {
                path: printable(path),
                bytes,
                limit,
            },
        ));
    }
    Ok(bytes)
}

/// Reads the file with the ignore rules.
pub(super) fn read_rules(odb: &Odb<'_>, access: &RepoAccess, id: Oid) -> Result<String, GitError> {
    check_size(
        odb,
        access,
        id,
        ObjectType::Blob,
        Path::new(IGNORE_FILE),
        MAX_IGNORE_BYTES,
    )?;
    let object = odb
        .read(id)
        .map_err(|error| GitError::from_mirror(access, &error))?;
    Ok(String::from_utf8_lossy(object.data()).into_owned())
}

/// Compiles the rules of the repository first, then those of the caller, which therefore take precedence.
pub(super) fn rules(
    access: &RepoAccess,
    of_repository: Option<&str>,
    of_caller: Option<&str>,
) -> Result<Gitignore, GitError> {
    let bad_rules =
        |place, problem: String| GitError::refused(access, Refusal::IgnoreRules { place, problem });
    let mut builder = GitignoreBuilder::new("");
    for (place, text) in [(IGNORE_FILE, of_repository), ("spec.ignore", of_caller)] {
        let text = text.unwrap_or_default();
        if text.len() as u64 > MAX_IGNORE_BYTES {
            return Err(bad_rules(place, format!("more than {MAX_IGNORE_BYTES} bytes")));
        }
        for line in text.lines() {
            builder
                .add_line(None, line)
                .map_err(|error| bad_rules(place, error.to_string()))?;
        }
    }
    builder
        .build()
        .map_err(|error| bad_rules(IGNORE_FILE, error.to_string()))
}

fn kind(entry: &TreeEntry<'_>) -> Kind {
    kind_of(entry.filemode_raw())
}

/// Whether a name is not that of a file below the root, or `.git` in any letter case: a program that later runs in the
/// exported tree must not find a repository there.
pub(super) fn is_forbidden(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    matches!(bytes, b"" | b"." | b"..")
        || bytes.iter().any(|byte| matches!(byte, b'/' | 0))
        || bytes.eq_ignore_ascii_case(b".git")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_of_the_directory_are_forbidden() {
        for name in ["", ".", "..", ".git", ".GIT", "a/b", "/a", "a\0b"] {
            assert!(is_forbidden(OsStr::new(name)), "{name:?}");
        }
        for name in [".gitignore", "..a", "git", "a\\b", ".github"] {
            assert!(!is_forbidden(OsStr::new(name)), "{name:?}");
        }
    }
}
