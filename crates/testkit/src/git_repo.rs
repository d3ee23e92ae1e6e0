//! A git repository to fetch from, created without the `git` program.

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use git2::{ErrorCode, Index, IndexEntry, IndexTime, ObjectType, Oid, Repository, Signature, Time};

/// The branch that [`GitRepo::commit`] writes to.
const MAIN: &str = "main";

/// Author and committer of all commits and tags.
const AUTHOR: (&str, &str) = ("Starling Test", "test@starling.dev");

/// Time of the first commit: 2024-01-01T00:00:00Z. Each further object is one minute later, so equal steps give equal
/// commit IDs in every run.
const EPOCH: i64 = 1_704_067_200;

/// An error of the test repository.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GitRepoError {
    /// There is no temporary directory.
    #[error("temporary directory for a repository")]
    Directory(#[source] std::io::Error),
    /// git failed.
    #[error("cannot {what} in the test repository")]
    Git {
        /// The operation.
        what: String,
        /// Why.
        #[source]
        source: git2::Error,
    },
    /// A commit ID is not 40 hex digits, or not a commit of this repository.
    #[error("no commit {0}")]
    NoCommit(String),
}

/// One change to the files of a branch.
#[derive(Debug, Clone)]
pub enum Change<'a> {
    /// A file with this content.
    Write(&'a str, &'a [u8]),
    /// An executable file with this content.
    WriteExecutable(&'a str, &'a [u8]),
    /// A symbolic link to this target, which need not exist or stay inside the repository.
    Symlink(&'a str, &'a str),
    /// A submodule at this commit of another repository, which need not exist.
    Submodule(&'a str, &'a str),
    /// Removes a file, or a directory with all its files. A missing one is ignored.
    Remove(&'a str),
}

/// A bare repository in a temporary directory, removed on drop.
///
/// Author and times are fixed: the same steps give the same commit IDs.
#[derive(Debug)]
pub struct GitRepo {
    directory: tempfile::TempDir,
    /// Minutes since [`EPOCH`] of the next commit or tag.
    minutes: AtomicI64,
}

impl GitRepo {
    /// Creates an empty repository whose HEAD is `main`.
    ///
    /// # Errors
    /// [`GitRepoError::Directory`] or [`GitRepoError::Git`].
    pub fn init() -> Result<Self, GitRepoError> {
        let directory = tempfile::Builder::new().prefix("repo-").suffix(".git").tempdir();
        let directory = directory.map_err(GitRepoError::Directory)?;
        let mut options = git2::RepositoryInitOptions::new();
        options.bare(true).initial_head(MAIN).external_template(false);
        let repository = Repository::init_opts(directory.path(), &options).map_err(git("init"))?;
        // Pinned revisions need a fetch by commit ID, which servers allow by configuration.
        let mut config = repository.config().map_err(git("open the configuration"))?;
        config
            .set_bool("uploadpack.allowAnySHA1InWant", true)
            .map_err(git("configure"))?;
        Ok(Self {
            directory,
            minutes: AtomicI64::new(0),
        })
    }

    /// Returns the URL to fetch from (`file://…`).
    pub fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// Returns the directory of the repository.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Commits files to `main`, keeping the others, and returns the commit ID (40 hex digits).
    ///
    /// # Errors
    /// [`GitRepoError::Git`] if a path is malformed or cannot be written.
    pub fn commit(&self, files: &[(&str, &str)], message: &str) -> Result<String, GitRepoError> {
        let changes: Vec<_> = files
            .iter()
            .map(|(path, content)| Change::Write(path, content.as_bytes()))
            .collect();
        self.commit_to(MAIN, &changes, message)
    }

    /// Removes files or directories from `main` and returns the commit ID.
    ///
    /// # Errors
    /// [`GitRepoError::Git`].
    pub fn remove(&self, paths: &[&str], message: &str) -> Result<String, GitRepoError> {
        let changes: Vec<_> = paths.iter().map(|path| Change::Remove(path)).collect();
        self.commit_to(MAIN, &changes, message)
    }

