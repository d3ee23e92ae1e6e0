//! One bare repository on the local disk: the mirror of a remote one. All functions block.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use git2::{
    AutotagOption, ErrorCode, FetchOptions, ObjectType, Oid, RemoteCallbacks, Repository,
    RepositoryInitOptions,
};
use sha2::{Digest as _, Sha256};

use super::access::RepoAccess;
use super::ancestry::{self, Ancestry};
use super::configuration;
use super::error::{GitError, Refusal};
use super::interrupt::Interrupt;
use super::limits::PackLimits;
use super::readers;

/// The commits of the remote refs at the last fetch. The next fetch sends them to the server.
const REMOTE_PREFIX: &str = "refs/starling/remote/";

/// Commits that are kept even if no branch contains them any more.
const PIN_PREFIX: &str = "refs/starling/pins/";

/// The maximum number of tags of tags.
const MAX_TAGS: usize = 16;

/// An opened mirror.
pub(super) struct Mirror<'a> {
    pub(super) repo: Repository,
    access: &'a RepoAccess,
}

/// Ensures that a usable mirror exists at `path`. With `replace`, or if the existing one cannot be opened, it is moved
/// aside together with its pins, whose commits cannot be read any more.
pub(super) fn prepare(path: &Path, access: &RepoAccess, replace: bool) -> Result<(), GitError> {
    let disk = |error| GitError::disk(access, "the mirror", error);
    if path.exists() {
        if !replace {
            match Mirror::open(path, access) {
                Ok(mirror) => return mirror.sweep().map_err(disk),
                Err(GitError::Corrupt { .. }) => {}
                Err(other) => return Err(other),
            }
        }
        let aside = set_aside(path).map_err(disk)?;
        tracing::warn!(repo = %access.url(), aside = %aside.display(), "git mirror damaged, moved aside");
    }
    create(path, access)
}

fn create(path: &Path, access: &RepoAccess) -> Result<(), GitError> {
    let disk = |error| GitError::disk(access, "the mirror", error);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(disk)?;
    let mut options = RepositoryInitOptions::new();
    // No template: a template may contain hooks, and its path comes from the configuration of a user.
    options.bare(true).external_template(false).initial_head("none");
    Repository::init_opts(path, &options).map_err(|error| GitError::other(access, error.message()))?;
    readers::create(path, access).map_err(disk)
}

/// Renames a damaged mirror. The last one is kept for inspection, and the previous one is deleted, so that damage does
/// not fill the disk.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_extension("damaged");
    match fs::remove_dir_all(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(path, &aside)?;
    Ok(aside)
}

impl<'a> Mirror<'a> {
    /// Opens the mirror with its own configuration.
    pub(super) fn open(path: &Path, access: &'a RepoAccess) -> Result<Self, GitError> {
        let open = || -> Result<Repository, git2::Error> {
            let repo = Repository::open_bare(path)?;
            repo.set_config(&configuration::open(path)?)?;
            Ok(repo)
        };
        open()
            .map(|repo| Self { repo, access })
            .map_err(|error| GitError::from_mirror(access, &error))
    }

    /// Records that the server has sent something to the reader.
    pub(super) fn add_reader(&self) -> Result<(), GitError> {
        readers::add(self.repo.path(), self.access.reader())
            .map_err(|error| GitError::disk(self.access, "the mirror", error))
    }

    /// Whether the reader may read the mirror.
    pub(super) fn has_reader(&self) -> bool {
        readers::contains(self.repo.path(), self.access.reader())
    }

