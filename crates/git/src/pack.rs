//! Writes a pack into a mirror while it is received. All functions block.

use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use git2::Oid;
use tokio::sync::mpsc;

use super::access::RepoAccess;
use super::error::GitError;
use super::http::PackChunk;
use super::interrupt::Interrupt;
use super::limits::PackLimits;
use super::mirror::Mirror;
use super::scan::{PackScanner, ScanError};

/// Maximum commits that are sent to the server as present: enough to find a common ancestor of a rewritten branch, in a
/// request of 13 kB.
const MAX_HAVES: usize = 256;

/// Packs with larger deltas are resolved one at a time in this process: each needs memory for a base, a delta and a
/// result.
const LARGE_DELTA: u64 = 8 << 20;
static LARGE_DELTAS: Mutex<()> = Mutex::new(());

/// The commits of a request for a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Negotiation {
    /// Tips that the mirror does not contain.
    pub(super) wants: Vec<Oid>,
    /// Commits that the mirror contains, the newest first.
    pub(super) haves: Vec<Oid>,
}

/// Decides which tips to request. Without any, nothing is fetched.
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

/// Receives the chunks of a pack and adds the pack to the mirror. An incomplete pack leaves no files.
pub(super) fn receive(
    mirror: &Mirror<'_>,
    access: &RepoAccess,
    chunks: &mut mpsc::Receiver<PackChunk>,
    limits: &PackLimits,
    interrupt: &Interrupt,
) -> Result<(), GitError> {
    let mut scanner = PackScanner::new(limits);
    let refused = |error: ScanError| match error {
        ScanError::Refused(reason) => GitError::refused(access, reason),
        ScanError::Malformed(place) => GitError::other(access, &format!("the pack is malformed: {place}")),
    };
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
        match chunks.blocking_recv() {
            Some(PackChunk::Data(bytes)) => {
                if interrupt.stopped().is_some() {
                    return Err(GitError::timeout(access, interrupt.after()));
                }
                scanner.push(&bytes).map_err(refused)?;
                // The error of the writer has no cause; libgit2 keeps it.
                writer
                    .write_all(&bytes)
                    .map_err(|_| failed(&git2::Error::last_error(-1)))?;
            }
            Some(PackChunk::End) => break,
            None => return Err(GitError::unreachable(access, "the pack ended early")),
        }
    }
    let largest = scanner.finish().map_err(refused)?;
    // The deltas are resolved now, each in memory.
    let _turn = (largest > LARGE_DELTA).then(|| LARGE_DELTAS.lock().unwrap_or_else(PoisonError::into_inner));
    writer.commit().map_err(|error| failed(&error))?;
    Ok(())
}
