//! Asks the repository, and makes sure that the mirror holds what it offers.

use starling_api::Source;
use starling_core::revision::{Facts, RefPolicy, ResolveError, Revision, Verdict, advance, resolve};

use super::{Finding, Valid};
use crate::controller::context::Context;
use crate::controller::pins;
use crate::controller::repositories::RepositoryError;
use crate::git::{GitError, RepoAccess};

pub(super) async fn look(context: &Context, source: &Source, valid: &Valid) -> Finding {
    let access = match context
        .repositories
        .refresh(&context.hub, source, context.allow_insecure_sources)
        .await
    {
        Ok(access) => access,
        Err(error) => return unaddressed(&error),
    };
    context.pace.ask(access.url().host()).await;
    match follow(context, source, valid, &access).await {
        Ok(finding) => finding,
        Err(error) => Finding::Failed {
            reason: reason(&error),
            message: crate::chain(&error),
        },
    }
}

async fn follow(
    context: &Context,
    source: &Source,
    valid: &Valid,
    access: &RepoAccess,
) -> Result<Finding, GitError> {
    let timeout = source.spec.timeout.as_std();
    let found = match &valid.policy {
        // A commit is what it is: there is nothing to ask for.
        RefPolicy::Commit(commit) => Revision::new(None, commit.clone()),
        RefPolicy::Branch(_) | RefPolicy::Tag(_) | RefPolicy::Semver(_) => {
            let refs = context.git.list_refs(access, timeout).await?;
            match resolve(&valid.policy, &refs) {
                Ok(found) => found,
                Err(error) => return Ok(unresolved(source, &error)),
            }
        }
    };
    let last = last_revision(source);
    let unchanged = last.as_ref() == Some(&found);
    context
        .git
        .ensure_commit(
            access,
            ref_name(&valid.policy, &found).as_deref(),
            found.commit().as_str(),
            timeout,
        )
        .await?;
    if unchanged {
        return Ok(Finding::Offers(found));
    }
    let is_descendant = match &last {
        Some(last) => {
            context
                .git
                .is_descendant(access, last.commit().as_str(), found.commit().as_str())
                .await?
        }
        None => None,
    };
    Ok(
        match advance(
            &valid.policy,
            last.as_ref(),
            found.clone(),
            Facts { is_descendant },
            valid.rules,
        ) {
            Verdict::Unchanged => Finding::Offers(found),
            Verdict::Move(to) => {
                pins::pin(context, source, access, &to).await?;
                Finding::Offers(to)
            }
            Verdict::Hold { keep, reason, found } => Finding::Holds {
                reason: reason.as_str(),
                message: format!("the repository offers {found}; {keep} is kept ({reason})"),
            },
        },
    )
}

/// The revision in status, if it is of this repository: another repository's history is no rewrite of this one.
fn last_revision(source: &Source) -> Option<Revision> {
    let status = source.status.as_ref()?;
    (status.revision_origin == origin(source)).then(|| status.revision.parse().ok())?
}

/// What tells whether the revision in status is of this repository.
pub(super) fn origin(source: &Source) -> String {
    starling_core::digest::of(&source.spec.url)
}

fn ref_name(policy: &RefPolicy, found: &Revision) -> Option<String> {
    match policy {
        RefPolicy::Branch(_) => Some(format!("refs/heads/{}", found.name())),
        RefPolicy::Tag(_) | RefPolicy::Semver(_) => Some(format!("refs/tags/{}", found.name())),
        RefPolicy::Commit(_) => None,
    }
}

fn unresolved(source: &Source, error: &ResolveError) -> Finding {
    let kept = source
        .status
        .as_ref()
        .map(|status| status.revision.as_str())
        .filter(|r| !r.is_empty());
    let message = match kept {
        Some(revision) => format!(
            "{}; the last good revision {revision} is kept",
            crate::chain(error)
        ),
        None => crate::chain(error),
    };
    Finding::Failed {
        reason: "RefNotFound",
        message,
    }
}

fn unaddressed(error: &RepositoryError) -> Finding {
    let message = crate::chain(error);
    match error {
        RepositoryError::Url(_) => Finding::Stalled {
            reason: "InvalidURL",
            message,
        },
        // Secrets are not watched: they are looked at again after a while.
        RepositoryError::SecretMissing { .. } => Finding::Failed {
            reason: "SecretNotFound",
            message,
        },
        RepositoryError::SecretUnusable { .. } => Finding::Failed {
            reason: "InvalidSecret",
            message,
        },
        RepositoryError::Hub(_) => Finding::Failed {
            reason: "ManagementClusterFailed",
            message,
        },
    }
}

/// The one mapping from what goes wrong with git to a reason.
fn reason(error: &GitError) -> &'static str {
    match error {
        GitError::NotFound { .. } => "NotFound",
        GitError::Auth { .. } => "AuthenticationFailed",
        GitError::Untrusted { .. } => "CertificateNotTrusted",
        GitError::Unreachable { .. } => "Unreachable",
        GitError::Timeout { .. } => "Timeout",
        GitError::Refused { .. } => "Refused",
        GitError::Corrupt { .. } => "MirrorDamaged",
        GitError::Disk { .. } => "StorageFailed",
        GitError::Other { .. } => "GitFailed",
    }
}
