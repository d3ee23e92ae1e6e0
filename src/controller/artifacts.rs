//! The port of artifacts: the content of Sources.
//!
//! A Source resolves to an [`Artifact`]: content with an origin, a revision, a digest and a tree. Reconcilers, builds
//! and pins know only artifacts. Each kind of origin is a variant of [`Origin`] and has a store in [`ArtifactStores`].
//! A second kind of Source needs a variant and a store, and no change elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_api::Source;
use starling_core::revision::{Ancestry, RefPolicy, ResolveError, Revision, resolve};
use starling_git::{GitError, GitStore, RepoAccess};

/// The origin of artifacts, with the address and the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A git repository.
    Git(RepoAccess),
}

impl Origin {
    /// Returns the host that receives the requests; `None` for a local directory. The start rates count all requests to
    /// one host together.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Git(access) => access.url().host(),
        }
    }

    /// Returns the key of the stored content: the address and the name of the Secret.
    #[must_use]
    pub fn store_key(&self) -> String {
        match self {
            Self::Git(access) => access.mirror_key(),
        }
    }

    /// Returns the Source that reads the content, as `namespace/name`. It is served what its own requests returned, and
    /// not what another Source has stored under the same key.
    #[must_use]
    pub fn reader(&self) -> &str {
        match self {
            Self::Git(access) => access.reader(),
        }
    }
}

/// The content of an origin at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The origin of the content.
    pub origin: Origin,
    /// The revision, as in `status.revision`.
    pub revision: Revision,
    /// The full name of the ref that the content is fetched by; `None` if it is fetched by its digest.
    pub reference: Option<String>,
}

impl Artifact {
    /// Returns the identifier of the content: the commit, for git.
    #[must_use]
    pub fn digest(&self) -> &str {
        digest(&self.revision)
    }
}

/// Returns the digest of the content at a revision, as in [`Artifacts::kept`].
#[must_use]
pub fn digest(revision: &Revision) -> &str {
    revision.commit().as_str()
}

/// Returns the full name of the ref that a revision of a Source is fetched by; `None` if the Source names the content
/// itself.
#[must_use]
pub fn reference(source: &Source, revision: &Revision) -> Option<String> {
    ref_name(source.spec.reference.branch.is_some(), revision)
}

/// Returns the full name of the ref that a revision was resolved from. A revision that is only a commit has none.
fn ref_name(is_branch: bool, revision: &Revision) -> Option<String> {
    let directory = if is_branch { "heads" } else { "tags" };
    (!revision.name().is_empty()).then(|| format!("refs/{directory}/{}", revision.name()))
}

/// The error of a request for an artifact.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The origin responds, and no ref matches the policy.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// The git repository or its mirror failed.
    #[error(transparent)]
    Git(#[from] GitError),
}

impl ArtifactError {
    /// Returns the reason of Ready. No other function maps errors of origins to reasons.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unresolved(_) => "RefNotFound",
            Self::Git(error) => match error {
                GitError::NotFound { .. } => "NotFound",
                GitError::Auth { .. } => "AuthenticationFailed",
                GitError::Untrusted { .. } => "CertificateNotTrusted",
                GitError::Unreachable { .. } => "Unreachable",
                GitError::Timeout { .. } => "Timeout",
                GitError::Refused { .. } => "Refused",
                GitError::Corrupt { .. } => "MirrorDamaged",
                GitError::Disk { .. } => "StorageFailed",
                GitError::Other { .. } => "GitFailed",
            },
        }
    }
}

type ArtifactFuture<'a, T> = BoxFuture<'a, Result<T, ArtifactError>>;

/// The port of artifacts, for every kind of origin.
pub trait Artifacts: Send + Sync {
    /// Resolves a policy to the artifact that it selects now, without fetching the content.
    fn resolve<'a>(
        &'a self,
        origin: &'a Origin,
        policy: &'a RefPolicy,
        timeout: Duration,
    ) -> ArtifactFuture<'a, Artifact>;

    /// Fetches the content, if the store does not have it.
    fn fetch<'a>(&'a self, artifact: &'a Artifact, timeout: Duration) -> ArtifactFuture<'a, ()>;

    /// Fetches all content that the origin offers.
    fn fetch_all<'a>(&'a self, origin: &'a Origin, timeout: Duration) -> ArtifactFuture<'a, ()>;

    /// Returns the relation of an artifact to an older revision of its origin.
    fn ancestry<'a>(&'a self, older: &'a Revision, artifact: &'a Artifact) -> ArtifactFuture<'a, Ancestry>;

    /// Keeps the content until [`Self::release`], even if the origin drops it.
    fn keep<'a>(&'a self, artifact: &'a Artifact) -> ArtifactFuture<'a, ()>;

    /// Releases content that [`Self::keep`] keeps. `digest` is an element of [`Self::kept`].
    fn release<'a>(&'a self, origin: &'a Origin, digest: &'a str) -> ArtifactFuture<'a, ()>;

    /// Returns the digests of the content that is kept for an origin.
    fn kept<'a>(&'a self, origin: &'a Origin) -> ArtifactFuture<'a, BTreeSet<String>>;

    /// Deletes stored content that no Source needs. `readers` has the key of each Source ([`Origin::reader`],
    /// [`Origin::store_key`]); `None` if its address is invalid. The content of an earlier origin of a Source is needed
    /// until the Source has fetched from its origin. Returns the number of deleted origins.
    fn retain<'a>(&'a self, readers: BTreeMap<String, Option<String>>) -> BoxFuture<'a, io::Result<usize>>;
}

