//! Artifacts: what Sources offer, behind one port.
//!
//! A Source resolves to an [`Artifact`]: content with an origin, a revision, a digest and a tree. Reconcilers, builds
//! and pins know artifacts only. What an origin is made of is a variant of [`Origin`], and each variant has its store
//! in [`ArtifactStores`]; a second kind of Source is a variant and a store, and nothing else has to know of it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_api::Source;
use starling_core::revision::{RefPolicy, ResolveError, Revision, resolve};
use starling_git::{GitError, GitStore, RepoAccess};

/// Where artifacts come from, with what is needed to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A git repository.
    Git(RepoAccess),
}

impl Origin {
    /// The host that requests go to; `None` for a local folder. Requests to one host are paced together.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Git(access) => access.url().host(),
        }
    }

    /// Names the origin and its credentials: content that one credential fetched is not read by another.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        match self {
            Self::Git(access) => access.fingerprint(),
        }
    }
}

/// Content that a Source offers: what an origin has at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Where it comes from.
    pub origin: Origin,
    /// What `status.revision` says.
    pub revision: Revision,
    /// The full name that it is fetched by; `None`: by its digest.
    pub reference: Option<String>,
}

impl Artifact {
    /// Names the content: of git, the commit.
    #[must_use]
    pub fn digest(&self) -> &str {
        digest(&self.revision)
    }
}

/// The digest of the content at a revision, as [`Artifacts::kept`] lists it.
#[must_use]
pub fn digest(revision: &Revision) -> &str {
    revision.commit().as_str()
}

/// The full name that a revision of a Source is fetched by; `None` where the Source names the content itself.
#[must_use]
pub fn reference(source: &Source, revision: &Revision) -> Option<String> {
    ref_name(source.spec.reference.branch.is_some(), revision)
}

/// The full name of the ref that a revision was found at. A revision by a commit alone has none.
fn ref_name(is_branch: bool, revision: &Revision) -> Option<String> {
    let folder = if is_branch { "heads" } else { "tags" };
    (!revision.name().is_empty()).then(|| format!("refs/{folder}/{}", revision.name()))
}

/// Why an artifact cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The origin answers, and has nothing that the policy selects.
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// The git repository, or its mirror.
    #[error(transparent)]
    Git(#[from] GitError),
}

impl ArtifactError {
    /// The reason of Ready. The one mapping from errors of origins.
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

/// The port: artifacts of every kind of origin.
pub trait Artifacts: Send + Sync {
    /// Finds what a policy selects now. The content is not fetched.
    fn resolve<'a>(
        &'a self,
        origin: &'a Origin,
        policy: &'a RefPolicy,
        timeout: Duration,
    ) -> ArtifactFuture<'a, Artifact>;

    /// Makes sure that the content is at hand.
    fn fetch<'a>(&'a self, artifact: &'a Artifact, timeout: Duration) -> ArtifactFuture<'a, ()>;

    /// Whether an artifact continues an older revision of its origin; `None`: that is not known.
    fn is_descendant<'a>(
        &'a self,
        older: &'a Revision,
        artifact: &'a Artifact,
    ) -> ArtifactFuture<'a, Option<bool>>;

    /// Keeps the content, also when the origin no longer has it, until [`Self::release`].
    fn keep<'a>(&'a self, artifact: &'a Artifact) -> ArtifactFuture<'a, ()>;

    /// Ends that. `digest`: as [`Self::kept`] lists it.
    fn release<'a>(&'a self, origin: &'a Origin, digest: &'a str) -> ArtifactFuture<'a, ()>;

    /// Digests of what is kept of an origin.
    fn kept<'a>(&'a self, origin: &'a Origin) -> ArtifactFuture<'a, BTreeSet<String>>;

    /// Deletes what is at hand of all origins but these ([`Origin::fingerprint`]). Returns how many were deleted.
    fn retain<'a>(&'a self, origins: BTreeSet<String>) -> BoxFuture<'a, io::Result<usize>>;
}

/// Which artifact a policy selects among the refs of a repository.
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

/// The stores of artifacts, one for each kind of origin.
#[derive(Clone)]
pub struct ArtifactStores {
    /// The mirrors of repositories.
    pub git: GitStore,
}

impl ArtifactStores {
    /// Writes the tree of an artifact that was fetched into a folder that does not exist yet. `ignore`: patterns of
    /// files that are left out.
    ///
    /// # Errors
    /// [`ArtifactError`].
    pub async fn export(
        &self,
        artifact: &Artifact,
        to: &Path,
        ignore: Option<&str>,
    ) -> Result<(), ArtifactError> {
        match &artifact.origin {
            Origin::Git(access) => self.git.export(access, artifact.digest(), to, ignore).await?,
        };
        Ok(())
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
                // A commit is what it is: there is nothing to ask for.
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

    fn is_descendant<'a>(
        &'a self,
        older: &'a Revision,
        artifact: &'a Artifact,
    ) -> ArtifactFuture<'a, Option<bool>> {
        async move {
            let Origin::Git(access) = &artifact.origin;
            Ok(self
                .git
                .is_descendant(access, digest(older), artifact.digest())
                .await?)
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

    fn retain<'a>(&'a self, origins: BTreeSet<String>) -> BoxFuture<'a, io::Result<usize>> {
        self.git.retain(origins).boxed()
    }
}
