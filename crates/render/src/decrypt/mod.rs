//! Decrypts objects of a build with `sops`. In memory only.
//!
//! The ciphertext, which is in git anyway, is the only content that is written to a file for `sops`. The identities are
//! its standard input, which is anonymous memory and not a pipe, because `sops` reopens it for every recipient of a
//! document. The plaintext is its standard output. Its error output may quote values, so an error contains only the
//! object and a problem with a fixed text.
//!
//! The MAC is not checked. It covers the whole file, which kustomize has changed before (a namespace, a label, a name
//! with a hash), and a user with write access to the repository could change any other object as well. Each value has
//! its own tag, bound to its position in the document, which is checked.
//!
//! Of the keys of a document, only age recipients are used and the others are removed: they contain addresses of key
//! services, and the author of a manifest must not choose servers that the controller connects to.

mod cipher;
mod find;
mod identities;
mod run;
mod tool;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

pub use identities::{Identities, IdentityError};
pub use tool::Sops;

use super::{RenderError, RenderLimits, blocking, manifest};
use find::{EncryptedPart, Location};

/// Concurrent programs for one render. Each takes about 30 ms of one core.
const AT_ONCE: usize = 2;

/// Why an encrypted part of an object cannot be decrypted. Does not quote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecryptProblem {
    /// The Sync has no keys.
    #[error(
        "is encrypted with SOPS, and the Sync has no decryption: name the Secret with the age keys there"
    )]
    NoDecryption,
    /// Encrypted values without metadata of SOPS: a list or a patch was encrypted as a whole.
    #[error("is a value encrypted with SOPS without its metadata; encrypt each object by itself")]
    NoMetadata,
    /// No sops was found at start.
    #[error(
        "is encrypted with SOPS, and no sops was found; install it beside the controller, or name it with --sops"
    )]
    NoSops,
    /// There is no age recipient.
    #[error("is encrypted for no age recipient; other key services are not supported")]
    NoRecipient,
    /// None of the identities belongs to a recipient.
    #[error("cannot be decrypted: none of the identities belongs to one of its age recipients")]
    WrongKey,
    /// A value cannot be decrypted: it was changed, moved, or replaced by plain text.
    #[error(
        "cannot be decrypted: a value was changed after it was encrypted; leave what kustomize reads or sets \
         (apiVersion, kind, metadata) in plain text, with encrypted_regex: ^(data|stringData)$"
    )]
    Changed,
    /// sops failed otherwise.
    #[error("cannot be decrypted: sops failed")]
    Failed,
    /// The output of sops does not have the expected form.
    #[error("is not what it should be once decrypted")]
    Unexpected,
}

/// Decrypts the encrypted objects of a build.
///
/// # Errors
/// [`RenderError::Encrypted`] names object and field. Partially decrypted objects are never returned.
pub(super) async fn open(
    objects: Vec<Value>,
    sops: &Sops,
    identities: Option<&Identities>,
    limits: &RenderLimits,
) -> Result<Vec<Value>, RenderError> {
    // Every string of every object is checked, which takes CPU time.
    let located = blocking(move || {
        objects
            .into_iter()
            .enumerate()
            .map(find_parts)
            .collect::<Result<Vec<_>, _>>()
    })
    .await?;
    let opened: Vec<Vec<Value>> = stream::iter(located)
        .map(|found| found.open(sops, identities, limits))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(opened.into_iter().flatten().collect())
}

/// An object and its encrypted parts.
struct Located {
    /// The name in errors.
    name: String,
    object: Value,
    sealed: Vec<EncryptedPart>,
}

fn find_parts((index, object): (usize, Value)) -> Result<Located, RenderError> {
    let name = name(index, &object);
    let encrypted = |(field, problem)| RenderError::Encrypted {
        object: name.clone(),
        field,
        problem,
    };
    let sealed = find::locations(&object).map_err(encrypted)?;
    let object = if sealed.is_empty() {
        ensure_decrypted(&name, object)?
    } else {
        object
    };
    Ok(Located { name, object, sealed })
}

/// Returns the object, if it has no ciphertext left.
fn ensure_decrypted(name: &str, object: Value) -> Result<Value, RenderError> {
    match find::ciphertext_without_metadata(&object) {
        None => Ok(object),
        Some(field) => Err(RenderError::Encrypted {
            object: name.to_owned(),
            field,
            problem: DecryptProblem::NoMetadata,
        }),
    }
}

impl Located {
    async fn open(
        self,
        sops: &Sops,
        identities: Option<&Identities>,
        limits: &RenderLimits,
    ) -> Result<Vec<Value>, RenderError> {
        let Self {
            name,
            mut object,
            sealed,
        } = self;
        for EncryptedPart { location, document } in sealed {
            let failed = |problem| RenderError::Encrypted {
                object: name.clone(),
                field: location.to_string(),
                problem,
            };
            let identities = identities.ok_or_else(|| failed(DecryptProblem::NoDecryption))?;
            let program = sops.program().ok_or_else(|| failed(DecryptProblem::NoSops))?;
            let opened = run::decrypt(program, &document, identities, limits).await;
            let opened = opened.map_err(|error| error.named(failed))?;
            let unexpected = || failed(DecryptProblem::Unexpected);
            if location == Location::Object {
                let objects = parse_objects(&opened, limits).ok_or_else(unexpected)?;
                return objects
                    .into_iter()
                    .map(|object| ensure_decrypted(&name, object))
                    .collect();
            }
            find::put(&mut object, &location, opened).ok_or_else(unexpected)?;
        }
        ensure_decrypted(&name, object).map(|object| vec![object])
    }
}

/// Returns the objects of a decrypted document: one, or those of a list.
fn parse_objects(json: &[u8], limits: &RenderLimits) -> Option<Vec<Value>> {
    let document: Value = serde_json::from_slice(json).ok()?;
    manifest::objects(vec![document], "", limits.objects).ok()
}

/// Returns the name of an object for errors, or its position if its name is encrypted.
fn name(index: usize, object: &Value) -> String {
    match manifest::identity(object) {
        Ok(identity) if !cipher::is_value(&identity.key.name) && !cipher::is_value(&identity.key.kind) => {
            identity.key.to_string()
        }
        _ => format!("object {} of the render", index + 1),
    }
}