/// Returns the artifact that a policy selects among the refs of a repository.
///
/// # Errors
/// [`ResolveError`].
pub fn resolve_ref(
    origin: &Origin,
    policy: &RefPolicy,
    refs: &BTreeMap<String, String>,
) -> Result<Artifact, ResolveError> {
    let revision = resolve(policy, refs)?;
    Ok(Artifact {
        origin: origin.clone(),
        reference: ref_name(matches!(policy, RefPolicy::Branch(_)), &revision),
        revision,
    })
}

/// The submodules of a tree. Their content is in other repositories, and is not part of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submodules {
    /// Their number.
    pub count: u64,
    /// The path of the first one.
    pub first: String,
}

impl fmt::Display for Submodules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            0 | 1 => write!(f, "submodule {}", self.first),
            count => write!(f, "submodule {} (and {} more)", self.first, count - 1),
        }
    }
}

/// The stores of artifacts, one for each kind of origin.
#[derive(Clone)]
pub struct ArtifactStores {
    /// The mirrors of repositories.
    pub git: GitStore,
}

impl ArtifactStores {
    /// Writes the tree of a fetched artifact into a directory that does not exist yet. Files that match the patterns in
    /// `ignore` are left out.
    ///
    /// # Errors
    /// [`ArtifactError`].
    pub async fn export(
        &self,
        artifact: &Artifact,
        to: &Path,
        ignore: Option<&str>,
    ) -> Result<Option<Submodules>, ArtifactError> {
        let stats = match &artifact.origin {
            Origin::Git(access) => self.git.export(access, artifact.digest(), to, ignore).await?,
        };
        Ok((stats.submodules > 0).then_some(Submodules {
            count: stats.submodules,
            first: stats.first_submodule,
        }))
    }
}

impl Artifacts for ArtifactStores {
    fn resolve<'a>(
        &'a self,
        origin: &'a Origin,
        policy: &'a RefPolicy,
        timeout: Duration,
    ) -> ArtifactFuture<'a, Artifact> {
        async move {
            let Origin::Git(access) = origin;
            let refs = match policy {
                // A commit needs no list of refs.
                RefPolicy::Commit(_) => BTreeMap::new(),
                RefPolicy::Branch(_) | RefPolicy::Tag(_) | RefPolicy::Semver(_) => {
                    self.git.list_refs(access, timeout).await?
                }
            };
            Ok(resolve_ref(origin, policy, &refs)?)
        }
        .boxed()
    }

    fn fetch<'a>(&'a self, artifact: &'a Artifact, timeout: Duration) -> ArtifactFuture<'a, ()> {
        async move {
            let Origin::Git(access) = &artifact.origin;
            let reference = artifact.reference.as_deref();
            let fetched = self
                .git
                .ensure_commit(access, reference, artifact.digest(), timeout);
            Ok(fetched.await?)
        }
        .boxed()
    }

    fn fetch_all<'a>(&'a self, origin: &'a Origin, timeout: Duration) -> ArtifactFuture<'a, ()> {
        async move {
            let Origin::Git(access) = origin;
            Ok(self.git.fetch_all(access, timeout).await?)
        }
        .boxed()
    }

    fn ancestry<'a>(&'a self, older: &'a Revision, artifact: &'a Artifact) -> ArtifactFuture<'a, Ancestry> {
        async move {
            let Origin::Git(access) = &artifact.origin;
            let relation = self.git.ancestry(access, digest(older), artifact.digest());
            Ok(match relation.await? {
                starling_git::Ancestry::Descendant => Ancestry::Descendant,
                starling_git::Ancestry::Ancestor => Ancestry::Ancestor,
                starling_git::Ancestry::Diverged => Ancestry::Diverged,
                starling_git::Ancestry::Missing => Ancestry::Missing,
                starling_git::Ancestry::TooLong => Ancestry::TooLong,
            })
        }
        .boxed()
    }

    fn keep<'a>(&'a self, artifact: &'a Artifact) -> ArtifactFuture<'a, ()> {
        async move {
            let Origin::Git(access) = &artifact.origin;
            Ok(self.git.pin(access, artifact.digest(), artifact.digest()).await?)
        }
        .boxed()
    }

    fn release<'a>(&'a self, origin: &'a Origin, digest: &'a str) -> ArtifactFuture<'a, ()> {
        async move {
            let Origin::Git(access) = origin;
            Ok(self.git.unpin(access, digest).await?)
        }
        .boxed()
    }

    fn kept<'a>(&'a self, origin: &'a Origin) -> ArtifactFuture<'a, BTreeSet<String>> {
        async move {
            let Origin::Git(access) = origin;
            Ok(self.git.list_pins(access).await?.into_keys().collect())
        }
        .boxed()
    }

    fn retain<'a>(&'a self, readers: BTreeMap<String, Option<String>>) -> BoxFuture<'a, io::Result<usize>> {
        self.git.retain(readers).boxed()
    }
}