    /// Copies the pins of another mirror, with their commits.
    pub(super) fn copy_pins(&self, from: &Path, interrupt: &Interrupt) -> Result<(), GitError> {
        let copy = || -> Result<Vec<(String, Oid)>, git2::Error> {
            let mut remote = self.repo.remote_anonymous(&from.to_string_lossy())?;
            let mut callbacks = RemoteCallbacks::new();
            callbacks.transfer_progress(|_| interrupt.stopped().is_none());
            let mut options = FetchOptions::new();
            options
                .remote_callbacks(callbacks)
                .download_tags(AutotagOption::None)
                .update_fetchhead(false);
            remote.download(&[format!("+{PIN_PREFIX}*:{PIN_PREFIX}*")], Some(&mut options))?;
            let heads = remote.list()?.iter();
            let pins = heads.filter(|head| head.name().starts_with(PIN_PREFIX));
            Ok(pins.map(|head| (head.name().to_owned(), head.oid())).collect())
        };
        let pins = copy().map_err(|error| self.failed(&error, interrupt))?;
        self.sync_packs()?;
        let known = self.refs(PIN_PREFIX)?;
        let new = pins.into_iter().filter(|(name, _)| !known.contains_key(name));
        new.into_iter().try_for_each(|(name, id)| self.set(&name, id))
    }

    /// Returns the error of an operation that an interrupt may have ended: libgit2 reports a callback that stops it as
    /// it reports unexpected content.
    fn failed(&self, error: &git2::Error, interrupt: &Interrupt) -> GitError {
        match interrupt.stopped() {
            Some(_) => GitError::timeout(self.access, interrupt.after()),
            None => GitError::from_mirror(self.access, error),
        }
    }

