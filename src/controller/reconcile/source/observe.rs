//! Asks the repository, and makes sure that the mirror holds what it offers.

use std::collections::BTreeSet;

use starling_api::{Source, SyncGroupStatus};
use starling_core::revision::{Facts, RefPolicy, ResolveError, Revision, Verdict, advance, resolve};

use super::{Finding, Valid};
use crate::controller::context::Context;
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
                context.git.pin(access, &pin(&to), to.commit().as_str()).await?;
                let_go(context, access, &to).await?;
                Finding::Offers(to)
            }
            Verdict::Hold { keep, reason, found } => Finding::Holds {
                reason: reason.as_str(),
                message: format!("the repository offers {found}; {keep} is kept ({reason})"),
            },
        },
    )
}

/// The pin that keeps a commit in the mirror whatever happens to its branch: a rollout may need it later.
fn pin(revision: &Revision) -> String {
    revision.commit().as_str().to_owned()
}

/// Ends the pins of commits that nothing names any more: no Source, no Sync, and no group ([`rolled`]).
async fn let_go(context: &Context, access: &RepoAccess, new: &Revision) -> Result<(), GitError> {
    let mut needed = needed_commits(context);
    needed.insert(pin(new));
    for (name, _) in context.git.list_pins(access).await? {
        if !needed.contains(&name) {
            context.git.unpin(access, &name).await?;
        }
    }
    Ok(())
}

fn needed_commits(context: &Context) -> BTreeSet<String> {
    // Thousands of Syncs name few revisions.
    let mut revisions: BTreeSet<String> = BTreeSet::new();
    for source in context.sources.select(|_| true) {
        revisions.extend(source.status.as_ref().map(|status| status.revision.clone()));
    }
    for sync in context.syncs.select(|_| true) {
        if !revisions.contains(&sync.spec.revision) {
            revisions.insert(sync.spec.revision.clone());
        }
        revisions.extend(
            sync.status
                .as_ref()
                .map(|status| status.last_applied_revision.clone()),
        );
    }
    for group in context.groups.select(|_| true) {
        revisions.extend(group.status.iter().flat_map(rolled).cloned());
    }
    revisions
        .iter()
        .filter_map(|text| text.parse::<Revision>().ok())
        .map(|revision| pin(&revision))
        .collect()
}

/// The revisions that a group rolls, or may roll by itself or by somebody's leave: what was good, what waits for its turn, what is held.
fn rolled(status: &SyncGroupStatus) -> impl Iterator<Item = &String> {
    let rolls = status.rollout.iter().flat_map(|rollout| &rollout.revisions);
    let good = status.last_known_good.iter().chain(&status.queue);
    let later = good.flat_map(|release| &release.revisions);
    let held = status.held_release.iter().flat_map(|held| &held.revisions);
    rolls.chain(later).chain(held).map(|entry| &entry.revision)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What waits for its turn or is held was offered once, and nothing else may name it by the time it rolls.
    #[test]
    fn what_a_group_may_roll_yet_is_kept() {
        let release =
            |revision: &str| json!({"release": "r", "revisions": [{"sync": "app", "revision": revision}]});
        let mut rollout = release("rolls");
        rollout["id"] = 3.into();
        let status = json!({"rollout": rollout, "lastKnownGood": release("good"), "heldRelease": release("held"),
            "queue": [release("next"), release("newest")]});
        let status: SyncGroupStatus = serde_json::from_value(status).unwrap();
        let kept: BTreeSet<&str> = rolled(&status).map(String::as_str).collect();
        assert_eq!(kept, BTreeSet::from(["good", "held", "newest", "next", "rolls"]));
    }
}
