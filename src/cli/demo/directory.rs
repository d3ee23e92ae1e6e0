//! The directory of the demo: temporary, or kept.

use std::path::PathBuf;

use anyhow::Context;
use tempfile::TempDir;

use crate::cli::hub;

/// The directory and the paths in it.
pub(super) struct DemoDirectory {
    path: PathBuf,
    /// Removed when dropped; `None`: the directory is kept.
    temporary: Option<TempDir>,
}

impl DemoDirectory {
    /// Opens or creates the directory `kept`, or creates a temporary one.
    pub(super) fn open(kept: Option<PathBuf>) -> anyhow::Result<Self> {
        match kept {
            Some(path) => {
                std::fs::create_dir_all(&path).with_context(|| format!("--data-dir {}", path.display()))?;
                // The path goes into a URL and into commands that run in other directories.
                let path = path
                    .canonicalize()
                    .with_context(|| format!("--data-dir {}", path.display()))?;
                Ok(Self {
                    path,
                    temporary: None,
                })
            }
            None => {
                let temporary = tempfile::Builder::new().prefix("starling-demo-").tempdir()?;
                Ok(Self {
                    path: temporary.path().to_owned(),
                    temporary: Some(temporary),
                })
            }
        }
    }

    /// Whether the directory is kept after the demo.
    pub(super) fn is_kept(&self) -> bool {
        self.temporary.is_none()
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    pub(super) fn repository(&self) -> PathBuf {
        self.path.join("shop.git")
    }

    /// Data directory of the controller.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join("controller")
    }

    /// Data directory of the embedded API server, if the directory is kept.
    pub(super) fn server(&self) -> Option<PathBuf> {
        self.is_kept().then(|| self.path.join("server"))
    }

    /// Data directory of real control planes.
    pub(super) fn clusters(&self) -> PathBuf {
        self.path.join("clusters")
    }

    /// Writes the kubeconfig, readable only by its owner: it holds tokens.
    pub(super) fn write_kubeconfig(&self, text: &str) -> anyhow::Result<()> {
        hub::write_private(&self.kubeconfig(), text)
    }
}
