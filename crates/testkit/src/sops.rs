//! Real `sops` and age, to encrypt the files of tests.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The output directory of `tests/sops/build.sh`, below cargo's target directory.
const BUILD_FOLDER: &str = "sops/bin";

/// The programs, built by `tests/sops/build.sh`.
#[derive(Clone, Debug)]
pub struct SopsTools {
    directory: PathBuf,
}

/// A pair of age keys. Debug shows the public key.
pub struct AgeKey {
    identity: String,
    recipient: String,
}

impl SopsTools {
    /// Finds the programs: in the target directory of `CARGO_TARGET_DIR`, in that of the checkout, and in that of the
    /// running program.
    ///
    /// # Errors
    /// If the programs are not built; the error says how to build them.
    pub fn find() -> Result<Self> {
        let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
        let executable = std::env::current_exe()?;
        let directories = named
            .into_iter()
            .chain([checkout])
            .chain(executable.ancestors().map(Path::to_owned))
            .map(|directory| directory.join(BUILD_FOLDER));
        let complete = |directory: &PathBuf| {
            ["sops", "age-keygen"]
                .iter()
                .all(|name| directory.join(name).is_file())
        };
        let directory = directories.into_iter().find(complete);
        let directory = directory.context("sops and age are missing: run tests/sops/build.sh first")?;
        Ok(Self { directory })
    }

    /// The program `sops`.
    #[must_use]
    pub fn sops(&self) -> PathBuf {
        self.directory.join("sops")
    }

    /// The program `age-keygen`.
    #[must_use]
    pub fn age_keygen(&self) -> PathBuf {
        self.directory.join("age-keygen")
    }

    /// Generates a pair of keys.
    ///
    /// # Errors
    /// If `age-keygen` fails.
    pub fn key(&self) -> Result<AgeKey> {
        let output = Command::new(self.age_keygen()).output()?;
        ensure!(
            output.status.success(),
            "age-keygen: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout)?;
        let find = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        let recipient = find("# public key: ").context("a public key")?.to_owned();
        let identity = text
            .lines()
            .find(|line| line.starts_with("AGE-SECRET-KEY-"))
            .context("an identity")?
            .to_owned();
        Ok(AgeKey { identity, recipient })
    }

    /// Encrypts a text for recipients. `format` is one of `yaml`, `json`, `dotenv`, `ini`, `binary`; `more` are further
    /// arguments, such as `--encrypted-regex`.
    ///
    /// # Errors
    /// If `sops` fails.
    pub fn encrypt(
        &self,
        plaintext: &[u8],
        format: &str,
        keys: &[&AgeKey],
        more: &[&str],
    ) -> Result<Vec<u8>> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("plain");
        std::fs::write(&file, plaintext)?;
        let recipients: Vec<&str> = keys.iter().map(|key| key.recipient.as_str()).collect();
        let output = Command::new(self.sops())
            .current_dir(directory.path())
            .env_clear()
            .env("HOME", directory.path())
            .args(["encrypt", "--input-type", format, "--output-type", format])
            .args(["--age", &recipients.join(",")])
            .args(more)
            .arg(&file)
            .output()?;
        ensure!(
            output.status.success(),
            "sops: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(output.stdout)
    }

    /// As [`Self::encrypt`], for a manifest of which only `data` and `stringData` are encrypted.
    ///
    /// # Errors
    /// If `sops` fails.
    pub fn encrypt_secret(&self, manifest: &str, keys: &[&AgeKey]) -> Result<String> {
        let regex = ["--encrypted-regex", "^(data|stringData)$"];
        Ok(String::from_utf8(self.encrypt(
            manifest.as_bytes(),
            "yaml",
            keys,
            &regex,
        )?)?)
    }
}

impl AgeKey {
    /// Returns the private key, for a Secret.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }
}

impl fmt::Debug for AgeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgeKey")
            .field("recipient", &self.recipient)
            .finish_non_exhaustive()
    }
}
