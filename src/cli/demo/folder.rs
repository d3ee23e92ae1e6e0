//! The folder that the demo works in: one of its own, or one that stays.

use std::path::PathBuf;

use anyhow::Context;
use tempfile::TempDir;

use crate::cli::hub;

/// A folder and what is where in it.
pub(super) struct Folder {
    path: PathBuf,
    /// Removed with this, unless it is to stay.
    temporary: Option<TempDir>,
}

impl Folder {
    /// Opens or makes the folder `kept`, or makes one that is removed again.
    pub(super) fn open(kept: Option<PathBuf>) -> anyhow::Result<Self> {
        match kept {
            Some(path) => {
                std::fs::create_dir_all(&path).with_context(|| format!("--data-dir {}", path.display()))?;
                // It stands in a URL and in commands that are run elsewhere.
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

    /// Whether it is there after the demo.
    pub(super) fn is_kept(&self) -> bool {
        self.temporary.is_none()
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.path.join("kubeconfig")
    }

    pub(super) fn repository(&self) -> PathBuf {
        self.path.join("shop.git")
    }

    /// For the controller.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join("controller")
    }

    /// For the embedded API server, if what is in it is to stay.
    pub(super) fn server(&self) -> Option<PathBuf> {
        self.is_kept().then(|| self.path.join("server"))
    }

    /// For real control planes.
    pub(super) fn clusters(&self) -> PathBuf {
        self.path.join("clusters")
    }

    /// Writes the kubeconfig, for its owner only: it holds tokens.
    pub(super) fn write_kubeconfig(&self, text: &str) -> anyhow::Result<()> {
        hub::write_private(&self.kubeconfig(), text)
    }
}
