//! One bare repository on the local disk: the mirror of a remote one. Everything here blocks.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use git2::{Config, ErrorCode, Oid, Repository, RepositoryInitOptions};
use sha2::{Digest as _, Sha256};

use super::access::RepoAccess;
use super::error::{GitError, Refusal};
use super::interrupt::Interrupt;

/// What the remote's refs pointed at when they were last fetched. Only libgit2's negotiation reads them.
const REMOTE_PREFIX: &str = "refs/starling/remote/";

/// Commits that are kept although no branch may lead to them any more.
const PIN_PREFIX: &str = "refs/starling/pins/";

/// An opened mirror.
pub(super) struct Mirror<'a> {
    pub(super) repo: Repository,
    access: &'a RepoAccess,
}

/// Makes sure that a usable mirror exists at `path`. With `replace`, or if the present one cannot be opened, it is moved
/// aside, and with it its pins: they kept commits that cannot be read any more.
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
    // No template: a template may hold hooks, and where it lies is said by a user's configuration.
    options.bare(true).external_template(false).initial_head("none");
    Repository::init_opts(path, &options).map_err(|error| GitError::other(access, error.message()))?;
    Ok(())
}

/// Renames a damaged mirror. One is kept for a look, the one before it is deleted, so that damage does not fill the disk.
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
    /// Opens the mirror with an empty configuration: neither the system's nor a user's git configuration may redirect a
    /// URL, name a proxy or switch off a check. (libgit2 still asks them for `safe.directory`, which only ever refuses.)
    pub(super) fn open(path: &Path, access: &'a RepoAccess) -> Result<Self, GitError> {
        let open = || -> Result<Repository, git2::Error> {
            let repo = Repository::open_bare(path)?;
            repo.set_config(&Config::new()?)?;
            Ok(repo)
        };
        open()
            .map(|repo| Self { repo, access })
            .map_err(|error| GitError::from_mirror(access, &error))
    }

    /// Whether the commit and its root folder are there. What lies below is noticed by the export.
    pub(super) fn holds(&self, commit: Oid) -> Result<bool, GitError> {
        match self.repo.find_commit(commit).and_then(|found| found.tree()) {
            Ok(_) => Ok(true),
            Err(error) if error.code() == ErrorCode::NotFound => match self.repo.odb() {
                // A commit without its tree is damage; asking the server again would not bring the tree.
                Ok(odb) if odb.exists(commit) && self.repo.find_commit(commit).is_ok() => {
                    Err(GitError::corrupt(self.access, "a commit lacks its tree"))
                }
                Ok(odb) if odb.exists(commit) => self.not_a_commit(commit),
                Ok(_) => Ok(false),
                Err(error) => Err(GitError::from_mirror(self.access, &error)),
            },
            Err(error) => Err(GitError::from_mirror(self.access, &error)),
        }
    }

    fn not_a_commit<T>(&self, id: Oid) -> Result<T, GitError> {
        Err(GitError::refused(
            self.access,
            Refusal::NotACommit { id: id.to_string() },
        ))
    }

    /// Whether `newer` is `older` or a descendant; `None` if either is not in the mirror.
    pub(super) fn descends(&self, older: Oid, newer: Oid) -> Result<Option<bool>, GitError> {
        if !self.holds(older)? || !self.holds(newer)? {
            return Ok(None);
        }
        if older == newer {
            return Ok(Some(true));
        }
        self.repo
            .graph_descendant_of(newer, older)
            .map(Some)
            .map_err(|error| GitError::from_mirror(self.access, &error))
    }

    /// Notes what a remote ref points at.
    ///
    /// The name is hashed: a remote may rename `a` to `a/b`, and a folder cannot take the place of a file.
    pub(super) fn note_remote(&self, name: &str, id: Oid) -> Result<(), GitError> {
        self.set(&remote_ref(name), id)
    }

    /// Forgets every noted remote ref that is not among `names`.
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

    /// Keeps a commit under a name, in place of what the name kept before.
    pub(super) fn pin(&self, name: &str, commit: Oid) -> Result<(), GitError> {
        if !self.holds(commit)? {
            return Err(GitError::not_found(self.access, format!("commit {commit}")));
        }
        self.set(&pin_ref(self.access, name)?, commit)
    }

    /// Ends a pin. One that does not exist has ended.
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

    /// Whether everything a ref of the mirror points at can be read. Tells a damaged mirror from a strange server.
    pub(super) fn is_sound(&self) -> bool {
        self.refs("refs/starling/").is_ok_and(|refs| {
            refs.values().all(|id| {
                let peeled = self.repo.find_object(*id, None).and_then(|o| o.peel_to_commit());
                peeled.and_then(|commit| commit.tree()).is_ok()
            })
        })
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

    /// Removes what a process that died in the middle of a fetch or a write left behind: unfinished packs, and locks of
    /// refs, which would otherwise hold for ever.
    fn sweep(&self) -> io::Result<()> {
        remove_files(&self.repo.path().join("objects/pack"), |name| {
            ![".pack", ".idx"].iter().any(|end| name.ends_with(end))
        })?;
        for prefix in [REMOTE_PREFIX, PIN_PREFIX] {
            remove_files(&self.repo.path().join(prefix), |name| name.ends_with(".lock"))?;
        }
        Ok(())
    }

    /// Joins all packs into one, if there are more than `max_packs`, with only what refs of the mirror lead to.
    ///
    /// Returns the packs that are superseded; they are deleted by [`discard`] once nobody reads them.
    pub(super) fn join_packs(
        &self,
        max_packs: usize,
        interrupt: &Interrupt,
    ) -> Result<Vec<PathBuf>, GitError> {
        let folder = self.repo.path().join("objects/pack");
        let old = packs_in(&folder).map_err(|error| GitError::disk(self.access, "the mirror", error))?;
        if old.len() <= max_packs {
            return Ok(Vec::new());
        }
        let joined = self
            .write_joined_pack(&folder, interrupt)
            .map_err(|error| GitError::from_mirror(self.access, &error))?;
        Ok(old
            .into_iter()
            .filter(|path| Some(path.as_path()) != joined.as_deref())
            .collect())
    }

    fn write_joined_pack(
        &self,
        folder: &Path,
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
        builder.write(folder, 0o400)?;
        Ok(builder
            .name()?
            .map(|name| folder.join(format!("pack-{name}.pack"))))
    }
}

/// Deletes the files of a folder that `which` names; a folder that is not there has none.
fn remove_files(folder: &Path, which: impl Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
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

/// Deletes superseded packs, the index first: a pack without an index is ignored, an index without a pack is an error.
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

fn packs_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut packs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "pack") {
            packs.push(path);
        }
    }
    Ok(packs)
}

/// Reads a commit's ID: 40 hex digits, so that no abbreviation ever matches something else later.
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
