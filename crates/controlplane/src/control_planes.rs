//! A set of control planes that share an etcd.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::assets::Assets;
use crate::control_plane::{Blueprint, ControlPlane};
use crate::controller_manager::{self, DEFAULT_CONTROLLERS};
use crate::error::ControlPlaneError;
use crate::etcd::Etcd;
use crate::process::Process;

/// How control planes are started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Directory for data, keys and logs; empty means a temporary one that is removed with the set.
    ///
    /// A directory from an earlier run keeps its objects; ports and credentials are new each time.
    pub dir: Option<PathBuf>,
    /// Whether each server writes an audit log, see [`ControlPlane::audit_events`].
    pub audit: bool,
    /// Names of the control planes with a controller manager.
    pub controller_manager_for: Vec<String>,
    /// The controllers of the controller manager; default: [`DEFAULT_CONTROLLERS`].
    pub controllers: Vec<String>,
    /// Further flags of each kube-apiserver.
    pub apiserver_flags: Vec<String>,
    /// How long each server may take to become ready, from its own start.
    pub ready_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dir: None,
            audit: false,
            controller_manager_for: Vec::new(),
            controllers: DEFAULT_CONTROLLERS
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            apiserver_flags: Vec::new(),
            // Ready in about two seconds on an idle machine; longer on one that compiles meanwhile.
            ready_timeout: Duration::from_secs(120),
        }
    }
}

/// Control planes that share an etcd. Dropping the set kills all its processes.
#[derive(Debug)]
pub struct ControlPlanes {
    planes: BTreeMap<String, Arc<ControlPlane>>,
    etcd: Etcd,
    assets: Assets,
    options: Options,
    dir: PathBuf,
    /// Removes a temporary directory; the last field, so that it is removed after the processes have exited.
    _temporary: Option<tempfile::TempDir>,
}

