//! Deletes mirrors that no reader needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Call, GitStore, UNKNOWN};
use crate::access::{Credential, RepoAccess, RepoUrl};
use crate::error::GitError;
use crate::mirror::Mirror;
use crate::readers::{self, MirrorOrigin};

/// The mirror that each reader uses now, by the file of the reader; `None`: it has none.
type CurrentMirrors = BTreeMap<String, Option<String>>;

impl GitStore {
    /// Deletes the mirrors that no reader needs, and damaged ones; returns how many. `mirrors` has to name every
    /// existing reader, with its mirror ([`RepoAccess::mirror_key`]); `None` if it has none now.
    ///
    /// A reader needs its mirror, and an earlier one until it has fetched its mirror. Then the pins of the earlier one
    /// go to its mirror, if that is of the same repository and has a Secret.
    ///
    /// # Errors
    /// [`std::io::Error`] of the first directory that cannot be read or deleted.
    pub async fn retain(&self, mirrors: BTreeMap<String, Option<String>>) -> io::Result<usize> {
        let mirrors: CurrentMirrors = mirrors
            .into_iter()
            .map(|(reader, mirror)| (readers::file_name(&reader), mirror))
            .collect();
        let current: BTreeSet<&String> = mirrors.values().flatten().collect();
        let mut deleted = 0;
        for (key, path) in list_mirrors(&self.inner.root)? {
            let is_damaged = path.extension().is_some();
            if !is_damaged && (self.has_readers(&key, &path, &mirrors).await? || current.contains(&key)) {
                continue;
            }
            self.delete(&key, path).await?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Removes the readers of a mirror that do not need it any more. Returns whether some do.
    async fn has_readers(&self, key: &str, path: &Path, mirrors: &CurrentMirrors) -> io::Result<bool> {
        let mut is_needed = false;
        for reader in readers::files(path)? {
            let needs = match mirrors.get(&reader) {
                // The reader does not exist any more: another one may get its name.
                None => false,
                Some(None) => true,
                Some(Some(current)) if current == key => true,
                Some(Some(current)) => {
                    let successor = self.inner.root.join(current);
                    !readers::contains_file(&successor, &reader) || !self.takes_over(path, current).await
                }
            };
            if !needs {
                readers::remove_file(path, &reader)?;
            }
            is_needed |= needs;
        }
        Ok(is_needed)
    }

    /// Copies the pins of an earlier mirror to the mirror of the same repository. Returns whether the earlier one is
    /// not needed any more.
    ///
    /// A mirror without a Secret gets none: it is for everybody, and the earlier one may contain what was never public.
    async fn takes_over(&self, earlier: &Path, key: &str) -> bool {
        let successor = MirrorOrigin::read(&self.inner.root.join(key));
        let (Some(origin), Some(successor)) = (MirrorOrigin::read(earlier), successor) else {
            return true;
        };
        if successor.url != origin.url || successor.secret.is_none() {
            return true;
        }
        // The URL was accepted when the mirror was created.
        let Ok(url) = RepoUrl::parse(&origin.url, true) else {
            return true;
        };
        match self
            .copy_pins(earlier, key, &RepoAccess::new(url, Credential::None))
            .await
        {
            Ok(()) => true,
            // Nothing can be read from it any more.
            Err(error @ GitError::Corrupt { .. }) => {
                tracing::warn!(repo = origin.url, %error, "pins of an earlier git mirror are lost");
                true
            }
            Err(error) => {
                tracing::warn!(repo = origin.url, %error, "pins of an earlier git mirror not copied");
                false
            }
        }
    }

    /// Copies pins to the mirror with this key. `access` is for messages.
    async fn copy_pins(&self, from: &Path, key: &str, access: &RepoAccess) -> Result<(), GitError> {
        let call = Call {
            handle: self.handle(key),
            ..self.local_call(access)
        };
        let _pins_lock = self.within(&call, call.handle.pins_lock.lock()).await?;
        let shared = self
            .within(&call, Arc::clone(&call.handle.content).read_owned())
            .await?;
        let permit = self.permit(&call, &self.inner.local).await?;
        let (from, to) = (from.to_owned(), call.handle.path.clone());
        let (access, interrupt) = (access.clone(), Arc::clone(&call.interrupt));
        // Damage is of the earlier mirror: the other one is not marked.
        self.job(&call, (permit, shared), move || {
            Mirror::open(&to, &access)?.copy_pins(&from, &interrupt)
        })
        .await
    }

    async fn delete(&self, key: &str, path: PathBuf) -> io::Result<()> {
        let handle = self.handle(key);
        let alone = Arc::clone(&handle.content).write_owned().await;
        tokio::task::spawn_blocking(move || {
            let _alone = alone;
            let done = fs::remove_dir_all(path);
            handle.condition.store(UNKNOWN, Ordering::SeqCst);
            done
        })
        .await
        .map_err(io::Error::other)?
    }
}

/// Returns the mirrors on disk: key and path; those that were moved aside with their extension.
fn list_mirrors(root: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        // Directories with other names are not touched.
        if stem.len() == 32 && stem.bytes().all(|b| b.is_ascii_hexdigit()) {
            found.push((stem, path));
        }
    }
    Ok(found)
}
