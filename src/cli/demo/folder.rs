//! The folder that the demo works in: one of its own, or one that stays.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

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

    /// For real control planes.
    pub(super) fn clusters(&self) -> PathBuf {
        self.path.join("clusters")
    }

    /// Writes the kubeconfig, for its owner only: it holds tokens.
    pub(super) fn write_kubeconfig(&self, text: &str) -> anyhow::Result<()> {
        write_private(&self.kubeconfig(), text)
    }
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let named = || format!("write {}", path.display());
    // A file that is there would keep the mode that it has.
    if path.exists() {
        std::fs::remove_file(path).with_context(named)?;
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(named)?;
    file.write_all(text.as_bytes()).with_context(named)
}
