//! Writing a pack into a mirror while it comes. Everything here blocks.

use std::io::Write as _;

use git2::Oid;
use tokio::sync::mpsc;

use super::access::RepoAccess;
use super::error::GitError;
use super::http::Piece;
use super::interrupt::Interrupt;
use super::mirror::Mirror;

/// Commits named to the server as present: enough to find a common one behind a rewritten branch, and a
/// request of 13 kB.
const MAX_HAVES: usize = 256;

/// What a request for a pack names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Negotiation {
    /// Tips that the mirror does not hold.
    pub(super) wants: Vec<Oid>,
    /// Commits that it does hold, the newest first.
    pub(super) haves: Vec<Oid>,
}

/// Decides what to ask for. Nothing to want means nothing to fetch.
pub(super) fn negotiate(
    mirror: &Mirror<'_>,
    access: &RepoAccess,
    tips: &[Oid],
) -> Result<Negotiation, GitError> {
    let decide = || -> Result<Negotiation, git2::Error> {
        let odb = mirror.repo.odb()?;
        let wants: Vec<Oid> = tips.iter().copied().filter(|tip| !odb.exists(*tip)).collect();
        if wants.is_empty() {
            return Ok(Negotiation {
                wants,
                haves: Vec::new(),
            });
        }
        let mut walk = mirror.repo.revwalk()?;
        walk.set_sorting(git2::Sort::TIME)?;
        for reference in mirror.repo.references_glob("refs/starling/*")? {
            if let Some(id) = reference?.target()
                && let Ok(commit) = mirror.repo.find_object(id, None)?.peel_to_commit()
            {
                walk.push(commit.id())?;
            }
        }
        let haves = walk.take(MAX_HAVES).collect::<Result<_, _>>()?;
        Ok(Negotiation { wants, haves })
    };
    mirror.check()?;
    decide().map_err(|error| GitError::from_mirror(access, &error))
}

/// Takes the pieces of a pack until its end and adds it to the mirror. Anything but the end leaves no trace.
pub(super) fn receive(
    mirror: &Mirror<'_>,
    access: &RepoAccess,
    pieces: &mut mpsc::Receiver<Piece>,
    interrupt: &Interrupt,
) -> Result<(), GitError> {
    let failed = |error: &git2::Error| match interrupt.stopped() {
        Some(_) => GitError::timeout(access, interrupt.after()),
        None => GitError::from_fetch(access, error, mirror.check().is_ok()),
    };
    let odb = mirror
        .repo
        .odb()
        .map_err(|error| GitError::from_mirror(access, &error))?;
    let mut writer = odb
        .packwriter()
        .map_err(|error| GitError::from_mirror(access, &error))?;
    writer.progress(|_| interrupt.stopped().is_none());
    loop {
        match pieces.blocking_recv() {
            // The writer's own error says nothing; libgit2 keeps the real one.
            Some(Piece::Data(bytes)) => {
                writer
                    .write_all(&bytes)
                    .map_err(|_| failed(&git2::Error::last_error(-1)))?;
            }
            Some(Piece::End) => break,
            None => return Err(GitError::unreachable(access, "the pack ended early")),
        }
    }
    writer.commit().map_err(|error| failed(&error))?;
    Ok(())
}
