//! Encrypted objects: found in what kustomize built, opened by `sops`, put back. In memory only.
//!
//! What git holds is the ciphertext, so that, and nothing else, is written to a file for `sops` to read. The identities go
//! to it as its standard input, which is a piece of anonymous memory and no pipe: `sops` opens it anew for every
//! recipient of a document. The plaintext comes back on its standard output. Its complaints may quote values, so an
//! error says which object and which kind of trouble, in our words.
//!
//! The MAC is not checked. It covers the whole file, kustomize has changed that file before (a namespace, a label, a
//! name with a hash), and what somebody who can write to the repository could do to it, they could do to any object.
//! Each value has a tag of its own, bound to its place in the document, and that one is checked.
//!
//! Of the keys that a document names, age recipients are used and the others are taken out: they have addresses of key
//! services in them, and whoever writes a manifest must not choose whom the controller calls.

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
use find::{Place, Sealed};

/// Programs at a time for one render. Each takes some 30 ms of one core.
const AT_ONCE: usize = 2;

/// What is wrong with an encrypted part of an object. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecryptProblem {
    /// The Sync says nothing about keys.
    #[error(
        "is encrypted with SOPS, and the Sync has no decryption: name the Secret with the age keys there"
    )]
    NoDecryption,
    /// Values of SOPS without the part that tells how they were made: a list was encrypted as one, or a patch.
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
    /// None of the identities is one of the recipients'.
    #[error("cannot be decrypted: none of the identities belongs to one of its age recipients")]
    WrongKey,
    /// A value cannot be opened: it was changed, moved, or replaced by plain text.
    #[error(
        "cannot be decrypted: a value was changed after it was encrypted; leave what kustomize reads or sets \
         (apiVersion, kind, metadata) in plain text, with encrypted_regex: ^(data|stringData)$"
    )]
    Changed,
    /// sops failed otherwise.
    #[error("cannot be decrypted: sops failed")]
    Failed,
    /// What came back is not what goes in its place.
    #[error("is not what it should be once decrypted")]
    Unexpected,
}

/// Opens what is encrypted among the objects of a build.
///
/// # Errors
/// [`RenderError::Encrypted`] names object and field. Nothing is returned half decrypted.
pub(super) async fn open(
    objects: Vec<Value>,
    sops: &Sops,
    identities: Option<&Identities>,
    limits: &RenderLimits,
) -> Result<Vec<Value>, RenderError> {
    // Every text of every object is looked at: work, though none of it waits for anything.
    let looked = blocking(move || {
        objects
            .into_iter()
            .enumerate()
            .map(look)
            .collect::<Result<Vec<_>, _>>()
    })
    .await?;
    let opened: Vec<Vec<Value>> = stream::iter(looked)
        .map(|found| found.open(sops, identities, limits))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(opened.into_iter().flatten().collect())
}

/// An object and what of it is encrypted.
struct Found {
    /// How it is called in errors.
    name: String,
    object: Value,
    sealed: Vec<Sealed>,
}

fn look((index, object): (usize, Value)) -> Result<Found, RenderError> {
    let name = name(index, &object);
    let encrypted = |(field, problem)| RenderError::Encrypted {
        object: name.clone(),
        field,
        problem,
    };
    let sealed = find::places(&object).map_err(encrypted)?;
    let object = if sealed.is_empty() {
        all_open(&name, object)?
    } else {
        object
    };
    Ok(Found { name, object, sealed })
}

/// The object, if no ciphertext is left in it.
fn all_open(name: &str, object: Value) -> Result<Value, RenderError> {
    match find::stray(&object) {
        None => Ok(object),
        Some(field) => Err(RenderError::Encrypted {
            object: name.to_owned(),
            field,
            problem: DecryptProblem::NoMetadata,
        }),
    }
}

impl Found {
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
        for Sealed { place, document } in sealed {
            let failed = |problem| RenderError::Encrypted {
                object: name.clone(),
                field: place.to_string(),
                problem,
            };
            let identities = identities.ok_or_else(|| failed(DecryptProblem::NoDecryption))?;
            let program = sops.program().ok_or_else(|| failed(DecryptProblem::NoSops))?;
            let opened = run::decrypt(program, &document, identities, limits).await;
            let opened = opened.map_err(|error| error.named(failed))?;
            let unexpected = || failed(DecryptProblem::Unexpected);
            if place == Place::Object {
                let objects = whole(&opened, limits).ok_or_else(unexpected)?;
                return objects
                    .into_iter()
                    .map(|object| all_open(&name, object))
                    .collect();
            }
            find::put(&mut object, &place, opened).ok_or_else(unexpected)?;
        }
        all_open(&name, object).map(|object| vec![object])
    }
}

/// The objects that a decrypted document holds: one, or those of a list.
fn whole(json: &[u8], limits: &RenderLimits) -> Option<Vec<Value>> {
    let document: Value = serde_json::from_slice(json).ok()?;
    manifest::objects(vec![document], "", limits.objects).ok()
}

/// An object for people; one whose name is encrypted too is known by its place only.
fn name(index: usize, object: &Value) -> String {
    match manifest::identity(object) {
        Ok(identity) if !cipher::is_value(&identity.key.name) && !cipher::is_value(&identity.key.kind) => {
            identity.key.to_string()
        }
        _ => format!("object {} of the render", index + 1),
    }
}
