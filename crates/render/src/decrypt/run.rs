//! Runs `sops` on one document.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};

use super::super::process::{self, Call};
use super::super::{RenderError, RenderLimits, blocking};
use super::cipher::Document;
use super::{DecryptProblem, Identities};

/// The file with the ciphertext, in the private directory of the program.
const FILE: &str = "encrypted";
/// Identities are read from standard input, and only age is tried.
const ENVIRONMENT: [(&str, &str); 2] = [
    ("SOPS_AGE_KEY_FILE", "/dev/stdin"),
    ("SOPS_DECRYPTION_ORDER", "age"),
];
/// Exit statuses of `sops` (its package `codes`): the tree cannot be decrypted, and no key fits.
const TREE: i32 = 25;
const NO_KEY: i32 = 128;

/// Why a document was not decrypted: a problem of the document, or a failure to run the program.
pub(super) enum Failure {
    Document(DecryptProblem),
    Run(RenderError),
}

impl Failure {
    /// Converts to an error with the location of the document.
    pub(super) fn named(self, name: impl FnOnce(DecryptProblem) -> RenderError) -> RenderError {
        match self {
            Self::Document(problem) => name(problem),
            Self::Run(error) => error,
        }
    }
}

/// Decrypts a document; returns the output of `sops`.
pub(super) async fn decrypt(
    program: &Path,
    document: &Document,
    identities: &Identities,
    limits: &RenderLimits,
) -> Result<Vec<u8>, Failure> {
    let text = document.text.clone();
    let (secret, parent) = (identities.clone(), limits.directory.clone());
    let (home, input) = blocking(move || create_directory(&parent, &text, &secret))
        .await
        .map_err(Failure::Run)?;
    let arguments = [
        "decrypt",
        "--ignore-mac",
        "--input-type",
        document.format.as_str(),
        "--output-type",
        document.output.as_str(),
        FILE,
    ];
    let call = Call {
        name: "sops",
        program,
        arguments: &arguments,
        home: home.path(),
        environment: &ENVIRONMENT,
        input,
    };
    let finished = process::run(call, limits).await.map_err(Failure::Run)?;
    // Removing the directory blocks.
    let removed = blocking(move || {
        drop(home);
        Ok(())
    });
    removed.await.map_err(Failure::Run)?;
    match finished.status.code() {
        Some(0) => Ok(finished.stdout),
        Some(NO_KEY) => Err(Failure::Document(DecryptProblem::WrongKey)),
        Some(TREE) => Err(Failure::Document(DecryptProblem::Changed)),
        // The error output may quote values, so it is dropped.
        _ => Err(Failure::Document(DecryptProblem::Failed)),
    }
}

/// Creates the directory of the program with the ciphertext, and its standard input with the identities.
fn create_directory(
    parent: &Path,
    text: &str,
    identities: &Identities,
) -> Result<(tempfile::TempDir, Stdio), RenderError> {
    let prepared = || -> io::Result<_> {
        let home = tempfile::Builder::new()
            .prefix("starling-sops-")
            .tempdir_in(parent)?;
        std::fs::write(home.path().join(FILE), text)?;
        // `sops` searches for a configuration in this directory and its parents, and finds this one.
        std::fs::write(home.path().join(".sops.yaml"), "{}")?;
        let mut memory = File::from(memfd_create("identities", MemfdFlags::CLOEXEC)?);
        memory.write_all(identities.reveal())?;
        Ok((home, Stdio::from(memory)))
    };
    prepared().map_err(|source| RenderError::File {
        file: "the directory of sops".to_owned(),
        source,
    })
}