    /// Syncs all packs to disk: libgit2 does so only with packs that it joins. A ref must not survive a loss of power
    /// that its commit does not survive. To sync a file again costs nothing.
    pub(super) fn sync_packs(&self) -> Result<(), GitError> {
        let directory = self.repo.path().join("objects/pack");
        let sync = |path: &Path| match fs::File::open(path) {
            Ok(file) => file.sync_all(),
            // A new mirror has no directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        let sync_all = || -> io::Result<()> {
            if !directory.exists() {
                return Ok(());
            }
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                if path
                    .extension()
                    .is_some_and(|extension| extension == "pack" || extension == "idx")
                {
                    sync(&path)?;
                }
            }
            sync(&directory)
        };
        sync_all().map_err(|error| GitError::disk(self.access, "the mirror", error))
    }

    /// Whether the mirror contains the commit and its root tree. The export checks the other objects.
    pub(super) fn contains(&self, commit: Oid) -> Result<bool, GitError> {
        let odb = self
            .repo
            .odb()
            .map_err(|error| GitError::from_mirror(self.access, &error))?;
        if !odb.exists(commit) {
            return Ok(false);
        }
        match odb.read_header(commit) {
            Ok((_, ObjectType::Commit)) => {}
            Ok(_) => {
                return Err(GitError::refused(
                    self.access,
                    Refusal::NotACommit {
                        id: commit.to_string(),
                    },
                ));
            }
            Err(error) => return Err(GitError::from_mirror(self.access, &error)),
        }
        // A commit without its tree is damage; another fetch would not transfer the tree.
        self.read_tree_of(commit).map(|()| true)
    }

    /// Reads a commit, or the commit of a tag, and its root tree. An object that is too large is refused before it is
    /// read: an earlier version may have fetched it.
    fn read_tree_of(&self, tip: Oid) -> Result<(), GitError> {
        let unreadable = |error: git2::Error| GitError::from_mirror(self.access, &error);
        let limits = PackLimits::default();
        let mut id = tip;
        for _ in 0..MAX_TAGS {
            self.check_size(id, "commit or tag", limits.max_commit_bytes)?;
            let object = self.repo.find_object(id, None).map_err(unreadable)?;
            if let Some(tag) = object.as_tag() {
                id = tag.target_id();
                continue;
            }
            let commit = object.peel_to_commit().map_err(unreadable)?;
            self.check_size(commit.tree_id(), "directory", limits.max_directory_bytes)?;
            return commit.tree().map(|_| ()).map_err(unreadable);
        }
        Err(GitError::refused(
            self.access,
            Refusal::NotACommit { id: tip.to_string() },
        ))
    }

    fn check_size(&self, id: Oid, what: &'static str, limit: u64) -> Result<(), GitError> {
        let odb = self.repo.odb();
        let header = odb.and_then(|odb| odb.read_header(id));
        let (size, _) = header.map_err(|error| GitError::from_mirror(self.access, &error))?;
        let bytes = size as u64;
        if bytes > limit {
            let reason = Refusal::ObjectBytes { what, bytes, limit };
            return Err(GitError::refused(self.access, reason));
        }
        Ok(())
    }

    /// The relation of `newer` to `older`.
    pub(super) fn ancestry(
        &self,
        older: Oid,
        newer: Oid,
        max_commits: usize,
        interrupt: &Interrupt,
    ) -> Result<Ancestry, GitError> {
        if !self.contains(older)? || !self.contains(newer)? {
            return Ok(Ancestry::Missing);
        }
        ancestry::relation(&self.repo, older, newer, max_commits, interrupt)
            .map_err(|error| GitError::from_mirror(self.access, &error))
    }

    /// Stores the commit of a remote ref, if it was received and can be read: a server may list a tip and not send it,
    /// and a tip may be an object that is refused.
    ///
    /// The name is hashed: a remote may rename `a` to `a/b`, and a directory cannot replace a file.
    pub(super) fn note_remote(&self, name: &str, id: Oid) -> Result<(), GitError> {
        if self.read_tree_of(id).is_ok() {
            self.set(&remote_ref(name), id)
        } else {
            Ok(())
        }
    }

    /// Deletes every stored remote ref that is not in `names`.
    pub(super) fn forget_remote_except<'n>(
        &self,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<(), GitError> {
        let keep: std::collections::BTreeSet<String> = names.map(remote_ref).collect();
        for name in self
            .refs(REMOTE_PREFIX)?
            .into_keys()
            .filter(|name| !keep.contains(name))
        {
            self.unset(&name)?;
        }
        Ok(())
    }

    /// Pins a commit under a name, and replaces an earlier pin of that name.
    pub(super) fn pin(&self, name: &str, commit: Oid) -> Result<(), GitError> {
        if !self.contains(commit)? {
            return Err(GitError::not_found(self.access, format!("commit {commit}")));
        }
        self.set(&pin_ref(self.access, name)?, commit)
    }

    /// Removes a pin, if it exists.
    pub(super) fn unpin(&self, name: &str) -> Result<(), GitError> {
        self.unset(&pin_ref(self.access, name)?)
    }

    /// All pins, by name.
    pub(super) fn pins(&self) -> Result<BTreeMap<String, String>, GitError> {
        let pins = self.refs(PIN_PREFIX)?.into_iter();
        Ok(pins
            .map(|(name, id)| (name[PIN_PREFIX.len()..].to_owned(), id.to_string()))
            .collect())
    }

    /// Checks for damage before a fetch, which would not transfer objects that the refs claim to have.
    pub(super) fn check(&self) -> Result<(), GitError> {
        self.check_packs()?;
        for (name, id) in self.refs("refs/starling/")? {
            match self.read_tree_of(id) {
                // What a server chose to send is no damage: the next fetch does not claim to have it.
                Err(GitError::Refused { .. }) if name.starts_with(REMOTE_PREFIX) => self.unset(&name)?,
                // Content that was fetched before there were limits is fetched again, and refused then.
                Err(GitError::Refused { reason, .. }) => {
                    return Err(GitError::corrupt(self.access, &reason.to_string()));
                }
                read => read?,
            }
        }
        Ok(())
    }

    /// Checks that each index matches its pack. libgit2 does not notice a mismatch, and does not replace the pack when
    /// the same pack is fetched again.
    fn check_packs(&self) -> Result<(), GitError> {
        let disk = |error| GitError::disk(self.access, "the mirror", error);
        let directory = self.repo.path().join("objects/pack");
        for index in files_in(&directory, "idx").map_err(disk)? {
            // An index ends with the checksum of its pack and its own; a pack ends with its own.
            let known = last_bytes(&index, 40).map_err(disk)?;
            let pack = last_bytes(&index.with_extension("pack"), 20).map_err(disk)?;
            if known.len() < 40 || pack != known[..20] {
                return Err(GitError::corrupt(
                    self.access,
                    "a pack does not belong to its index",
                ));
            }
        }
        Ok(())
    }

    fn refs(&self, prefix: &str) -> Result<BTreeMap<String, Oid>, GitError> {
        let read = || -> Result<_, git2::Error> {
            let mut found = BTreeMap::new();
            for reference in self.repo.references_glob(&format!("{prefix}*"))? {
                let reference = reference?;
                if let (Ok(name), Some(id)) = (reference.name(), reference.target()) {
                    found.insert(name.to_owned(), id);
                }
            }
            Ok(found)
        };
        read().map_err(|error| GitError::from_mirror(self.access, &error))
    }

    fn set(&self, name: &str, id: Oid) -> Result<(), GitError> {
        match self.repo.reference(name, id, true, "") {
            Ok(_) => Ok(()),
            Err(error) => Err(GitError::from_mirror(self.access, &error)),
        }
    }

    fn unset(&self, name: &str) -> Result<(), GitError> {
        match self
            .repo
            .find_reference(name)
            .and_then(|mut found| found.delete())
        {
            Err(error) if error.code() != ErrorCode::NotFound => {
                Err(GitError::from_mirror(self.access, &error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the files of a process that died during a fetch or a write: unfinished packs, and locks of refs, which
    /// would otherwise never be released.
    fn sweep(&self) -> io::Result<()> {
        remove_files(&self.repo.path().join("objects/pack"), |name| {
            ![".pack", ".idx"].iter().any(|end| name.ends_with(end))
        })?;
        for prefix in [REMOTE_PREFIX, PIN_PREFIX] {
            remove_files(&self.repo.path().join(prefix), |name| name.ends_with(".lock"))?;
        }
        Ok(())
    }

    /// Joins all packs into one that contains only objects reachable from refs of the mirror, if there are more than
    /// `max_packs`.
    ///
    /// Returns the replaced packs, which [`discard`] deletes when they are no longer read.
    pub(super) fn join_packs(
        &self,
        max_packs: usize,
        interrupt: &Interrupt,
    ) -> Result<Vec<PathBuf>, GitError> {
        let directory = self.repo.path().join("objects/pack");
        let old =
            files_in(&directory, "pack").map_err(|error| GitError::disk(self.access, "the mirror", error))?;
        if old.len() <= max_packs {
            return Ok(Vec::new());
        }
        let joined = self.write_joined_pack(&directory, interrupt);
        let joined = joined.map_err(|error| self.failed(&error, interrupt))?;
        Ok(old
            .into_iter()
            .filter(|path| Some(path.as_path()) != joined.as_deref())
            .collect())
    }

    /// Returns the number of packs.
    pub(super) fn pack_count(&self) -> Result<usize, GitError> {
        let packs = files_in(&self.repo.path().join("objects/pack"), "pack");
        let packs = packs.map_err(|error| GitError::disk(self.access, "the mirror", error))?;
        Ok(packs.len())
    }

    /// Returns the bytes of all packs.
    pub(super) fn pack_bytes(&self) -> Result<u64, GitError> {
        let sum = || -> io::Result<u64> {
            let packs = files_in(&self.repo.path().join("objects/pack"), "pack")?;
            packs.iter().map(|pack| Ok(fs::metadata(pack)?.len())).sum()
        };
        sum().map_err(|error| GitError::disk(self.access, "the mirror", error))
    }

    fn write_joined_pack(
        &self,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Option<PathBuf>, git2::Error> {
        let mut builder = self.repo.packbuilder()?;
        let mut walk = self.repo.revwalk()?;
        let mut empty = true;
        for reference in self.repo.references_glob("refs/starling/*")? {
            let Some(id) = reference?.target() else { continue };
            let commit = self.repo.find_object(id, None)?.peel_to_commit()?;
            if commit.id() != id {
                builder.insert_object(id, None)?;
            }
            walk.push(commit.id())?;
            empty = false;
        }
        if empty {
            return Ok(None);
        }
        builder.set_progress_callback(|_, _, _| interrupt.stopped().is_none())?;
        builder.insert_walk(&mut walk)?;
        builder.write(directory, 0o400)?;
        Ok(builder
            .name()?
            .map(|name| directory.join(format!("pack-{name}.pack"))))
    }
}

/// Deletes the files of a directory that `which` selects. A missing directory has none.
fn remove_files(directory: &Path, which: impl Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if which(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Deletes replaced packs, the index first: a pack without an index is ignored, an index without a pack is an error.
pub(super) fn discard(packs: &[PathBuf], access: &RepoAccess) -> Result<(), GitError> {
    for pack in packs {
        for path in [pack.with_extension("idx"), pack.clone()] {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(GitError::disk(access, "the mirror", error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Returns the files of a directory with an extension. A missing directory has none.
fn files_in(directory: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == extension) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the last bytes of a file, or all if it has fewer; none if the file is missing.
fn last_bytes(path: &Path, count: u64) -> io::Result<Vec<u8>> {
    let mut file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(count)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Parses a commit ID: 40 hex digits, so that no abbreviation can later match another object.
pub(super) fn commit_id(access: &RepoAccess, text: &str) -> Result<Oid, GitError> {
    let full = text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit());
    full.then(|| Oid::from_str(text).ok())
        .flatten()
        .ok_or_else(|| GitError::refused(access, Refusal::CommitId))
}

fn remote_ref(name: &str) -> String {
    format!(
        "{REMOTE_PREFIX}{}",
        hex::encode(&Sha256::digest(name.as_bytes())[..16])
    )
}

fn pin_ref(access: &RepoAccess, name: &str) -> Result<String, GitError> {
    let plain = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    let full = format!("{PIN_PREFIX}{name}");
    if plain && (1..=100).contains(&name.len()) && git2::Reference::is_valid_name(&full) {
        Ok(full)
    } else {
        Err(GitError::refused(access, Refusal::PinName))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use git2::Signature;

    use super::*;
    use crate::{Credential, RepoUrl};

    /// Guards against a mirror that is set aside with its pins, because the time for a join ended.
    #[test]
    fn tenant_git_a_join_that_is_interrupted_leaves_the_mirror_and_its_pins() {
        let folder = tempfile::tempdir().unwrap();
        let url = RepoUrl::parse("https://git.example.org/shop.git", false).unwrap();
        let access = RepoAccess::new(url, Credential::None);
        let path = folder.path().join("shop");
        prepare(&path, &access, false).unwrap();
        let mirror = Mirror::open(&path, &access).unwrap();
        let author = Signature::now("a", "a@example.org").unwrap();
        let tree = mirror.repo.treebuilder(None).unwrap().write().unwrap();
        let tree = mirror.repo.find_tree(tree).unwrap();
        let commit = mirror.repo.commit(None, &author, &author, "one", &tree, &[]);
        mirror.pin("kept", commit.unwrap()).unwrap();
        let packs = mirror.repo.path().join("objects/pack");
        // Loose objects are joined too; a join needs one pack to begin.
        mirror
            .write_joined_pack(&packs, &Interrupt::new(Duration::from_secs(60)))
            .unwrap();
        let ended = mirror.join_packs(0, &Interrupt::new(Duration::ZERO)).unwrap_err();
        assert!(matches!(ended, GitError::Timeout { .. }), "{ended:?}");
        mirror.check().unwrap();
        assert_eq!(mirror.pins().unwrap().len(), 1);
        mirror
            .join_packs(0, &Interrupt::new(Duration::from_secs(60)))
            .unwrap();
    }
}