    /// Commits changes to a branch, which starts empty if it does not exist, and returns the commit ID.
    ///
    /// # Errors
    /// [`GitRepoError::Git`].
    pub fn commit_to(
        &self,
        branch: &str,
        changes: &[Change<'_>],
        message: &str,
    ) -> Result<String, GitRepoError> {
        let repository = self.open()?;
        let reference = format!("refs/heads/{branch}");
        let parent = match repository.find_reference(&reference) {
            Ok(reference) => Some(
                reference
                    .peel_to_commit()
                    .map_err(git("read the head of the branch"))?,
            ),
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(source) => return Err(git(&format!("look up branch {branch}"))(source)),
        };
        let mut index = Index::new().map_err(git("make an index"))?;
        if let Some(parent) = &parent {
            let tree = parent.tree().map_err(git("read the tree"))?;
            index.read_tree(&tree).map_err(git("read the tree"))?;
        }
        for change in changes {
            apply(&repository, &mut index, change)?;
        }
        let tree = index.write_tree_to(&repository).map_err(git("write the tree"))?;
        let tree = repository.find_tree(tree).map_err(git("read the tree"))?;
        let author = self.signature()?;
        let parents: Vec<_> = parent.iter().collect();
        let id = repository
            .commit(Some(&reference), &author, &author, message, &tree, &parents)
            .map_err(git(&format!("commit to {branch}")))?;
        Ok(id.to_string())
    }

    /// Returns the commit ID at the head of a branch.
    ///
    /// # Errors
    /// [`GitRepoError::Git`] if there is no such branch.
    pub fn head(&self, branch: &str) -> Result<String, GitRepoError> {
        let repository = self.open()?;
        let reference = repository.find_reference(&format!("refs/heads/{branch}"));
        let commit = reference.and_then(|reference| reference.peel_to_commit());
        Ok(commit
            .map_err(git(&format!("read branch {branch}")))?
            .id()
            .to_string())
    }

    /// Sets a lightweight tag to a commit; a tag of that name moves.
    ///
    /// # Errors
    /// [`GitRepoError::NoCommit`] or [`GitRepoError::Git`].
    pub fn tag(&self, name: &str, commit: &str) -> Result<(), GitRepoError> {
        self.set_reference(&format!("refs/tags/{name}"), commit)
    }

    /// Sets an annotated tag to a commit; a tag of that name moves. Returns the ID of the tag object.
    ///
    /// # Errors
    /// [`GitRepoError::NoCommit`] or [`GitRepoError::Git`].
    pub fn annotated_tag(&self, name: &str, commit: &str, message: &str) -> Result<String, GitRepoError> {
        let repository = self.open()?;
        let id = find_commit(&repository, commit)?;
        let target = repository
            .find_object(id, Some(ObjectType::Commit))
            .map_err(|_| GitRepoError::NoCommit(commit.to_owned()))?;
        let tag = repository.tag(name, &target, &self.signature()?, message, true);
        Ok(tag.map_err(git(&format!("tag {name}")))?.to_string())
    }

    /// Creates a branch at a commit.
    ///
    /// # Errors
    /// [`GitRepoError::NoCommit`], or [`GitRepoError::Git`] if the branch exists.
    pub fn branch(&self, name: &str, commit: &str) -> Result<(), GitRepoError> {
        let repository = self.open()?;
        let id = find_commit(&repository, commit)?;
        let created = repository.reference(&format!("refs/heads/{name}"), id, false, "branch");
        created.map(drop).map_err(git(&format!("make branch {name}")))
    }

    /// Moves a branch to any commit, as a forced push does.
    ///
    /// # Errors
    /// [`GitRepoError::NoCommit`] or [`GitRepoError::Git`].
    pub fn force_reset(&self, branch: &str, commit: &str) -> Result<(), GitRepoError> {
        self.set_reference(&format!("refs/heads/{branch}"), commit)
    }

    /// Deletes a reference by its full name, such as `refs/tags/v1`.
    ///
    /// # Errors
    /// [`GitRepoError::Git`] if there is no such reference.
    pub fn delete_ref(&self, name: &str) -> Result<(), GitRepoError> {
        let repository = self.open()?;
        let deleted = repository
            .find_reference(name)
            .and_then(|mut reference| reference.delete());
        deleted.map_err(git(&format!("delete {name}")))
    }

    fn set_reference(&self, name: &str, commit: &str) -> Result<(), GitRepoError> {
        let repository = self.open()?;
        let id = find_commit(&repository, commit)?;
        repository
            .reference(name, id, true, "set")
            .map(drop)
            .map_err(git(&format!("set {name}")))
    }

    /// Opens the repository for each call: a handle of libgit2 cannot be shared between threads.
    fn open(&self) -> Result<Repository, GitRepoError> {
        Repository::open_bare(self.path()).map_err(git("open"))
    }

    fn signature(&self) -> Result<Signature<'static>, GitRepoError> {
        let seconds = EPOCH + 60 * self.minutes.fetch_add(1, Ordering::Relaxed);
        Signature::new(AUTHOR.0, AUTHOR.1, &Time::new(seconds, 0)).map_err(git("sign"))
    }
}

fn apply(repository: &Repository, index: &mut Index, change: &Change<'_>) -> Result<(), GitRepoError> {
    let (path, content, mode) = match *change {
        Change::Write(path, content) => (path, content, 0o100_644),
        Change::WriteExecutable(path, content) => (path, content, 0o100_755),
        Change::Symlink(path, target) => (path, target.as_bytes(), 0o120_000),
        Change::Submodule(path, commit) => {
            let id = Oid::from_str(commit).map_err(git(&format!("read commit {commit}")))?;
            return index
                .add(&entry(path, id, 0o160_000))
                .map_err(git(&format!("add {path}")));
        }
        Change::Remove(path) => {
            let removed = index.remove_dir(Path::new(path), 0);
            removed.map_err(git(&format!("remove directory {path}")))?;
            return match index.remove(Path::new(path), 0) {
                Err(error) if error.code() != ErrorCode::NotFound => {
                    Err(git(&format!("remove {path}"))(error))
                }
                _ => Ok(()),
            };
        }
    };
    let id = repository.blob(content).map_err(git(&format!("write {path}")))?;
    index
        .add(&entry(path, id, mode))
        .map_err(git(&format!("add {path}")))
}

fn entry(path: &str, id: Oid, mode: u32) -> IndexEntry {
    let never = IndexTime::new(0, 0);
    IndexEntry {
        ctime: never,
        mtime: never,
        dev: 0,
        ino: 0,
        mode,
        uid: 0,
        gid: 0,
        file_size: 0,
        id,
        flags: 0,
        flags_extended: 0,
        path: path.as_bytes().to_vec(),
    }
}

fn find_commit(repository: &Repository, commit: &str) -> Result<Oid, GitRepoError> {
    let missing = |_| GitRepoError::NoCommit(commit.to_owned());
    let id = Oid::from_str(commit).map_err(missing)?;
    repository
        .find_commit(id)
        .map(|commit| commit.id())
        .map_err(missing)
}

fn git(what: &str) -> impl FnOnce(git2::Error) -> GitRepoError {
    let what = what.to_owned();
    move |source| GitRepoError::Git { what, source }
}