impl ControlPlanes {
    /// Starts etcd and one control plane for each name, concurrently, and waits until all are ready.
    ///
    /// # Errors
    /// The first error; all started processes are stopped.
    pub async fn start(
        assets: &Assets,
        names: &[impl AsRef<str>],
        options: Options,
    ) -> Result<Self, ControlPlaneError> {
        let (dir, temporary) = match &options.dir {
            Some(dir) => (absolute(dir)?, None),
            None => {
                let temporary = temporary_folder()?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        std::fs::create_dir_all(&dir).map_err(ControlPlaneError::file("control planes", &dir))?;
        let etcd = Etcd::start(assets, &dir, options.ready_timeout).await?;
        let mut set = Self {
            planes: BTreeMap::new(),
            etcd,
            assets: assets.clone(),
            options,
            dir,
            _temporary: temporary,
        };
        set.add_all(names).await?;
        Ok(set)
    }

    /// Starts one more control plane.
    ///
    /// # Errors
    /// As for [`Self::start`]; running control planes are not affected.
    pub async fn add(&mut self, name: &str) -> Result<&Arc<ControlPlane>, ControlPlaneError> {
        self.add_all(&[name]).await?;
        self.get(name)
    }

    /// Returns the control plane of a name.
    ///
    /// # Errors
    /// [`ControlPlaneError::UnknownName`].
    pub fn get(&self, name: &str) -> Result<&Arc<ControlPlane>, ControlPlaneError> {
        self.planes
            .get(name)
            .ok_or_else(|| ControlPlaneError::UnknownName {
                name: name.to_owned(),
            })
    }

    /// Returns all control planes in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ControlPlane>> {
        self.planes.values()
    }

    /// Returns the directory with data, keys and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the programs of the control planes.
    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    /// Returns the etcd that all control planes share: pausing it blocks all of them.
    pub fn etcd(&self) -> &Process {
        &self.etcd.process
    }

    /// Compacts the history of etcd up to now. An API server still serves earlier revisions from its cache; a restarted
    /// one rejects watches that continue from them.
    ///
    /// # Errors
    /// [`ControlPlaneError::Etcd`].
    pub async fn compact(&self) -> Result<(), ControlPlaneError> {
        let compacted = self.etcd.compact().await;
        compacted.map_err(|error| ControlPlaneError::Etcd { error })
    }

    async fn add_all(&mut self, names: &[impl AsRef<str>]) -> Result<(), ControlPlaneError> {
        // More concurrent starts would only make each slower, because a start is CPU-bound.
        let at_once = std::thread::available_parallelism().map_or(2, |n| n.get() * 2);
        let gate = Arc::new(Semaphore::new(at_once));
        let mut starts = JoinSet::new();
        for blueprint in self.blueprints(names)? {
            let (assets, options, gate) = (self.assets.clone(), self.options.clone(), Arc::clone(&gate));
            starts.spawn(async move {
                // The semaphore is never closed, so the wait cannot fail.
                let _slot = gate.acquire().await;
                start_one(&assets, &options, blueprint).await
            });
        }
        let mut started = Vec::new();
        // An early return drops the running starts and `started`, which stops their processes.
        while let Some(outcome) = starts.join_next().await {
            started.push(outcome.map_err(ControlPlaneError::Interrupted)??);
        }
        self.planes.extend(
            started
                .into_iter()
                .map(|plane| (plane.name().to_owned(), Arc::new(plane))),
        );
        Ok(())
    }

    fn blueprints(&self, names: &[impl AsRef<str>]) -> Result<Vec<Blueprint>, ControlPlaneError> {
        let mut blueprints: Vec<Blueprint> = Vec::new();
        for name in names.iter().map(AsRef::as_ref) {
            let name = name.to_owned();
            // The data directory of etcd is beside the directories of the control planes.
            if !is_dns_label(&name) || name == "etcd" {
                return Err(ControlPlaneError::InvalidName { name });
            }
            if self.planes.contains_key(&name) || blueprints.iter().any(|other| other.name == name) {
                return Err(ControlPlaneError::DuplicateName { name });
            }
            blueprints.push(Blueprint {
                dir: self.dir.join(&name),
                name,
                etcd_url: self.etcd.client_url.clone(),
                audit: self.options.audit,
                extra_flags: self.options.apiserver_flags.clone(),
                ready_timeout: self.options.ready_timeout,
            });
        }
        Ok(blueprints)
    }
}

impl Drop for ControlPlanes {
    fn drop(&mut self) {
        // Control planes with other references are stopped too. All are killed before the first is awaited, so that
        // they exit concurrently.
        self.planes.values().for_each(|plane| plane.begin_kill());
        self.etcd.process.begin_kill();
        self.planes.values().for_each(|plane| plane.kill_all());
    }
}

/// Makes a path absolute, because kubeconfigs and errors with this path are read from other directories.
fn absolute(dir: &Path) -> Result<PathBuf, ControlPlaneError> {
    std::path::absolute(dir).map_err(ControlPlaneError::file("control planes", dir))
}

fn temporary_folder() -> Result<tempfile::TempDir, ControlPlaneError> {
    let folder = tempfile::Builder::new().prefix("control-planes-").tempdir();
    folder.map_err(ControlPlaneError::file("control planes", std::env::temp_dir()))
}

async fn start_one(
    assets: &Assets,
    options: &Options,
    blueprint: Blueprint,
) -> Result<ControlPlane, ControlPlaneError> {
    let within = options.ready_timeout;
    let wants_manager = options.controller_manager_for.contains(&blueprint.name);
    let plane = ControlPlane::start(assets, blueprint).await?;
    if wants_manager {
        let process = controller_manager::start(assets, &plane, &options.controllers, within).await?;
        plane.set_controller_manager(process);
    }
    Ok(plane)
}

/// Whether a name is a DNS label, and therefore valid as a directory and a key prefix.
fn is_dns_label(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_labels() {
        for good in ["a", "east-1", "0"] {
            assert!(is_dns_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a/b", "..", "a.b", &"a".repeat(64)] {
            assert!(!is_dns_label(bad), "{bad}");
        }
    }
}
