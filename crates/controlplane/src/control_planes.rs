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
    /// Folder for data, keys and logs; empty means a temporary one that goes with the set.
    ///
    /// A folder from an earlier run keeps its objects; ports and credentials are new each time.
    pub dir: Option<PathBuf>,
    /// Whether each server writes an audit log, see [`ControlPlane::audit_events`].
    pub audit: bool,
    /// Names of the control planes that get a controller manager.
    pub controller_manager_for: Vec<String>,
    /// The controllers that it runs, [`DEFAULT_CONTROLLERS`] unless told otherwise.
    pub controllers: Vec<String>,
    /// Further flags of each kube-apiserver.
    pub apiserver_flags: Vec<String>,
    /// How long each server may take to get ready, counted from its own start.
    pub ready_within: Duration,
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
            // Ready in about two seconds on an idle machine; this leaves room for one that compiles meanwhile.
            ready_within: Duration::from_secs(120),
        }
    }
}

/// Control planes that share an etcd. Dropping the set kills every process of it.
#[derive(Debug)]
pub struct ControlPlanes {
    planes: BTreeMap<String, Arc<ControlPlane>>,
    etcd: Etcd,
    assets: Assets,
    options: Options,
    dir: PathBuf,
    /// Removes a temporary folder; the last field, so that it goes after the processes.
    _temporary: Option<tempfile::TempDir>,
}

impl ControlPlanes {
    /// Starts etcd and one control plane for each name, side by side, and waits until all are ready.
    ///
    /// # Errors
    /// The first error; whatever was started is ended again.
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
        let etcd = Etcd::start(assets, &dir, options.ready_within).await?;
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
    /// As for [`Self::start`]; the control planes that run are not affected.
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

    /// Returns the folder with data, keys and logs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the programs that run.
    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    /// Returns the etcd that all control planes share: pausing it makes all of them hang.
    pub fn etcd(&self) -> &Process {
        &self.etcd.process
    }

    /// Makes etcd forget all history up to now. An API server still serves from its own memory what it has seen; one
    /// that is restarted refuses whoever goes on from before.
    ///
    /// # Errors
    /// [`ControlPlaneError::Etcd`].
    pub async fn compact(&self) -> Result<(), ControlPlaneError> {
        let compacted = self.etcd.compact().await;
        compacted.map_err(|answer| ControlPlaneError::Etcd { answer })
    }

    async fn add_all(&mut self, names: &[impl AsRef<str>]) -> Result<(), ControlPlaneError> {
        // More at once would only make each of them slower: a start is all processor time.
        let at_once = std::thread::available_parallelism().map_or(2, |n| n.get() * 2);
        let gate = Arc::new(Semaphore::new(at_once));
        let mut starts = JoinSet::new();
        for blueprint in self.blueprints(names)? {
            let (assets, options, gate) = (self.assets.clone(), self.options.clone(), Arc::clone(&gate));
            starts.spawn(async move {
                // The gate is never closed, so a failed wait for it cannot happen and would do no harm.
                let _slot = gate.acquire().await;
                start_one(&assets, &options, blueprint).await
            });
        }
        let mut started = Vec::new();
        // An early return drops the starts still going on and what is in `started`: their processes end.
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
            // The folder of etcd's data lies beside the folders of the control planes.
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
                ready_within: self.options.ready_within,
            });
        }
        Ok(blueprints)
    }
}

impl Drop for ControlPlanes {
    fn drop(&mut self) {
        // Somebody may still hold a control plane: it ends with the set all the same. All are killed before
        // the first is waited for, so that they end side by side.
        self.planes.values().for_each(|plane| plane.begin_kill());
        self.etcd.process.begin_kill();
        self.planes.values().for_each(|plane| plane.kill_all());
    }
}

/// Makes a path absolute: kubeconfigs and errors that name it are read from other folders.
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
    let within = options.ready_within;
    let wants_manager = options.controller_manager_for.contains(&blueprint.name);
    let plane = ControlPlane::start(assets, blueprint).await?;
    if wants_manager {
        let process = controller_manager::start(assets, &plane, &options.controllers, within).await?;
        plane.set_controller_manager(process);
    }
    Ok(plane)
}

/// Tells whether a name fits a DNS label, and with it a folder and a key prefix.
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
