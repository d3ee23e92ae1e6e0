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
#[cfg(test)]
mod fuzz;
mod identities;
mod run;
mod tool;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;
use starling_core::secret_values::SecretValues;

pub use identities::{Identities, IdentityError};
pub use tool::Sops;

use super::error::DecryptProblem;
use super::{RenderError, RenderLimits, blocking, manifest};
use find::{EncryptedPart, Location};

/// Concurrent programs for one render. Each takes about 30 ms of one core.
const AT_ONCE: usize = 2;

/// Decrypts the encrypted objects of a build.
///
/// # Errors
/// [`RenderError::Encrypted`] names object and field. Partially decrypted objects are never returned.
pub(super) async fn open(
    objects: Vec<Value>,
    sops: &Sops,
    identities: Option<&Identities>,
    limits: &RenderLimits,
) -> Result<(Vec<Value>, SecretValues), RenderError> {
    // Every string of every object is checked, which takes CPU time.
    let located = blocking(move || {
        objects
            .into_iter()
            .enumerate()
            .map(|(index, object)| find_parts(index, object))
            .collect::<Result<Vec<_>, _>>()
    })
    .await?;
    let opened: Vec<Opened> = stream::iter(located)
        .map(|found| found.open(sops, identities, limits))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let (mut objects, mut values) = (Vec::new(), Vec::new());
    for part in opened {
        objects.extend(part.objects);
        values.extend(part.values);
    }
    Ok((objects, SecretValues::new(values)))
}

/// Decrypted objects, and the values in them that were encrypted.
struct Opened {
    objects: Vec<Value>,
    values: Vec<String>,
}

/// Adds the texts and numbers of a decrypted document that are ciphertext in the encrypted one. What is encrypted as a
/// whole file (`data` of a Secret) is handled by its kind.
fn opened_values(encrypted: &Value, opened: &Value, values: &mut Vec<String>) {
    match (encrypted, opened) {
        (Value::Object(encrypted), Value::Object(opened)) => {
            for (key, value) in encrypted {
                if let Some(opened) = opened.get(key) {
                    opened_values(value, opened, values);
                }
            }
        }
        (Value::Array(encrypted), Value::Array(opened)) => {
            for (encrypted, opened) in encrypted.iter().zip(opened) {
                opened_values(encrypted, opened, values);
            }
        }
        (Value::String(text), Value::String(opened)) if cipher::is_value(text) => values.push(opened.clone()),
        (Value::String(text), Value::Number(opened)) if cipher::is_value(text) => {
            values.push(opened.to_string());
        }
        _ => {}
    }
}

/// An object and its encrypted parts.
struct Located {
    /// The name in errors.
    name: String,
    object: Value,
    sealed: Vec<EncryptedPart>,
}

fn find_parts(index: usize, object: Value) -> Result<Located, RenderError> {
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
    ) -> Result<Opened, RenderError> {
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
                let mut values = Vec::new();
                let whole: Value = serde_json::from_slice(&opened).map_err(|_| unexpected())?;
                opened_values(&object, &whole, &mut values);
                let objects = parse_objects(whole, limits).ok_or_else(unexpected)?;
                let objects = objects.into_iter().map(|object| ensure_decrypted(&name, object));
                return Ok(Opened {
                    objects: objects.collect::<Result<_, _>>()?,
                    values,
                });
            }
            find::put(&mut object, &location, opened).ok_or_else(unexpected)?;
        }
        Ok(Opened {
            objects: vec![ensure_decrypted(&name, object)?],
            values: Vec::new(),
        })
    }
}

/// Returns the objects of a decrypted document: one, or those of a list.
fn parse_objects(document: Value, limits: &RenderLimits) -> Option<Vec<Value>> {
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
